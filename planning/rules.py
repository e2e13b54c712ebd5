"""All rules: the findings of a subject, with remedies that were tried, and the ids that settings may name."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from planning import rules_memory, rules_platform  # importing them registers their rules
from planning.errors import PlanningError
from planning.fields import changed
from planning.registry import REGISTRY, Rule, RuleResult
from planning.subject import Subject, examine
from planning.types import Finding, Remedy, Severity

__all__ = ["ACCEPTABLE_IDS", "RULES", "RULE_IDS", "check_accepted", "findings_of", "rules_memory", "rules_platform"]

RULES: Mapping[str, Rule] = REGISTRY
RULE_IDS = tuple(RULES)
ACCEPTABLE_IDS = tuple(rule.id for rule in RULES.values() if rule.is_acceptable)

_ORDER: Mapping[Severity, int] = {"block": 0, "warn": 1, "info": 2}
_SHOWN = {("accelerator", True): 3, ("accelerator", False): 2, ("model", True): 2, ("model", False): 2}
"""Moves that a finding shows, by what they replace and by whether this project can deploy the result."""
_CENT = 0.005


def check_accepted(ids: Iterable[str]) -> str | None:
    """Return what is wrong with a list of accepted findings, as one sentence without a full stop; None if nothing is."""
    for identifier in ids:
        if identifier not in RULES:
            return f'"{identifier}" is the id of no finding; those that can be accepted are {", ".join(ACCEPTABLE_IDS)}'
        if identifier not in ACCEPTABLE_IDS:
            return f"{identifier} ({RULES[identifier].what}) cannot be accepted; remove it and change the deployment"
    return None


def findings_of(subject: Subject) -> tuple[Finding, ...]:
    """Return everything that was found, blocking findings first."""
    found = tuple(_results(subject))
    blocking = frozenset(_blocking(found))
    findings = [
        Finding(
            id=rule.id,
            severity=_severity(rule, result),
            message=result.message,
            remedies=tuple(_tried(rule, result, subject, blocking)),
            advice=result.advice,
            source=rule.source,
        )
        for rule, result in found
    ]
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.severity]))


def _results(subject: Subject) -> Iterator[tuple[Rule, RuleResult]]:
    for rule in RULES.values():
        result = rule.check(subject)
        if result is not None:
            yield rule, result


def _severity(rule: Rule, result: RuleResult) -> Severity:
    return result.severity or rule.severities[0]


def _blocking(found: Iterable[tuple[Rule, RuleResult]]) -> Iterator[str]:
    return (rule.id for rule, result in found if _severity(rule, result) == "block")


def _tried(rule: Rule, result: RuleResult, subject: Subject, blocking: frozenset[str]) -> Iterator[Remedy]:
    """Yield the candidates that keep what a remedy promises, with their prices; of moves only as many as people read."""
    shown: Counter[tuple[str, bool]] = Counter()
    titles: set[str] = set()
    for candidate in result.remedies:
        group = (candidate.move or "", candidate.is_deployable)
        if candidate.title in titles or shown[group] >= _SHOWN.get(group, 1):
            continue
        remedy = _try(candidate, rule, subject, blocking)
        if remedy is None:
            continue
        if remedy.move is not None:
            shown[group] += 1
            titles.add(remedy.title)
        yield remedy


def _try(candidate: Remedy, rule: Rule, subject: Subject, blocking: frozenset[str]) -> Remedy | None:
    """Return the candidate with its price; None if it is no remedy.

    A remedy removes its finding and adds none that blocks. A move also has to fit as a whole.
    """
    deployment = subject.resolved.deployment
    try:
        after = examine(changed(deployment, candidate.changes))
    except PlanningError:
        return None
    found = tuple(_results(after))
    still = frozenset(_blocking(found))
    accepted = frozenset(deployment.accept_findings) & frozenset(ACCEPTABLE_IDS)
    if any(other.id == rule.id for other, _ in found) or still - blocking:
        return None
    if candidate.move is not None and still - accepted:
        return None
    usd_per_hour, extra = after.cost.usd_per_hour, after.cost.usd_per_hour - subject.cost.usd_per_hour
    is_priced = candidate.move is not None or abs(extra) >= _CENT
    if not is_priced:
        return candidate
    return replace(candidate, usd_per_hour=usd_per_hour, extra_usd_per_hour=extra)
