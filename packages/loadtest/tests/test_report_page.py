"""What the report shows: failures and reasons first, limits, distributions, time, repeats, and an explanation of each term."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.measure import load_figures, percentile
from loadtest.reports import facts
from loadtest.reports.charts import (
    COLORS,
    HOLLOW,
    LIMIT_COLOR,
    LOOK,
    MOST_LINES,
    SHARES,
    ChartMark,
    LineChart,
    Series,
    chart_svg,
    chosen,
    distributions,
)
from loadtest.reports.report import report_charts, write_reports
from loadtest.reports.report_pages import terms
from loadtest.reports.table import COLUMNS
from loadtest.steady import judged
from loadtest.tests.model_pool import planted_record
from loadtest.tests.test_reports import Page, folder, grid, result

SLO = {"ttft_s": 0.25, "tpot_s": 0.02, "e2e_s": 2.0}
ROOM = Path(facts.__file__).parent
NS = "{http://www.w3.org/2000/svg}"


def measured(level, records, mode="closed", steady=None, **more):
    """A point as the sweep stores it, with the figures of planted records."""
    base = result(level, 16, requests=8)
    point = base["point"] | {"mode": mode, "key": f"{mode}-{'c' if mode == 'closed' else 'r'}{level:g}-i16-o32-n0"}
    figures = load_figures(records, None)
    return {**base, **figures, "point": point, "steady": steady, **more}


def planted(count=400):
    """Requests of ten tokens, one every 10 ms, whose time to first token is 50 to 149 ms."""
    firsts_s = [index * 0.01 + 0.05 + 0.001 * (index % 100) for index in range(count)]
    return [
        planted_record(index, index * 0.01, [first_s + 0.01 * step for step in range(10)])
        for index, first_s in enumerate(firsts_s)
    ]


def drawn(chart):
    """The elements of a drawing, by their tag and class."""
    return list(ET.fromstring(chart_svg(chart)).iter())  # noqa: S314 - our own drawing


def texts_of(chart):
    return [found.text for found in drawn(chart) if found.tag == f"{NS}text"]


def dots_of(chart):
    return [found for found in drawn(chart) if found.get("class") == "dots"]


def line_chart(*, limit=100.0, named=True):
    marks = tuple(ChartMark(x=x, y=y, label=f"mark {y:g}", valid=y < 90) for x, y in ((0, 50.0), (1, 100.0)))
    ends = tuple(ChartMark(x=x, y=limit, label="the limit") for x in (0, 1))
    series = (Series(name="s", marks=marks), Series(name="the limit", marks=ends, kind="limit", is_dashed=True))
    return LineChart(
        key="k", title="t", x_label="x", y_label="y", series=series, x_names=("one", "eight") if named else ()
    )


@pytest.mark.parametrize("named", [True, False])
def test_each_mark_has_its_value_as_a_tooltip_and_the_place_of_its_value_and_an_invalid_one_is_hollow(named):
    first, second = dots_of(line_chart(named=named))
    assert [found.findtext(f"{NS}title") for found in (first, second)] == ["mark 50", "mark 100"]
    assert (first.get("style"), second.get("style")) == (None, HOLLOW)
    assert {"t", "x", "y", "s", "the limit"} <= {*texts_of(line_chart(named=named))}
    assert {"one", "eight"} & {*texts_of(line_chart(named=named))} == ({"one", "eight"} if named else set())
    lines = [found.get("d") for found in drawn(line_chart(named=named)) if found.get("class") == "line reactive nofill"]
    height = re.findall(r"[\d.]+", lines[1])[1]  # of the limit, which is 100 as well
    assert height == f"{float(second.find(f'{NS}circle').get('cy')):f}"


def test_a_limit_far_above_the_figures_squeezes_nothing():
    assert not line_chart(limit=150.0).is_log
    assert line_chart(limit=5000.0).is_log
    heights = [float(found.find(f"{NS}circle").get("cy")) for found in dots_of(line_chart(limit=5000.0))]
    assert abs(heights[0] - heights[1]) > 30


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=12), st.floats(1e-3, 1e6), st.booleans())
def test_any_values_are_drawn(values, limit, named):
    marks = tuple(ChartMark(x=x, y=y, label=f"{y:g}", spread=(y / 2, 2 * y), tag=f"{x}") for x, y in enumerate(values))
    series = (
        Series(name="<s>", marks=marks),
        Series(name="l", marks=(ChartMark(x=0, y=limit, label="l"),), kind="limit"),
    )
    chart = LineChart(
        key="k",
        title="t",
        x_label="x",
        y_label="y",
        series=series,
        x_names=tuple(map(str, range(len(values)))) if named else (),
    )
    assert len(dots_of(chart)) == len(values)


def test_the_limits_of_slo_are_in_every_chart_of_their_latency(tmp_path):
    results = [measured(level, planted()) for level in (1, 8)]
    groups = report_charts({"slo": SLO}, results)
    limited = {chart.key for group in groups for chart in group.charts if chart.series[-1].kind == "limit"}
    assert limited == {
        "ttft-closed-i16-o32", "latency-throughput-closed", "tpot-closed", "distribution-ttft-closed-i16-o32",
        "distribution-tpot-closed-i16-o32", "distribution-e2e-closed-i16-o32",
    }  # fmt: skip
    path = folder(tmp_path / "r", results, run={"slo": SLO})
    write_reports(path)
    assert "limit TTFT 250 ms" in (path / "report.html").read_text()


def over_load(results, **run):
    """The charts over the load, by key."""
    return {chart.key: chart for group in report_charts(run, results)[:2] for chart in group.charts}


def test_the_share_within_the_limits_is_that_of_the_steady_window():
    steady = {"start_s": 0.5, "end_s": 3.5, "request_throughput": 7.9, "request_goodput": 5.9}
    results = [
        measured(8, planted(), mode="open", steady=steady, request_goodput=6.0),
        measured(16, planted(), mode="open", steady=steady | {"request_throughput": 9.0}, request_goodput=1.0),
    ]
    kept = over_load(results)["kept-open"]
    assert [mark.y for mark in kept.series[0].marks] == pytest.approx([100 * 5.9 / 7.9, 100 * 5.9 / 9.0])
    assert not {key for key in over_load([result(1, 16), result(8, 16)]) if key.startswith("kept")}


def test_the_forecast_is_a_dashed_line_with_its_band():
    band = {"low": 90.0, "typical": 100.0, "high": 120.0}
    forecasts = (
        {"output_throughput": band, "mean_tpot_ms": band},
        None,
        {"output_throughput": band | {"typical": 1e9}},
    )
    levels = (1, 8, 64)
    results = [result(level, 16) | {"forecast": found} for level, found in zip(levels, forecasts, strict=True)]
    charts = over_load(results)
    planned = charts["throughput-closed"].series[1]
    assert (planned.is_dashed, planned.kind) == (True, "planned")
    assert [(mark.x, mark.y, mark.spread) for mark in planned.marks] == [(0, 100, (90, 120)), (2, 1e9, (90, 120))]
    assert planned.marks[0].label == "1 user, 16 in, 32 out: planned 100 tok/s (90 to 120)"
    assert "planned mean 100 ms" in charts["tpot-closed"].series[1].marks[0].label
    assert [line.name for line in charts["cost-closed"].series] == ["16 in, 32 out"]


def test_a_distribution_of_a_point_with_a_steady_window_has_only_its_requests():
    steady = {"start_s": 1.0, "end_s": 1.99}
    ((ttft, *_),) = distributions([judged(measured(4, planted(), steady=steady))], "closed", {})
    ordered = sorted(1000 * r.ttft_s for r in planted() if 1.0 <= r.intended_s <= 1.99)
    assert len(ordered) == 100
    assert [mark.y for mark in ttft.series[0].marks] == pytest.approx([percentile(ordered, share) for share in SHARES])
    assert ttft.x_names == tuple(f"{share:g}" for share in SHARES)
    assert "steady" in ttft.terms


def test_repeats_are_one_distribution_and_a_point_that_is_not_valid_is_dashed():
    first, second = [result(4, 16, slower=s, repeat=n) for n, s in enumerate((1.0, 3.0))]
    ((ttft, *_),) = distributions([first, second, result(8, 16, valid=False)], "closed", {})
    assert [line.name for line in ttft.series] == ["4 users", "8 users (not valid)"]
    assert [line.is_dashed for line in ttft.series] == [False, True]
    both = sorted(1000 * value for r in (first, second) for value in r["ttfts"])
    assert ttft.series[0].marks[SHARES.index(50)].y == pytest.approx(percentile(both, 50))


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=40))
def test_chosen_loads_are_few_with_the_lowest_and_the_highest(levels):
    found = chosen(levels)
    assert len(found) <= MOST_LINES
    assert (found[0], found[-1]) == (min(levels), max(levels))
    assert found == sorted(set(found))
    assert set(found) <= set(levels)


def test_repeats_have_error_bars_and_single_points_have_none():
    single = [result(level, 16) for level in (1, 8)]
    repeated = [result(level, 16, slower=s, repeat=n) for level in (1, 8) for n, s in enumerate((0.9, 1.0, 1.1))]
    for results, bars in ((single, 0), (repeated, 2)):
        chart = over_load(results)["tpot-closed"]
        assert sum(found.get("class") == "ci" for found in drawn(chart)) == bars
    mark = chart.series[0].marks[0]
    assert mark.spread is not None
    values = [r["median_tpot_ms"] for r in repeated if r["point"]["level"] == 1]
    assert mark.spread == (min(values), max(values))
    assert mark.y == pytest.approx(sum(values) / 3)
    assert "mean of 3 repeats" in mark.label


def test_every_term_is_explained_where_it_stands_without_a_script(tmp_path):
    path = folder(tmp_path / "r", [measured(level, planted()) for level in (1, 8)], run={"slo": SLO})
    write_reports(path)
    html = (path / "report.html").read_text()
    page = Page()
    page.feed(html)
    linked = {link[1:] for link in page.links if link.startswith("#")}
    assert {f"term-{column.term}" for column in COLUMNS} & linked
    assert linked <= page.ids  # every heading of the table leads to its definition
    assert {column.term for column in COLUMNS} <= terms().keys()
    for group in report_charts({"slo": SLO}, grid()):
        for chart in group.charts:
            assert set(chart.terms) <= terms().keys()
            assert chart.terms
    figure = html[html.index(">Throughput</text>") :]
    figure = figure[: figure.index("</figure>")]
    assert '<details class="terms"><summary>Definitions</summary>' in figure
    assert terms()["throughput"]["meaning"] in figure
    assert "<script" not in html


def luminance(colour):
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_lines_have_contrast_in_both_schemes(scheme):
    """WCAG 2.2: 4.5 for text (1.4.3), 3 for what must be seen in a drawing (1.4.11)."""
    colours = {}
    text = (ROOM / "report.css").read_text()
    blocks = [block.group(1) for block in re.finditer(r":root \{(.*?)\}", text, flags=re.DOTALL)]
    for block in blocks[: 1 if scheme == "light" else 2]:
        colours |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    colours |= {color: color for color in (*COLORS, LIMIT_COLOR, LOOK["plot_background"])}
    texts = {"fg": "surface bg bad-bg warn-bg", "muted": "surface bg", "bad": "surface bad-bg", "warn": "warn-bg"}
    texts |= {"accent": "surface"}
    lines = dict.fromkeys((*COLORS, LIMIT_COLOR), LOOK["plot_background"])
    for pairs, least in ((texts, 4.5), (lines, 3.0)):
        for front, grounds in pairs.items():
            for back in grounds.split():
                one, other = sorted((luminance(colours[front]), luminance(colours[back])))
                assert (other + 0.05) / (one + 0.05) >= least, (front, back)


def test_a_point_without_any_complete_answer_has_a_report_too(tmp_path):
    failed = [planted_record(n, n * 0.1, [], error="connect") for n in range(5)]
    reasons = ["5 of 5 requests failed (100.0%), more than --max-failed 0.01"]
    dead = measured(4, failed, errors_by_kind={"connect": 5}, valid=False, invalid_reasons=reasons)
    run = {"max_failed": 0.01}
    assert report_charts(run, [dead]) == []
    path = folder(tmp_path / "r", [dead], run=run)
    write_reports(path)
    html = (path / "report.html").read_text()
    assert "NOT VALID: NO point is valid" in html
    assert f"<li>4 users, 16 in, 32 out: {reasons[0]}</li>" in html
    assert "100.0% of the requests failed: 5 of 5" in html
    assert "5 x connect" in html
