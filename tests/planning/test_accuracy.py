"""Predicted against measured: every figure that was reported, and the page that shows them."""

from dataclasses import replace

import pytest

from benchmarks.accuracy import __main__ as plan_accuracy
from benchmarks.accuracy.measured import (
    DECODE,
    FILE,
    KV,
    SATURATION,
    STARTUP,
    WEIGHTS,
    Case,
    Figure,
    MeasurementError,
    load,
    parse,
    subject_of,
)
from planning import plan

MEASURED = load()
FIGURES = [(case, figure) for case in MEASURED.cases for figure in case.figures]


@pytest.mark.parametrize(("case", "figure"), FIGURES, ids=[f"{c.title}: {f.kind.name}" for c, f in FIGURES])
def test_the_prediction_is_within_its_tolerance(case: Case, figure: Figure):
    assert figure.kind.read(subject_of(case)) == pytest.approx(figure.measured, rel=figure.kind.tolerance)


@pytest.mark.parametrize("outcome", MEASURED.outcomes, ids=lambda outcome: outcome.title)
def test_what_ran_is_said_to_run_and_what_died_is_said_to_die(outcome):
    p = plan(outcome.deployment)
    assert (p.verdict == "oom") is not outcome.runs
    assert p.fits is outcome.runs


def test_tolerances_are_those_that_the_page_promises():
    assert (WEIGHTS, KV, STARTUP, DECODE, SATURATION) == (0.03, 0.05, 0.20, 0.30, 0.50)
    assert {figure.kind.tolerance for _, figure in FIGURES} <= {WEIGHTS, KV, STARTUP, DECODE, SATURATION}


def test_the_page_is_up_to_date():
    page = plan_accuracy.page(MEASURED)
    assert plan_accuracy.PAGE.read_text(encoding="utf-8") == page, "run python -m benchmarks.accuracy"


def test_the_page_shows_every_figure_and_every_contradiction():
    page = plan_accuracy.page(MEASURED)
    for case, figure in FIGURES:
        assert f"| {case.title} | {figure.kind.name} |" in page
    for row in MEASURED.contradictions:
        assert f"| {row.report} | {row.planner} |" in page


def test_every_deployment_and_every_source_of_the_file_is_used():
    sources = {case.source for case in MEASURED.cases} | {s for outcome in MEASURED.outcomes for s in outcome.sources}
    assert set(MEASURED.sources.values()) == sources
    used = [row.deployment for row in (*MEASURED.cases, *MEASURED.outcomes)]
    assert [key for key, deployment in MEASURED.deployments.items() if deployment not in used] == []


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("tensor_parallel_size =", "tensor_parallel =", "deployments.e2b-v6e-4.vllm.tensor_parallel: "),
        ("max_num_seqs = 16 }", "max_num_seqs = '16' }", "deployments.qat-e2b-v6e-1.vllm.max_num_seqs: "),
        ("runs = true", "run = true", "outcomes.0.run"),
        ('like = "qat-31b-l4"', 'like = "qat-31b"', "qat-31b-l4-low: qat-31b is not defined; known are "),
        ('source = "report-000"', 'source = "report-0"', "report-0 is not defined; known are report-000, "),
        ("{ checkpoint =", "{ files =", "files is not defined; known are checkpoint, "),
        ("{ tpu_torch_path =", "{ torch_path =", "torch_path is no field of a model; known are name, "),
        ("[sources.report-000]", "[sources.report-000", "measured.toml is not TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_that_names_the_key(good: str, bad: str, message: str):
    text = FILE.read_text(encoding="utf-8")
    assert good in text
    with pytest.raises(MeasurementError) as caught:
        parse(text.replace(good, bad, 1))
    assert message in str(caught.value)
    assert str(caught.value).startswith("measured.toml")
    assert "\n" not in str(caught.value)


def test_check_says_when_the_page_is_stale(monkeypatch, tmp_path, capsys):
    stale = tmp_path / "accuracy.md"
    monkeypatch.setattr(plan_accuracy, "PAGE", stale)
    assert plan_accuracy.main(["--check"]) == 1
    assert "run python -m benchmarks.accuracy" in capsys.readouterr().err
    assert plan_accuracy.main([]) == 0
    assert plan_accuracy.main(["--check"]) == 0
    stale.write_text(stale.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert plan_accuracy.main(["--check"]) == 1


def test_a_miss_is_reported_with_both_figures():
    case = MEASURED.field_reports[0]
    weights = next(figure for figure in case.figures if figure.kind.name == "weights a device")
    wrong = replace(case, figures=(replace(weights, measured=5),))
    (miss,) = plan_accuracy.misses(replace(MEASURED, field_reports=(wrong,)))
    assert "predicted 2.328, measured 5," in miss
