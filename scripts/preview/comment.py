"""Pull request comment with the effect on each stack and the metrics before and after."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from contracts.server_change import ChangedValue
from engine.changes import ResourceChange
from scripts.cli.markdown import code, fenced, named, prose, row
from scripts.preview.difference import StackDifference, differences
from scripts.preview.effects import changed_values
from scripts.preview.figures import figure_rows, most_change, usd_change
from scripts.preview.plans import DescribedFinding, PlansDocument
from scripts.preview.report import StackPreview
from scripts.preview.verdicts import StackVerdict, verdicts

MARKER: Final = "<!-- gemma-serving: preview of all stacks -->"
"""Identifies the comment, so that a later run can update it."""
MAX_COMMENT_BYTES: Final = 65_536
"""GitHub's limit, in characters. Compared with the size in bytes, which is at least as large."""

_SIGNS: Final = {"create": "+", "update": "!", "delete": "-", "replace": "-", "create-replacement": "-"}
"""First character of a line in a diff, which GitHub renders green, orange or red."""
_OF_BASE: Final = {"create": "added", "update": "changed", "delete": "removed"}
"""Words for the differences between two deployments. The engine performs none of them."""
_MOST_ERROR_CHARACTERS: Final = 4_000
_FEWEST_FOR_OVERVIEW: Final = 2
"""A single stack needs no overview: its section has everything."""
_UNSET: Final = "-"
_NOT_SET: Final = "(not set)"
_SHOWN_OF_NEW: Final = (
    "target",
    "tpu.acceleratorType",
    "tpu.zones",
    "tpu.provisioning",
    "tpu.maxRunDuration",
    "cloudRun.gpu",
    "cloudRun.region",
    "cloudRun.minInstances",
    "cloudRun.maxInstances",
    "cloudRun.concurrency",
    "cloudRun.public",
    "weights",
    "workload",
)
"""Settings of a new stack that are shown unfolded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """A part of the comment. `details` is dropped first if the comment is too long."""

    stack: str
    lines: tuple[str, ...]
    details: tuple[str, ...] = ()


def comment(base: PlansDocument | None, head: PlansDocument, previews: Sequence[StackPreview]) -> str:
    """Return the Markdown comment, shortened by whole sections to GitHub's limit. Without a base, each plan is shown on its own."""
    found = verdicts(differences(base or head, head), previews)
    loud = [verdict for verdict in found if not verdict.is_quiet]
    top = [MARKER, f"### {_headline(found)}", ""]
    for verdict in found:
        if verdict.is_loud and not verdict.is_quiet:
            top += ["> [!CAUTION]", f"> {verdict.warning()}", ""]
    top += _overview(loud)
    sections = [_section(verdict) for verdict in loud]
    return _fitted(top, sections, [*_quiet(found), *_footer(base, found, previews)])


def _headline(found: Sequence[StackVerdict]) -> str:
    """Return the comment's first line, which states the worst effect."""
    kinds = (
        ("releases running TPU capacity", [v for v in found if v.fate == "released"]),
        ("may release running TPU capacity", [v for v in found if v.fate == "at risk"]),
        ("is blocked", [v for v in found if v.blocked]),
        ("loses its settings file", [v for v in found if v.difference.is_removed]),
    )
    worst = [f"{named(v.stack for v in ones)} {words}" for words, ones in kinds if ones]
    if worst:
        return f"Preview: {'; '.join(worst)}"
    changed = [verdict for verdict in found if not verdict.is_quiet]
    if not changed:
        return "Preview: no stack changes"
    if len(changed) == 1:
        return f"Preview: {code(changed[0].stack)}: {changed[0].heading()}"
    return f"Preview: {len(changed)} of {len(found)} stacks change"


def _overview(shown: Sequence[StackVerdict]) -> Iterator[str]:
    if len(shown) < _FEWEST_FOR_OVERVIEW:
        return
    yield from (
        row(("stack", "effect", "USD/hour", "USD maximum", "findings")),
        "| --- | --- | --: | --: | --- |",
    )
    for verdict in shown:
        difference = verdict.difference
        before, after = (described.plan if described else None for described in (difference.before, difference.after))
        what = f"**{verdict.heading()}**" if verdict.is_loud else verdict.heading()
        findings = [f"new: {_ids(difference.new_findings)}"] if difference.new_findings else []
        findings += [f"dropped: {_ids(difference.gone_findings)}"] if difference.gone_findings else []
        cells = (usd_change(before, after), most_change(before, after), "; ".join(findings))
        yield row((code(verdict.stack), what, *cells))
    yield ""


def _ids(findings: Sequence[DescribedFinding]) -> str:
    return ", ".join(f"**{finding.id}**" if finding.stops else finding.id for finding in findings)


