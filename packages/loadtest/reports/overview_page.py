"""Overview of many sweeps as Markdown to paste, or as an HTML page."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from loadtest.overview import Overview, SweepRow
from loadtest.reports.chart_model import NOTHING
from loadtest.reports.facts import Notice
from loadtest.reports.pages import page


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewColumn:
    """One column of the table."""

    title: str
    text: Callable[[SweepRow], str]
    term: str = ""
    """Key of the explanation in `terms.toml`."""
    is_number: bool = False


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _load(row: SweepRow) -> str:
    if not row.load:
        return "none within the limits"
    return f"{row.load} (highest)" if row.is_highest else row.load


def _valid(row: SweepRow) -> str:
    if not row.valid:
        return "NO"
    return f"yes, {row.loads - row.invalid_loads} of {row.loads} loads" if row.invalid_loads else "yes"


COLUMNS: Final = (
    OverviewColumn(title="model", text=lambda row: row.model),
    OverviewColumn(title="machine", text=lambda row: row.machine),
    OverviewColumn(title="stack", text=lambda row: row.stack or NOTHING),
    OverviewColumn(title="load", text=_load, term="load", is_number=True),
    OverviewColumn(title="out tok/s", text=lambda row: _number(row.output_throughput, ",.0f"), term="throughput", is_number=True),
    OverviewColumn(title="TTFT mean ms", text=lambda row: _number(row.mean_ttft_ms, ",.0f"), term="ttft", is_number=True),
    OverviewColumn(title="TTFT p95 ms", text=lambda row: _number(row.p95_ttft_ms, ",.0f"), term="percentile", is_number=True),
    OverviewColumn(title="TPOT mean ms", text=lambda row: _number(row.mean_tpot_ms, ",.1f"), term="tpot", is_number=True),
    OverviewColumn(
        title="USD per 1M out", text=lambda row: _number(row.usd_per_million_output_tokens, ",.2f"), term="cost", is_number=True
    ),
    OverviewColumn(title="valid", text=_valid, term="valid"),
    OverviewColumn(title="folder", text=lambda row: row.folder),
)  # fmt: skip


def _notices(overview: Overview) -> list[Notice]:
    """Return what a reader must know before the tables: simulated servers, invalid sweeps, and rows that nothing compares with."""
    rows = [row for table in overview.tables for row in table.rows]
    bad = [row.folder for row in rows if not row.valid]
    notices = (
        [Notice(text=f"NOT VALID: {', '.join(dict.fromkeys(bad))}. Do not use their metrics.", alarming=True)]
        if bad
        else []
    )
    if overview.simulated:
        names = ", ".join(overview.simulated)
        notices.append(Notice(text=f"Simulated server: {names}. Results do not reflect real hardware."))
    if len(overview.tables) > 1:
        notices.append(
            Notice(text=f"The sweeps have {len(overview.tables)} different workloads. Compare rows of one table only.")
        )
    notices += [
        Notice(text=f"Not comparable: {row.folder} alone has {table.workload}.") for table, row in overview.alone
    ]
    return notices


def _choice(*, has_limits: bool) -> str:
    of = "highest load within the limits" if has_limits else "load with the highest throughput"
    return f"Each row is the {of}. (highest): no higher load was measured, so the server may reach more."


def _page(template: str, overview: Overview) -> str:
    used = dict.fromkeys(column.term for column in COLUMNS if column.term)
    return page(template, overview=overview, notices=_notices(overview), columns=COLUMNS, used=used, choice=_choice)


def overview_markdown(overview: Overview) -> str:
    """Return Markdown to paste."""
    return _page("overview.md.j2", overview)


def overview_page(overview: Overview) -> str:
    """Return the page."""
    return _page("overview.html.j2", overview)
