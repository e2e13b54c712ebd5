"""The corpus of measured boots and sweeps, what the planner says of it, and the page that shows both."""

from dataclasses import replace
from pathlib import Path

import pytest

from authors.accuracy import __main__ as plan_accuracy
from authors.accuracy.bands import comparisons
from authors.accuracy.constants import gone, leave_one_out
from authors.accuracy.corpus.errors import compared, percentile, spread_of
from authors.accuracy.corpus.measured import (
    DECODE,
    FILE,
    KV,
    SATURATION,
    STARTUP,
    WEIGHTS,
    Boot,
    MeasurementError,
    corpus_files,
    load,
    parse,
    read_off,
    subject_of,
)
from authors.accuracy.corpus.verdicts import judged, started
from authors.accuracy.page import page as page_of
from authors.accuracy.rates import by_class, rate_spread_of
from authors.accuracy.sweeps import FILE as SWEEPS
from authors.accuracy.sweeps import SweepFileError, all_points, load_points, load_unseen_points, parse_points
from planning import plan
from planning.data import overheads

MEASURED = load()
TEXT = FILE.read_text(encoding="utf-8")
TEXTS = [path.read_text(encoding="utf-8") for path in corpus_files()]
KNOWN = [
    (boot, figure)
    for boot in MEASURED.boots
    if boot.evidence == "known" and not boot.beyond
    for figure in boot.figures
    if not figure.beyond
]
"""Figures of known sources."""
MISSES = {
    "e2b-v6e-1-0721 compile",
    "sweep-12b-short decode_64",
    "dense-12b-v6e-1-0924 load",
    "qat-26b-v6e-4 compile",
    "dense-26b-v6e-4 load",
    # 4-bit experts that are not padded take memory that no workspace of vLLM's kernels explains; only the verdict allows for it.
    "unpadded-26b-l4-16 kv",
    "unpadded-26b-l4-16 kv_tokens",
}
"""Those of them outside their tolerance, without a reason. They stand on the page; a row that is right again has to leave this list."""
REPORTED = [boot for boot in MEASURED.boots if any("field report" in source.citation for source in boot.sources)]


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(MEASURED, all_points())


def test_the_prediction_is_within_its_tolerance(subtests: pytest.Subtests):
    for boot, figure in KNOWN:
        with subtests.test(f"{boot.id}: {figure.kind.name}"):
            error = figure.kind.read(subject_of(boot)) / figure.measured - 1
            assert (abs(error) > figure.kind.tolerance) is (f"{boot.id} {figure.key}" in MISSES), f"{error:+.1%}"


@pytest.mark.parametrize("boot", REPORTED, ids=lambda boot: boot.id)
def test_what_ran_is_said_to_run_and_what_died_is_said_to_die(boot: Boot):
    p = plan(boot.deployment)
    assert (p.verdict == "out-of-memory") is boot.died
    assert p.fits is not boot.died


def test_tolerances_are_those_that_the_page_promises():
    assert (WEIGHTS, KV, STARTUP, DECODE, SATURATION) == (0.03, 0.05, 0.20, 0.30, 0.50)
    tolerances = {figure.kind.tolerance for boot in MEASURED.boots for figure in boot.figures}
    assert tolerances <= {WEIGHTS, KV, STARTUP, DECODE, SATURATION}


def test_the_page_is_up_to_date(page: str):
    assert plan_accuracy.PAGE.read_text(encoding="utf-8") == page, "run python -m authors.accuracy"


def test_the_page_shows_every_boot_every_figure_and_every_contradiction(page: str):
    for boot in started(MEASURED.boots):
        assert f"| {boot.title} | {'crashed (' if boot.died else 'runs |'}" in page
        for figure in boot.figures:
            assert f"| {boot.title} | {figure.kind.name} |" in page
    for row in MEASURED.contradictions:
        assert f"| {row.report} | {row.planner} |" in page
    for row in MEASURED.left_out:
        assert f"| {row.what} |" in page


def test_wrong_verdicts_come_first_and_failures_before_successes(page: str):
    verdicts = page.split("## Verdicts", maxsplit=1)[1].split("## Errors", maxsplit=1)[0]
    rows = [line for line in verdicts.splitlines() if line.startswith("| ")][2:]
    kinds = ["wrong" if "**wrong**" in row else "died" if "| crashed (" in row else "runs" for row in rows]
    counted = [kind for row, kind in zip(rows, kinds, strict=True) if "not counted" not in row]
    assert len(rows) == len(started(MEASURED.boots))
    assert counted == sorted(counted, key=["wrong", "died", "runs"].index)


def test_every_source_of_a_deployment_has_an_outcome_and_every_failure_of_a_source_is_there():
    for key, source in MEASURED.sources.items():
        boots = [boot for boot in MEASURED.boots if source in boot.sources]
        assert boots, f"{key} has no boot"
        assert {boot.id for boot in boots if boot.died} == set(source.failures)
    for point in all_points():
        source = MEASURED.sources[point.source]
        outcomes = [boot.outcome for boot in MEASURED.boots if boot.deployment_id == point.deployment]
        assert "runs" in outcomes, f"{point.deployment} of {source.citation} has points and no boot"


