"""The figures of the documents that the project started from: within 1.5 times of the plan, ratios within 1.4, or a row says why not."""

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.overheads import CONSTANTS
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.solve.explain import explain
from tests.planning.corpus.documents import planned_rows, read_off, reported_range, times_off

ROWS = {f"{row['document']} {row['figure']}": row for row in planned_rows()}
RATIO, VALUE = 1.4, 1.5


def test_each_figure_of_the_documents_is_that_of_the_plan_or_its_row_says_why_not(subtests: pytest.Subtests):
    for name, row in ROWS.items():
        with subtests.test(name):
            off = times_off(row)
            assert (off <= (RATIO if "over" in row else VALUE)) is row.get("held", True), f"{off:.2f} times"
            assert row.get("held", True) or row["why"]


def test_a_row_that_set_a_constant_is_marked_so():
    """By the sources: a constant that names a document was read off one of its rows. HOST_MARGIN is of a crash."""
    off = {read_off(row): row["document"] for row in ROWS.values() if read_off(row)}
    named = {name: f"{one.what} {one.fitted_to}" for name, one in CONSTANTS.items()}
    assert {name for name, text in named.items() if "field report" in text} - {*off} == {"HOST_MARGIN"}
    assert [name for name, document in off.items() if f"field report {document}" not in named[name]] == []


def test_explain_names_the_figures_that_are_far_from_a_plan_in_one_line_with_the_page():
    near, far = (
        dict(explain(examine(Question().changed(model="google/gemma-4-26B-A4B-it", accelerator=one))))
        for one in ("H200", "v6e-4")
    )
    assert "Documents" not in near
    (line,) = far["Documents"]
    assert line.startswith("far from this plan, for the reasons in dev/docs/documents.md: ")
    assert "001: restart with the cache, s under 10; " in line


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("1,440", (1_440, 1_440)),
        ("50 to 70", (50, 70)),
        ("30 and more", (30, float("inf"))),
        ("under 10", (0, 10)),
        ("does not fit", (0, 0)),
    ],
)
def test_a_reported_figure_may_be_a_range(text: str, ends: tuple[float, float]):
    assert reported_range(text) == ends