def _section(verdict: StackVerdict) -> _Section:
    difference = verdict.difference
    lines = [f"#### {code(verdict.stack)}: {verdict.heading()}", ""]
    for sentence in verdict.sentences():
        lines += [sentence, ""]
    after = difference.after
    if after is not None and after.error is not None:
        lines += [*fenced(after.error[:_MOST_ERROR_CHARACTERS]), ""]
    lines += _changes(difference)
    lines += _findings("New findings", difference.new_findings)
    lines += _gone(difference.gone_findings)
    details = [*_all_flags(difference), *engine_preview(verdict.preview)]
    return _Section(stack=verdict.stack, lines=tuple(lines), details=tuple(details))


def _changes(difference: StackDifference) -> Iterator[str]:
    """Yield the table of differences: settings and flags, then the plan's metrics."""
    before, after = difference.before, difference.after
    values = [*_model(difference), *_settings(difference)]
    if before is not None and after is not None:
        values += [change for change in difference.flags if change.key != "model"]
        values += list(difference.environment)
    rows = [(code(change.key), _value(change.before), _value(change.after), "") for change in values]
    figures = figure_rows(before.plan if before else None, after.plan if after else None)
    shown = [one for one in figures if one.before or one.after]
    rows += [(one.name, one.before or _UNSET, one.after or _UNSET, one.change) for one in shown]
    if not rows:
        return
    yield from (row(("", "before", "after", "change")), "| --- | --- | --- | --: |")
    yield from (row(cells) for cells in rows)
    yield ""


def _model(difference: StackDifference) -> Iterator[ChangedValue]:
    yield from (change for change in difference.flags if change.key == "model")


def _settings(difference: StackDifference) -> Iterator[ChangedValue]:
    whole = difference.is_new or difference.is_removed
    yield from (change for change in difference.settings if not whole or change.key in _SHOWN_OF_NEW)


def _value(text: str | None) -> str:
    return _UNSET if text is None else code(text)


def _findings(title: str, findings: Sequence[DescribedFinding]) -> Iterator[str]:
    """Yield the findings: warnings and blockers in full, the others by id."""
    ids = [finding.id for finding in findings if finding.severity == "info"]
    loud = [finding for finding in findings if finding.severity != "info"]
    if loud:
        yield from (f"**{title}**", "")
        for finding in loud:
            kind = "accepted" if finding.accepted else "blocks" if finding.stops else "warns"
            first, *rest = finding.text.removeprefix(f"{finding.id}:").strip().splitlines()
            yield f"- **{finding.id}** {kind}: {prose(first)}"
            yield from (f"  {'- ' * line.lstrip().startswith('- ')}{prose(line.lstrip(' -'))}" for line in rest)
        yield ""
    if ids:
        yield from (f"New, informational: {', '.join(ids)}.", "")


def _gone(findings: Sequence[DescribedFinding]) -> Iterator[str]:
    if findings:
        yield from (f"No longer reported: {_ids(findings)}.", "")


def _all_flags(difference: StackDifference) -> Iterator[str]:
    """Yield the flags and settings of a new stack, folded."""
    after = difference.after
    if not difference.is_new or after is None:
        return
    rest = [change for change in changed_values({}, after.settings) if change.key not in _SHOWN_OF_NEW]
    yield from ("<details><summary>All flags and settings</summary>", "", row(("", "value")), "| --- | --- |")
    yield from (row((code(change.key), _value(change.after))) for change in (*difference.flags, *rest))
    yield from ("", "</details>", "")


def engine_preview(preview: StackPreview | None) -> Iterator[str]:
    """Yield the engine's preview of a stack, folded."""
    if preview is None or preview.skipped:
        return
    if preview.error is not None:
        yield from (f"<details><summary>Engine preview{_where(preview)} failed</summary>", "")
        yield from (*fenced(preview.error[:_MOST_ERROR_CHARACTERS]), "", "</details>", "")
        return
    if preview.base_error is not None:
        yield from ("The engine could not preview the base, so every resource of the stack is listed:", "")
        yield from (*fenced(preview.base_error[:_MOST_ERROR_CHARACTERS]), "")
    yield f"<details><summary>Engine preview{_where(preview)}: {_counted(preview)}</summary>"
    words = _OF_BASE if preview.against_base else {}
    if preview.changes:
        lines = [line for change in preview.changes for line in _lines(change, words.get(change.op, change.op))]
        yield from ("", *fenced("\n".join(lines), "diff"))
    yield from ("", "</details>", "")


def _where(preview: StackPreview) -> str:
    """Return what the engine compared with, if it is not the state of a deployed stack."""
    where = (
        " on an empty local cloud (simulated)" if preview.simulated else " as a new stack" if preview.new_stack else ""
    )
    return f" of base and pull request, each{where}" if preview.against_base else where


