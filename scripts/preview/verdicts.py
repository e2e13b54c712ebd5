"""What a change of the settings and the engine's preview of it mean for a stack, as text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.resource_types import CAPACITY_TYPE
from contracts.server_change import ChangedValue
from engine.changes import ResourceChange
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
    """One stack before and after, and the engine's preview, None if there is none.

    A checkout without the stack has an empty description: a new stack `before`, a removed one `after`.
    """

    stack: str
    before: StackDescription
    after: StackDescription
    is_new: bool = False
    is_removed: bool = False
    preview: StackPreview | None = None

    @property
    def is_same(self) -> bool:
        """True if settings and plan are equal, but for the wording of findings."""
        return _compared(self.before) == _compared(self.after)

    @property
    def flags(self) -> tuple[ChangedValue, ...]:
        """VLLM arguments that differ."""
        return changed_values(self.before.flags, self.after.flags)

    @property
    def settings(self) -> tuple[ChangedValue, ...]:
        """Settings that differ, except the model, which is a flag."""
        found = changed_values(self.before.settings, self.after.settings)
        return tuple(change for change in found if change.key != "model")

    @property
    def new_findings(self) -> Sequence[DescribedFinding]:
        """Findings that only the new plan has, or that block only now."""
        known = set(map(_state, self.before.findings))
        return [one for one in self.after.findings if _state(one) not in known]

    @property
    def gone_findings(self) -> Sequence[DescribedFinding]:
        """Findings that the new plan no longer has."""
        kept = {finding.id for finding in self.after.findings}
        return [one for one in self.before.findings if one.id not in kept]

    @property
    def is_deployed(self) -> bool:
        """True if the engine compared with the state of a deployed stack."""
        engine = self.preview
        return engine is not None and engine.error is None and not engine.simulated and not engine.new_stack

    @property
    def real_changes(self) -> Sequence[ResourceChange]:
        """What the engine changes about the deployed stack."""
        return self.preview.changes if self.preview and self.is_deployed else ()

    @property
    def changed_effect(self) -> StackEffect:
        """Effect of the changed settings, without the engine."""
        return "new" if self.is_new else "removed" if self.is_removed else effect_of(self.before, self.after)

    @property
    def effect(self) -> StackEffect:
        """Effect on the stack. Only the engine knows the zone in use."""
        effect = self.changed_effect
        capacity = [change for change in self.real_changes if change.type == CAPACITY_TYPE]
        if self.is_removed:
            return effect
        if self.after.error is not None or self.after.stopping:
            effect = "blocked"
        elif any(change.is_disruptive for change in capacity):
            effect = "capacity"
        elif self.is_same:
            is_other = self.preview is not None and self.preview.against_base and self.preview.changes
            effect = "redeclared" if is_other else "nothing"
        elif self.before.is_tpu and any(change.op == "create" for change in capacity):
            effect = "undeployed"
        elif effect == "capacity" and self.is_deployed:
            effect = "kept"
        elif effect == "capacity" and all(one.key == ZONES for one in replacing(self.before, self.after)):
            effect = "at risk"
        elif effect == "target" and self.before.is_tpu:
            effect = "capacity"
        return effect

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
        found = HEADINGS[self.effect]
        if (
            self.is_new
            or self.is_removed
            or self.effect == "blocked"
            or "model" not in {change.key for change in self.flags}
        ):
            return found
        return f"changes the model, {found}"

    def warning(self) -> str:
        """Return the warning for a loud stack."""
        name, before, after = code(self.stack), self.before, self.after
        if self.effect == "removed":
            price = f" at {before.figures[HOURLY].text}/h" if before.figures else ""
            tpu = " and release its TPU capacity" if before.is_tpu else ""
            return (
                f"{name} no longer has a settings file. This deletes nothing. "
                f"A deployed stack keeps running{price}, without limits or reviews. "
                f"To delete it{tpu}, run {code(f'gemma teardown {self.stack}')}."
            )
        if self.effect == "blocked":
            ids = ", ".join(finding.id for finding in after.stopping)
            blocks = f"{ids} {'block' if len(after.stopping) > 1 else 'blocks'} it."
            return f"{name} cannot be deployed: {plain(after.error.splitlines()[0]) if after.error else blocks}"
        if self.effect == "capacity":
            return f"{name} releases its running TPU capacity{self._because()}. {permission(after)} {NEW_CAPACITY}"
        if self.effect == "at risk":
            gone = ", ".join(removed_zones(before, after))
            where = f"if it is in {gone}, which {code(ZONES)} no longer lists"
            return f"{name} releases its TPU capacity {where}. {permission(after)} {NEW_CAPACITY}"
        lost = (
            "The old one and its URL are deleted. A bucket of the stack is also replaced, and its weights are deleted."
        )
        return f"{name} {HEADINGS[self.effect]}{self._because()}. {lost}"

    def sentences(self) -> Iterator[str]:
        """Yield notes in addition to the metrics, one sentence each."""
        if self.after.error is not None or self.is_removed:
            return
        if self.is_new:
            yield f"After the merge, {code(f'pulumi stack init {self.stack}')} and the `deploy` workflow create it."
        elif self.effect == "undeployed":
            yield "The stack is not deployed, so nothing that runs is lost."
        elif self.effect != "blocked" and self.after.figures:
            yield from self._effects()
        if reason := weights_to_stage(self.before, self.after):
            yield f"Stage the weights before `up` because {reason}: {code(f'gemma stage_model {self.stack}')}."

    def _effects(self) -> Iterator[str]:
        before, after = self.before, self.after
        keys = [change.key for change in (*self.flags, *self.settings)]
        compiles = any(key == "model" or key.startswith("image.") for key in keys)
        yield from consequences(self.effect, after, compiles=compiles)
        yield from moved_traffic(after, before.settings.get(TRAFFIC), rolled_out=rolls_out(before))
        if zones_of(before) != zones_of(after) and before.is_tpu and self.effect != "capacity":
            stays = "capacity in another zone" if self.effect == "at risk" else "running capacity"
            yield f"{code(ZONES)} takes effect at the next creation; {stays} stays."
        if (PROJECT in before.settings) != (PROJECT in after.settings):
            yield f"Only one side sets {code(PROJECT)}: the project is assumed to stay the same."

    def _because(self) -> str:
        reasons = [
            f"{code(one.key)} {code(one.before or 'not set')} → {code(one.after or 'not set')}"
            for one in replacing(self.before, self.after)
        ]
        if reasons and not self.is_new:
            return f": {', '.join(reasons)}"
        forced = [code(name) for change in self.real_changes if change.is_disruptive for name in change.forced_by]
        return f", forced by {', '.join(forced)}" if forced else ""


def verdicts(base: PlansDocument, head: PlansDocument, previews: Sequence[StackPreview] = ()) -> Sequence[StackVerdict]:
    """Return every stack of both checkouts, sorted by name, with the engine's previews."""
    before, after = base.by_name, head.by_name
    engines = {preview.stack: preview for preview in previews}
    return [
        StackVerdict(
            stack=name,
            before=before.get(name) or StackDescription(stack=name),
            after=after.get(name) or StackDescription(stack=name),
            is_new=name not in before,
            is_removed=name not in after,
            preview=engines.get(name),
        )
        for name in sorted({*before, *after})
    ]


def _compared(described: StackDescription) -> StackDescription:
    """Return the description without the wording of its findings."""
    return described.model_copy(
        update={"findings": tuple(one.model_copy(update={"text": ""}) for one in described.findings)}
    )


def _state(finding: DescribedFinding) -> tuple[str, str, bool]:
    return finding.id, finding.severity, finding.accepted
