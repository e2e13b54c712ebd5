"""The load tester is a distribution of its own: its packages, its files, and what it imports."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

HOME = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
APART = {"__pycache__", ".hypothesis", ".pytest_cache", "build", "loadtest_openai.egg-info", "tests"}
"""Folders that are no part of the distribution."""


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements):
    """Distribution names of a requirements file, with its markers and pins taken off."""
    lines = [line.removesuffix("\\") for line in requirements.read_text().splitlines() if line]
    return {normal(Requirement(line).name) for line in lines if not line.strip().startswith(("#", "-"))}


def modules():
    return [path for path in sorted(HOME.rglob("*.py")) if not APART & set(path.relative_to(HOME).parts)]


def imported(path):
    """The top name of every import in a file, at any position."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_the_distribution_lists_every_package():
    folders = {path.parent.relative_to(HOME.parent) for path in modules()}
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(".".join(folder.parts) for folder in folders)


def test_every_file_is_packed_or_describes_the_distribution():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    packed = {
        path
        for name, globs in patterns.items()
        for pattern in globs
        for path in HOME.parent.joinpath(*name.split(".")).glob(pattern)
    }
    own = {
        HOME / name
        for name in ("LICENSE", "README.md", "MANIFEST.in", "pyproject.toml", "requirements.in", "requirements.txt")
    }
    files = {path for path in HOME.rglob("*") if path.is_file() and not APART & set(path.relative_to(HOME).parts)}
    assert files - packed - own == set(modules())


def test_everything_that_it_imports_is_named_by_its_requirements():
    known, wanted = packages_distributions(), names(HOME / "requirements.in")
    assert PROJECT["tool"]["setuptools"]["dynamic"]["dependencies"] == {"file": ["requirements.in"]}
    strangers = {
        f"{path.relative_to(HOME)} {name}"
        for path in modules()
        for name in imported(path)
        if name not in sys.stdlib_module_names | {"loadtest"} and not {normal(o) for o in known.get(name, [])} & wanted
    }
    assert strangers == set()
    used = {normal(owner) for path in modules() for name in imported(path) for owner in known.get(name, [])}
    assert wanted <= used
    assert wanted <= names(HOME / "requirements.txt")