def _counted(preview: StackPreview) -> str:
    """Return how many resources differ and how many do not."""
    if preview.against_base:
        counts = [(word, sum(change.op == op for change in preview.changes)) for op, word in _OF_BASE.items()]
        differing = ", ".join(f"{count} {word}" for word, count in counts if count) or "no differences"
        return f"{differing}, {preview.unchanged} resources are the same"
    count = len(preview.changes)
    return f"{count} {'resource' if count == 1 else 'resources'} will change, {preview.unchanged} unchanged"


def _lines(change: ResourceChange, word: str) -> Iterator[str]:
    """Yield the operation on a resource, then each property before and after."""
    what = f" [{', '.join(change.properties)}]" if change.properties else ""
    forced = f" (forced by {', '.join(change.forced_by)})" if change.forced_by else ""
    yield f"{_SIGNS.get(change.op, ' ')} {word:7} {change.type} {change.name}{what}{forced}"
    for one in change.changes:
        forces = " (forces the replacement)" if one.replaces else ""
        if "\n" not in one.before + one.after:
            yield f"    {one.path}: {one.before or _NOT_SET} → {one.after or _NOT_SET}{forces}"
            continue
        yield f"    {one.path}:{forces}"
        yield from (f"-     {line}" for line in one.before.splitlines())
        yield from (f"+     {line}" for line in one.after.splitlines())
    if change.changes_left_out:
        yield f"    and {change.changes_left_out} more"


def _quiet(found: Sequence[StackVerdict]) -> Iterator[str]:
    """Yield one line for all unchanged stacks."""
    quiet = [verdict for verdict in found if verdict.is_quiet]
    if quiet:
        yield from (f"Unchanged: {named(verdict.stack for verdict in quiet)}.{_skipped(found)}", "")
    stale = [v for v in quiet if v.real is not None and v.real.changes]
    if stale:
        what = ", ".join(f"{code(v.stack)} ({len(v.real.changes)})" for v in stale if v.real)
        yield from (
            f"Not part of this pull request: `pulumi up` will also change {what}, because the deployment differs from the base.",
            "",
        )


def _skipped(found: Sequence[StackVerdict]) -> str:
    count = sum(1 for verdict in found if verdict.preview is not None and verdict.preview.skipped)
    have, were = ("has", "was") if count == 1 else ("have", "were")
    words = f" {count} of {len(found)} stacks {have} the same plan and settings and {were} not previewed."
    return words if count else ""


def _footer(
    base: PlansDocument | None, found: Sequence[StackVerdict], previews: Sequence[StackPreview]
) -> Iterator[str]:
    notes: list[str] = []
    if base is None:
        notes.append("The base has no plans, so stacks are not compared.")
    elif base.planner == "other":
        notes.append("The base's own planner failed. Both sides use this branch's planner.")
    ran = [preview for preview in previews if not preview.skipped]
    failed = [preview.stack for preview in previews if preview.error is not None]
    quiet = {verdict.stack for verdict in found if verdict.is_quiet}
    if broken := [stack for stack in failed if stack in quiet]:
        notes.append(f"`pulumi preview` failed for {named(broken)}. See the job log.")
    if unknown := [preview.stack for preview in ran if preview.base_error is not None and preview.stack in quiet]:
        notes.append(f"The engine could not preview the base of {named(unknown)}, so resources were not compared.")
    if not previews:
        notes.append("Plans only; `pulumi preview` did not run.")
    elif any(preview.simulated for preview in ran):
        notes.append("Without Google Cloud credentials, `pulumi preview` ran against an empty local cloud (simulated).")
    if any(preview.without_secrets for preview in ran):
        notes.append("`pulumi preview` decrypted no secrets. A changed secret appears only among the settings.")
    notes.append("Metrics are planned; prices are list prices.")
    yield f"<sub>{' '.join(notes)}</sub>"


def _fitted(top: Sequence[str], sections: Sequence[_Section], end: Sequence[str]) -> str:
    """Return the comment within GitHub's limit: without details first, then without whole sections, with a note each time."""
    shortest = [section.lines for section in sections]
    whole = [section.lines + section.details for section in sections]
    for parts, note in ((whole, ()), (shortest, ("Details omitted because the comment is too long.", ""))):
        text = _joined(top, parts, (*note, *end))
        if _size(text) <= MAX_COMMENT_BYTES:
            return text
    kept = len(sections)
    while kept:
        kept -= 1
        hidden = named(section.stack for section in sections[kept:][:20])
        note = (f"Omitted because the comment is too long: {hidden} and the rest. See the job log.", "")
        text = _joined(top, shortest[:kept], (*note, *end))
        if _size(text) <= MAX_COMMENT_BYTES:
            return text
    return f"{MARKER}\n### {_NO_ROOM}\n"


_NO_ROOM: Final = "Preview: too many stacks change for one comment; see the job log"


def _joined(top: Sequence[str], parts: Sequence[Sequence[str]], end: Sequence[str]) -> str:
    lines = [*top, *(line for part in parts for line in part), *end]
    return "\n".join(lines).rstrip("\n") + "\n"


def _size(text: str) -> int:
    return len(text.encode())
