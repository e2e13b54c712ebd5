"""The page of cold starts: what it shows is what the program computes, and no start on the local cloud is longer than the plan's band."""

import re

import pytest

from authors.benchmarks import cold_starts
from authors.benchmarks.pages import END, mark_of


@pytest.fixture(scope="module")
def table() -> str:
    return cold_starts.table()


@pytest.fixture
def rows(table: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.splitlines()[2:]
        if "does not fit" not in line
    ]


def seconds(cell: str) -> float:
    return float(cell.split(maxsplit=1)[0])


def at_most(cell: str) -> float:
    return float(cell.removesuffix(" s").rpartition("at most ")[2])


def test_the_page_shows_what_the_program_computes(table: str):
    page = cold_starts.PAGE.read_text(encoding="utf-8")
    found = re.search(rf"{mark_of(cold_starts.BENCHMARK)}\n\n(.*?)\n\n{END}", page, re.DOTALL)
    assert found is not None
    assert found[1] == table, "run python -m authors.benchmarks.cold_starts --write"


def test_no_simulated_start_is_longer_than_the_plans_band_and_none_with_graphs_longer_than_without(
    subtests: pytest.Subtests, rows: list[list[str]]
):
    for row in rows:
        with subtests.test("-".join(row[:3]).replace("`", "")):
            cold, simulated, cached, cached_simulated = map(seconds, row[3:7])
            assert cold < at_most(row[3])
            assert simulated <= at_most(row[3])
            assert cached_simulated <= cached
            assert cached < cold
            assert cached_simulated < simulated


def test_every_stack_and_way_is_in_the_table(rows: list[list[str]]):
    shown = {(row[0], row[1]) for row in rows}
    assert {stack for stack, _ in shown} == set(cold_starts.STACKS)
    assert {way for _, way in shown} == {"`fuse`", "`fuse-buffered`", "`fuse-cached`", "`streamer`", "`memory`"}


def test_an_unknown_argument_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    assert cold_starts.main(["--wrong"]) == 2
    assert capsys.readouterr().err == "cold_starts: the only argument is --write\n"
