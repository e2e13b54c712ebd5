"""What only the local cloud's requirements bring is imported by nobody else, and the pinned files agree."""

import ast
import re
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "packages" / "localcloud"
ROOMS = (
    "authors",
    "components",
    "gemma_serving",
    "scripts",
    "stacks",
    "tools",
)


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


def test_the_root_does_without_what_only_the_local_cloud_loads():
    assert "google-api-python-client" not in names(ROOT / "requirements.txt")
    assert not {"google-api-python-client", "cryptography"} & names(ROOT / "requirements/base.in")
    only_here = names(HOME / "requirements.txt") - names(ROOT / "requirements.txt")
    assert "google-api-python-client" in only_here
    modules = modules_of(only_here) | {"cryptography"}
    assert {"googleapiclient", "httplib2", "uritemplate"} <= modules
    assert imports_of(ROOMS, modules) == []


def test_the_three_pinned_files_agree():
    development = pins(ROOT / "requirements/dev.txt")
    assert pins(ROOT / "requirements.txt") <= development
    assert pins(HOME / "requirements.txt") <= development
