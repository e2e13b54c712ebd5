"""Overview of many sweeps, and comparison of two, as Markdown to paste: the verdict first, then one row per sweep or change."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from loadtest.compare import CANNOT_TELL, SweepComparison, basis_note, missing_note, verdict_counts
from loadtest.overview import SweepRow, WorkloadTable
from loadtest.reports.chart_model import NOTHING
from loadtest.reports.pages import page

Text: TypeAlias = Callable[[SweepRow], str]


def _number(field: str, form: str) -> Text:
    return lambda row: NOTHING if getattr(row, field) is None else format(getattr(row, field), form)


def _load(row: SweepRow) -> str:
    if not row.load:
        return "none within the limits"
    return f"{row.load} (highest)" if row.is_highest else row.load


def _valid(row: SweepRow) -> str:
    if not row.valid:
        return "NO"
    return f"yes, {row.loads - row.invalid_loads} of {row.loads} loads" if row.invalid_loads else "yes"


COLUMNS: Final[tuple[tuple[str, Text], ...]] = (
    ("model", lambda row: row.model),
    ("machine", lambda row: row.machine),
    ("stack", lambda row: row.stack or NOTHING),
    ("load", _load),
    ("out tok/s", _number("output_throughput", ",.0f")),
    ("TTFT mean ms", _number("mean_ttft_ms", ",.0f")),
    ("TTFT p95 ms", _number("p95_ttft_ms", ",.0f")),
    ("TPOT mean ms", _number("mean_tpot_ms", ",.1f")),
    ("USD per 1M out", _number("usd_per_million_output_tokens", ",.2f")),
    ("valid", _valid),
    ("folder", lambda row: row.folder),
)
"""Title and text of each column."""


def _notices(tables: Sequence[WorkloadTable]) -> Iterator[str]:
    """Yield notes before the tables: invalid sweeps, simulated servers, and rows that nothing compares with."""
    rows = [row for table in tables for row in table.rows]
    bad = ", ".join(dict.fromkeys(row.folder for row in rows if not row.valid))
    simulated = ", ".join(dict.fromkeys(row.folder for row in rows if row.simulated))
    if bad:
        yield f"**NOT VALID: {bad}. Do not use their metrics.**"
    if simulated:
        yield f"Simulated server: {simulated}. Results do not reflect real hardware."
    if len(tables) > 1:
        yield f"The sweeps have {len(tables)} different workloads. Compare rows of one table only."
        for table in tables:
            if len(table.rows) == 1:
                yield f"Not comparable: {table.rows[0].folder} alone has {table.workload}."


def overview_markdown(tables: Sequence[WorkloadTable]) -> str:
    """Return Markdown to paste."""
    return page("overview.md.j2", tables=tables, notices=list(_notices(tables)), columns=COLUMNS)


ORDER: Final = ("worse", "better", CANNOT_TELL, "same")


def _percent(ratio: float) -> str:
    return f"{ratio - 1:+.1%}" if 0 < ratio < math.inf else "?"


def comparison_markdown(comparison: SweepComparison) -> str:
    """Return Markdown for a pull request."""
    worse, rest = verdict_counts(comparison)
    return page(
        "comparison.md.j2",
        comparison=comparison,
        worse=worse,
        rest=rest,
        missing=missing_note(comparison),
        note=basis_note(comparison),
        changes=sorted(comparison.changes, key=lambda change: ORDER.index(change.verdict)),
        percent=_percent,
    )
