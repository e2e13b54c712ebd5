"""The classes of predictions: what is unseen, what is left out, and that no row is used for a constant and for a proof."""

from dataclasses import replace
from functools import cache

import pytest

from authors.accuracy import evidence, page
from authors.accuracy.constants import left_out_rows, values_without
from authors.accuracy.corpus.errors import compared
from authors.accuracy.corpus.measured import (
    BOOTS,
    FILE,
    MeasurementError,
    Measurements,
    corpus_files,
    load,
    parse_named,
    read_off,
)
from authors.accuracy.evidence import CLASSES, EvidenceError, Share, check_proofs, rows_by_class
from authors.accuracy.page import page as page_of
from authors.accuracy.sweeps import all_points
from planning.data import overheads

MEASURED = load()
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in corpus_files()}
FITTED = """
[[constants]]
name = "TPU_LAYER_S"
read_off = ["e2b-load-v6e-1 decode_16"]
"""


@cache
def without():
    """Refit the constants once, not while each worker collects this file."""
    return values_without(MEASURED)


def with_source_used(name: str, line: str) -> Measurements:
    """Return the corpus with another line instead of `unseen = true` in one file."""
    texts = {**TEXTS, name: TEXTS[name].replace("unseen = true", line)}
    assert texts != TEXTS
    return parse_named(texts)


def test_a_constant_cannot_name_a_row_of_an_unseen_source():
    with pytest.raises(MeasurementError) as caught:
        parse_named({**TEXTS, FILE.name: TEXTS[FILE.name] + FITTED})
    assert "TPU_LAYER_S was fitted to e2b-load-v6e-1 decode_16, but sources.load-v6e-1 is marked unseen." in str(
        caught.value
    )
    assert "Remove its line `unseen = true`." in str(caught.value)


def test_nor_a_row_that_repeats_the_deployment_of_an_unseen_one():
    """The same deployment, started again and reported by another source, is the same row."""
    boot = MEASURED.boot("dense-31b-mi300x")
    repeated = replace(boot, id="repeat", sources=(MEASURED.sources["report-000"],))
    constant = MEASURED.constants[0].model_copy(update={"read_off": ("repeat weights",)})
    planted = replace(MEASURED, boots=(*MEASURED.boots, repeated), constants=(constant,))
    with pytest.raises(EvidenceError, match="dense-31b-mi300x weights counts as unseen"):
        check_proofs(planted)
    with pytest.raises(EvidenceError):
        rows_by_class(planted, without())


def test_no_proof_of_the_corpus_was_used_for_a_constant():
    fitted = {(boot.id, figure.key) for constant in MEASURED.constants for boot, figure in read_off(constant, MEASURED)}
    unseen = {(row.boot.id, row.figure.key) for row in rows_by_class(MEASURED, without())["unseen"]}
    assert fitted
    assert unseen
    assert fitted & unseen == set()


def test_one_line_makes_a_source_known():
    name = "xbill9-load-v6e1-2026-09-25.toml"
    changed = with_source_used(name, 'used = "the rate of 16 sequences"')
    assert MEASURED.boot("e2b-load-v6e-1").evidence == "unseen"
    assert changed.boot("e2b-load-v6e-1").evidence == "known"
    assert any("| known | the rate of 16 sequences |" in line for line in page._source_list(changed))
    before, after = rows_by_class(MEASURED, without()), rows_by_class(changed, without())
    assert len(after["unseen"]) == len(before["unseen"]) - 2
    assert len(after["known"]) == len(before["known"]) + 2
    assert len(after["first sight"]) == len(before["first sight"])


def test_a_source_cannot_be_unseen_and_used():
    with pytest.raises(MeasurementError, match="`unseen` and `used` cannot be combined"):
        with_source_used("vllm-40291.toml", 'unseen = true\nused = "the size of NVFP4"')


def test_a_left_out_row_is_predicted_without_its_source():
    rows = {(row.boot.id, row.figure.key): row for row in left_out_rows(MEASURED, without())}
    (now,) = [row for row in compared([MEASURED.boot("e2b-v6e-1")]) if row.figure.key == "compile"]
    own = rows["e2b-v6e-1", "compile"]
    other = without()["xbill9/gemma4-dev, 2026-08-10 (v6e-1)"]["XLA_PROGRAM_S"]
    assert other is not None
    assert own.predicted == pytest.approx(now.predicted * other / overheads.XLA_PROGRAM_S, abs=0.5)
    assert own.predicted != now.predicted


def test_a_row_that_only_its_own_source_explains_is_omitted():
    rows = {(row.boot.id, row.figure.key) for row in left_out_rows(MEASURED, without())}
    assert ("qat-26b-l4", "load") not in rows
    assert ("qat-26b-l4", "weights") in rows
    assert ("sweep-e2b", "decode_64") not in rows, "TPU_SEQUENCE_S is a table of that sweep alone"


def test_left_out_predictions_leave_the_constants_as_they_were():
    before = {name: value for name, value in vars(overheads).items() if name.isupper()}
    left_out_rows(MEASURED, without())
    assert {name: value for name, value in vars(overheads).items() if name.isupper()} == before


def test_the_page_leads_with_the_share_of_what_was_unseen():
    text = page_of(MEASURED, all_points())
    first = next(line for line in text.splitlines() if line.startswith("| figure | "))
    assert first == f"| figure | tolerance | {' | '.join(CLASSES)} |"
    assert text.index(first) < text.index("## Verdicts") < text.index("## Errors")
    assert "| verdict, servers that crashed |  | 3 of 4 (75%) | " in text
    assert "held out" not in text.lower().replace("-", " ")


def test_first_sight_does_not_change_with_the_planner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overheads, "GPU_COMPILE_S_PER_LAYER", 100.0)
    compiled = [row for row in evidence.first_sight(MEASURED) if row.figure.key == "compile"]
    assert (sum(row.is_within for row in compiled), len(compiled)) == (3, 6)
    assert not any(row.is_within for row in compared(row.boot for row in compiled) if row.figure.key == "compile")


def test_an_empty_class_has_no_share():
    assert str(Share(within=0, count=0)) == ""
    assert str(Share(within=1, count=4)) == "1 of 4 (25%)"
    assert "left out" not in evidence._verdict_lines(MEASURED)[0].shares


def test_an_error_names_the_file_of_the_row():
    name = "vllm-40291.toml"
    with pytest.raises(MeasurementError, match=f"^{name}: boots"):
        parse_named({**TEXTS, name: TEXTS[name].replace('outcome = "dies"', 'outcome = "died"')})
    with pytest.raises(MeasurementError, match="the id is used in another file"):
        parse_named({**TEXTS, "again.toml": TEXTS[name]})


def test_each_file_of_a_source_says_where_it_is_from():
    for path in BOOTS.glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert 'url = "https://' in text or "log_sha256" in text, path.name
