"""Plans of one server: `up` runs a plan once, or refuses it."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from pydantic import Field

from contracts.errors import CommandRefusedError
from engine.steps import PlannedStep
from scripts.agent.spending_limits import awake_or_not_s
from scripts.cli.plan_identity import PlanIdentity, plan_id_of

VALID_S: Final = 3600.0
_MOST_PLANS: Final = 50
_SHOWN_PLANS: Final = 5
_ID_DIGITS: Final = 16
PlanId = Annotated[str, Field(pattern=r"^plan-[0-9a-f]{16}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """A plan that `up` can run."""

    identity: PlanIdentity
    steps: Sequence[PlannedStep]
    refresh: bool
    """True if the preview refreshed from Google first."""
    usd_per_hour: float
    """Maximum price of the stack per hour after the change, with all its instances."""
    made_s: float
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """The files copied for the preview: path in the project -> hash."""
    used: bool = False

    @property
    def plan_id(self) -> str:
        """Short id of its validity and its steps."""
        return plan_id_of(self.identity, self.steps, refresh=self.refresh, usd_per_hour=self.usd_per_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCommand:
    """Dry run of another command, which that command can run."""

    command: str
    stack: str
    words: tuple[str, ...]
    """Its arguments."""
    shown: str
    """The command's own id of the dry run. With `--plan`, the command refuses anything else."""
    usd_per_hour_during: float | None
    """Maximum price of the stack per hour during the run; None if it does not change."""
    usd_per_hour_after: float | None
    made_s: float
    used: bool = False

    @property
    def plan_id(self) -> str:
        """Short id of the command, its arguments and its dry run."""
        text = json.dumps([self.command, self.words, self.shown])
        return f"plan-{hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS]}"


@dataclass(slots=True, kw_only=True)
class PlanStore:
    """The newest plans of this server."""

    maker: str = "preview"
    """The call that creates them."""
    clock: Callable[[], float] = awake_or_not_s
    _plans: dict[str, KeptPlan | KeptCommand] = field(default_factory=dict[str, KeptPlan | KeptCommand])

    def keep(self, plan: KeptPlan | KeptCommand) -> str:
        """Store a plan and return its id. An equal id replaces the stored plan."""
        self._plans.pop(plan.plan_id, None)
        self._plans[plan.plan_id] = plan
        for oldest in list(self._plans)[:-_MOST_PLANS]:
            del self._plans[oldest]
        return plan.plan_id

    def check(self, plan_id: str, now: PlanIdentity) -> KeptPlan:
        """Return a runnable plan, given the current identity.

        Raises CommandRefusedError if it is unknown, used, too old, or no longer valid.
        """
        plan = self.find(plan_id)
        self._require_fresh(plan, self.maker)
        changed = now.changed_since(plan.identity)
        if changed:
            raise CommandRefusedError(
                f"{plan_id} is stale: {' and '.join(changed)} after it was created. Create a new one with {self.maker} and review it."
            )
        return plan

    def take(self, plan_id: str, now: PlanIdentity) -> KeptPlan:
        """Check a plan and mark it as used."""
        plan = self.check(plan_id, now)
        self.use(plan_id)
        return plan

    def find(self, plan_id: str) -> KeptPlan:
        """Return a plan. Raises CommandRefusedError if this server has none with this id."""
        plan = self._found(plan_id, self.maker)
        if isinstance(plan, KeptCommand):
            raise CommandRefusedError(f"{plan_id} is a plan of {plan.command}, but up only runs plans of preview.")
        return plan

    def find_command(self, plan_id: str, command: str, words: Sequence[str]) -> KeptCommand:
        """Return a runnable plan of a command with these arguments. Raises CommandRefusedError if it is unknown, used or too old."""
        plan = self._found(plan_id, command)
        if not isinstance(plan, KeptCommand) or (plan.command, plan.words) != (command, tuple(words)):
            raise CommandRefusedError(
                f"{plan_id} is not a plan of {command} with these arguments. Call {command} with them and without plan_id, and review the answer."
            )
        self._require_fresh(plan, command)
        return plan

    def use(self, plan_id: str) -> None:
        """Mark a plan as used. A command compares its dry run again."""
        self._plans[plan_id] = replace(self._plans[plan_id], used=True)

    def _found(self, plan_id: str, maker: str) -> KeptPlan | KeptCommand:
        plan = self._plans.get(plan_id)
        if plan is None:
            known = ", ".join(list(self._plans)[-_SHOWN_PLANS:]) or "none"
            raise CommandRefusedError(
                f"Plan {plan_id[:60]!r} not found. Newest plans of this server: {known}. Create one with {maker}."
            )
        return plan

    def _require_fresh(self, plan: KeptPlan | KeptCommand, maker: str) -> None:
        if plan.used:
            raise CommandRefusedError(f"{plan.plan_id} was already run. Create a new one with {maker}.")
        age_s = self.clock() - plan.made_s
        if age_s > VALID_S:
            raise CommandRefusedError(f"{plan.plan_id} is {age_s / 60:.0f} min old. Create a new one with {maker}.")
