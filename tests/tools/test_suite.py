"""How the suite is divided: nothing is lost between its parts or with a worker, and a long file runs whole."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.suite import growth, longest_first, not_judged, part_of, recorded_costs, recorded_rows, shuffled, unexplained

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


def test_a_record_keeps_the_reason_of_a_file_that_needs_one():
    before = {
        "a.py": {"loops": 160, "wall_s": 1, "reason": "two lives"},
        "b.py": {"loops": 160, "wall_s": 1, "reason": "x"},
    }
    files = {"a.py": 170.0, "b.py": 140.0, "new.py": 151.0, "small.py": 0.4}
    rows = recorded_rows(files, dict.fromkeys(files, 2.0), before)
    assert rows == {
        "a.py": {"loops": 170.0, "wall_s": 2.0, "reason": "two lives"},
        "b.py": {"loops": 140.0, "wall_s": 2.0},
        "new.py": {"loops": 151.0, "wall_s": 2.0},
    }
    assert unexplained(rows) == ["new.py"]


def test_each_recorded_file_above_150_loops_has_its_reason():
    assert unexplained(recorded_costs()) == []


BUDGET = 6_000
"""It is not raised: a file that grows becomes cheaper, or its examples move to `make long`."""


def test_the_budget_is_the_same_wherever_it_is_set():
    assert f"The budget is {BUDGET:,} fixed loops." in (ROOT / "dev/docs/testing.md").read_text()
    for name in (".ci/run", ".github/workflows/test.yml", "CONTRIBUTING.md"):
        assert set(re.findall(r"BUDGET=([0-9]+)", (ROOT / name).read_text())) == {str(BUDGET)}, name


def long_tests(path):
    """Return the names of the tests of a file that are marked `long` or `law`, themselves or by a mark that the file names."""
    module = ast.parse(path.read_text())
    marks = {"mark.long", "mark.law"}
    for node in module.body:
        if isinstance(node, ast.Assign) and any(mark in ast.unparse(node.value) for mark in marks):
            marks |= {ast.unparse(target) for target in node.targets}
    tests = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    decorated = {test.name: " ".join(map(ast.unparse, test.decorator_list)) for test in tests}
    return {name for name, text in decorated.items() if "pytestmark" in marks or any(mark in text for mark in marks)}


def test_each_promise_that_only_the_long_suite_proves_has_a_long_test():
    page = (ROOT / "dev/docs/testing.md").read_text()
    (table,) = re.findall(r"## Proved only by `make long`\n(.*?)\n## ", page, flags=re.DOTALL)
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    named = [re.fullmatch(r"\| [^|]+ \| `(tests/[\w/]+\.py)::(\w+)` \|", row) for row in rows]
    assert None not in named
    assert [found[0] for found in named if found[2] not in long_tests(ROOT / found[1])] == []


def test_what_was_not_judged_is_one_line_by_the_reasons_of_the_skips():
    assert not_judged([]) == ""
    reasons = [
        "a plugin: run `make nightly`",
        *["alerts: not built (Go: 1.26). To build it, run `X=build make y`"] * 2,
        "no gcloud",
    ]
    assert (
        not_judged(reasons)
        == "not judged here: alerts (2): `X=build make y`; a plugin (1): `make nightly`; no gcloud (1)"
    )


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["typo"], "typo does not exist; name a file or folder of tests, for example tests/planning."),
        (["-k", "plain", "test_plain.py", "typo.py::test_plain"], "typo.py does not exist; "),
        (["test_plain.py::test_typo[a::b]"], "test_plain.py has no test test_typo."),
    ],
)
def test_a_test_that_does_not_exist_is_named_before_a_worker_starts(suite, words, said):
    done = suite("-n", "1", *words)
    assert (done.ret, done.outlines) == (pytest.ExitCode.USAGE_ERROR, [])
    assert next(line for line in done.errlines if line).startswith(f"ERROR: {said}")


@pytest.mark.parametrize("words", [["test_plain.py::test_plain", "-k", "plain"], [".", "--budget", "99999"]])
def test_the_value_of_an_option_is_not_taken_for_a_test(suite, words):
    assert suite("-n", "1", *words).ret == pytest.ExitCode.OK


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_the_last_line_but_the_counts_says_what_was_not_judged(suite, pytester, workers):
    pytester.makepyfile(test_skipped="import pytest\n\n@pytest.mark.skip('a: run `make b`')\ndef test_it(): pass\n")
    lines = [line for line in suite("-ra", *workers).outlines if line]
    assert lines[-2] == "not judged here: a (1): `make b`"


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
