"""The generator of mutants: each kind of change is made, one at a time, and nothing changes without a switch."""

import builtins
import json
import os
import signal

import pytest

from tests.mutants import __main__, judging
from tests.mutants.__main__ import REASONS, ROOMS, drawn, key_of, stated
from tests.mutants.changes import SWITCH, mutants_of, switched
from tests.mutants.forks import ROOT, Job, Sleep, Switch, in_forks
from tests.mutants.judging import Measured, chosen

ROWS = [
    ("x < 1", (1,), ["x < 1 -> x <= 1", "1 -> 2"]),
    ("x >= 60", (60,), ["x >= 60 -> x > 60", "60 -> 600"]),
    ("x == 'a'", ("a",), ["x == 'a' -> x != 'a'"]),
    ("x not in 'ab'", ("a",), ["x not in 'ab' -> x in 'ab'"]),
    ("x is None", (None,), ["x is None -> x is not None"]),
    ("min(x)", ([1, 2],), ["min(x) -> max(x)"]),
    ("any(x)", ([True, False],), ["any(x) -> all(x)"]),
    ("x and y", (4, 5), ["x and y -> x or y", "x and y -> x", "x and y -> y"]),
    ("x or y", (4, 5), ["x or y -> x and y", "x or y -> y or x", "x or y -> x", "x or y -> y"]),
    (
        "bool(x > y or y)",
        (3, 0),
        [
            "x > y or y -> x > y and y",
            "x > y or y -> y or x > y",
            "x > y or y -> y",
            "x > y or y -> x > y",
            "x > y -> x >= y",
        ],
    ),
    ("x if y else 'a'", (4, True), ["x if y else 'a' -> 'a' if y else x"]),
    ("not x", (True,), ["not x -> x"]),
    ("(x, False)", (4,), ["False -> True"]),
    ("x + 0.5", (4,), ["0.5 -> 5.0"]),
    ("[each for each in x if each]", ([0, "a"],), ["if each -> True"]),
    (
        "x in {'a', 'b'}",
        ("b",),
        ["x in {'a', 'b'} -> x not in {'a', 'b'}", "{'a', 'b'} -> {'b'}", "{'a', 'b'} -> {'a'}"],
    ),
    ("f'{x / 10:.2f} of 10'", (5,), ["10 -> 100"]),
]
EQUIVALENT = {
    "x and y -> y",
    "x or y -> x",
    "x > y or y -> x > y",
    "x > y or y -> y or x > y",
    "x > y -> x >= y",
    "{'a', 'b'} -> {'b'}",
}
"""Changes that the arguments of their row do not show."""


def module(tmp_path, expression):
    (tmp_path / "sample.py").write_text(
        f'def sample(x, y=None, *, z: "int" = None):\n    """Count 3."""\n    return {expression}\n'
    )
    return mutants_of(tmp_path, "sample.py")


@pytest.mark.parametrize(("expression", "arguments", "changes"), ROWS)
def test_each_kind_of_change_is_made_alone_and_none_without_a_switch(
    expression, arguments, changes, tmp_path, monkeypatch
):
    mutants = module(tmp_path, expression)
    assert sorted(mutant.change for mutant in mutants) == sorted(changes)
    assert {mutant.text for mutant in mutants} == {f"return {expression}"}
    names = {}
    kept = {mutant.place: mutant.place for mutant in mutants}
    exec(compile(switched(tmp_path, "sample.py", kept), "sample.py", "exec"), names)  # noqa: S102 - its sample
    right = eval(f"lambda x, y=None: {expression}")(*arguments)  # noqa: S307 - as above
    for mutant in mutants:
        switch = Switch(mutant.place)
        monkeypatch.setattr(builtins, SWITCH, switch, raising=False)
        assert (names["sample"](*arguments) != right) == (mutant.change not in EQUIVALENT), mutant
        switch.made = None
        assert names["sample"](*arguments) == right
        assert "sample.py" in switch.reached


@pytest.mark.parametrize(
    ("expression", "changes"),
    [
        ("'text'", []),
        ("x if y or x else x", ["y or x -> y and x", "y or x -> y", "y or x -> x"]),
        ("[a for a in x if a or y]", ["a or y -> a and y", "a or y -> a", "a or y -> y", "if a or y -> True"]),
        ("not (x or y)", ["not (x or y) -> x or y", "x or y -> x and y", "x or y -> x", "x or y -> y"]),
        ("list(zip(x, y, strict=True))", []),
        ("x or ''", ["x or '' -> x and ''", "x or '' -> ''"]),
        (
            "x.is_a or y.has_b",
            ["x.is_a or y.has_b -> x.is_a and y.has_b", "x.is_a or y.has_b -> x.is_a", "x.is_a or y.has_b -> y.has_b"],
        ),
    ],
)
def test_texts_and_orders_that_make_no_difference_stay(expression, changes, tmp_path):
    assert sorted(mutant.change for mutant in module(tmp_path, expression)) == sorted(changes)


