"""Drawings: no text on another, nothing outside the drawing, and a tooltip at every mark; on a narrow screen too."""

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from loadtest.reports import svg
from loadtest.reports.chart_model import ChartMark, LimitLine, LineChart, Series
from loadtest.reports.report import report_charts
from loadtest.reports.svg import chart_svg, off_scale
from loadtest.tests.test_report_page import SLO, measured, planted
from loadtest.tests.test_reports import result

NS = "{http://www.w3.org/2000/svg}"
STYLES = "".join((Path(svg.__file__).parent / name).read_text() for name in ("charts.css", "report.css"))
NARROW = STYLES[STYLES.index("@media (max-width: 640px)") :]
EM = 0.6
"""Mean width of a character in DejaVu Sans, which is wide, as a share of the font size."""


def size_of(css):
    """The font size of a class on a narrow screen, where it is the largest, from the style sheets."""
    return float(re.search(rf"\.{css}\b[^{{}}]*\{{[^}}]*font-size: ([\d.]+)px", NARROW)[1])


def box_of(text):
    size, x, y = size_of(text.get("class")), float(text.get("x")), float(text.get("y"))
    width = EM * size * len(text.text)
    left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor")]
    return left, y - 0.75 * size, left + width, y + 0.2 * size


def places_of(element):
    """All positions of a shape."""
    if element.tag == f"{NS}circle":
        x, y, r = (float(element.get(name)) for name in ("cx", "cy", "r"))
        return [(x - r, y - r), (x + r, y + r)]
    if element.tag == f"{NS}line":
        return [(float(element.get(f"x{end}")), float(element.get(f"y{end}"))) for end in "12"]
    if element.tag == f"{NS}rect":
        x, y, width, height = (float(element.get(name)) for name in ("x", "y", "width", "height"))
        return [(x, y), (x + width, y + height)]
    if element.tag == f"{NS}polyline":
        return [tuple(map(float, pair.split(","))) for pair in element.get("points").split()]
    if element.tag == f"{NS}path":
        return [tuple(map(float, pair)) for pair in re.findall(r"M([-\d.]+),([-\d.]+)", element.get("d"))]
    return []


def faults(drawing):
    """What is wrong with a drawing, in words."""
    root = ET.fromstring(drawing)  # noqa: S314 - our own drawing
    width, height = map(float, root.get("viewBox").split()[2:])
    texts = [(text.text, box_of(text)) for text in root.iter(f"{NS}text")]
    found = [
        f"{text} leaves the drawing"
        for text, (x, y, end, bottom) in texts
        if x < 0 or y < 0 or end > width or bottom > height
    ]
    found += [
        f"{one} is on {two}"
        for (one, a), (two, b) in combinations(texts, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]
    groups = {mark: group for group in root.iter(f"{NS}g") if group.find(f"{NS}title") is not None for mark in group}
    for element in root.iter():
        if any(not (0 <= x <= width and 0 <= y <= height) for x, y in places_of(element)):
            found.append(f"{element.tag.removeprefix(NS)} leaves the drawing")
        titled = groups.get(element, element).find(f"{NS}title")
        if element.tag == f"{NS}circle" and (titled is None or not titled.text):
            found.append("a mark has no tooltip")
    return found


def many_charts():
    """Charts with what is hard to place: many loads and shapes, limits on values, forecasts, repeats, and points that are not valid."""
    band = {"low": 50.0, "typical": 100.0, "high": 150.0}
    loads = [2**power for power in range(12)]
    full = [result(level, tokens) for tokens in (8, 16, 16384) for level in loads]
    plans = [
        result(n, 16, repeat=r, slower=1 + r / 5) | {"forecast": {"output_throughput": band}}
        for n in range(1, 30)
        for r in (0, 1)
    ]
    steady = {"start_s": 0.5, "end_s": 3.5, "request_throughput": 7.9, "request_goodput": 5.9}
    rates = [measured(n / 3, planted(8), mode="open", steady=steady, request_goodput=0.0) for n in (1, 2, 40)]
    broken = [result(1, 16, slower=900, valid=False), result(8, 16), result(9, 16), result(1000, 16, slower=1e-4)]
    share = {"slo_share": 0.99}
    limits = {"slo": SLO | {"ttft_s": 0.0503, "e2e_s": 0.36}}
    groups = {
        "full": report_charts({"slo": SLO}, full), "plans": report_charts(limits, plans), "rates": report_charts(share | limits, rates),
        "broken": report_charts(limits, broken),
    }  # fmt: skip
    return {name: [c for group in found for c in group.charts] for name, found in groups.items()}


def test_no_text_is_on_another_nothing_is_cut_and_every_mark_has_its_value(subtests):
    for name, charts in many_charts().items():
        assert charts
        for chart in charts:
            with subtests.test(f"{name} {chart.key}"):
                assert faults(chart_svg(chart)) == []
                drawing = ET.fromstring(chart_svg(chart))  # noqa: S314 - our own drawing
                texts = [text.text for text in drawing.iter(f"{NS}text")]
                limits = {limit.text for limit in chart.limits} - {*off_scale(chart)}
                assert {chart.x_label, chart.y_label, *limits} <= {*texts}
                assert len(texts) > 5 + len(limits)  # two values on each axis at least
                labels = {mark.label for line in chart.series for mark in line.marks}
                cut = {m.label for line in chart.series if line.look == "plain" for m in line.marks if off_scale(chart)}
                assert labels - {title.text for title in drawing.iter(f"{NS}title")} <= {*off_scale(chart), *cut}


@given(st.lists(st.tuples(st.floats(1e-3, 1e6), st.floats(0, 1e9)), min_size=1, max_size=40), st.booleans())
def test_any_values_are_drawn_without_a_fault(pairs, wide):
    marks = tuple(ChartMark(x=x, y=y + wide, label=f"{x}", tag=f"{x:g}") for x, y in dict(pairs).items())
    limits = tuple(LimitLine(axis="y", value=mark.y, text=f"limit {mark.y:,.4g} ms") for mark in marks[:2])
    series = (Series(name="s", marks=marks),)
    chart = LineChart(key="k", title="t", x_label="x", y_label="y", series=series, log_y=wide, limits=limits)
    assert faults(chart_svg(chart)) == []
