"""How the suite is divided: nothing is lost between its parts, a long file runs whole, and too much of anything fails."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suite import (
    BUDGET_PAGE,
    CASES,
    COLD,
    COMMANDS,
    PACKAGES,
    PRODUCT,
    STARTS,
    budget,
    part_of,
    pytest_collection_modifyitems,
)

FILES = {f"tests/{name}.py" for name in "abcdefgh"}
ROOT = Path(__file__).resolve().parents[2]


def test_the_parts_together_are_all_files_and_none_is_in_two():
    for count in range(1, 11):
        parts = [part_of(FILES, f"{number}/{count}") for number in range(1, count + 1)]
        assert set().union(*parts) == FILES
        assert sum(map(len, parts)) == len(FILES)


def test_a_part_that_does_not_exist_is_refused():
    for part in ("0/4", "5/4", "2", "1/0", "a/b", "-1/4", "1/4/2"):
        with pytest.raises(pytest.UsageError, match="it has to be K/N"):
            part_of(FILES, part)


def test_files_that_wait_most_begin_first():
    names = ("tests/a/test_a.py::test_1", "tests/engine/test_e.py::test_1", "tests/engine/test_e.py::test_2")
    items = [SimpleNamespace(nodeid=name, get_closest_marker=lambda _name: None) for name in names]
    pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _name: None), items)
    assert [item.nodeid for item in items] == [names[1], names[2], names[0]]


PLUGINS = ("-p", "tests.suite", "-p", "xdist", "-p", "no:cacheprovider")


def lean(monkeypatch):
    """Let the tests that a test starts find the suite, and spare them the import of each installed plugin."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


COUNTING = """
import pytest
from tests.suite import COMMANDS, STARTS, count

pytestmark = pytest.mark.law

@pytest.fixture(scope="module")
def workspace():
    yield
    count(STARTS, 2)

def test_a(workspace): count(COMMANDS)
def test_b(workspace): count(COMMANDS, 2)
"""


def test_the_budget_names_all_that_is_counted():
    assert {side: set(allowed) for side, allowed in budget(BUDGET_PAGE).items()} == {
        key: {CASES, COMMANDS, STARTS, COLD} for key in (PRODUCT, PACKAGES)
    }


def test_a_number_above_the_table_fails_the_whole_and_a_part_is_below_it(pytester, monkeypatch):
    """What fixtures count at their end belongs to it, and each worker's share."""
    lean(monkeypatch)
    pytester.makepyfile(test_one=COUNTING, test_two=COUNTING)
    pytester.makeini("[pytest]\nmarkers =\n    long\n    law\n")
    page = pytester.path / "BUDGET.md"

    def run(*options, room, of_packages=0):
        rows = {CASES: 4 + room, COMMANDS: 6 + room, STARTS: 4 + room, COLD: 0}
        page.write_text("".join(f"| {what} | {most:,} | {of_packages} | words |\n" for what, most in rows.items()))
        return pytester.runpytest_subprocess(*PLUGINS, "--budget", page, *options)

    fits = run("-n2", "--dist=loadfile", room=0)
    assert fits.ret == 0
    fits.stdout.fnmatch_lines(["product: * CPU s in tests; 4 test cases, 6 engine commands, 4 program starts"])
    above = run("-n0", room=-1)
    assert above.ret == 1
    sentences = [line for line in above.outlines if line.startswith("The tests of the")]
    assert [line.partition(":")[0] for line in sentences] == [
        f"The tests of the product have {most + 1} {what}, and BUDGET.md allows {most}"
        for what, most in ((CASES, 3), (COMMANDS, 5), (STARTS, 3))
    ]
    assert run("-n0", "--long", "test_one.py", room=-1).ret == 0
    # A package's tests count in a budget of their own, in which there is room or not.
    folder = pytester.mkdir("packages") / "one"
    folder.mkdir()
    (folder / "test_three.py").write_text("def test_a(): pass\n")
    above = run("-n0", room=0, of_packages=0)
    assert above.ret == 1
    above.stdout.fnmatch_lines(["The tests of the packages have 1 test cases, and BUDGET.md allows 0: *"])
