"""What a change of the settings and the engine's preview of it mean for a stack, as text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.resource_types import CAPACITY_TYPE
from contracts.server_change import ChangedValue
from scripts.cli.markdown import code, plain
from scripts.preview.effects import (
    HEADINGS,
    NEW_CAPACITY,
    PROJECT,
    TRAFFIC,
    ZONES,
    StackEffect,
    changed_values,
    consequences,
    effect_of,
    moved_traffic,
    permission,
    removed_zones,
    replacing,
    rolls_out,
    weights_to_stage,
    zones_of,
)
from scripts.preview.plans import HOURLY, DescribedFinding, PlansDocument, StackDescription
from scripts.preview.run import StackPreview


@dataclass(frozen=True, slots=True, kw_only=True)
class StackVerdict:
    """One stack before and after, None if a checkout does not have it, and the engine's preview, None if there is none."""

    stack: str
    before: StackDescription | None
    after: StackDescription | None
    preview: StackPreview | None = None

    @property
    def is_same(self) -> bool:
        """True if the stack's settings and plan are equal. A finding that differs only in wording counts as equal."""
        before, after = self.before, self.after
        return before is not None and after is not None and _compared(before) == _compared(after)

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
    def new_findings(self) -> tuple[DescribedFinding, ...]:
        """Findings that only the new plan has, or that block only now."""
        known = {_state(finding) for finding in (self.before.findings if self.before else ())}
        return tuple(one for one in (self.after.findings if self.after else ()) if _state(one) not in known)

    @property
    def gone_findings(self) -> tuple[DescribedFinding, ...]:
        """Findings that the new plan no longer has."""
        kept = {finding.id for finding in (self.after.findings if self.after else ())}
        return tuple(one for one in (self.before.findings if self.before else ()) if one.id not in kept)

    @property
    def real(self) -> StackPreview | None:
        """The engine's preview of the deployed stack. None if it is missing, failed, or used an empty cloud."""
        preview = self.preview
        usable = preview is not None and preview.error is None and not preview.simulated and not preview.new_stack
        return preview if usable else None

    @property
    def changed_effect(self) -> StackEffect:
        """Effect of the changed settings, without the engine."""
        return effect_of(self.before, self.after) if self.before and self.after else "nothing"

    @property
    def effect(self) -> StackEffect:  # noqa: PLR0911 - one each
        """Effect on the stack. Only the engine knows the zone in use; only the settings show the reasons."""
        before, after, changed = self.before, self.after, self.changed_effect
        if after is None:
            return "removed"
        if after.error is not None or after.stopping:
            return "blocked"
        if before is None:
            return "new"
        capacity = [change for change in (self.real.changes if self.real else ()) if change.type == CAPACITY_TYPE]
        if any(change.is_disruptive for change in capacity):
            return "capacity"
        if self.is_same:
            redeclared = self.preview is not None and self.preview.against_base and self.preview.changes
            return "redeclared" if redeclared else "nothing"
        if before.is_tpu and any(change.op == "create" for change in capacity):
            return "undeployed"
        if changed == "capacity" and self.real:
            return "kept"
        if changed == "capacity" and all(one.key == ZONES for one in replacing(before, after)):
            return "at risk"
        return "capacity" if changed == "target" and before.is_tpu else changed

    @property
    def is_loud(self) -> bool:
        """True if reviewers must see it first."""
        return self.effect in {"blocked", "removed", "capacity", "at risk", "service", "target"}

    @property
    def is_quiet(self) -> bool:
        """True if the stack needs no separate section."""
        return self.effect == "nothing" and self.is_same

    @property
    def heading(self) -> str:
        """The effect in a few words."""
        is_other = self.before and self.after and any(change.key == "model" for change in self.flags)
        others = "changes the model, " if is_other and self.effect != "blocked" else ""
        return others + HEADINGS[self.effect]

    def warning(self) -> str:
        """Return the warning for a loud stack."""
        name, before, after = code(self.stack), self.before, self.after
        if after is None:
            return self._removal()
        if self.effect == "blocked":
            ids = ", ".join(finding.id for finding in after.stopping)
            blocks = f"{ids} {'block' if len(after.stopping) > 1 else 'blocks'} it."
            return f"{name} cannot be deployed: {plain(after.error.splitlines()[0]) if after.error else blocks}"
        if self.effect == "capacity":
            return f"{name} releases its running TPU capacity{self._because()}. {permission(after)} {NEW_CAPACITY}"
        if self.effect == "at risk" and before:
            gone = ", ".join(removed_zones(before, after))
            return (
                f"{name} releases its TPU capacity if it is in {gone}, which {code(ZONES)} no longer lists. "
                f"{permission(after)} {NEW_CAPACITY}"
            )
        return (
            f"{name} {HEADINGS[self.effect]}{self._because()}. The old one and its URL are deleted. "
            "A bucket of the stack is also replaced, and its weights are deleted."
        )

    def sentences(self) -> Iterator[str]:
        """Yield notes in addition to the metrics, one sentence each."""
        before, after, effect = self.before, self.after, self.effect
        if after is None or after.error is not None:
            return
        if before is None:
            yield f"After the merge, {code(f'pulumi stack init {self.stack}')} and the `deploy` workflow create it."
        elif effect == "undeployed":
            yield "The stack is not deployed, so nothing that runs is lost."
        elif effect != "blocked" and after.figures:
            yield from self._effects(before, after)
        for reason in weights_to_stage(before, after):
            yield f"Stage the weights before `up` because {reason}: {code(f'gemma stage_model {self.stack}')}."

    def _effects(self, before: StackDescription, after: StackDescription) -> Iterator[str]:
        keys = [change.key for change in (*self.flags, *self.settings)]
        compiles = any(key == "model" or key.startswith("image.") for key in keys)
        yield from consequences(self.effect, after, compiles=compiles)
        yield from moved_traffic(after, before.settings.get(TRAFFIC), rolled_out=rolls_out(before))
        if zones_of(before) != zones_of(after) and before.is_tpu and self.effect != "capacity":
            stays = "capacity in another zone stays" if self.effect == "at risk" else "running capacity stays"
            yield f"{code(ZONES)} takes effect at the next creation; {stays}."
        if (PROJECT in before.settings) != (PROJECT in after.settings):
            yield f"Only one side sets {code(PROJECT)}, so the comment assumes that the project stays the same."

    def _removal(self) -> str:
        before = self.before
        price = f" at {before.figures[HOURLY].text}/h" if before and before.figures else ""
        tpu = " and release its TPU capacity" if before and before.is_tpu else ""
        return (
            f"{code(self.stack)} no longer has a settings file. This deletes nothing. A deployed stack keeps running{price}, without limits "
            f"or reviews. To delete it{tpu}, run {code(f'gemma teardown {self.stack}')}."
        )

    def _because(self) -> str:
        if self.before and self.after and (reasons := replacing(self.before, self.after)):
            words = [
                f"{code(one.key)} {code(one.before or 'not set')} → {code(one.after or 'not set')}" for one in reasons
            ]
            return f": {', '.join(words)}"
        changes = [one for one in (self.real.changes if self.real else ()) if one.type == CAPACITY_TYPE]
        forced = [code(name) for change in changes if change.is_disruptive for name in change.forced_by]
        return f", forced by {', '.join(forced)}" if forced else ""


def verdicts(base: PlansDocument, head: PlansDocument, previews: Sequence[StackPreview] = ()) -> Sequence[StackVerdict]:
    """Return every stack of both checkouts, sorted by name, with the engine's previews."""
    before, after = base.by_name, head.by_name
    engines = {preview.stack: preview for preview in previews}
    return [
        StackVerdict(stack=name, before=before.get(name), after=after.get(name), preview=engines.get(name))
        for name in sorted({*before, *after})
    ]


def _compared(described: StackDescription) -> tuple[object, ...]:
    findings = tuple(_state(finding) for finding in described.findings)
    return described.settings, described.flags, described.environment, described.figures, findings, described.error


def _state(finding: DescribedFinding) -> tuple[str, str, bool]:
    return finding.id, finding.severity, finding.accepted
