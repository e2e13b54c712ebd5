"""Every module has one name: under two it would be loaded twice, and an exception of one would not be caught as the other's."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.tools.imports import imports

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "plan"
LOADED = f"""
import importlib, json, pkgutil, runpy, sys
for _, name, _ in pkgutil.walk_packages(["gemma_serving"], "gemma_serving."):
    if not name.endswith("__main__"):
        importlib.import_module(name)
importlib.import_module("__main__").__dict__.pop("__file__", None)
sys.argv = ["{COMMAND}", "l4-qat"]
try:
    runpy.run_module("scripts.{COMMAND}", run_name="__main__")
except SystemExit:
    pass
files = {{name: module.__file__ for name, module in sys.modules.items() if getattr(module, "__file__", None)}}
print(json.dumps(files), file=sys.stderr)
"""
"""Every module, the program of a stack among them, and then a command by its short name."""


def twice(first=""):
    """Return the files of this checkout that two modules come from. `first`: statements before anything is loaded."""
    done = subprocess.run([sys.executable, "-c", first + LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    names = defaultdict(list)
    for name, file in json.loads(done.stderr.splitlines()[-1]).items():
        path = Path(file).resolve()
        if path.is_relative_to(ROOT) and ".venv" not in path.parts:
            names[path.relative_to(ROOT).as_posix()].append(name)
    assert len(names) > 400
    return {path for path, found in names.items() if len(found) > 1}


def test_no_module_is_loaded_under_two_names():
    folders = {"scripts/__init__.py", f"scripts/{COMMAND}/__init__.py"}  # `python -m scripts.plan` needs its folders
    of_another_distribution = {"scripts/cli/command_line.py"}
    assert twice() == folders | of_another_distribution
    assert (ROOT / "scripts" / COMMAND / "__init__.py").read_text().count("\n") == 1  # and that one is only a sentence


def test_no_file_imports_a_room_by_its_bare_name():
    """ruff bans the names too, but not where the standard library's HTTP client is allowed."""
    rooms = {path.name for path in (ROOT / "gemma_serving").iterdir() if (path / "__init__.py").is_file()}
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split() if (ROOT / name).is_file()]
    found = {
        f"{path}:{line}"
        for path in paths
        for line, module in imports(path.read_text())
        if module.split(".")[0] in rooms
    }
    assert found == set()


def test_a_bare_import_is_seen():
    bare = "import sys; sys.path.insert(0, 'gemma_serving'); import contracts.errors"
    assert "gemma_serving/contracts/errors.py" in twice(bare)
