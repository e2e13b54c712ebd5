"""Charts of distributions: the share of requests over their latency, one line per load."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadtest.client.json_values import as_list, as_mapping
from loadtest.measure import load_name, percentile, shape_text
from loadtest.reports.chart_model import LineChart, Mark, Result, Series
from loadtest.reports.charts import by_level, by_shape, is_wide, limit_lines, shape_of

MOST_LINES: Final = 6
SHARES: Final = (0, 1, 2.5, *range(5, 100, 5), 97.5, 99, 99.5, 99.9, 100)
"""Percentiles on a line."""

Pairs = list[tuple[float, float]]
"""Share in percent and value in ms."""


def _of_requests(value: Callable[[float, float, int], float | None]) -> Callable[[Sequence[Result]], Pairs]:
    """Return the distribution of a value in seconds of each request, from its TTFT, E2E and output tokens."""

    def pairs(group: Sequence[Result]) -> Pairs:
        found = (value(*row) for result in group for row in _requests(result))
        ordered = sorted(1000 * seconds for seconds in found if seconds is not None)
        return [(share, percentile(ordered, share)) for share in SHARES] if ordered else []

    return pairs


def _requests(result: Result) -> list[tuple[float, float, int]]:
    """Return TTFT, E2E and output tokens of the requests of the steady window, or of all without one."""
    rows = list(zip(result["ttfts"], result["e2els"], result["output_lens"], strict=True))
    steady = as_mapping(result.get("steady"))
    if "start_s" not in steady:
        return rows
    starts = zip(result["start_times"], rows, strict=True)
    return [row for at_s, row in starts if steady["start_s"] <= at_s <= steady["end_s"]]


def _itls(group: Sequence[Result]) -> Pairs:
    """Return the mean of the repeats' percentiles, because the times themselves are not stored."""
    sketches = [sketch for result in group if (sketch := as_list(result.get("itl_quantiles_ms")))]
    return [
        (float(rows[0][0]), sum(float(row[1]) for row in rows) / len(rows)) for rows in zip(*sketches, strict=False)
    ]


LATENCIES: Final[Mapping[str, tuple[str, Callable[[Sequence[Result]], Pairs]]]] = {
    "ttft": ("TTFT", _of_requests(lambda ttft, _e2e, _tokens: ttft)),
    "tpot": ("TPOT", _of_requests(lambda ttft, e2e, tokens: (e2e - ttft) / (tokens - 1) if tokens > 1 else None)),
    "itl": ("ITL", _itls),
    "e2e": ("E2E", _of_requests(lambda _ttft, e2e, _tokens: e2e)),
}


def chosen(levels: Sequence[float]) -> list[float]:
    """Return at most MOST_LINES loads, evenly spaced, including the lowest and the highest."""
    ordered = sorted(set(levels))
    if len(ordered) <= MOST_LINES:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (MOST_LINES - 1))] for number in range(MOST_LINES)]


def distributions(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[list[LineChart]]:
    """Return the distributions of each shape. Repeats of a load share a line."""
    shapes = by_shape([result for result in results if result["completed"]]).values()
    charts = ([_chart(key, group, mode, slo) for key in LATENCIES] for group in shapes)
    return [[chart for chart in found if chart is not None] for found in charts]


def _chart(key: str, group: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> LineChart | None:
    """Return the distribution of one latency of the points of one shape, or None without values."""
    loads, (name, _) = by_level(group), LATENCIES[key]
    levels = chosen(list(loads))
    series = tuple(line for level in levels if (line := _line(key, loads[level])).marks)
    if not series:
        return None
    output, tokens = shape_of(group[0])
    limits = limit_lines(slo, f"{key}_s", axis="x")
    steady = key != "itl" and all(result.get("steady") for result in group)
    return LineChart(
        key=f"cdf-{key}-{mode}-i{tokens}-o{output}",
        title=f"{name}, {shape_text(group[0]['point'])}",
        x_label=f"{name}, ms",
        y_label="% of the events" if key == "itl" else "% of the requests",
        series=series,
        x_scale="log" if is_wide([mark.x for line in series for mark in line.marks]) else "linear",
        limits=limits,
        about=f"{len(levels)} of {len(loads)} loads, evenly chosen." if len(levels) < len(loads) else "",
        terms=(key, "cdf", *(("limit",) if limits else ()), *(("steady",) if steady else ())),
    )


def _line(key: str, group: Sequence[Result]) -> Series:
    """Return the line of one load; empty without values."""
    valid, load = all(bool(result["valid"]) for result in group), load_name(group[0]["point"])
    marks = (
        Mark(x=value, y=share, label=f"{load}: {share:g} % within {value:,.4g} ms", valid=valid)
        for share, value in LATENCIES[key][1](group)
    )
    name = load if valid else f"{load} (not valid)"
    return Series(name=name, marks=tuple(marks), look="plain", is_dashed=not valid)
