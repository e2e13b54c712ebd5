"""Which tests a pull request runs follows from what it changes, and no test that imports a changed room is left out."""

import ast
from pathlib import Path

import pytest

from tools.suites import BELOW, SHARED, TESTED, suites

ROOT = Path(__file__).resolve().parents[2]
ROOM = {"gcp_tpu_provider": "provider"}


def imported(file):
    """The first two parts of the name of each module that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        yield from (name.split(".")[:2] for name in names)


def rooms_of(folder):
    """The rooms that files of a folder import, and the folders of tests whose helpers they import."""
    parts = [part for file in sorted(folder.rglob("*.py")) for part in imported(file)]
    rooms = {ROOM.get(part[0], part[0]) for part in parts} & set(BELOW)
    return rooms, {part[1] for part in parts if part[0] == "tests" and len(part) > 1 and part[1] in TESTED}


def test_every_room_and_every_folder_of_tests_has_a_row():
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}
    assert set(TESTED) == folders
    assert {room for row in [*BELOW.values(), *TESTED.values()] for room in row} <= set(BELOW)


def test_what_a_folder_of_tests_imports_is_in_its_row():
    missing = []
    for folder, used in TESTED.items():
        known = {room for each in used for room in (each, *BELOW[each])}
        rooms, helpers = rooms_of(ROOT / "tests" / folder)
        missing += [f"tests/{folder} imports {room}" for room in rooms - known]
        missing += [
            f"tests/{folder} imports tests.{other}"
            for other in helpers - {folder}
            if folder not in SHARED.get(other, ())
        ]
    assert missing == []


def test_what_a_room_imports_is_below_it():
    missing = []
    for room, below in BELOW.items():
        rooms, _ = rooms_of(ROOT / room)
        missing += [f"{room} imports {other}" for other in rooms - {room, *below}]
    assert missing == []


@pytest.mark.parametrize(
    ("changed", "runs", "leaves_out"),
    [
        (["vm_agent/serving.py"], "tests/vm_agent tests/provider tests/engine", "tests/tools/test_x tests/contracts"),
        (
            ["packages/gcp-tpu/gcp_tpu_provider/diff.py"],
            "tests/provider tests/engine",
            "tests/vm_agent tests/contracts",
        ),
        (["planning/data/prices.py"], "tests/planning tests/stacks tests/engine", "tests/contracts"),
        (["scripts/smoke/checks.py"], "tests/scripts tests/engine", "tests/contracts tests/components tests/vm_agent"),
        (["docs/tpu.md"], "tests/scripts tests/engine/test_readme.py tests/test_*.py", "tests/engine tests/vm_agent"),
        (["tests/vm_agent/machine.py"], "tests/vm_agent tests/engine", "tests/planning tests/localcloud"),
        (["contracts/labels.py"], "tests/contracts tests/vm_agent tests/planning tests/engine", ""),
    ],
)
def test_a_change_runs_what_it_can_break(changed, runs, leaves_out):
    found = set(suites(changed))
    assert set(runs.split()) <= found
    assert not set(leaves_out.split()) & found


@pytest.mark.parametrize(
    "changed",
    [[], ["pyproject.toml"], ["docs/tpu.md", "Makefile"], ["tests/conftest.py"], ["Pulumi.l4-qat.yaml"], ["new/x.py"]],
)
def test_everything_runs_where_a_change_has_no_row(changed):
    assert suites(changed) == ["tests"]
