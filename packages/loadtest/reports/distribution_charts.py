"""Charts of distributions: the share of requests over their latency, one line per load."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from loadtest.client.json_values import as_mapping
from loadtest.measure import load_name, percentile, shape_text
from loadtest.reports.chart_model import ChartMark, LineChart, Result, Series
from loadtest.reports.charts import grouped, is_wide, level_of, limit_lines, shape_of, shapes_of

KEYS: Final = ("ttft", "tpot", "e2e")
MOST_LINES: Final = 6
SHARES: Final = (0, 1, 2.5, *range(5, 100, 5), 97.5, 99, 99.5, 99.9, 100)
"""Percentiles on a line."""


def _pairs(key: str, group: Sequence[Result]) -> list[tuple[float, float]]:
    """Return shares of the requests in percent, and values in ms."""
    ordered = sorted(1000 * row[key] for result in group for row in _requests(result) if key in row)
    return [(share, percentile(ordered, share)) for share in SHARES] if ordered else []


def _requests(result: Result) -> Iterator[Mapping[str, float]]:
    """Return the latencies in seconds of each request of the steady window, or of all without one. A single token has no TPOT."""
    steady = as_mapping(result.get("steady"))
    start_s, end_s = steady.get("start_s", -math.inf), steady.get("end_s", math.inf)
    columns = (result[name] for name in ("start_times", "ttfts", "e2els", "output_lens"))
    for at_s, ttft, e2e, tokens in zip(*columns, strict=True):
        if start_s <= at_s <= end_s:
            yield {"ttft": ttft, "e2e": e2e} | ({"tpot": (e2e - ttft) / (tokens - 1)} if tokens > 1 else {})


def chosen(levels: Sequence[float]) -> list[float]:
    """Return at most MOST_LINES loads, evenly spaced, including the lowest and the highest."""
    ordered = sorted(set(levels))
    if len(ordered) <= MOST_LINES:
        return ordered
    return [ordered[round(number * (len(ordered) - 1) / (MOST_LINES - 1))] for number in range(MOST_LINES)]


def distributions(results: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> list[list[LineChart]]:
    """Return the distributions of each shape. Repeats of a load share a line."""
    shapes = shapes_of([result for result in results if result["completed"]]).values()
    charts = ([_chart(key, group, mode, slo) for key in KEYS] for group in shapes)
    return [[chart for chart in found if chart is not None] for found in charts]


def _chart(key: str, group: Sequence[Result], mode: str, slo: Mapping[str, Any]) -> LineChart | None:
    """Return the distribution of one latency of the points of one shape, or None without values."""
    loads, name = grouped(group, level_of), key.upper()
    levels = chosen(list(loads))
    series = tuple(line for level in levels if (line := _line(key, loads[level])).marks)
    if not series:
        return None
    output, tokens = shape_of(group[0])
    limits = limit_lines(slo, f"{key}_s", axis="x")
    steady = all(result.get("steady") for result in group)
    return LineChart(
        key=f"cdf-{key}-{mode}-i{tokens}-o{output}",
        title=f"{name}, {shape_text(group[0]['point'])}",
        x_label=f"{name}, ms",
        y_label="% of the requests",
        series=series,
        x_scale="log" if is_wide([mark.x for line in series for mark in line.marks if mark.valid]) else "linear",
        limits=limits,
        about=f"{len(levels)} of {len(loads)} loads, evenly chosen." if len(levels) < len(loads) else "",
        terms=(key, "cdf", *(("limit",) if limits else ()), *(("steady",) if steady else ())),
    )


def _line(key: str, group: Sequence[Result]) -> Series:
    """Return the line of one load; empty without values."""
    valid = all(bool(result["valid"]) for result in group)
    name = load_name(group[0]["point"]) + ("" if valid else " (not valid)")
    marks = (
        ChartMark(x=value, y=share, label=f"{name}: {share:g}% within {value:,.4g} ms", valid=valid)
        for share, value in _pairs(key, group)
    )
    return Series(name=name, marks=tuple(marks), look="plain", is_dashed=not valid)
