"""How the suite is divided: nothing is lost between its parts, and a long file runs whole."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suite import part_of, pytest_collection_modifyitems

FILES = {f"tests/{name}.py" for name in "abcdefgh"}
ROOT = Path(__file__).resolve().parents[2]

PLAIN = "def test_plain(): pass\n"
MIXED = "import pytest\n\ndef test_first(): pass\n\n@pytest.mark.long\ndef test_second(): pass\n"
LAW = "import pytest\n\n@pytest.mark.law\ndef test_law(): pass\n"


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


@pytest.fixture
def suite(pytester, monkeypatch):
    lean(monkeypatch)
    pytester.makepyfile(test_plain=PLAIN, test_mixed=MIXED, test_law=LAW)
    pytester.makeini("[pytest]\nmarkers =\n    long\n    law\n")

    def passed(*options):
        done = pytester.runpytest_subprocess(*PLUGINS, "-n0", "-v", *options)
        return sorted(line.split("::")[1].split()[0] for line in done.outlines if "PASSED" in line)

    return passed


def test_the_short_suite_leaves_long_tests_out_and_draws_laws(suite):
    assert suite() == ["test_first", "test_law", "test_plain"]


def test_the_long_suite_runs_whole_files_because_their_tests_follow_one_another(suite):
    whole = suite("--long")
    assert whole == ["test_first", "test_law", "test_second"]
    assert sorted(suite("--long", "--part", "1/2") + suite("--long", "--part", "2/2")) == whole
