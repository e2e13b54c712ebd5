"""Table and CSV of a sweep's reports."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from loadtest.client.json_values import as_mapping
from loadtest.measure import failed_share, failed_text, load_text
from loadtest.reports.chart_model import NOTHING, Result
from loadtest.steady import tail

CSV_FIELDS: Final = (
    "completed", "failed", "failed_share", "duration", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
    "max_output_tokens_per_s", "max_concurrent_requests", "total_input_tokens", "total_output_tokens",
    *(f"{key}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for key in ("mean", "median", "std", "p90", "p95", "p99", "p99.9")),
    "usd_per_million_output_tokens", "valid", "simulated", "date",
)  # fmt: skip
STEADY_FIELDS: Final = (
    "requests", "output_throughput", "mean_in_flight", "request_goodput", "good_share", "highest_percentile",
    *(f"{key}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for key in ("mean", "median", "p90", "p95", "p99", "p99.9")),
)  # fmt: skip
FIRST_WAVE_FIELDS: Final = ("requests", "median_ttft_ms", "max_ttft_ms", "median_tpot_ms", "median_e2el_ms")
SERVER_FIELDS: Final = (
    "kv_cache_usage_max",
    "requests_running_max",
    "requests_waiting_max",
    "prefix_cache_hit_rate",
    "preemptions",
)
CLIENT_FIELDS: Final = ("workers", "cpu_share_max", "lag_p99_ms", "send_late_p99_ms")
UNCERTAINTY_FIELDS: Final = (
    "lag_mean_ms", "lag_of_mean_ttft", "lag_of_p99_ttft", "steal_share",
    "server_mean_ms", "first_event_mean_ms", "bunched_share", "tokens_per_event",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of the table."""

    title: str
    text: Callable[[Result], str]
    term: str
    """Key of the explanation in `terms.toml`."""
    optional: bool = False
    """Value at which the column is omitted if no cell differs."""
    usual: str = NOTHING
    alarming: Callable[[Result], bool] = lambda _result: False


def _number(field: str, form: str) -> Callable[[Result], str]:
    return lambda result: format(result[field], form) if result.get(field) is not None else NOTHING


def _of(part: str, field: str, form: str) -> Callable[[Result], str]:
    return lambda result: format(result[part][field], form) if result[part].get(field) is not None else NOTHING


def _mean_ttft(result: Result) -> str:
    """Return the mean time to first token with the client's mean lateness, if it is known."""
    mean_ms, lag_ms = result.get("mean_ttft_ms"), as_mapping(result.get("ttft_uncertainty")).get("lag_mean_ms")
    if mean_ms is None:
        return NOTHING
    return f"{mean_ms:,.1f}" if lag_ms is None else f"{mean_ms:,.1f} ± {lag_ms:.1f}"


def _above_server(result: Result) -> str:
    """Return the client's mean minus the server's, both from the send to the first event and of the whole point."""
    found = as_mapping(result.get("ttft_uncertainty"))
    ours_ms, theirs_ms = found.get("first_event_mean_ms"), found.get("server_mean_ms")
    if isinstance(ours_ms, int | float) and isinstance(theirs_ms, int | float):
        return f"{ours_ms - theirs_ms:+,.1f}"
    return NOTHING


def _tail(latency: str, form: str) -> Callable[[Result], str]:
    """Return the name and the value of the highest percentile that the requests support."""

    def text(result: Result) -> str:
        found = tail(result, latency)
        return NOTHING if found is None else f"p{found[0]:g} {format(found[1], form)}"

    return text


def _steady_text(field: str, form: str, part: str | None = None) -> Callable[[Result], str]:
    """Return a metric of the steady window, or of a part of it."""

    def text(result: Result) -> str:
        steady = as_mapping(result.get("steady"))
        value = (as_mapping(steady.get(part)) if part else steady).get(field)
        return NOTHING if value is None else format(value, form)

    return text


