"""Rules: a row of gemma_serving/planning/data/rules.json each, and a decorated function that takes a subject and returns its result, or None."""

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from gemma_serving.contracts.verdicts import Severity
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.tables import Table, typed_file
from gemma_serving.planning.settings.finding import Remedy

Platform = Literal["tpu", "cloud-run"]


class RuleResult(Struct, frozen=True):
    """Result of a rule. `remedies` are candidates, read and tested only when remedies are requested."""

    message: str
    remedies: Iterable[Remedy] = ()
    last_resorts: Iterable[Remedy] = ()
    """Candidates that are tried if no member of `remedies` qualifies."""
    advice: str = ""
    severity: Severity | None = None
    """Severity of this result, for a rule with more than one; None uses the rule's first."""
    source: str = ""
    """Source of this result, if it differs from the rule's; empty uses the rule's."""


def change(path: str, value: object) -> Remedy:
    """Return a remedy that changes one field."""
    return Remedy(changes={path: value})


def instance_size(vcpu: float, memory_gib: float) -> dict[str, object]:
    """Return the changes to another size of a Cloud Run instance."""
    return {"cloud_run.cpu": round(vcpu), "cloud_run.memory_mib": round(memory_gib * 1024)}


Check = Callable[[Subject], RuleResult | None]
_CHECKS: dict[str, Check] = {}


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of a rule without a deployment."""

    id: str
    severities: tuple[Severity, ...]
    what: str
    """Title: the rule's finding, as a noun clause."""
    why: str
    """Why it matters, whatever the deployment is, as sentences."""
    source: str
    on: Platform | None = None
    """The only platform on which it is checked; None for all."""
    is_acceptable: bool = True
    """True if `acceptFindings` may name it."""
    is_choice: bool = False
    """True if its warning is about a choice of the user, not a risk of failure: a search weighs it against the price."""

    def result(self, subject: Subject) -> RuleResult | None:
        """Return the rule's finding; None without one, or if the deployment is on another platform."""
        resolved = subject.resolved
        here = resolved.is_tpu if self.on == "tpu" else resolved.platform == self.on
        return _CHECKS[self.id](subject) if self.on is None or here else None


RULES: Table[Rule] = Table(lambda: {row.id: row for row in typed_file("rules.json", tuple[Rule, ...])})
"""By id, in the order of findings of one severity: a deployment that does not fit before misspelled arguments."""


def rule(identifier: str) -> Callable[[Check], Check]:
    """Register a function as the check of a rule."""

    def register(check: Check) -> Check:
        _CHECKS[identifier] = check
        return check

    return register
