"""The two sides of the room: the child process runs where only the wheels are installed, and the project where they are not."""

import sys
import tomllib
from pathlib import Path

from tests.tools.imports import imports

ROOT = Path(__file__).resolve().parents[3]
ROOM = ROOT / "judges.tpu_compiler"
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
SHARED = "judges.tpu_compiler.replaced"


def imported(folder):
    """Return (file, module) of each import below a folder."""
    return {
        (path.relative_to(ROOM).as_posix(), module)
        for path in sorted(folder.rglob("*.py"))
        for _, module in imports(path.read_text(encoding="utf-8"))
    }


def test_the_child_process_imports_nothing_of_the_project_but_the_table_of_replaced_functions():
    own = {
        (file, module) for file, module in imported(ROOM / "server") if module.partition(".")[0] in {*PACKAGES, "tests"}
    }
    assert {
        (file, module)
        for file, module in own
        if module != SHARED and not module.startswith("judges.tpu_compiler.server")
    } == set()


def test_the_projects_side_never_imports_the_child_process():
    assert [
        row for row in imported(ROOM) if row[1].startswith("judges.tpu_compiler.server") and "server/" not in row[0]
    ] == []


def test_the_shared_table_needs_the_standard_library_only():
    used = {module.partition(".")[0] for file, module in imported(ROOM) if file == "replaced.py"}
    assert used - sys.stdlib_module_names == set()
