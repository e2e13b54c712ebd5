"""Effect, duration and cost of an `up`, from the engine's preview and the new settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemma_serving.contracts.capacity_states import WITHOUT_MACHINE
from gemma_serving.contracts.collector import COLLECTOR_METADATA_KEY
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.resource_types import CAPACITY_TYPE, SERVER_TYPES, SERVICE_TYPE
from gemma_serving.contracts.server_change import server_change
from gemma_serving.contracts.serving_document import REPOSITORIES_METADATA_KEY, SCRIPT_METADATA_KEY
from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import read_deployment, type_in
from gemma_serving.engine.previewed import steps_in
from gemma_serving.engine.state import of_deployment
from gemma_serving.engine.steps import ResourceChange
from gemma_serving.planning.cost.capacity_order import order_lines
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.scripts.preview.effects import HEADINGS, NEW_CAPACITY, StackEffect, consequences, permission
from gemma_serving.scripts.preview.plans import START, UNKNOWN_PROJECT, StackDescription, describe_stack
from gemma_serving.scripts.stack.costs import ServerCosts, at_most, changed_rate, planned_rate, recorded_costs
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.stacks.planned import to_question, today

_WITHOUT_RESTART: Final = (COLLECTOR_METADATA_KEY, REPOSITORIES_METADATA_KEY, SCRIPT_METADATA_KEY)
"""Metadata keys of a machine that the agent follows without its server, or reads at the next pull or boot."""
_END: Final = "state"
"""Output that the provider's diff names if the queued resource can never serve again, or does not serve yet."""
_PHASE: Final = "phase"
"""The same if the server of the settings is not ready, for example because an earlier wait was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcoming:
    """Effect and cost of an `up`."""

    sentences: Sequence[str]
    """The effect, the headline first."""
    cost: str
    """The price and everything that is billed besides it, as one sentence."""
    order: Sequence[str] = ()
    """A line for each form of capacity in the order in which they are requested; none if the capacity stays, or has one form."""
    endless_forms: Sequence[str] = ()
    """Forms of capacity in use, or that may be requested, and that Google does not end after a time."""


def upcoming(
    stack: str, preview: Mapping[str, object], changes: Sequence[ResourceChange], *, serves_nothing: bool = False
) -> Upcoming:
    """Return the effect of a preview in JSON, and its cost. `serves_nothing`: Google reports that no server is ready.

    Raises ScriptError if the state cannot be read, and CommandRefusedError or PlanningError for invalid settings.
    """
    folder = runner.project_folder()
    after = describe_stack(folder, stack, date=today())
    now, costs = deployed_stack(stack, preview)
    settings = stack_settings(stack, project=UNKNOWN_PROJECT, folder=folder)
    planned = plan(to_question(settings, folder))
    run = settings.cloud_run
    rate = planned_rate(planned.cost, None if run is None else (run.min_instances, run.max_instances))
    requests = _requests_capacity(changes)
    if costs is not None and not _makes_server(changes):
        keeps_capacity = not costs.is_service and run is None and not requests
        rate = changed_rate(costs, rate, stays=keeps_capacity)
    sentences = [f"{headline(stack, changes)}.", *_sentences(after, changes, compiles=_compiles(preview))]
    is_kept = not _makes_server(changes) and effect_of_changes(changes) in {"update", "restart", "revision"}
    if serves_nothing and is_kept and after.figures and not _awaited(changes):
        sentences = [f"{stack}: changes a stack that serves nothing. A start takes {after.figures[START]} (planned)."]
    return Upcoming(
        sentences=sentences,
        cost=_cost(planned, rate),
        order=tuple(order_lines(planned.cost.order)) if requests else (),
        endless_forms=planned.cost.endless_forms if requests or now is None else _endless_in_use(now, planned),
    )


def _requests_capacity(changes: Sequence[ResourceChange]) -> bool:
    """Return whether TPU capacity is requested: new, again, or by a wait that an earlier `up` began."""
    if _makes_server(changes) or effect_of_changes(changes) in {"capacity", "target"}:
        return True
    return _END in _updated_capacity(changes)


def _updated_capacity(changes: Sequence[ResourceChange]) -> set[str]:
    """Return the properties and outputs that an update of the capacity names."""
    return {name for one in changes if one.type == CAPACITY_TYPE and one.op == "update" for name in one.properties}


def _endless_in_use(now: StackOutputs, planned: Plan) -> Sequence[str]:
    """Return the form of capacity that stays, if Google does not end it."""
    if now.provisioning is None:
        return planned.cost.endless_forms
    return () if now.deadline else (now.provisioning,)


def _cost(planned: Plan, price: str) -> str:
    """Return what is billed: per hour, at most, and per month, each amount once."""
    cost, running = planned.cost, planned.running
    parts = [price, at_most(cost)] if cost.is_known else [price]
    if running.observability_usd_per_month:
        what = "alerts and metrics" if running.collects_metrics else "alerts"
        parts.append(f"up to ${running.observability_usd_per_month:.2f} per month for {what}")
    if len(parts) == 1:
        return f"{price}."
    return f"{', '.join(parts[:-1])}{',' if len(parts) > 2 else ''} and {parts[-1]}."  # noqa: PLR2004 - a list of three


def headline(stack: str, changes: Sequence[ResourceChange]) -> str:
    """Return the effect in the words of the pull request comment."""
    made, effect = _makes_server(changes), effect_of_changes(changes)
    if made:
        return f"{stack}: {'requests TPU capacity' if made == CAPACITY_TYPE else 'creates the service'}"
    awaited = _awaited(changes)
    if awaited == _END:
        return f"{stack}: nothing serves until its capacity is ACTIVE"
    if awaited and effect == "update":
        return f"{stack}: waits until its server is ready"
    forced = dict.fromkeys(name for change in changes if change.is_disruptive for name in change.forced_by)
    return f"{stack}: {HEADINGS[effect]}" + (f", forced by {', '.join(forced)}" if forced else "")


def effect_of_changes(changes: Sequence[ResourceChange]) -> StackEffect:
    """Return the strongest effect of the changes on running resources."""
    lost = {change.type for change in changes if change.is_disruptive and not _comes_back(change)}
    made = {change.type for change in changes if change.op == "create"}
    if (CAPACITY_TYPE in lost and SERVICE_TYPE in made) or (SERVICE_TYPE in lost and CAPACITY_TYPE in made):
        return "target"
    if lost:
        return "capacity" if CAPACITY_TYPE in lost else "service"
    updated = {(change.type, name) for change in changes if change.op == "update" for name in change.properties}
    if (CAPACITY_TYPE, "metadata") in updated and not all(map(_keeps_server, changes)):
        return "restart"
    if (SERVICE_TYPE, "template") in updated:
        return "revision"
    return "update" if changes else "nothing"


def _makes_server(changes: Sequence[ResourceChange]) -> str | None:
    """Return the type of the serving resource that the changes create, also after its end, or None if they move to another target."""
    made = [
        change.type
        for change in changes
        if (change.op == "create" and change.type in SERVER_TYPES) or _comes_back(change)
    ]
    return made[0] if made and effect_of_changes(changes) != "target" else None


def _awaited(changes: Sequence[ResourceChange]) -> str:
    """Return the output of the capacity that an update waits for, because an earlier `up` did not reach it; else an empty string."""
    updated = _updated_capacity(changes)
    return next((name for name in (_END, _PHASE) if name in updated), "")


def _comes_back(change: ResourceChange) -> bool:
    """Return whether capacity that ended is requested again."""
    return change.type == CAPACITY_TYPE and change.op == "replace" and _END in change.forced_by


def _keeps_server(change: ResourceChange) -> bool:
    """Return whether no metadata of the TPU VM changes but keys that restart no server."""
    if change.type != CAPACITY_TYPE or "metadata" not in change.properties:
        return True
    paths = [shown.path for shown in change.changes if shown.path.startswith("metadata")]
    return (
        change.changes_left_out == 0
        and bool(paths)
        and all(any(key in path for key in _WITHOUT_RESTART) for path in paths)
    )


def deployed_stack(stack: str, preview: Mapping[str, object]) -> tuple[StackOutputs | None, ServerCosts | None]:
    """Return the outputs and the costs of a stack as of its last `up`; the outputs are None if another version of the project deployed it.

    The costs of a server that the preview changes are those before the change, as Google reported it to a refresh. Both None without a server.
    Raises ScriptError if the state cannot be read.
    """
    try:
        state = of_deployment(stack, read_deployment(stack))
        before = {step.get("urn"): as_mapping(step.get("oldState")) for step in steps_in(preview)}
        state = replace(state, resources=[before.get(item.get("urn")) or item for item in state.resources])
    except CommandRefusedError:
        return None, None
    is_waiting = state.outputs is not None and state.outputs.state in WITHOUT_MACHINE
    costs = recorded_costs(state, "waiting" if is_waiting else "running")
    return state.outputs, next(iter(costs), None)


def _sentences(after: StackDescription, changes: Sequence[ResourceChange], *, compiles: bool | None) -> Iterator[str]:
    if not after.figures:
        return
    made, effect = _makes_server(changes), effect_of_changes(changes)
    if not made and effect in {"capacity", "target"}:
        yield permission(after)
    if after.is_tpu and (made or effect in {"capacity", "target"}):
        yield NEW_CAPACITY.partition(". ")[0] + "." if made else NEW_CAPACITY
    if not made and effect == "service":
        yield "The old service and its URL are deleted."
    if effect == "update" and _awaited(changes):
        return  # no server answers, or an earlier one
    of_server: StackEffect = "capacity" if made else effect
    yield from consequences(of_server, after, compiles=compiles)


def _compiles(preview: Mapping[str, object]) -> bool | None:
    """Return whether a server that is updated in place compiles again; None if its change is unknown, as after a new secret."""
    for step in steps_in(preview):
        kind = type_in(str(step.get("urn") or ""))
        if kind in SERVER_TYPES and step.get("op") == "update":
            before = as_mapping(as_mapping(step.get("oldState")).get("inputs"))
            after = as_mapping(as_mapping(step.get("newState")).get("inputs"))
            change = server_change(kind, before, after)
            return None if change is None else change.compiles
    return False