UNCHANGED = """
@cut(slots=True)
class A(Base, total=False):
    a: Literal[1]

    def b(self, c: Annotated[int, 2]) -> Annotated[int, 3]:
        match c:
            case 4 if c.d:
                return c

    async def e(self, f: Annotated[int, 5]) -> Annotated[int, 6]:
        return f"{f:10.2f}"
"""


def test_two_calls_one_after_the_other_are_swapped(tmp_path, monkeypatch):
    lines = ["said.append('a')", "said.append('b')", "said.append('c')"]
    (tmp_path / "sample.py").write_text("def sample(said):\n" + "".join(f"    {line}\n" for line in lines))
    mutants = mutants_of(tmp_path, "sample.py")
    assert [(one.text, one.change) for one in mutants] == [
        (lines[0], f"swapped with {lines[1]}"),
        (lines[1], f"swapped with {lines[2]}"),
    ]
    names = {}
    exec(compile(switched(tmp_path, "sample.py", {0: 0, 1: 1}), "sample.py", "exec"), names)  # noqa: S102 - its sample
    for made, expected in ((None, "abc"), (0, "bac"), (1, "acb")):
        switch = Switch(made)
        monkeypatch.setattr(builtins, SWITCH, switch, raising=False)
        said = []
        names["sample"](said)
        assert "".join(said) == expected


def test_a_variable_named_as_a_truth_has_no_order(tmp_path):
    (tmp_path / "sample.py").write_text("is_spot = x or y")
    changes = [mutant.change for mutant in mutants_of(tmp_path, "sample.py")]
    assert changes == ["x or y -> x and y", "x or y -> y", "x or y -> x"]


def test_patterns_annotations_decorators_and_formats_stay(tmp_path):
    (tmp_path / "sample.py").write_text(UNCHANGED)
    assert mutants_of(tmp_path, "sample.py") == []


def test_each_module_and_test_of_the_table_exists():
    assert all((ROOT / name).exists() for room in ROOMS.values() for name in (*room.modules, *room.tests))


def test_a_module_without_a_room_is_judged_by_given_tests_only(monkeypatch):
    module, asked = "gemma_serving/planning/rules/platforms/host.py", []
    monkeypatch.setattr(__main__, "judged_room", lambda *given: bool(asked.append(given)))
    monkeypatch.setattr("sys.argv", ["mutants", module, "--tests", "a.py"])
    assert __main__.main() == 0
    assert asked == [([module], ["a.py"], __main__.COUNT, 1)]
    for words in ([module], ["nowhere.py", "--tests", "a.py"]):
        monkeypatch.setattr("sys.argv", ["mutants", *words])
        with pytest.raises(SystemExit):
            __main__.main()


def test_a_draw_is_the_same_for_one_seed():
    files = ["gemma_serving/cloud/prices.py"]
    assert drawn(files, 5, seed=1) == drawn(files, 5, seed=1) != drawn(files, 5, seed=2)
    assert drawn(files, None, seed=1) == mutants_of(ROOT, files[0])


def test_a_file_that_imports_the_module_judges_first_then_the_cheapest_and_some_files_whole(monkeypatch):
    monkeypatch.setattr(judging, "_imports", lambda file: {"m"} if file == "user.py" else set())
    tests = [
        Measured("dear.py::a", 5.0, 1.0, True, frozenset({1})),
        Measured("whole.py::b", 1.0, 1.0, True, frozenset()),
        Measured("whole.py::c", 1.0, 1.0, True, frozenset({1, 2})),
        Measured("cheap.py::d", 0.5, 1.0, True, frozenset({1})),
        Measured("cheap.py::e", 0.5, 1.0, True, frozenset({2})),
        Measured("red.py::f", 0.1, 1.0, False, frozenset({1})),
        Measured("user.py::g", 9.0, 1.0, True, frozenset({1})),
    ]
    found = chosen([test for test in tests if 1 in test.reached], tests, ["whole.py"], "m")
    assert "".join(test.name[-1] for test in found) == "gdbca"


def test_a_fork_that_does_not_end_by_itself_has_no_result():
    jobs = [
        Job("right", lambda: "caught", 1.0, 1.0),
        Job("killed", lambda: os.kill(os.getpid(), signal.SIGXCPU), 1.0, 1.0),
    ]
    assert {name: result for name, result, _ in in_forks(jobs, 2)} == {"right": "caught", "killed": None}


def test_a_test_that_waits_for_real_is_ended():
    slept = []
    sleep = Sleep(slept.append)
    for seconds in (0.1, 30.0, 0.2):
        sleep(seconds)  # is counted
    with pytest.raises(AssertionError, match="waits for real"):
        sleep(1.0)  # is counted
    assert slept == [0.1, 30.0, 0.2]


def test_every_reason_is_about_a_mutant_and_few_have_one():
    every = [mutant for room in ROOMS.values() for file in room.modules for mutant in mutants_of(ROOT, file)]
    reasons = stated()
    assert len(reasons) == len(json.loads(REASONS.read_text()))
    assert set(reasons) <= set(map(key_of, every))
    assert all(reason.endswith(".") for reason in reasons.values())
    assert sum(key_of(mutant) in reasons for mutant in every) <= len(every) / 20
