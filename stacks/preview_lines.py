"""What the program says about the plan in a preview: fits or not, starts in, costs; then notes that a user may act on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from planning.question.types import Plan
from planning.rules.findings import notes_of
from planning.solve.wording import Wording
from stacks.planned import finding_text, headline

_BILL: Final = "CST01"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewLine:
    """One message of the program."""

    text: str
    severity: Literal["info", "warn"] = "info"


def preview_lines(plan: Plan, stack: str, wording: Wording) -> Iterator[PreviewLine]:
    """Yield the plan's three lines, then one for each finding, one for all notes, and one for all accepted findings.

    A blocking finding that was not accepted is part of the error that stops the program.
    """
    for line in headline(plan).splitlines():
        yield PreviewLine(text=line)
    notes = notes_of(plan)
    accepted = [finding.id for finding in plan.findings if finding.id in plan.accepted and finding not in notes]
    for finding in plan.findings:
        if finding.id == _BILL:
            yield PreviewLine(text=f"Costs {finding_text(finding, wording).removeprefix(f'{_BILL}: ')}")
    for finding in plan.findings:
        if finding.severity != "block" and finding not in notes and finding.id not in {_BILL, *accepted}:
            yield PreviewLine(text=finding_text(finding, wording), severity=finding.severity)
    if notes:
        yield PreviewLine(text=f"Notes: {len(notes)}. To list them, run `gemma plan {stack} --explain`.")
    if accepted:
        yield PreviewLine(text=f"Accepted findings: {', '.join(accepted)}. To see them, run `gemma plan {stack}`.")
