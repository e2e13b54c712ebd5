"""Each package stands alone, its tests included: no file of it imports the product, the product's tests or another package."""

import ast
from pathlib import Path

import pytest

from tests.tools.imports import imports
from tools.suites import BELOW, suites_of_packages

ROOT = Path(__file__).resolve().parents[2]
KNOWN = suites_of_packages()
MODULES = {"gcp-tpu": "gcp_tpu_provider"}
"""Names of packages whose module has another name."""


def strangers(name, folder):
    """FILE:LINE and the module for each import, anywhere in a file, of what a package may not know."""
    others = {MODULES.get(other, other) for other in KNOWN if other != name}
    forbidden = {"tests", *others, *(room for room in BELOW if room not in KNOWN)}
    return [
        f"{file.relative_to(folder)}:{line} {module}"
        for file in sorted(folder.rglob("*.py"))
        for line, module in imports(file.read_text())
        if module.partition(".")[0] in forbidden
    ]


@pytest.mark.parametrize("name", KNOWN)
def test_a_package_and_its_tests_import_nothing_of_the_rest(name):
    assert strangers(name, ROOT / "packages" / name) == []


def test_no_test_of_a_package_reads_files_of_the_repository_around_it():
    """Its own folder may be reached from `__file__`, and nothing above; the folder that holds a flat package is where Python finds it."""
    above = {}
    for name, suite in KNOWN.items():
        home = ROOT / "packages" / name
        for file in sorted((ROOT / suite).rglob("*.py")):
            depth = len(file.relative_to(home).parts)  # parents[depth - 1] is the package's own folder
            steps = [
                node.slice.value
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Subscript)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "parents"
                and isinstance(node.slice, ast.Constant)
            ]
            above |= {file.relative_to(ROOT).as_posix(): step for step in steps if step >= depth}
    assert above == {"packages/localcloud/tests/test_state_and_cli.py": 2}