@pytest.mark.parametrize("gone_boot", ["e2b-v5e-1-095", "sweep-12b-32k", "bf16-26b-l4"])
def test_a_failure_of_a_quoted_source_cannot_be_dropped(gone_boot: str):
    blocks = TEXT.split("[[boots]]\n")
    without = "[[boots]]\n".join(block for block in blocks if not block.startswith(f'id = "{gone_boot}"'))
    assert without != TEXT
    with pytest.raises(MeasurementError, match=f"failures must list exactly .*Check {gone_boot}"):
        parse(without)


def test_every_deployment_of_the_file_is_used():
    used = {boot.deployment_id for boot in MEASURED.boots} | {point.deployment for point in all_points()}
    bases = {line.split('"')[1] for text in TEXTS for line in text.splitlines() if line.startswith("like = ")}
    assert set(MEASURED.deployments) - used - bases == set()


def test_a_margin_counts_as_right_only_for_what_it_is_about():
    dead, tight, wide = (MEASURED.boot(key) for key in ("e2b-v5e-1-095", "e2b-v5e-1-092", "e2b-v6e-1"))
    assert judged(dead).is_right
    assert judged(tight).is_right
    assert not judged(replace(tight, spare_gib=None, deployment=dead.deployment)).is_right
    assert not judged(replace(dead, died_at="loading", deployment=tight.deployment)).is_right
    assert not judged(replace(wide, outcome="dies", died_at="memory")).is_right


def test_what_a_later_image_can_do_or_a_patch_made_run_is_shown_and_not_counted():
    assert not judged(MEASURED.boot("q4-e2b-v6e-1-0721")).is_counted
    assert not judged(MEASURED.boot("qat-e2b-v6e-1")).is_counted
    assert judged(MEASURED.boot("qat-e2b-v5e-1-0927")).is_counted


def test_the_distribution_is_of_absolute_errors_and_the_bias_keeps_its_sign():
    spread = spread_of([-0.5, -0.1, 0.02, -0.2])
    assert (spread.count, spread.bias, spread.median, spread.p90, spread.worst) == (
        4,
        -0.15000000000000002,
        0.15000000000000002,
        0.5,
        0.5,
    )
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], 90) == 9.0


def test_a_constant_is_fitted_again_without_each_of_its_sources():
    before = overheads.XLA_PROGRAM_S
    rows = {(left.constant, left.source): left for left in leave_one_out(MEASURED)}
    xla = rows["XLA_PROGRAM_S", "xbill9/gemma4-dev, 2026-08-10 (v6e-1)"]
    ((now, without),) = xla.figures
    assert xla.without is not None
    assert xla.without == pytest.approx(399.6 / 396 * 22, rel=0.01)
    assert without is not None
    assert without.error == pytest.approx(now.error + xla.without / xla.value - 1, abs=0.01)
    assert rows["FUSE_BYTES_PER_S", "field report 002"].without is None
    assert before == overheads.XLA_PROGRAM_S


def test_a_constant_that_the_planner_gave_up_is_named():
    renamed = parse(TEXT.replace('name = "XLA_V5E_FACTOR"', 'name = "OLD_FACTOR"'))
    assert "OLD_FACTOR" in gone(renamed)
    assert all(left.constant != "OLD_FACTOR" for left in leave_one_out(renamed))


def test_a_row_that_a_constant_was_fitted_to_names_it(page: str):
    assert (
        "| E2B, v6e-1, Compute Engine | compile and warm-up | 396 s | 396 s | -0.1% | known | `XLA_PROGRAM_S` |" in page
    )
    assert MEASURED.boot("dense-31b-v6e-4") in [boot for c in MEASURED.constants for boot, _ in read_off(c, MEASURED)]
    for constant in MEASURED.constants:
        assert f"| known | `{constant.name}` |" in page or constant.name in gone(MEASURED)


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("tensor_parallel_size =", "tensor_parallel =", "deployments.e2b-v6e-4.vllm.tensor_parallel: "),
        ("max_num_seqs = 16 }", "max_num_seqs = '16' }", "deployments.qat-e2b-v6e-1.vllm.max_num_seqs: "),
        ('outcome = "runs"', 'outcome = "ran"', "boots.0.outcome"),
        ('at = "memory"\n', "", "`at` and `message` are required for a crashed boot"),
        ('id = "turbo-26b-v6e-4"', 'id = "e2b-v6e-4"', "the id e2b-v6e-4 is used twice"),
        ('like = "qat-31b-l4"', 'like = "qat-31b"', "qat-31b-l4-low: qat-31b is not defined. Use one of "),
        ('sources = ["report-000"]', 'sources = ["report-0"]', "report-0 is not defined. Use one of report-000, "),
        ("{ checkpoint =", "{ files =", "files is not defined. Use one of checkpoint, "),
        ("{ tpu_torch_path =", "{ torch_path =", "torch_path is not a field of a model; use one of name, "),
        ("[sources.report-000]", "[sources.report-000", "measured.toml is not TOML: "),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_that_names_the_key(good: str, bad: str, message: str):
    assert good in TEXT
    with pytest.raises(MeasurementError) as caught:
        parse(TEXT.replace(good, bad, 1))
    assert message in str(caught.value)
    assert str(caught.value).startswith("measured.toml")
    assert "\n" not in str(caught.value)


