"""Registry of rules. A rule is a decorated function that takes a subject and returns its result, or None."""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from planning.cost.subject import Subject
from planning.question.types import Remedy, Severity

Platform = Literal["tpu", "cloud-run"]


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Result of a rule. `remedies` are candidates, read and tested only when remedies are requested."""

    message: str
    _: KW_ONLY
    remedies: Iterable[Remedy] = ()
    last_resorts: Iterable[Remedy] = ()
    """Candidates that are tried if none of `remedies` qualifies."""
    advice: str = ""
    severity: Severity | None = None
    """Severity of this result, for a rule with more than one; None uses the rule's first."""
    source: str = ""
    """Source of this result, if it differs from the rule's; empty uses the rule's."""


def change(path: str, value: object) -> Remedy:
    """Return a remedy that changes one field."""
    return Remedy(changes={path: value})


Check = Callable[[Subject], RuleResult | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A registered rule."""

    id: str
    severities: tuple[Severity, ...]
    source: str
    what: str
    """Title: what the rule finds, as a noun clause."""
    is_acceptable: bool
    """True if `acceptFindings` may name it."""
    is_choice: bool
    """True if its warning is about a choice of the user, not a risk of failure: a search weighs it against the price."""
    on: Platform | None
    """The only platform on which it is checked; None for all."""
    check: Check

    def result(self, subject: Subject) -> RuleResult | None:
        """Return what the rule finds; None if it finds nothing, or if the deployment is on another platform."""
        resolved = subject.resolved
        here = resolved.is_tpu if self.on == "tpu" else resolved.platform == self.on
        return self.check(subject) if self.on is None or here else None


REGISTRY: dict[str, Rule] = {}
"""Rules by id, in the order of their declaration, which is the order of findings of one severity."""


def rule(
    identifier: str,
    *severities: Severity,
    source: str,
    what: str,
    on: Platform | None = None,
    is_acceptable: bool = True,
    is_choice: bool = False,
) -> Callable[[Check], Check]:
    """Register a function as a rule. Raises ValueError if the id is in use."""

    def register(check: Check) -> Check:
        if identifier in REGISTRY:
            raise ValueError(f"two rules have the id {identifier}")
        REGISTRY[identifier] = Rule(
            id=identifier,
            severities=severities,
            source=source,
            what=what,
            on=on,
            is_acceptable=is_acceptable,
            is_choice=is_choice,
            check=check,
        )
        return check

    return register
