"""The comment on a pull request: verdict, cost, changed settings and the engine's preview of each stack."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.contracts.server_change import ChangedValue, changed_values
from gemma_serving.engine.steps import ResourceChange
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.cli.markdown import code, fenced, plain, prose, row, stack_names
from gemma_serving.scripts.preview.effects import (
    HEADINGS,
    NEW_CAPACITY,
    ZONES,
    StackEffect,
    consequences,
    effect_of,
    permission,
    recompiles,
    removed_zones,
    replacing,
    zones_of,
)
from gemma_serving.scripts.preview.plans import HOURLY, MOST, DescribedFinding, Plans, StackDescription
from gemma_serving.scripts.preview.previews import StackPreview
from gemma_serving.scripts.preview.upcoming import headline

MARKER: Final = "<!-- gemma-serving: preview of all stacks -->"
"""Identifies the comment, so a later run can update it."""
MAX_COMMENT_BYTES: Final = 65_536
"""GitHub's limit is in characters, which are at most as many."""

_SIGNS: Final = {"create": "+", "update": "!", "delete": "-", "replace": "-", "create-replacement": "-"}
"""First character of a line in a diff, which GitHub renders green, orange or red."""
_UNSET: Final = "-"
_PLANNED: Final = "Metrics and prices are planned; `gemma plan STACK --costs` shows the source and date of each price."
_NO_SECRETS: Final = "`pulumi preview` decrypted no secrets. A changed secret appears only among the settings."
_SHOWN_OF_NEW: Final = frozenset({"model", "target", "tpu.acceleratorType", "tpu.zones", "cloudRun.gpu"})
"""Settings of a new stack that are shown. The pull request has the others."""
_WORST: Final[tuple[StackEffect, ...]] = ("capacity", "at risk", "blocked", "removed")
"""Effects that the first line names, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One stack before and after, and the engine's preview, None if none exists."""

    stack: str
    before: StackDescription
    after: StackDescription
    preview: StackPreview | None = None

    @property
    def is_same(self) -> bool:
        """True if settings and plan are equal, but for the wording of findings."""
        wording = {"findings": {"__all__": {"text"}}}
        return self.before.model_dump(exclude=wording) == self.after.model_dump(exclude=wording)

    @property
    def is_quiet(self) -> bool:
        """True if the stack needs no separate section."""
        return self.effect == "nothing" and self.is_same and not (self.preview and self.preview.error)

    @property
    def changed(self) -> Sequence[ChangedValue]:
        """Settings, flags and variables that differ, the model first; of a new stack the important ones."""
        before = (self.before.settings, self.before.flags, self.before.environment)
        after = (self.after.settings, self.after.flags, self.after.environment)
        pairs = zip(before, after, strict=True)
        unique = {change.key: change for pair in pairs for change in changed_values(*pair)}  # the model is a flag too
        if self.before.is_missing:
            unique = {key: change for key, change in unique.items() if key in _SHOWN_OF_NEW}
        return sorted(unique.values(), key=lambda change: change.key != "model")

    @property
    def real_changes(self) -> Sequence[ResourceChange] | None:
        """Changes of the engine to the deployed stack; None if it did not compare with the state of one."""
        engine = self.preview
        is_known = engine is not None and engine.error is None and not engine.simulated and not engine.new_stack
        return engine.changes if engine and is_known else None

    @property
    def effect(self) -> StackEffect:
        """Effect on the stack. Only the engine knows the zone in use."""
        before = self.before
        after = self.after
        changes = self.real_changes
        capacity = [change for change in changes or () if change.type == CAPACITY_TYPE]
        effect = "new" if before.is_missing else effect_of(before, after)
        if after.is_missing:
            effect = "removed"
        elif after.error is not None or after.stopping:
            effect = "blocked"
        elif any(change.is_disruptive for change in capacity):
            effect = "capacity"
        elif self.is_same:
            effect = "nothing"
        elif before.is_tpu and any(change.op == "create" for change in capacity):
            effect = "undeployed"
        elif effect == "capacity" and changes is not None:
            effect = "kept"
        elif effect == "capacity" and all(one.key == ZONES for one in replacing(before, after)):
            effect = "at risk"
        elif effect == "target" and before.is_tpu:
            effect = "capacity"
        return effect

    def warning(self) -> str:
        """Return the warning that reviewers must see first; empty if none exists."""
        name = code(self.stack)
        before = self.before
        after = self.after
        effect = self.effect
        if effect == "removed":
            price = f" at {before.figures[HOURLY]}/h" if before.figures else ""
            return (
                f"{name} no longer has a settings file. This deletes nothing. "
                f"A deployed stack keeps running{price}, without limits or reviews. "
                f"To delete it, run {code(f'gemma teardown {self.stack}')}."
            )
        if effect == "blocked":
            ids = ", ".join(finding.id for finding in after.stopping)
            why = plain(after.error.splitlines()[0]) if after.error else f"blocked by {ids}."
            return f"{name} cannot be deployed: {why}"
        if effect in {"capacity", "at risk"}:
            gone = ", ".join(removed_zones(before, after))
            where = f" if it is in {gone}, which {code(ZONES)} no longer lists"
            why = self._because() if effect == "capacity" else where
            return f"{name} releases its TPU capacity{why}. {permission(after)} {NEW_CAPACITY}"
        if effect == "service" and after.settings.get("target") == "cloud-run":
            return (
                f"{name} {HEADINGS[effect]}{self._because()}. `gemma up` rejects this while the stack is deployed. "
                f"Deploy a second stack with the new settings, then run {code(f'gemma teardown {self.stack}')}."
            )
        if effect in {"service", "target"}:
            return (
                f"{name} {HEADINGS[effect]}{self._because()}. The old one and its URL are deleted. "
                "A bucket of the stack is also replaced, and its weights are deleted."
            )
        return ""

    def _because(self) -> str:
        reasons = [
            f"{code(one.key)} {code(one.before or 'not set')} → {code(one.after or 'not set')}"
            for one in replacing(self.before, self.after)
        ]
        if reasons:
            return f": {', '.join(reasons)}"
        changes = self.real_changes or ()
        forced = [code(name) for change in changes if change.is_disruptive for name in change.forced_by]
        return f", forced by {', '.join(forced)}" if forced else ""

    def sentences(self) -> Iterator[str]:
        """Yield the meaning of the effect, one sentence each."""
        before = self.before
        after = self.after
        effect = self.effect
        if before.is_missing:
            yield f"After the merge, {code(f'pulumi stack init {self.stack}')} and the `deploy` workflow create it."
        if effect == "undeployed":
            yield "The stack is not deployed, so nothing that runs is lost."
        if effect in {"undeployed", "blocked"} or before.is_missing or not after.figures:
            return
        yield from consequences(effect, after, compiles=recompiles(before, after))
        if zones_of(before) != zones_of(after) and before.is_tpu and effect != "capacity":
            stays = "capacity in another zone" if effect == "at risk" else "running capacity"
            yield f"{code(ZONES)} takes effect at the next creation; {stays} stays."