def test_check_says_when_the_page_is_stale(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    stale = tmp_path / "accuracy.md"
    monkeypatch.setattr(
        plan_accuracy, "page", lambda *_: page
    )  # computed once; test_the_page_is_up_to_date compares it
    monkeypatch.setattr(plan_accuracy, "PAGE", stale)
    assert plan_accuracy.main(["--check"]) == 1
    assert "Run `python -m authors.accuracy`" in capsys.readouterr().err
    assert plan_accuracy.main([]) == 0
    assert plan_accuracy.main(["--check"]) == 0
    stale.write_text(stale.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert plan_accuracy.main(["--check"]) == 1


def test_a_miss_of_a_fitted_figure_is_reported_with_both_figures():
    """A constant that no longer explains its own rows has to be fitted again."""
    boot = MEASURED.boot("e2b-v6e-1")
    compiled, weights = (next(figure for figure in boot.figures if figure.key == key) for key in ("compile", "weights"))
    constant = next(constant for constant in MEASURED.constants if constant.name == "XLA_PROGRAM_S")
    fitted = constant.model_copy(update={"read_off": ("e2b-v6e-1 compile",)})
    wrong = replace(boot, figures=(replace(compiled, measured=100), replace(weights, measured=5)))
    (miss,) = plan_accuracy.misses(replace(MEASURED, boots=(wrong,), constants=(fitted,)))
    assert "compile and warm-up predicted 396" in miss
    assert "measured 100," in miss


@pytest.mark.parametrize(
    ("boot_id", "version"),
    [
        ("e2b-gb10", "0.27.1"),
        ("e2b-l4", "0.28.0"),
        ("e2b-text-v6e-1", "0.29.1rc1.dev468"),
        ("qat-e2b-l4", "0.30.0"),
        ("dense-12b-gb10", "0.22.1"),
        ("e2b-v6e-4", ""),
    ],
)
def test_a_boot_is_planned_with_the_release_that_its_image_names(boot_id: str, version: str):
    assert MEASURED.boot(boot_id).deployment.image_version == version


def test_every_figure_of_the_corpus_is_compared_once():
    assert len(list(compared(MEASURED.boots))) == sum(len(boot.figures) for boot in MEASURED.boots)


def test_no_sweep_source_that_set_a_constant_or_a_band_is_called_unseen():
    points = load_points()
    assert len(points) + len(load_unseen_points()) == len(all_points())
    assert not any(MEASURED.sources[point.source].unseen for point in points)
    assert {point.split for point in load_unseen_points()} == {"held-out"}
    set_by = {split: {point.source for point in points if point.split == split} for split in ("fit", "band")}
    assert set_by["fit"] == {"sweep-v6e-1", "spark-26b", "mi300x-12b", "v5e-1-0929"}
    assert set_by["fit"] & set_by["band"] == {"v5e-1-0929"}, "its servers differ"


def test_every_point_is_in_one_class_and_factors_know_no_direction():
    found = [one for one in comparisons(load_points()) if one.figure == "rate"]
    assert sum(len(members) for members in by_class(found).values()) == len(found)
    four = [replace(found[0], measured=measured, planned=1.0) for measured in (2.0, 0.5, 1.0, 1.25)]
    spread = rate_spread_of(four)
    assert (spread.typical, spread.within_30_percent, spread.within_1_5, spread.within_2) == (1.625, 0.5, 0.5, 1.0)


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("2026-07-25,fit", "2026-07-25,known", "line 2: split is known. Known: fit, band, held-out."),
        ("sweep-e2b,8,", "sweep-e2b,eight,", "line 2: invalid literal for int()"),
        ("deployment,input_tokens", "stack,input_tokens", "the columns are "),
        ("fit,,sweep-v6e-1", "fit,warm,sweep-v6e-1", "line 2: note is warm. Known notes: , mean-tpot, "),
    ],
)
def test_a_mistake_in_the_sweeps_is_one_sentence_that_names_the_line(good: str, bad: str, message: str):
    text = SWEEPS.read_text(encoding="utf-8")
    assert good in text
    with pytest.raises(SweepFileError) as caught:
        parse_points(text.replace(good, bad, 1))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
