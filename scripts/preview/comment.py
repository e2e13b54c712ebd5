"""The comment on a pull request."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.changes import ResourceChange
from scripts.cli.markdown import code, fenced, named, plain, prose, row
from scripts.preview.effects import changed_values
from scripts.preview.plans import HOURLY, MOST, DescribedFinding, PlansDocument
from scripts.preview.run import StackPreview
from scripts.preview.upcoming import headline
from scripts.preview.verdicts import StackVerdict, verdicts

MARKER: Final = "<!-- gemma-serving: preview of all stacks -->"
"""Identifies the comment, so that a later run can update it."""
MAX_COMMENT_BYTES: Final = 65_536
"""GitHub's limit is in characters, which are at most as many."""

_SIGNS: Final = {"create": "+", "update": "!", "delete": "-", "replace": "-", "create-replacement": "-"}
"""First character of a line in a diff, which GitHub renders green, orange or red."""
_OF_BASE: Final = {"create": "added", "update": "changed", "delete": "removed"}
"""Words for the differences between two deployments."""
_MOST_ERROR_CHARACTERS: Final = 4_000
_HALF_A_PERCENT: Final = 0.005
_CENTS_BELOW_USD: Final = 100
_UNSET: Final = "-"
_NOT_SET: Final = "(not set)"
_TABLE: Final = (row(("", "before", "after", "change")), "| --- | --- | --- | --: |")
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

    lines: Sequence[str]
    details: Sequence[str]


def comment(base: PlansDocument | None, head: PlansDocument, previews: Sequence[StackPreview]) -> str:
    """Return the Markdown comment. Without a base, each plan is shown on its own."""
    found = verdicts(base or head, head, previews)
    changed = [verdict for verdict in found if not verdict.is_quiet]
    top = [MARKER, f"### Preview: {_headline(found, changed)}", ""]
    for verdict in changed:
        if verdict.is_loud:
            top += ["> [!CAUTION]", f"> {verdict.warning()}", ""]
    if len(changed) > 1:
        top += _overview(changed)
    sections = [_section(verdict) for verdict in changed]
    for verdict in found if base is None else ():
        if verdict.is_quiet and verdict.preview:
            price = verdict.after.figures.get(HOURLY)
            lines = [f"#### {plain(headline(verdict.stack, verdict.preview.changes))}", ""]
            lines += [f"{price.text} per hour for each instance, at list prices.", ""] if price else []
            sections.append(_Section(lines=lines, details=list(engine_preview(verdict.preview))))
    return _fitted(top, sections, [*_quiet(found), *_footer(base, found, previews)])


def _headline(found: Sequence[StackVerdict], changed: Sequence[StackVerdict]) -> str:
    """Return the comment's first line, which states the worst effect."""
    kinds = {
        "capacity": "releases running TPU capacity",
        "at risk": "may release running TPU capacity",
        "blocked": "is blocked",
        "removed": "loses its settings file",
    }
    stacks = {words: named(v.stack for v in found if v.effect == effect) for effect, words in kinds.items()}
    worst = [f"{names} {words}" for words, names in stacks.items() if names]
    if worst:
        return "; ".join(worst)
    if len(changed) > 1:
        return f"{len(changed)} of {len(found)} stacks change"
    return f"{code(changed[0].stack)}: {changed[0].heading}" if changed else "no stack changes"


def _overview(changed: Sequence[StackVerdict]) -> Iterator[str]:
    yield row(("stack", "effect", "USD/hour", "USD maximum", "findings"))
    yield "| --- | --- | --: | --: | --- |"
    for verdict in changed:
        what = f"**{verdict.heading}**" if verdict.is_loud else verdict.heading
        new, gone = _ids(verdict.new_findings), _ids(verdict.gone_findings)
        findings = "; ".join(filter(None, (new and f"new: {new}", gone and f"dropped: {gone}")))
        yield row((code(verdict.stack), what, _cell(verdict, HOURLY), _cell(verdict, MOST), findings))
    yield ""


def _cell(verdict: StackVerdict, name: str) -> str:
    """Return a price before and after, in one cell."""
    texts: list[str] = []
    for described in (verdict.before, verdict.after):
        figure = described.figures.get(name)
        cents = 2 if figure and figure.value < _CENTS_BELOW_USD else 0
        texts.append(f"{figure.value:,.{cents}f}" if figure else _UNSET)
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} → **{texts[1]}**"


def _ids(findings: Sequence[DescribedFinding]) -> str:
    return ", ".join(f"**{finding.id}**" if finding.stops else finding.id for finding in findings)


def _section(verdict: StackVerdict) -> _Section:
    lines = [f"#### {code(verdict.stack)}: {verdict.heading}", ""]
    for sentence in verdict.sentences():
        lines += [sentence, ""]
    if verdict.after.error is not None:
        lines += [*fenced(verdict.after.error[:_MOST_ERROR_CHARACTERS]), ""]
    rows = [*_changed_values(verdict), *_changed_figures(verdict)]
    if rows:
        lines += [*_TABLE, *map(row, rows), ""]
    lines += _findings(verdict.new_findings)
    if verdict.gone_findings:
        lines += [f"No longer reported: {_ids(verdict.gone_findings)}.", ""]
    return _Section(lines=lines, details=[*_all_flags(verdict), *engine_preview(verdict.preview)])


