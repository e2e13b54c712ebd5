"""The provider as a distribution: its package, its generated files, and the words that it shares with gemma_serving/contracts/ without importing them."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gcp_tpu_provider import TOKEN, desired_state, tpu_api
from gcp_tpu_provider.properties import package_schema
from gcp_tpu_provider.serving import REPORT_LIMIT, RESTART_SUFFIX, last_line
from gemma_serving.cloud import tpu_machine
from gemma_serving.contracts import guest_attributes, labels, serving_document
from tests.tracked import tracked

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "packages" / "gcp-tpu"
PACKAGE = FOLDER / "gcp_tpu_provider"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
DISTRIBUTION_OF = {
    "google.auth": "google-auth",
    "google.oauth2": "google-auth",
    "google.protobuf": "protobuf",
    "google.rpc": "googleapis-common-protos",
}
RUN = "run: PYTHONPATH=packages/gcp-tpu .venv/bin/python -m gcp_tpu_provider"


@pytest.mark.engine
def test_the_cli_reads_the_schema_from_the_folder(tmp_path: Path, pulumi: Path):
    command = [str(pulumi), "package", "get-schema", str(FOLDER)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    checked = subprocess.run(
        [str(pulumi), "schema", "check", "-"],
        input=done.stdout,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    answered, committed = json.loads(done.stdout), json.loads(package_schema())
    assert answered["name"] == "gcp-tpu"
    assert answered["resources"][TOKEN]["properties"] == committed["resources"][TOKEN]["properties"]
    assert answered["types"].keys() == committed["types"].keys()


def test_a_wheel_holds_every_module_and_the_command():
    packages = tomllib.loads((FOLDER / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    modules = {path.parent.relative_to(FOLDER).as_posix().replace("/", ".") for path in tracked(FOLDER)}
    assert modules - {".", "gcp_tpu_provider.tests"} == set(packages), "its tests stay out"
    assert PROJECT["dynamic"] == ["version"]
    module, _, name = PROJECT["scripts"]["pulumi-resource-gcp-tpu"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_it_requires_what_it_imports_in_the_versions_of_the_repository():
    required = {re.split(r"[^\w-]", text)[0] for text in PROJECT["dependencies"]}
    imported = {name for path in PACKAGE.glob("*.py") for name in _imports(path)}
    assert imported | {"requests"} == required  # google-auth imports requests only when it refreshes credentials
    pinned, pinned_in_root = _pins(FOLDER / "requirements.txt"), _pins(ROOT / "requirements.txt")
    assert required <= pinned.keys()
    assert pinned.items() <= pinned_in_root.items()


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    names = {name for name in names if name.split(".")[0] not in {*sys.stdlib_module_names, PACKAGE.name}}
    parts = {".".join(name.split(".")[:2]) if name.startswith("google.") else name.split(".")[0] for name in names}
    return {{**DISTRIBUTION_OF, "grpc": "grpcio"}.get(part, part) for part in parts}


def _pins(path: Path) -> dict[str, str]:
    lines = (line.removesuffix(" \\").partition(" ;")[0] for line in path.read_text().splitlines() if "==" in line)
    return dict(line.split("==") for line in lines)


def test_its_words_are_those_of_the_contracts():
    asked = (guest_attributes.PHASE_KEY, guest_attributes.DOCUMENT_HASH_KEY, guest_attributes.DETAIL_KEY)
    serves = (guest_attributes.SERVING_HASH_KEY, guest_attributes.PAUSE_BEGAN_KEY, guest_attributes.PAUSE_ENDED_KEY)
    reports = (guest_attributes.CONTAINER_KEY, guest_attributes.UPDATED_AT_KEY)
    assert (*asked, *serves, *reports) == tpu_api.GUEST_ATTRIBUTE_KEYS
    assert tpu_machine.LATEST_REPORT == REPORT_LIMIT
    phases = (guest_attributes.READY, guest_attributes.FAILED, guest_attributes.RESTORING)
    assert phases == (tpu_api.READY_PHASE, tpu_api.FAILED_PHASE, tpu_api.RESTORING_PHASE)
    assert guest_attributes.WAITING == tpu_api.WAITING_PHASES
    assert guest_attributes.GUEST_ATTRIBUTE_NAMESPACE + RESTART_SUFFIX == serving_document.RESTART_METADATA_KEY
    for end in ("", "\n", "\n\n"):
        assert last_line(f"log\nno image{end}") == guest_attributes.reason_of(f"log\nno image{end}") == "no image"
    owner = desired_state.DesiredState("urn:x", {"labels": {labels.MANAGED_BY_LABEL: labels.PRODUCT}}).owner_labels
    assert {key: len(value) for key, value in owner.items()} == {labels.URN_LABEL: labels.URN_DIGITS}
