"""Differences between the plans of two checkouts, by stack."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.server_change import ChangedValue
from scripts.preview.effects import StackEffect, changed_values, effect_of
from scripts.preview.plans import DescribedFinding, PlansDocument, StackDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDifference:
    """One stack before and after. None if a checkout does not have it."""

    stack: str
    before: StackDescription | None
    after: StackDescription | None

    @property
    def is_new(self) -> bool:
        """True if only the new settings have the stack."""
        return self.before is None

    @property
    def is_removed(self) -> bool:
        """True if only the old settings have the stack."""
        return self.after is None

    @property
    def is_same(self) -> bool:
        """True if the stack's settings and plan are equal. A finding that differs only in wording counts as equal."""
        before, after = self.before, self.after
        return before is not None and after is not None and _compared(before) == _compared(after)

    @property
    def effect(self) -> StackEffect:
        """Effect of the change on running resources; `nothing` for a new or removed stack."""
        return effect_of(self.before, self.after) if self.before and self.after else "nothing"

    @property
    def flags(self) -> tuple[ChangedValue, ...]:
        """VLLM arguments that differ."""
        return changed_values(self.before.flags if self.before else {}, self.after.flags if self.after else {})

    @property
    def settings(self) -> tuple[ChangedValue, ...]:
        """Settings that differ, except the model, which is a flag."""
        found = changed_values(self.before.settings if self.before else {}, self.after.settings if self.after else {})
        return tuple(change for change in found if change.key != "model")

    @property
    def environment(self) -> tuple[ChangedValue, ...]:
        """Environment variables of the server that differ."""
        before, after = self.before, self.after
        return changed_values(before.environment if before else {}, after.environment if after else {})

    @property
    def new_findings(self) -> tuple[DescribedFinding, ...]:
        """Findings that only the new plan has, or that block only now."""
        known = _states(self.before)
        return tuple(f for f in (self.after.findings if self.after else ()) if _state(f) not in known)

    @property
    def gone_findings(self) -> tuple[DescribedFinding, ...]:
        """Findings that the new plan no longer has."""
        kept = {finding.id for finding in (self.after.findings if self.after else ())}
        return tuple(f for f in (self.before.findings if self.before else ()) if f.id not in kept)

    @property
    def blocked(self) -> bool:
        """True if the new settings cannot be deployed."""
        return self.after is not None and (self.after.error is not None or bool(self.after.stopping))


def differences(base: PlansDocument, head: PlansDocument) -> Sequence[StackDifference]:
    """Return every stack of both checkouts, sorted by name."""
    before, after = base.by_name, head.by_name
    return [
        StackDifference(stack=name, before=before.get(name), after=after.get(name))
        for name in sorted({*before, *after})
    ]


def _compared(described: StackDescription) -> tuple[object, ...]:
    findings = tuple(_state(finding) for finding in described.findings)
    return described.settings, described.flags, described.environment, described.plan, findings, described.error


def _states(described: StackDescription | None) -> set[tuple[str, str, bool]]:
    return {_state(finding) for finding in (described.findings if described else ())}


def _state(finding: DescribedFinding) -> tuple[str, str, bool]:
    return finding.id, finding.severity, finding.accepted
