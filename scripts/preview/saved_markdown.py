"""A saved plan as Markdown, for the reviewer who approves it."""

from collections.abc import Iterator
from typing import Final

from engine.steps import PlannedStep
from scripts.cli.markdown import code, fenced, plain, row
from scripts.preview.saved import SavedPlan

_MOST_CHARACTERS: Final = 900_000
"""GitHub shows at most 1 MiB of a step summary."""


def plan_markdown(plan: SavedPlan) -> str:
    """Return the plan as Markdown: cost, steps and their changes, findings, and validity."""
    text = "\n".join([*_head(plan), *_steps(plan), *_findings(plan), *_validity(plan)]) + "\n"
    if len(text) <= _MOST_CHARACTERS:
        return text
    return text[:_MOST_CHARACTERS].rpartition("\n")[0] + "\n\nThe rest is in the plan file.\n"


def _head(plan: SavedPlan) -> Iterator[str]:
    yield from (f"### {code(plan.stack)}: {code(plan.id)}", "")
    lost = [step for step in plan.steps if step.is_disruptive]
    if lost:
        names = ", ".join(dict.fromkeys(code(step.name) for step in lost))
        yield from (f"**This replaces or deletes serving resources: {names}.**", "")
    described = plan.planner
    if described is not None:
        most = f"${plan.usd_per_hour_at_most:,.2f}/h with all instances"
        yield (
            f"{plain(described.verdict)} on {plain(described.accelerator)}: {code(described.model)}, "
            f"${described.usd_per_hour:,.2f}/h, {most}, at list prices."
        )
        yield ""


def _steps(plan: SavedPlan) -> Iterator[str]:
    if not plan.steps:
        yield from ("No resource changes.", "")
        return
    yield row(("step", "resource", "property", "before", "after"))
    yield row(["---"] * 5)
    for step in plan.steps:
        first = (plain(step.op), f"{code(step.name)} {plain(step.type)}")
        changes = step.changes if step.op != "create" else ()
        for change in changes:
            forced = " (forces it)" if change.replaces else ""
            yield row((*first, f"{code(change.path)}{forced}", code(change.before), code(change.after)))
            first = ("", "")
        if not changes:
            yield row((*first, _reasons(step), "", ""))
    yield ""


def _reasons(step: PlannedStep) -> str:
    return ", ".join(code(name) for name in step.forced_by or step.changed)


def _findings(plan: SavedPlan) -> Iterator[str]:
    for finding in plan.findings:
        accepted = " (accepted)" if finding.accepted else ""
        yield f"{finding.severity} {finding.id}{accepted}:"
        yield from fenced(finding.text)
        yield ""


def _validity(plan: SavedPlan) -> Iterator[str]:
    identity = plan.identity
    refreshed = "after a refresh from Google" if plan.refresh else "without a refresh from Google"
    yield (
        f"Commit {code(plan.commit[:12])}, project {code(identity.project)}, backend {code(identity.backend)}, "
        f"image {code(identity.image[:19])}, previewed {refreshed}."
    )
    if not identity.state:
        yield "The backend has no resources of this stack yet."
    yield f"Expires at {plan.expires_at:%Y-%m-%d %H:%M} UTC."
