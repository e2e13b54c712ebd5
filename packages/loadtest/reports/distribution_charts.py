"""Charts of distributions: the share of requests over their latency, one line per load."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadtest.client.json_values import as_list
from loadtest.measure import percentile
from loadtest.reports.chart_model import LineChart, Mark, Result, Series
from loadtest.reports.charts import Plotted, by_shape, is_wide_range, limit_lines, load_name, shape_name, shape_of

MOST_LINES: Final = 6
SHARES: Final = (0, 1, 2.5, *range(5, 100, 5), 97.5, 99, 99.5, 99.9, 100)
"""Percentiles on a line."""

Pairs = list[tuple[float, float]]
"""Share in percent and value in ms."""


def _pairs(values_ms: list[float]) -> Pairs:
    ordered = sorted(values_ms)
    return [(share, percentile(ordered, share)) for share in SHARES] if ordered else []


def _of_list(name: str) -> Callable[[Sequence[Result]], Pairs]:
    return lambda group: _pairs([1000 * value for result in group for value in result[name]])


def _tpots(group: Sequence[Result]) -> Pairs:
    rows = [row for r in group for row in zip(r["ttfts"], r["e2els"], r["output_lens"], strict=True)]
    return _pairs([1000 * (e2e - ttft) / (tokens - 1) for ttft, e2e, tokens in rows if tokens > 1])


def _itls(group: Sequence[Result]) -> Pairs:
    """Return the mean of the repeats' percentiles, because the times themselves are not stored."""
    sketches = [sketch for result in group if (sketch := as_list(result.get("itl_quantiles_ms")))]
    return [
        (float(rows[0][0]), sum(float(row[1]) for row in rows) / len(rows)) for rows in zip(*sketches, strict=False)
    ]


LATENCIES: Final[Mapping[Plotted, Callable[[Sequence[Result]], Pairs]]] = {
    Plotted(key="ttft", title="TTFT", limit="ttft_s", terms=("ttft", "cdf")): _of_list("ttfts"),
    Plotted(key="tpot", title="TPOT", limit="tpot_s", terms=("tpot", "cdf")): _tpots,
    Plotted(key="itl", title="ITL", terms=("itl", "cdf")): _itls,
    Plotted(key="e2e", title="E2E", limit="e2e_s", terms=("e2e", "cdf")): _of_list("e2els"),
}


def chosen(levels: Sequence[float]) -> list[float]:
    """Return at most MOST_LINES loads, evenly spaced, including the lowest and the highest."""
    ordered = sorted(set(levels))
    if len(ordered) <= MOST_LINES:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (MOST_LINES - 1))] for number in range(MOST_LINES)]


def distributions(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[list[LineChart]]:
    """Return the distributions of each shape. Repeats of a load share a line."""
    found: list[list[LineChart]] = []
    for group in by_shape([result for result in results if result["completed"]]).values():
        charts = (_chart(latency, group, mode, slo) for latency in LATENCIES)
        found.append([chart for chart in charts if chart is not None])
    return found


def _chart(latency: Plotted, group: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> LineChart | None:
    """Return the distribution of one latency of the points of one shape, or None without values."""
    loads = {result["point"]["level"] for result in group}
    levels = chosen(sorted(loads))
    lines = (_line(latency, [r for r in group if r["point"]["level"] == level], level, mode) for level in levels)
    series = tuple(line for line in lines if line is not None)
    if not series:
        return None
    shape = shape_of(group[0])
    limits = limit_lines(slo, latency.limit, axis="x")
    return LineChart(
        key=f"cdf-{latency.key}-{mode}-i{shape[1]}-o{shape[0]}",
        title=f"{latency.title}, {shape_name(shape)}",
        x_label=f"{latency.title}, ms",
        y_label="% of the events" if latency.key == "itl" else "% of the requests",
        series=series,
        log_x=is_wide_range([mark.x for line in series for mark in line.marks]),
        ticks_at_marks=False,
        limits=limits,
        about=f"{len(levels)} of {len(loads)} loads, evenly chosen." if len(levels) < len(loads) else "",
        terms=latency.terms_with(limits),
    )


def _line(latency: Plotted, group: Sequence[Result], level: float, mode: str) -> Series | None:
    pairs = LATENCIES[latency](group)
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
