"""Effect on a stack as text, from the plan's difference combined with the engine's preview."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from contracts.resource_types import CAPACITY_TYPE
from scripts.cli.markdown import code, plain
from scripts.preview.consequences import NEW_CAPACITY, Consequences, is_tpu, permission
from scripts.preview.difference import StackDifference
from scripts.preview.effects import (
    TRAFFIC,
    ZONES,
    StackEffect,
    capacity_reasons,
    removed_zones,
    rolls_out,
    weights_to_stage,
    zones_of,
)
from scripts.preview.plans import StackDescription
from scripts.preview.report import StackPreview

CapacityFate = Literal["untouched", "not deployed", "kept", "at risk", "released"]
HEADINGS: Final[dict[StackEffect, str]] = {
    "nothing": "no change to running resources",
    "update": "updates other resources; the server keeps running",
    "restart": "restarts the server on its node and keeps the capacity",
    "revision": "creates a new revision",
    "service": "replaces the service",
    "capacity": "releases its TPU capacity",
    "target": "moves to another target",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StackVerdict:
    """A stack's difference, the engine's preview of it, and the verdict. `preview` is None if the stack was not previewed."""

    difference: StackDifference
    preview: StackPreview | None

    @property
    def stack(self) -> str:
        """The stack's name."""
        return self.difference.stack

    @property
    def real(self) -> StackPreview | None:
        """The engine's preview of the deployed stack. None if it is missing, failed, or used an empty cloud."""
        preview = self.preview
        usable = preview is not None and preview.error is None and not preview.simulated and not preview.new_stack
        return preview if usable else None

    @property
    def redeclared(self) -> bool:
        """True if two previews without a state differ, although plan and settings are the same: the program changed."""
        preview = self.preview
        return self.difference.is_same and preview is not None and preview.against_base and bool(preview.changes)

    @property
    def fate(self) -> CapacityFate:
        """Fate of the TPU capacity. Only the engine knows the zone in use; only the settings show the reasons."""
        difference = self.difference
        if self.blocked:
            return "untouched"
        if not is_tpu(difference.before) or difference.after is None or difference.is_same:
            return self._engines_fate() or "untouched"
        engines = self._engines_fate()
        if engines is not None:
            return engines
        if difference.effect == "target":
            return "released"
        if difference.effect != "capacity" or difference.before is None:
            return "untouched"
        reasons = capacity_reasons(difference.before, difference.after)
        return "at risk" if all(reason.key == ZONES for reason in reasons) else "released"

    def _engines_fate(self) -> CapacityFate | None:
        if self.real is None:
            return None
        changes = [change for change in self.real.changes if change.type == CAPACITY_TYPE]
        if any(change.is_disruptive for change in changes):
            return "released"
        if any(change.op == "create" for change in changes):
            return "not deployed"
        return "kept" if self.difference.effect == "capacity" else None

    @property
    def blocked(self) -> bool:
        """True if the change makes the settings undeployable."""
        return self.difference.blocked

    @property
    def is_loud(self) -> bool:
        """True if reviewers must see it first."""
        difference = self.difference
        lost = self.fate in {"released", "at risk"} or difference.effect in {"service", "target"}
        return self.blocked or lost or difference.is_removed

    @property
    def is_quiet(self) -> bool:
        """True if the stack needs no separate section."""
        return self.difference.is_same and not self.blocked and self.fate != "released" and not self.redeclared

    def heading(self) -> str:
        """Return the effect in a few words."""
        difference = self.difference
        if difference.is_removed:
            return "loses its settings file"
        if self.blocked:
            return "blocked"
        if difference.is_new:
            return "new stack"
        if self.redeclared and self.fate == "untouched":
            return "changes resources with the same plan and settings"
        others = "changes the model, " if any(change.key == "model" for change in difference.flags) else ""
        return others + {
            "released": "releases its TPU capacity",
            "at risk": "may release its TPU capacity",
            "kept": "keeps its capacity; at most restarts the server",
        }.get(self.fate, HEADINGS[difference.effect])

    def warning(self) -> str:
        """Return the warning for a loud stack."""
        difference = self.difference
        if difference.is_removed:
            return self._removal()
        if self.blocked:
            return f"{code(self.stack)} cannot be deployed: {_blockers(difference.after)}"
        if self.fate == "released":
            return f"{code(self.stack)} releases its running TPU capacity{self._because()}. {permission(difference.after)} {NEW_CAPACITY}"
        if self.fate == "at risk" and difference.before and difference.after:
            gone = ", ".join(removed_zones(difference.before, difference.after))
            return (
                f"{code(self.stack)} releases its TPU capacity if it is in {gone}, which {code(ZONES)} no longer lists. "
                f"{permission(difference.after)} {NEW_CAPACITY}"
            )
        return (
            f"{code(self.stack)} {HEADINGS[difference.effect]}{self._because()}. The old one and its URL are deleted. "
            "A bucket of the stack is also replaced, and its weights are deleted."
        )

    def sentences(self) -> Iterator[str]:
        """Yield notes in addition to the metrics, one sentence each."""
        difference = self.difference
        before, after = difference.before, difference.after
        if after is None or after.error is not None:
            return
        if before is None:
            yield f"After the merge, {code(f'pulumi stack init {self.stack}')} and the `deploy` workflow create it."
        elif not self.blocked:
            yield from self._effect(after)
            yield from self._zones(before, after)
        for reason in weights_to_stage(before, after):
            yield f"Stage the weights before `up` because {reason}: {code(f'gemma stage_model {self.stack}')}."
        if self.fate == "not deployed" and before is not None:
            yield "The stack is not deployed, so nothing that runs is lost."

    def _effect(self, after: StackDescription) -> Iterator[str]:
        before, plan, difference = self.difference.before, after.plan, self.difference
        if plan is None or before is None:
            return
        yield from Consequences(
            stack=self.stack,
            effect=difference.effect,
            after=after,
            plan=plan,
            compiles=any(change.key == "model" for change in difference.flags)
            or any(change.key.startswith("image.") for change in difference.settings),
            rolled_out=rolls_out(before),
            shares=before.settings.get(TRAFFIC),
            is_certain=self.fate != "at risk",
        ).sentences(code)

    def _zones(self, before: StackDescription, after: StackDescription) -> Iterator[str]:
        """Yield that other zones count at the next creation only, if capacity can run now and stays."""
        if zones_of(before) == zones_of(after) or not is_tpu(before) or self.fate in {"released", "not deployed"}:
            return
        stays = "capacity in another zone stays" if self.fate == "at risk" else "running capacity stays"
        yield f"{code(ZONES)} takes effect at the next creation; {stays}."

    def _removal(self) -> str:
        before = self.difference.before
        price = f" at ${before.plan.usd_per_hour:,.2f}/h" if before and before.plan else ""
        tpu = " and release its TPU capacity" if is_tpu(before) else ""
        return (
            f"{code(self.stack)} no longer has a settings file. This deletes nothing. A deployed stack keeps running{price}, without limits "
            f"or reviews. To delete it{tpu}, run {code(f'gemma teardown {self.stack}')}."
        )

    def _because(self) -> str:
        before, after = self.difference.before, self.difference.after
        forced = [change for change in (self.real.replacements if self.real else ()) if change.type == CAPACITY_TYPE]
        if before and after and (reasons := capacity_reasons(before, after)):
            words = [f"{code(r.key)} {code(r.before or 'not set')} → {code(r.after or 'not set')}" for r in reasons]
            return f": {', '.join(words)}"
        if forced:
            return f", forced by {', '.join(code(name) for change in forced for name in change.forced_by) or 'no listed property'}"
        return ""


def _blockers(after: StackDescription | None) -> str:
    if after is None:
        return ""
    if after.error is not None:
        return plain(after.error.splitlines()[0])
    return (
        f"{', '.join(finding.id for finding in after.stopping)} {'block' if len(after.stopping) > 1 else 'blocks'} it."
    )


def verdicts(found: Sequence[StackDifference], previews: Sequence[StackPreview]) -> Sequence[StackVerdict]:
    """Join the differences with the engine's previews by stack."""
    by_name = {preview.stack: preview for preview in previews}
    return [StackVerdict(difference=one, preview=by_name.get(one.stack)) for one in found]