def _changed_values(verdict: StackVerdict) -> Iterator[Sequence[str]]:
    """Yield a row for each value that differs; of a new or removed stack, for the important ones."""
    model = [change for change in verdict.flags if change.key == "model"]
    if verdict.is_new or verdict.is_removed:
        values = [*model, *(change for change in verdict.settings if change.key in _SHOWN_OF_NEW)]
    else:
        flags = [change for change in verdict.flags if change.key != "model"]
        environment = changed_values(verdict.before.environment, verdict.after.environment)
        values = [*model, *verdict.settings, *flags, *environment]
    for change in values:
        yield code(change.key), _value(change.before), _value(change.after), ""


def _changed_figures(verdict: StackVerdict) -> Iterator[Sequence[str]]:
    """Yield a row for each metric whose text differs, and for the costs."""
    old, new = verdict.before.figures, verdict.after.figures
    for name in new or old:
        was, now = old.get(name), new.get(name)
        share = now.value / was.value - 1 if was and now and was.value else 0.0
        texts = [figure.text if figure else _UNSET for figure in (was, now)]
        if name in {HOURLY, MOST} or texts[0] != texts[1]:
            yield name, *texts, f"{share * 100:+,.0f} %" if abs(share) >= _HALF_A_PERCENT else ""


def _value(text: str | None) -> str:
    return _UNSET if text is None else code(text)


def _findings(findings: Sequence[DescribedFinding]) -> Iterator[str]:
    """Yield the new findings: warnings and blockers in full, the others by id."""
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
        yield from (f"New, informational: {ids}.", "")


def _all_flags(verdict: StackVerdict) -> Iterator[str]:
    """Yield the flags and settings of a new stack, folded."""
    if not verdict.is_new:
        return
    rest = [change for change in verdict.settings if change.key not in _SHOWN_OF_NEW]
    yield from ("<details><summary>All flags and settings</summary>", "", row(("", "value")), "| --- | --- |")
    yield from (row((code(change.key), _value(change.after))) for change in (*verdict.flags, *rest))
    yield from ("", "</details>", "")


def engine_preview(preview: StackPreview | None) -> Iterator[str]:
    """Yield the engine's preview of a stack, folded."""
    if preview is None or preview.skipped:
        return
    if preview.error is not None:
        yield from (f"<details><summary>Engine preview{_where(preview)} failed</summary>", "")
        yield from (*fenced(preview.error[:_MOST_ERROR_CHARACTERS]), "", "</details>", "")
        return
    yield f"<details><summary>Engine preview{_where(preview)}: {_counted(preview)}</summary>"
    words = _OF_BASE if preview.against_base else {}
    if preview.changes:
        lines = [line for change in preview.changes for line in _lines(change, words.get(change.op, change.op))]
        yield from ("", *fenced("\n".join(lines), "diff"))
    yield from ("", "</details>", "")


def _where(preview: StackPreview) -> str:
    """Return what the engine compared with, if not a state."""
    new = " as a new stack" if preview.new_stack else ""
    where = " on an empty local cloud (simulated)" if preview.simulated else new
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
    """Yield the unchanged stacks, and those that `up` changes nevertheless."""
    quiet = [verdict for verdict in found if verdict.is_quiet]
    count = sum(verdict.preview is not None and verdict.preview.skipped for verdict in found)
    have, were = ("has", "was") if count == 1 else ("have", "were")
    skipped = f" {count} of {len(found)} stacks {have} the same plan and settings and {were} not previewed."
    if quiet:
        yield from (f"Unchanged: {named(one.stack for one in quiet)}.{skipped if count else ''}", "")
    stale = ", ".join(f"{code(one.stack)} ({len(one.real_changes)})" for one in quiet if one.real_changes)
    if stale:
        what = f"`pulumi up` will also change {stale}"
        yield from (f"Not part of this pull request: {what}, because the deployment differs from the base.", "")


def _footer(
    base: PlansDocument | None, found: Sequence[StackVerdict], previews: Sequence[StackPreview]
) -> Iterator[str]:
    ran = [preview for preview in previews if not preview.skipped]
    broken = [one.stack for one in found if one.is_quiet and one.preview and one.preview.error is not None]
    notes = {
        "The base has no plans, so stacks are not compared.": base is None,
        "The base's own planner failed. Both sides use this branch's planner.": base and base.planner == "other",
        f"`pulumi preview` failed for {named(broken)}. See the job log.": broken,
        "Plans only; `pulumi preview` did not run.": not previews,
        "Without Google Cloud credentials, `pulumi preview` ran against an empty local cloud (simulated).": any(
            preview.simulated for preview in ran
        ),
        "`pulumi preview` decrypted no secrets. A changed secret appears only among the settings.": any(
            preview.without_secrets for preview in ran
        ),
        "Metrics are planned; prices are list prices.": True,
    }
    yield f"<sub>{' '.join(note for note, holds in notes.items() if holds)}</sub>"


def _fitted(top: Sequence[str], sections: Sequence[_Section], end: Sequence[str]) -> str:
    """Return the comment within GitHub's limit: first without details, then without the last sections."""
    text = _joined(top, [line for section in sections for line in (*section.lines, *section.details)], end)
    kept = len(sections)
    note = "Details omitted because the comment is too long."
    while len(text.encode()) > MAX_COMMENT_BYTES and kept >= 0:
        text = _joined(top, [line for section in sections[:kept] for line in section.lines], (note, "", *end))
        kept -= 1
        note = f"{len(sections) - kept} stacks omitted because the comment is too long. See the job log."
    return text


def _joined(top: Sequence[str], parts: Sequence[str], end: Sequence[str]) -> str:
    return "\n".join([*top, *parts, *end]).rstrip("\n") + "\n"
