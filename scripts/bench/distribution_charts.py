"""Charts of distributions: the share of requests over their latency, one line per load."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.bench.chart_model import LineChart, Mark, Result, Series
from scripts.bench.charts import by_shape, limit_lines, load_name, shape_name, shape_of
from scripts.bench.measure import percentile
from scripts.client.events import as_list

MOST_LINES: Final = 6
SHARES: Final = (0, 1, 2.5, *range(5, 100, 5), 97.5, 99, 99.5, 99.9, 100)
"""Percentiles that a line goes through."""
WIDE: Final = 20.0
"""Values that differ by more than this factor have a logarithmic axis."""

Pairs = list[tuple[float, float]]
"""Share in percent and value in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latency:
    key: str
    title: str
    pairs: Callable[[Sequence[Result]], Pairs]
    limit: str = ""


def _pairs(values_ms: list[float]) -> Pairs:
    ordered = sorted(values_ms)
    return [(share, percentile(ordered, share)) for share in SHARES] if ordered else []


def _of_list(name: str) -> Callable[[Sequence[Result]], Pairs]:
    return lambda group: _pairs([1000 * value for result in group for value in result[name]])


def _tpots(group: Sequence[Result]) -> Pairs:
    rows = [row for r in group for row in zip(r["ttfts"], r["e2els"], r["output_lens"], strict=True)]
    return _pairs([1000 * (e2e - ttft) / (tokens - 1) for ttft, e2e, tokens in rows if tokens > 1])


def _itls(group: Sequence[Result]) -> Pairs:
    """Return the mean of the repeats' percentiles: the times themselves are not kept."""
    sketches = [sketch for result in group if (sketch := as_list(result.get("itl_quantiles_ms")))]
    return [
        (float(rows[0][0]), sum(float(row[1]) for row in rows) / len(rows)) for rows in zip(*sketches, strict=False)
    ]


LATENCIES: Final = (
    _Latency(key="ttft", title="TTFT", pairs=_of_list("ttfts"), limit="ttft_s"),
    _Latency(key="tpot", title="TPOT", pairs=_tpots, limit="tpot_s"),
    _Latency(key="itl", title="ITL", pairs=_itls),
    _Latency(key="e2e", title="E2E", pairs=_of_list("e2els"), limit="e2e_s"),
)


def chosen(levels: Sequence[float]) -> list[float]:
    """Return at most MOST_LINES loads, evenly spread, with the lowest and the highest."""
    ordered = sorted(set(levels))
    if len(ordered) <= MOST_LINES:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (MOST_LINES - 1))] for number in range(MOST_LINES)]


def distributions(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[list[LineChart]]:
    """Return the distributions of each shape. Repeats of a load are one line."""
    found: list[list[LineChart]] = []
    for group in by_shape([result for result in results if result["completed"]]).values():
        charts = (_chart(latency, group, mode, slo) for latency in LATENCIES)
        found.append([chart for chart in charts if chart is not None])
    return found


def _chart(latency: _Latency, group: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> LineChart | None:
    """Return the distribution of one latency of the points of one shape; None without values."""
    loads = {result["point"]["level"] for result in group}
    levels = chosen(sorted(loads))
    lines = (_line(latency, [r for r in group if r["point"]["level"] == level], level, mode) for level in levels)
    series = tuple(line for line in lines if line is not None)
    if not series:
        return None
    shape = shape_of(group[0])
    limits = limit_lines(slo, latency.limit, axis="x") if latency.limit else ()
    values = [mark.x for line in series for mark in line.marks if mark.x > 0]
    return LineChart(
        key=f"cdf-{latency.key}-{mode}-i{shape[1]}-o{shape[0]}",
        title=f"{latency.title}, {shape_name(shape)}",
        x_label=f"{latency.title}, ms",
        y_label="% of the events" if latency.key == "itl" else "% of the requests",
        series=series,
        log_x=bool(values) and max(values) / min(values) > WIDE,
        ticks_at_marks=False,
        limits=limits,
        about=f"{len(levels)} of {len(loads)} loads, evenly chosen." if len(levels) < len(loads) else "",
        terms=(latency.key, "cdf", *(("limit",) if limits else ())),
    )


def _line(latency: _Latency, group: Sequence[Result], level: float, mode: str) -> Series | None:
    pairs = latency.pairs(group)
    if not pairs:
        return None
    valid = all(bool(result["valid"]) for result in group)
    load = f"{load_name(mode)} {level:g}"
    marks = tuple(
        Mark(x=value, y=share, label=f"{load}: {share:g} % within {value:,.4g} ms", valid=valid)
        for share, value in pairs
    )
    name = load if mode == "closed" else f"{level:g} requests/s"
    return Series(name=name if valid else f"{name} (not valid)", marks=marks, look="plain", is_dashed=not valid)
