"""Table of a sweep's report."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from loadtest.client.json_values import as_mapping
from loadtest.measure import failed_share, failed_text, load_text
from loadtest.steady import tail

NOTHING: Final = "\N{EN DASH}"
"""Text of a missing value."""
Result: TypeAlias = Mapping[str, Any]
"""One line of results.jsonl."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    title: str
    text: Callable[[Result], str]
    term: str
    """Key of the explanation in `terms.toml`."""
    optional: bool = False
    """True to omit the column if no point has such a metric."""
    alarming: Callable[[Result], bool] = lambda _result: False


def _number(field: str, form: str, part: str = "") -> Callable[[Result], str]:
    """Return a metric of the result, or of a part of it."""

    def text(result: Result) -> str:
        value = (as_mapping(result.get(part)) if part else result).get(field)
        return NOTHING if value is None else format(value, form)

    return text


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


def _first_wave_ttft(result: Result) -> str:
    """Return the median time to first token of the requests that filled the idle server."""
    return _number("median_ttft_ms", ",.1f", "first_wave")(as_mapping(result.get("steady")))


COLUMNS: Final = (
    Column("load", load_text, "load"),
    Column(
        "valid", lambda result: "yes" if result["valid"] else "NO", "valid", alarming=lambda result: not result["valid"]
    ),
    Column(
        "failed",
        lambda r: failed_text(failed_share(r)) if r["failed"] else "0",
        "failed",
        alarming=lambda result: bool(result["failed"]),
    ),
    Column("in", lambda result: f"{result['point']['input_tokens']:,}", "lengths"),
    Column("out", lambda result: f"{result['point']['output_tokens']:,}", "lengths"),
    Column("done", _number("completed", ","), "done"),
    Column("req/s", _number("request_throughput", ",.2f"), "rate"),
    Column("out tok/s", _number("output_throughput", ",.1f"), "throughput"),
    Column("all tok/s", _number("total_token_throughput", ",.1f"), "throughput"),
    Column("steady requests", _number("requests", ",", "steady"), "steady", optional=True),
    Column("steady tok/s", _number("output_throughput", ",.1f", "steady"), "steady", optional=True),
    Column("goodput/s", _number("request_goodput", ",.2f"), "goodput", optional=True),
    Column("good", _number("good_share", ".1%"), "goodput", optional=True),
    Column("TTFT mean ms", _mean_ttft, "ttft_mean"),
    Column("above server's ms", _above_server, "ttft_server", optional=True),
    Column("TTFT p50 ms", _number("median_ttft_ms", ",.1f"), "ttft"),
    Column("TTFT p95 ms", _number("p95_ttft_ms", ",.1f"), "percentile", optional=True),
    Column("TTFT tail ms", _tail("ttft", ",.1f"), "percentile"),
    Column("first wave TTFT p50 ms", _first_wave_ttft, "steady", optional=True),
    Column("TPOT p50 ms", _number("median_tpot_ms", ",.2f"), "tpot"),
    Column("TPOT tail ms", _tail("tpot", ",.2f"), "percentile"),
    Column("ITL tail ms", _tail("itl", ",.2f"), "itl"),
    Column("E2E tail ms", _tail("e2el", ",.0f"), "e2e"),
    Column("KV", _number("kv_cache_usage_max", ".0%", "server"), "kv", optional=True),
    Column("queue", _number("requests_waiting_max", ",.0f", "server"), "kv", optional=True),
)


def columns_of(results: Sequence[Result]) -> list[Column]:
    """Return the columns of a table. Optional ones appear only if a point has such a metric."""
    return [
        column for column in COLUMNS if not column.optional or any(column.text(result) != NOTHING for result in results)
    ]
