"""The local cloud is a separate distribution: its packages, files and imports."""

import ast
import re
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

HOME = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
APART = {"__pycache__", ".hypothesis", ".pytest_cache", "build", "localcloud_google.egg-info", "tests"}
"""Folders that are not part of the distribution."""


def names(requirements):
    """Distribution names of a requirements file, with its markers and pins taken off."""
    lines = [line.removesuffix("\\") for line in requirements.read_text().splitlines() if line]
    return {normal(Requirement(line).name) for line in lines if not line.strip().startswith(("#", "-"))}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(path):
    """(module, line) pairs of every import in a file, at any level."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_the_distribution_lists_every_package():
    folders = [path.parent.relative_to(HOME.parent) for path in HOME.rglob("__init__.py") if "build" not in path.parts]
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(".".join(folder.parts) for folder in folders)


def test_every_module_lies_in_a_listed_package_and_no_data_file_is_left_out():
    listed = {HOME.parent.joinpath(*name.split(".")) for name in PROJECT["tool"]["setuptools"]["packages"]}
    own = {
        HOME / name
        for name in ("LICENSE", "README.md", "MANIFEST.in", "pyproject.toml", "requirements.in", "requirements.txt")
    }
    patterns = PROJECT["tool"]["setuptools"].get("package-data", {})
    packed = {path for package in listed for path in package.glob("*.py")} | {
        path
        for name, globs in patterns.items()
        for pattern in globs
        for path in HOME.parent.joinpath(*name.split(".")).glob(pattern)
    }
    files = {path for path in HOME.rglob("*") if path.is_file() and not APART & set(path.relative_to(HOME).parts)}
    assert files - packed - own == set()


def test_everything_that_it_imports_is_named_by_its_requirements():
    known = {"localcloud", "google"}
    for name in names(HOME / "requirements.in"):
        with suppress(PackageNotFoundError):  # a requirement of another platform
            known |= {file.parts[0].removesuffix(".py") for file in distribution(name).files or ()}
    foreign = {
        f"{path.relative_to(HOME)}:{line} {name}"
        for path in HOME.rglob("*.py")
        if not APART & set(path.relative_to(HOME).parts)
        for name, line in imported(path)
        if name.split(".")[0] not in sys.stdlib_module_names | known
    }
    assert foreign == set()
