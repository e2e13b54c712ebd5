"""Registry of rules. A rule is a decorated function that takes a subject and returns its result, or None."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planning.cost.subject import Subject
from planning.question.types import Remedy, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """Result of a rule. `remedies` are candidates, read and tested only when remedies are requested."""

    message: str
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
    check: Check


REGISTRY: dict[str, Rule] = {}
"""Rules by id, in the order of their declaration, which is the order of findings of one severity."""


def rule(
    identifier: str,
    *severities: Severity,
    source: str,
    what: str,
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
            is_acceptable=is_acceptable,
            is_choice=is_choice,
            check=check,
        )
        return check

    return register


def id_of(check: Check) -> str:
    """Return the id of the rule that a function implements. Raises StopIteration for any other function."""
    return next(known.id for known in REGISTRY.values() if known.check is check)