def verdicts(base: Plans, head: Plans, previews: Sequence[StackPreview] = ()) -> Sequence[Verdict]:
    """Return every stack of both checkouts, sorted by name, with the engine's previews."""
    engines = {preview.stack: preview for preview in previews}
    return [
        Verdict(
            stack=name,
            before=base.get(name) or StackDescription(stack=name),
            after=head.get(name) or StackDescription(stack=name),
            preview=engines.get(name),
        )
        for name in sorted({*base, *head})
    ]


def comment(base: Plans, head: Plans, previews: Sequence[StackPreview], *, not_previewed: str = "") -> str:
    """Return the Markdown comment.

    `not_previewed`: reason why the engine did not preview the other stacks, as a clause.
    """
    found = verdicts(base, head, previews)
    changed = [verdict for verdict in found if not verdict.is_quiet]
    top = [MARKER, f"### Preview: {_headline(found, changed)}", ""]
    for verdict in changed:
        if warning := verdict.warning():
            top += ["> [!CAUTION]", f"> {warning}", ""]
    shown = [verdict for verdict in changed if not verdict.after.is_missing]
    end = [*_quiet(found), _footer(len(head), previews, not_previewed), ""]
    whole = [line for verdict in shown for line in (*_section(verdict), *_engine_preview(verdict.preview))]
    text = "\n".join([*top, *whole, *end])
    if len(text.encode()) <= MAX_COMMENT_BYTES:
        return text
    short = [line for verdict in shown for line in _section(verdict)]
    note = "Engine previews omitted because the comment is too long. See the job log."
    return "\n".join([*top, *short, note, "", *end])


