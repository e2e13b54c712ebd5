"""The local cloud is a distribution of its own: its packages, its files, and what only its requirements bring."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
HOME = ROOT / "packages" / "localcloud"
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
ROOMS = ("authors", "cloud", "components", "contracts", "engine", "planning", "scripts", "stacks", "tools", "vm_agent")


def names(requirements):
    """Distribution names of a requirements file, with its markers and pins taken off."""
    lines = [line.removesuffix("\\") for line in requirements.read_text().splitlines() if line]
    return {normal(Requirement(line).name) for line in lines if not line.strip().startswith(("#", "-"))}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(requirements):
    """The pinned versions, without the platforms for which each file wants them."""
    return {line.partition(";")[0].rstrip(" \\") for line in requirements.read_text().splitlines() if "==" in line}


def imported(path):
    """(module, line) pairs of every import in a file, wherever it stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def modules_of(distributions):
    """Import names that only these distributions provide."""
    return {
        module
        for module, owners in packages_distributions().items()
        if {normal(owner) for owner in owners} <= distributions
    }


def imports_of(folders, modules):
    return [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, line in imported(path)
        if name.split(".")[0] in modules
    ]


def test_the_distribution_lists_every_package():
    folders = [path.parent.relative_to(ROOT) for path in HOME.rglob("__init__.py") if "build" not in path.parts]
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(".".join(folder.parts) for folder in folders)


def test_every_module_lies_in_a_listed_package_and_no_data_file_is_left_out():
    listed = {ROOT.joinpath(*name.split(".")) for name in PROJECT["tool"]["setuptools"]["packages"]}
    own = {HOME / name for name in ("README.md", "pyproject.toml", "requirements.in", "requirements.txt")}
    patterns = PROJECT["tool"]["setuptools"].get("package-data", {})
    packed = {path for package in listed for path in package.glob("*.py")} | {
        path
        for name, globs in patterns.items()
        for pattern in globs
        for path in ROOT.joinpath(*name.split(".")).glob(pattern)
    }
    ignored = {"__pycache__", "build", "localcloud_google.egg-info"}
    files = {path for path in HOME.rglob("*") if path.is_file() and not ignored & set(path.parts)}
    assert files - packed - own == set()


def test_its_dependencies_are_its_requirements():
    assert PROJECT["tool"]["setuptools"]["dynamic"]["dependencies"] == {"file": ["requirements.in"]}
    assert names(HOME / "requirements.in") <= names(HOME / "requirements.txt")


def test_everything_that_it_imports_is_named_by_its_requirements():
    known = packages_distributions()
    wanted = names(HOME / "requirements.in")
    strangers = {
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in HOME.rglob("*.py")
        for name, line in imported(path)
        if (top := name.split(".")[0]) not in sys.stdlib_module_names | {"localcloud", "google"}
        and not {normal(owner) for owner in known.get(top, [])} & wanted
    }
    assert strangers == set()


def test_the_root_does_without_what_only_the_local_cloud_loads():
    assert "google-api-python-client" not in names(ROOT / "requirements.txt")
    assert not {"google-api-python-client", "cryptography"} & names(ROOT / "requirements.in")
    only_here = names(HOME / "requirements.txt") - names(ROOT / "requirements.txt")
    assert "google-api-python-client" in only_here
    modules = modules_of(only_here) | {"cryptography"}
    assert {"googleapiclient", "httplib2", "uritemplate"} <= modules
    assert imports_of(ROOMS, modules) == []


def test_the_three_pinned_files_agree():
    development = pins(ROOT / "requirements-dev.txt")
    assert pins(ROOT / "requirements.txt") <= development
    assert pins(HOME / "requirements.txt") <= development
