"""How a rule is written: one decorated function that looks at a subject and returns what it found, or None."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planning.cost.subject import Subject
from planning.question.types import Remedy, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleResult:
    """What a rule found. `remedies` are candidates; they are only read, and tried, where somebody asks for remedies."""

    message: str
    remedies: Iterable[Remedy] = ()
    last_resorts: Iterable[Remedy] = ()
    """Candidates that are tried if none of `remedies` is one."""
    advice: str = ""
    severity: Severity | None = None
    """Of this result, for a rule with more than one severity; None takes the rule's first."""
    source: str = ""
    """Of this result, where it has one of its own; empty takes the rule's."""


def change(path: str, value: object) -> Remedy:
    """Return a remedy that changes one field."""
    return Remedy(changes={path: value})


Check = Callable[[Subject], RuleResult | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule as the registry keeps it."""

    id: str
    severities: tuple[Severity, ...]
    source: str
    what: str
    """What the rule finds, in one line."""
    is_acceptable: bool
    """Whether `acceptFindings` may name it."""
    check: Check


REGISTRY: dict[str, Rule] = {}
"""Rules by id, in the order of their declaration, which is the order of findings of one severity."""


def rule(
    identifier: str, *severities: Severity, source: str, what: str, is_acceptable: bool = True
) -> Callable[[Check], Check]:
    """Register a function as a rule. Raises ValueError if the id is taken."""

    def register(check: Check) -> Check:
        if identifier in REGISTRY:
            raise ValueError(f"two rules have the id {identifier}")
        REGISTRY[identifier] = Rule(
            id=identifier, severities=severities, source=source, what=what, is_acceptable=is_acceptable, check=check
        )
        return check

    return register


def id_of(check: Check) -> str:
    """Return the id of the rule that a function is. Raises StopIteration for a function that is no rule."""
    return next(known.id for known in REGISTRY.values() if known.check is check)
