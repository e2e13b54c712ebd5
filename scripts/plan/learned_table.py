"""Comparison of an imported boot with its plan, as a table and as JSON."""

import sys
from typing import Any

from scripts.cli.tables import console, paragraph, table
from scripts.plan.corpus.errors import ComparedFigure, compared
from scripts.plan.corpus.measured import Boot
from scripts.plan.corpus.verdicts import judged
from scripts.plan.learned_boot import LearnedBoot, what_is_missing
from scripts.plan.toml_text import deployment_lines


def show(boot: Boot) -> None:
    """Print the table on stdout."""
    verdict = judged(boot)
    seen = f"crashed ({boot.died_at}): {boot.message}" if boot.died else "runs"
    screen = console(sys.stdout)
    paragraph(screen, f"{boot.title}: {seen}")
    paragraph(screen, f"planned: {verdict.planned}, which is {'right' if verdict.is_right else 'wrong'}")
    figures = compared((boot,))
    if not figures:
        return
    rows = table(
        "Planned and logged",
        ("figure", "planned", "logged", "error", "tolerance"),
        numbers=("planned", "logged", "error", "tolerance"),
        least=("tolerance",),
    )
    for row in figures:
        kind = row.figure.kind
        rows.add_row(
            kind.name,
            _number(row.predicted, kind.unit),
            _number(row.figure.measured, kind.unit),
            f"{row.error:+.1%}",
            f"{kind.tolerance:.0%}",
        )
    screen.print(rows)


def as_json(learned: LearnedBoot, boot: Boot, file: str | None, *, is_recorded: bool) -> dict[str, Any]:
    """Return the boot and its plan as JSON types. `file` is the file it was added to, None if it was only shown or already recorded."""
    verdict = judged(boot)
    return {
        "id": boot.id,
        "file": file,
        "alreadyRecorded": is_recorded,
        "outcome": boot.outcome,
        "diedAt": boot.died_at,
        "message": boot.message,
        "version": learned.report.version,
        "deployment": deployment_lines(learned.deployment),
        "planned": verdict.planned,
        "right": verdict.is_right,
        "figures": [_figure_json(row) for row in compared((boot,))],
        "notRead": list(learned.not_read),
        "missing": list(learned.missing),
        "note": what_is_missing(learned),
    }


def _figure_json(row: ComparedFigure) -> dict[str, Any]:
    return {
        "figure": row.figure.key,
        "unit": row.figure.kind.unit,
        "planned": row.predicted,
        "logged": row.figure.measured,
        "error": row.error,
        "tolerance": row.figure.kind.tolerance,
    }


def _number(value: float, unit: str) -> str:
    return f"{value:,.2f} {unit}".rstrip() if unit == "GiB" else f"{value:,.0f} {unit}".rstrip()
