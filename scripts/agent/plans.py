"""The plans of one server: `up` runs a plan once, or refuses it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from scripts.agent.purse import awake_or_not_s
from scripts.errors import CommandRefusedError
from scripts.pulumi.identity import PlanIdentity, plan_id_of
from scripts.pulumi.steps import PlannedStep

VALID_S: Final = 3600.0
_MOST_PLANS: Final = 50
_SHOWN_PLANS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """A plan that `up` can run."""

    identity: PlanIdentity
    steps: Sequence[PlannedStep]
    refresh: bool
    """Whether the preview compared with Google first."""
    usd_per_hour: float
    """The most that the stack costs an hour afterwards: all instances that it may have."""
    made_s: float
    used: bool = False

    @property
    def plan_id(self) -> str:
        """A short name of what it holds for and what it would do."""
        return plan_id_of(self.identity, self.steps, refresh=self.refresh, usd_per_hour=self.usd_per_hour)


@dataclass(slots=True, kw_only=True)
class PlanShelf:
    """The newest plans of this server."""

    clock: Callable[[], float] = awake_or_not_s
    _plans: dict[str, KeptPlan] = field(default_factory=dict[str, KeptPlan])

    def keep(self, plan: KeptPlan) -> str:
        """Keep a plan and return its id. The same id again replaces it."""
        self._plans.pop(plan.plan_id, None)
        self._plans[plan.plan_id] = plan
        for oldest in list(self._plans)[:-_MOST_PLANS]:
            del self._plans[oldest]
        return plan.plan_id

    def check(self, plan_id: str, now: PlanIdentity) -> KeptPlan:
        """Return a plan that may be run, if `now` is what holds at this moment.

        Raises CommandRefusedError if it is unknown, used, too old, or does not hold any more.
        """
        plan = self.find(plan_id)
        if plan.used:
            raise CommandRefusedError(f"{plan_id} has been run already; make a new one with preview.")
        age_s = self.clock() - plan.made_s
        if age_s > VALID_S:
            raise CommandRefusedError(f"{plan_id} is {age_s / 60:.0f} min old; make a new one with preview.")
        changed = now.changed_since(plan.identity)
        if changed:
            raise CommandRefusedError(
                f"{plan_id} is stale: {' and '.join(changed)} after it was made. Make a new one with preview, and read it."
            )
        return plan

    def take(self, plan_id: str, now: PlanIdentity) -> KeptPlan:
        """Check a plan, and mark it as used."""
        plan = self.check(plan_id, now)
        self._plans[plan_id] = replace(plan, used=True)
        return plan

    def find(self, plan_id: str) -> KeptPlan:
        """Return a plan. Raises CommandRefusedError if this server made none of this id."""
        plan = self._plans.get(plan_id)
        if plan is None:
            known = ", ".join(list(self._plans)[-_SHOWN_PLANS:]) or "none"
            raise CommandRefusedError(
                f"There is no plan {plan_id[:60]!r}; the newest of this server are: {known}. Make one with preview."
            )
        return plan
