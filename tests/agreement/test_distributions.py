"""The load tester and the local cloud are distributions of their own: their packages, files, imports and pinned requirements."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
HOMES = [ROOT / "packages" / name for name in ("loadtest", "localcloud")]
EVERY_HOME = pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
ROOMS = ("components", "dev/authors", "dev/tools", "gemma_serving", "scripts", "stacks")
NAMESPACES = {"loadtest": set(), "localcloud": {"google"}}
READ_ONLY = {"google-api-python-client"}
"""Requirements of which only the data files are used."""
DESCRIPTION = {"LICENSE", "README.md", "MANIFEST.in", "pyproject.toml", "requirements.in", "requirements.txt"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements):
    """Distribution names of a requirements file, with its markers and pins taken off."""
    lines = [line.removesuffix("\\") for line in requirements.read_text().splitlines() if line]
    return {normal(Requirement(line).name) for line in lines if not line.strip().startswith(("#", "-"))}


def pins(requirements):
    """The pinned versions, without the platforms for which each file wants them."""
    return {line.partition(";")[0].rstrip(" \\") for line in requirements.read_text().splitlines() if "==" in line}


def files_of(home, suffix=""):
    return {path for path in tracked(home, suffix=suffix) if "tests" not in path.relative_to(home).parts}


def setuptools_of(home):
    return tomllib.loads((home / "pyproject.toml").read_text())["tool"]["setuptools"]


def imported(folder, paths):
    """The top name of every import in the files, at any position, with the places that import it."""
    found = defaultdict(list)
    for path in sorted(paths):
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                found[module.partition(".")[0]].append(f"{path.relative_to(folder)}:{node.lineno}")
    return found


def modules_of(name):
    """The top names that a distribution brings; none if it is a requirement of another platform."""
    with suppress(PackageNotFoundError):
        return {file.parts[0].removesuffix(".py") for file in distribution(name).files or ()}
    return set()


@EVERY_HOME
def test_a_distribution_lists_every_package(home):
    folders = {path.parent.relative_to(home.parent) for path in files_of(home, ".py")}
    assert sorted(setuptools_of(home)["packages"]) == sorted(".".join(folder.parts) for folder in folders)


@EVERY_HOME
def test_every_file_is_packed_or_describes_the_distribution(home):
    packed = {
        path
        for name, patterns in setuptools_of(home).get("package-data", {}).items()
        for pattern in patterns
        for path in home.parent.joinpath(*name.split(".")).glob(pattern)
    }
    assert files_of(home) - packed - {home / name for name in DESCRIPTION} == files_of(home, ".py")


@EVERY_HOME
def test_everything_that_a_distribution_imports_is_named_by_its_requirements(home):
    assert setuptools_of(home)["dynamic"]["dependencies"] == {"file": ["requirements.in"]}
    wanted, found = names(home / "requirements.in"), imported(home, files_of(home, ".py"))
    assert wanted <= names(home / "requirements.txt")
    extras = tomllib.loads((home / "pyproject.toml").read_text())["project"].get("optional-dependencies", {})
    wanted |= {normal(Requirement(line).name) for lines in extras.values() for line in lines}
    brought = {name: modules_of(name) for name in wanted}
    known = {home.name, *NAMESPACES[home.name]}.union(sys.stdlib_module_names, *brought.values())
    assert {module: places for module, places in found.items() if module not in known} == {}
    unused = {name for name, modules in brought.items() if modules and not modules & {*found}}
    assert unused <= READ_ONLY


def test_the_root_does_without_what_only_the_local_cloud_loads():
    local_cloud = HOMES[1] / "requirements.txt"
    assert not {"google-api-python-client", "cryptography"} & names(ROOT / "requirements/base.in")
    only_here = names(local_cloud) - names(ROOT / "requirements.txt")
    modules = {module for name in only_here for module in modules_of(name)} | {"cryptography"}
    assert {"googleapiclient", "httplib2", "uritemplate"} <= modules
    found = imported(ROOT, tracked(*ROOMS))
    assert modules & {*found} == set()


@pytest.mark.parametrize(
    ("some", "all_of"),
    [
        ("requirements.txt", "requirements/dev.txt"),
        ("packages/loadtest/requirements.txt", "requirements.txt"),
        ("packages/localcloud/requirements.txt", "requirements/dev.txt"),
    ],
)
def test_the_pinned_files_agree(some, all_of):
    assert pins(ROOT / some) <= pins(ROOT / all_of)
