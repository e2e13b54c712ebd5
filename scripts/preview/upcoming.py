"""What an `up` will do to a deployed stack: effect, duration and cost, from the engine's preview and the new settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from contracts.fields import as_mapping
from contracts.outputs import StackOutputs
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from contracts.server_change import ServerChange, server_change
from engine import runner
from engine.changes import ResourceChange
from engine.deployment import type_in
from engine.previewed import steps_in
from scripts.cli.frozen import most_usd_per_hour
from scripts.cli.settings import stack_settings
from scripts.preview.consequences import NEW_CAPACITY, Consequences, is_tpu, permission
from scripts.preview.effects import StackEffect
from scripts.preview.headline import deployed_stack, effect_of_changes, headline, makes_server
from scripts.preview.plans import UNKNOWN_PROJECT, DescribedPlan, StackDescription, describe_stack
from stacks.planned import today


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """The effect in sentences for a terminal, and the prices."""

    headline: str
    sentences: tuple[str, ...]
    cost: str


def upcoming(stack: str, preview: Mapping[str, object], changes: Sequence[ResourceChange]) -> Upcoming:
    """Return what the changes of a preview in JSON do.

    Raises ScriptError if the state cannot be read, and CommandRefusedError or PlanningError for invalid settings.
    """
    folder = runner.project_folder()
    after = describe_stack(folder, stack, date=today())
    now = deployed_stack(stack)
    effect: StackEffect | None = None if makes_server(changes) else effect_of_changes(changes)
    most = most_usd_per_hour(stack_settings(stack, project=UNKNOWN_PROJECT, folder=folder), folder)
    return Upcoming(
        headline=headline(stack, changes),
        sentences=tuple(
            _sentences(stack, effect, after, now=now.outputs if now else None, change=_server_change(preview))
        ),
        cost=_cost(most, now.usd_per_hour if now else None, after.plan),
    )


def _sentences(
    stack: str,
    effect: StackEffect | None,
    after: StackDescription,
    *,
    now: StackOutputs | None,
    change: ServerChange | None,
) -> Iterator[str]:
    plan = after.plan
    if plan is None:
        return
    if effect in {"capacity", "target"}:
        yield permission(after)
    if is_tpu(after) and effect in {None, "capacity", "target"}:
        yield NEW_CAPACITY if effect else NEW_CAPACITY.partition(". ")[0] + "."
    if effect == "service":
        yield "The old service and its URL are deleted."
    rollout = now.rollout if now else None
    shares = rollout.traffic if rollout else None
    yield from Consequences(
        stack=stack,
        effect=effect or "capacity",
        after=after,
        plan=plan,
        compiles=change is not None and change.compiles,
        rolled_out=rollout is not None,
        shares=", ".join(f"{name}: {percent}" for name, percent in shares.items()) if shares else None,
    ).sentences(_quoted)


def _server_change(preview: Mapping[str, object]) -> ServerChange | None:
    """Return what changes about the server that is updated in place. None if none is, or if it is known only during `up`."""
    for step in steps_in(preview):
        kind = type_in(str(step.get("urn") or ""))
        if kind in {CAPACITY_TYPE, SERVICE_TYPE} and step.get("op") == "update":
            before, after = (as_mapping(as_mapping(step.get(key)).get("inputs")) for key in ("oldState", "newState"))
            return server_change(kind, before, after)
    return None


def _cost(usd_per_hour: float, usd_per_hour_now: float | None, plan: DescribedPlan | None) -> str:
    price = f"${usd_per_hour:.2f}/h maximum"
    if usd_per_hour_now is not None:
        same = f"{usd_per_hour_now:.2f}" == f"{usd_per_hour:.2f}"
        price = f"{price}, as now" if same else f"${usd_per_hour_now:.2f}/h now, {price} after"
    return f"{price}. ${plan.max_usd:,.2f} at most for {plan.max_usd_basis}." if plan else f"{price}."


def _quoted(text: str) -> str:
    return f"`{text}`"