def _headline(found: Sequence[Verdict], changed: Sequence[Verdict]) -> str:
    """Return the comment's first line, which states the worst effect."""
    of_effect = [
        (stack_names(one.stack for one in found if one.effect == effect), HEADINGS[effect]) for effect in _WORST
    ]
    if worst := [f"{names} {heading}" for names, heading in of_effect if names]:
        return "; ".join(worst)
    if len(changed) > 1:
        return f"{len(changed)} of {len(found)} stacks change"
    return f"{code(changed[0].stack)}: {HEADINGS[changed[0].effect]}" if changed else "no stack changes"


def _section(verdict: Verdict) -> Iterator[str]:
    before, after = verdict.before, verdict.after
    yield from (f"#### {code(verdict.stack)}: {HEADINGS[verdict.effect]}", "")
    for sentence in verdict.sentences():
        yield from (sentence, "")
    if after.error is not None:
        yield from (*fenced(after.error), "")
    rows = [
        [code(one.key), code(one.before or "") or _UNSET, code(one.after or "") or _UNSET] for one in verdict.changed
    ]
    rows += [
        [name, before.figures.get(name, _UNSET), after.figures.get(name, _UNSET)]
        for name in after.figures or before.figures
        if name in {HOURLY, MOST} or before.figures.get(name) != after.figures.get(name)
    ]
    if rows:
        yield from (row(("", "before", "after")), "| --- | --- | --- |", *map(row, rows), "")
    known = {(one.id, one.severity, one.accepted) for one in before.findings}
    new = [one for one in after.findings if (one.id, one.severity, one.accepted) not in known]
    yield from _findings(new)
    kept = {finding.id for finding in after.findings}
    if gone := ", ".join(one.id for one in before.findings if one.id not in kept):
        yield from (f"No longer reported: {gone}.", "")


def _findings(findings: Sequence[DescribedFinding]) -> Iterator[str]:
    """Yield new findings: warnings and blockers in full, the others by id."""
    loud = [finding for finding in findings if finding.severity != "info"]
    if loud:
        yield from ("**New findings**", "")
    for finding in loud:
        kind = "accepted" if finding.accepted else "blocks" if finding.stops else "warns"
        first, *rest = finding.text.removeprefix(f"{finding.id}:").strip().splitlines()
        yield f"- **{finding.id}** {kind}: {prose(first)}"
        yield from (f"  {'- ' * line.lstrip().startswith('- ')}{prose(line.lstrip(' -'))}" for line in rest)
    if loud:
        yield ""
    if ids := ", ".join(finding.id for finding in findings if finding.severity == "info"):
        yield from (f"New findings, informational: {ids}.", "")


def _engine_preview(preview: StackPreview | None) -> Iterator[str]:
    if preview is None:
        return
    where = f"{' as a new stack' if preview.new_stack else ''}{' (simulated)' if preview.simulated else ''}"
    if preview.error is not None:
        counted, body = "failed", fenced(preview.error)
    else:
        counted = _counted(preview)
        kept = [change for change in preview.changes if change.op != "create"]
        lines = [line for change in kept for line in _lines(change)]
        if created := len(preview.changes) - len(kept):
            lines.append(f"+ create  {number_of(created, 'resource')}")
        body = fenced("\n".join(lines), "diff") if lines else ()
    yield from (f"<details><summary>Engine preview{where}: {counted}</summary>", "")
    yield from (*body, "", "</details>", "")


