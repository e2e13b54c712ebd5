"""How the suite is divided: nothing is lost between its parts or with a worker, and a long file runs whole."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suite import growth, longest_first, part_of, shuffled

FILES = {f"tests/{name}.py" for name in "abcdefgh"}
ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ("-p", "tests.suite", "-p", "xdist.plugin", "-p", "no:cacheprovider")


def test_the_parts_together_are_all_files_and_none_is_in_two():
    for count in range(1, 11):
        parts = [part_of(FILES, f"{number}/{count}") for number in range(1, count + 1)]
        assert set().union(*parts) == FILES
        assert sum(map(len, parts)) == len(FILES)


def test_a_part_that_does_not_exist_is_refused():
    for part in ("0/4", "5/4", "2", "1/0", "a/b", "-1/4", "1/4/2"):
        with pytest.raises(pytest.UsageError, match="it has to be K/N"):
            part_of(FILES, part)


def items(*names, scope="function"):
    fixtures = SimpleNamespace(name2fixturedefs={"given": [SimpleNamespace(scope=scope)]})
    return [SimpleNamespace(nodeid=name, _fixtureinfo=fixtures) for name in names]


def test_the_slowest_files_begin_first():
    each = items("a.py::test_1", "b.py::test_1", "b.py::test_2", "new.py::test_1")
    ordered = longest_first(each, {"a.py": {"loops": 9, "wall_s": 1}, "b.py": {"loops": 1, "wall_s": 2}})
    assert ordered == [each[1], each[2], each[0], each[3]]


def test_a_random_order_keeps_files_together_and_tests_that_share_a_fixture_in_their_order():
    free = items(*(f"free.py::test_{number}" for number in range(9)))
    following = items(*(f"follow.py::test_{number}" for number in range(9)), scope="module")
    orders = [shuffled([*free, *following], seed) for seed in range(20)]
    for order in orders:
        assert [item for item in order if item in following] == following
        assert {frozenset(map(id, order[:9])), frozenset(map(id, order[9:]))} == {
            frozenset(map(id, free)),
            frozenset(map(id, following)),
        }
    assert len({tuple(map(id, order)) for order in orders}) > 10


def test_beyond_the_budget_the_files_that_grew_are_named():
    recorded = {"a.py": {"loops": 10, "wall_s": 1}, "b.py": {"loops": 90, "wall_s": 1}}
    assert growth({"a.py": 30, "b.py": 80, "new.py": 5}, recorded) == [(20, "a.py", 10), (5, "new.py", 0)]


@pytest.fixture
def suite(pytester, monkeypatch):
    """Run the suite over files in which one test is long and one is a law, without the import of each installed plugin."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    mixed = "import pytest\n\ndef test_first(): pass\n\n@pytest.mark.long\ndef test_second(): pass\n"
    law = "import pytest\n\n@pytest.mark.law\ndef test_law(): pass\n"
    pytester.makepyfile(test_plain="def test_plain(): pass\n", test_mixed=mixed, test_law=law)
    pytester.makeini("[pytest]\nmarkers =\n    long\n    law\n")
    return lambda *options: pytester.runpytest_subprocess(*PLUGINS, "-v", *options)


def passed(done):
    return sorted(line.split("::")[1].split()[0] for line in done.outlines if " PASSED " in line)


def test_the_short_suite_leaves_long_tests_out_and_draws_laws(suite):
    assert passed(suite()) == ["test_first", "test_law", "test_plain"]


def test_the_long_suite_runs_whole_files_because_their_tests_follow_one_another(suite):
    whole = passed(suite("--long"))
    assert whole == ["test_first", "test_law", "test_second"]
    assert sorted(passed(suite("--long", "--part", "1/2")) + passed(suite("--long", "--part", "2/2"))) == whole


def test_a_suite_beyond_its_budget_fails_and_names_the_file(suite):
    assert suite("--budget", "100000").ret == 0
    done = suite("--budget", "0")
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        ["The suite costs * fixed loops; the budget is 0. Files that grew:", "*recorded  test_plain.py"]
    )