COLUMNS: Final = (
    Column(title="load", text=load_text, term="load"),
    Column(
        title="valid", text=lambda r: "yes" if r["valid"] else "NO", term="valid", alarming=lambda r: not r["valid"]
    ),
    Column(
        title="failed",
        text=lambda r: failed_text(failed_share(r)) if r["failed"] else "0",
        term="failed",
        alarming=lambda r: r["failed"] > 0,
    ),
    Column(title="in", text=lambda r: f"{r['point']['input_tokens']:,}", term="lengths"),
    Column(title="out", text=lambda r: f"{r['point']['output_tokens']:,}", term="lengths"),
    Column(title="done", text=_number("completed", ","), term="done"),
    Column(title="req/s", text=_number("request_throughput", ",.2f"), term="rate"),
    Column(title="out tok/s", text=_number("output_throughput", ",.1f"), term="throughput"),
    Column(title="all tok/s", text=_number("total_token_throughput", ",.1f"), term="throughput"),
    Column(title="steady requests", text=_steady_text("requests", ","), term="steady", optional=True),
    Column(title="steady tok/s", text=_steady_text("output_throughput", ",.1f"), term="steady", optional=True),
    Column(title="goodput/s", text=_number("request_goodput", ",.2f"), term="goodput", optional=True),
    Column(title="good", text=_number("good_share", ".1%"), term="goodput", optional=True),
    Column(title="TTFT mean ms", text=_mean_ttft, term="ttft_mean"),
    Column(title="above server's ms", text=_above_server, term="ttft_server", optional=True),
    Column(title="TTFT p50 ms", text=_number("median_ttft_ms", ",.1f"), term="ttft"),
    Column(title="TTFT p95 ms", text=_number("p95_ttft_ms", ",.1f"), term="percentile", optional=True),
    Column(title="TTFT tail ms", text=_tail("ttft", ",.1f"), term="percentile"),
    Column(
        title="first wave TTFT p50 ms",
        text=_steady_text("median_ttft_ms", ",.1f", "first_wave"),
        term="steady",
        optional=True,
    ),
    Column(title="TPOT p50 ms", text=_number("median_tpot_ms", ",.2f"), term="tpot"),
    Column(title="TPOT tail ms", text=_tail("tpot", ",.2f"), term="percentile"),
    Column(title="ITL tail ms", text=_tail("itl", ",.2f"), term="itl"),
    Column(title="E2E tail ms", text=_tail("e2el", ",.0f"), term="e2e"),
    Column(title="KV", text=_of("server", "kv_cache_usage_max", ".0%"), term="kv", optional=True),
    Column(title="queue", text=_of("server", "requests_waiting_max", ",.0f"), term="kv", optional=True),
)


def columns_of(results: Sequence[Result]) -> list[Column]:
    """Return the columns of a table. Optional ones appear only if a point has such a metric."""
    return [
        column
        for column in COLUMNS
        if not column.optional or any(column.text(result) != column.usual for result in results)
    ]


def summary_csv(results: Sequence[Result]) -> str:
    """Return one CSV row per point; empty fields are unknown."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    point_fields = ("key", "mode", "level", "input_tokens", "output_tokens", "repeat", "seed")
    writer.writerow(
        [
            *point_fields,
            *CSV_FIELDS,
            *(f"steady_{name}" for name in STEADY_FIELDS),
            *(f"first_wave_{name}" for name in FIRST_WAVE_FIELDS),
            *SERVER_FIELDS,
            *CLIENT_FIELDS,
            *(f"ttft_{name}" for name in UNCERTAINTY_FIELDS),
            "errors",
            "notes",
        ]
    )
    for result in results:
        errors = " ".join(f"{kind}={count}" for kind, count in result["errors_by_kind"].items())
        notes = "; ".join([*result["invalid_reasons"], *result["notes"]])
        values = [
            *(result["point"][name] for name in point_fields),
            *(round(failed_share(result), 6) if name == "failed_share" else result.get(name) for name in CSV_FIELDS),
            *(as_mapping(result.get("steady")).get(name) for name in STEADY_FIELDS),
            *(as_mapping(as_mapping(result.get("steady")).get("first_wave")).get(name) for name in FIRST_WAVE_FIELDS),
            *(result["server"].get(name) for name in SERVER_FIELDS),
            *(result["client"].get(name) for name in CLIENT_FIELDS),
            *(as_mapping(result.get("ttft_uncertainty")).get(name) for name in UNCERTAINTY_FIELDS),
            errors,
            notes,
        ]
        writer.writerow(["" if value is None else value for value in values])
    return text.getvalue()