def _counted(preview: StackPreview) -> str:
    """Return how many resources differ and how many do not."""
    return f"{number_of(len(preview.changes), 'resource')} will change, {preview.unchanged} unchanged"


def as_text(previews: Sequence[StackPreview], head: Plans) -> str:
    """Return previews as plain text, for a terminal."""
    return "\n".join([*(line for one in previews for line in _text_of(one, head[one.stack])), _PLANNED, ""])


def _text_of(preview: StackPreview, described: StackDescription) -> Iterator[str]:
    if preview.error is not None:
        # If the settings cannot be read or planned, the engine's error is about the same, without a way out.
        yield f"The preview of stack {preview.stack} failed: {described.error or preview.error}"
        return
    yield from preview.differences
    yield f"{headline(preview.stack, preview.changes)}."
    if described.figures:
        each = "" if described.is_tpu else " for each instance"
        yield f"Cost: {described.figures[HOURLY]}/h{each}, at most {described.figures[MOST]}."
    loud = [finding for finding in described.findings if finding.severity != "info"]
    yield from (f"{one.text}{' (accepted)' if one.accepted else ''}" for one in loud)
    if notes := [one.id for one in described.findings if one.severity == "info"]:
        yield f"{number_of(len(notes), 'note')} ({', '.join(notes)}): `gemma plan {preview.stack} --explain`"
    compared = "As a new stack, which does not exist yet" if preview.new_stack else "Compared with the deployed stack"
    yield f"{compared}{', on the local cloud (simulated)' if preview.simulated else ''}: {_counted(preview)}."
    if preview.without_secrets:
        yield _NO_SECRETS
    yield from (f"  {line}" for change in preview.changes for line in _lines(change))


def _lines(change: ResourceChange) -> Iterator[str]:
    """Yield the operation on a resource, then each property before and after."""
    what = f" [{', '.join(change.properties)}]" if change.properties else ""
    forced = f" (forced by {', '.join(change.forced_by)})" if change.forced_by else ""
    yield f"{_SIGNS.get(change.op, ' ')} {change.op:7} {change.type} {change.name}{what}{forced}"
    for one in change.changes:
        forces = " (forces the replacement)" if one.replaces else ""
        yield f"    {one.path}: {one.before or '(not set)'} → {one.after or '(not set)'}{forces}"
    if change.changes_left_out:
        yield f"    and {change.changes_left_out} more"


def _quiet(found: Sequence[Verdict]) -> Iterator[str]:
    """Yield one line for all unchanged stacks."""
    quiet = [verdict for verdict in found if verdict.is_quiet]
    if quiet:
        yield from (f"Unchanged: {stack_names(one.stack for one in quiet)}.", "")
    if stale := ", ".join(f"{code(one.stack)} ({len(one.real_changes)})" for one in quiet if one.real_changes):
        what = f"`gemma up` will also change {stale}"
        yield from (f"With the same settings and plan, {what}, because the program or the deployment differs.", "")


def _footer(total: int, previews: Sequence[StackPreview], not_previewed: str) -> str:
    notes: list[str] = []
    if len(previews) < total:
        why = f", because {not_previewed}" if not_previewed else ""
        notes.append(f"`pulumi preview` ran for {len(previews)} of {total} stacks{why}.")
    if any(preview.simulated for preview in previews):
        notes.append("`pulumi preview` ran on the local cloud (simulated), without Google Cloud credentials.")
    if any(preview.without_secrets for preview in previews):
        notes.append(_NO_SECRETS)
    return f"<sub>{' '.join([*notes, _PLANNED])}</sub>"
