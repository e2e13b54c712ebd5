"""Every module has one name: under two it would be loaded twice, and an exception of one would not be caught as the other's."""

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.tools.imports import imports
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "plan"
PRODUCT = ("components", "gemma_serving", "packages", "scripts", "stacks")
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


def twice():
    """Return the files of this checkout that two modules come from."""
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
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
    found = {
        f"{path}:{line}"
        for path in tracked()
        for line, module in imports(path.read_text())
        if module.split(".")[0] in rooms
    }
    assert found == set()


def bare_modules(text):
    """Return the strings of a module that name a module of the product as only a checkout has it."""
    name = r"(scripts|components|stacks)\.(?!json)"
    if not re.search(rf"[\"']{name}", text):  # parsing all files takes seconds
        return []
    values = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    return [value for value in values if isinstance(value, str) and re.match(name, value)]


def test_no_program_is_started_by_a_name_that_only_a_checkout_has():
    """In a user's folder such a name is missing, or is the user's own module."""
    assert bare_modules('run(["-m", f"scripts.{name}"])') == ["scripts."]
    assert bare_modules('run("-m", "stacks.program")') == ["stacks.program"]
    paths = [path for path in tracked(*PRODUCT) if "tests" not in path.parts]
    assert len(paths) > 400
    found = {path.relative_to(ROOT).as_posix(): bare_modules(path.read_text()) for path in paths}
    assert {name: names for name, names in found.items() if names} == {}
    scripts = [
        *tracked("scripts", suffix=".sh"),
        *tracked(".github", suffix=".yml"),
        *tracked("docs", "dev/docs", suffix=".md"),
        *tracked("docs/clients", suffix=""),
    ]
    started = re.compile(r"-m[ ,\"']+(scripts|components|stacks)\.")
    assert [path.relative_to(ROOT).as_posix() for path in scripts if started.search(path.read_text())] == []
