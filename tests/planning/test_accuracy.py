"""Predicted against measured: every figure that was reported, and the page that shows them."""

import pytest

from benchmarks.accuracy import __main__ as plan_accuracy
from benchmarks.accuracy.measured import (
    CONTRADICTIONS,
    DECODE,
    FIELD_REPORTS,
    KV,
    PUBLIC_LOGS,
    SATURATION,
    STARTUP,
    VERDICTS,
    WEIGHTS,
    Case,
    Figure,
    subject_of,
)
from planning import plan

FIGURES = [(case, figure) for case in (*FIELD_REPORTS, *PUBLIC_LOGS) for figure in case.figures]


@pytest.mark.parametrize(("case", "figure"), FIGURES, ids=[f"{c.title}: {f.name}" for c, f in FIGURES])
def test_the_prediction_is_within_its_tolerance(case: Case, figure: Figure):
    assert figure.read(subject_of(case)) == pytest.approx(figure.measured, rel=figure.tolerance)


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda verdict: verdict.title)
def test_what_ran_is_said_to_run_and_what_died_is_said_to_die(verdict):
    p = plan(verdict.deployment)
    assert (p.verdict == "oom") is not verdict.runs
    assert p.fits is verdict.runs


def test_tolerances_are_those_that_the_page_promises():
    assert (WEIGHTS, KV, STARTUP, DECODE, SATURATION) == (0.03, 0.05, 0.20, 0.30, 0.50)
    assert {figure.tolerance for _, figure in FIGURES} <= {WEIGHTS, KV, STARTUP, DECODE, SATURATION}


def test_the_page_is_up_to_date():
    assert plan_accuracy.PAGE.read_text(encoding="utf-8") == plan_accuracy.page(), "run python -m benchmarks.accuracy"


def test_the_page_shows_every_figure_and_every_contradiction():
    page = plan_accuracy.page()
    for case, figure in FIGURES:
        assert f"| {case.title} | {figure.name} |" in page
    for said, planned, _ in CONTRADICTIONS:
        assert f"| {said} | {planned} |" in page


def test_check_says_when_the_page_is_stale(monkeypatch, tmp_path, capsys):
    stale = tmp_path / "accuracy.md"
    monkeypatch.setattr(plan_accuracy, "PAGE", stale)
    assert plan_accuracy.main(["--check"]) == 1
    assert "run python -m benchmarks.accuracy" in capsys.readouterr().err
    assert plan_accuracy.main([]) == 0
    assert plan_accuracy.main(["--check"]) == 0
    stale.write_text(stale.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert plan_accuracy.main(["--check"]) == 1


def test_a_miss_is_reported_with_both_figures(monkeypatch):
    case = FIELD_REPORTS[0]
    wrong = Figure(name="weights a device", measured=5, read=lambda s: s.memory.weights_gib, tolerance=0.03)
    monkeypatch.setattr(
        plan_accuracy,
        "FIELD_REPORTS",
        (Case(title=case.title, deployment=case.deployment, figures=(wrong,), source="test"),),
    )
    (miss,) = plan_accuracy.misses()
    assert "predicted 2.328, measured 5," in miss
