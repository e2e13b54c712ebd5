"""The archive of the components: complete, with the packages that its modules import, and the same bytes each time."""

import ast
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from authors.release import components

ROOT = Path(__file__).parents[2]
NOT_REQUIRED = {
    "google": "google-auth is required; google-cloud-storage is for staging",
    "google_crc32c": "staging",
    "httpx2": "staging, and the hub's API, which only commands ask",
    "huggingface_hub": "staging, and the hub's API, which only commands ask",
    "pulumi_docker": "components/serving_image.py, for an image that is built: a component refuses one",
}
"""Packages that modules of the archive import inside functions which a component never calls, with the reason."""
ALIASES = {"yaml": "pyyaml", "grpc": "grpcio"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("components")
    with tarfile.open(components.components_archive(folder)) as archive:
        archive.extractall(folder / "plugin", filter="data")
    return folder / "plugin"


def served(folder):
    """Start the plugin as the engine does, up to its schema, with nothing of the checkout."""
    code = "from hosted.host import ServerProvider; from stacks import cloud_run, tpu; print(ServerProvider().schema)"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, "-B", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_plugin_starts_from_the_archive_alone(unpacked):
    done = served(unpacked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (ROOT / "hosted/schema.json").read_text().strip()


def test_a_plan_and_a_start_up_script_need_every_data_file(unpacked):
    missing = [
        path.relative_to(ROOT).as_posix()
        for room in components.ROOMS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and path.suffix != ".pyc" and not (unpacked / path.relative_to(ROOT)).is_file()
    ]
    assert missing == []


def test_a_missing_module_would_be_seen(unpacked, tmp_path):
    copy = tmp_path / "plugin"
    subprocess.run(["cp", "-r", str(unpacked), str(copy)], check=True)
    (copy / "stacks" / "scope.py").unlink()
    assert "No module named 'stacks.scope'" in served(copy).stderr


def test_an_installation_without_packages_is_one_sentence(unpacked):
    command = [sys.executable, "-I", "-S", str(unpacked), "127.0.0.1:1"]  # -S: the standard library alone
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert re.fullmatch(
        r"pulumi-resource-gemma-serving: \S+ cannot import pulumi\. Run `pulumi plugin install .*\n", done.stderr
    )
    here = subprocess.run([*command[:3], str(ROOT / "hosted")], capture_output=True, text=True, timeout=60, check=False)
    assert f"cannot import pulumi. Run `make setup` in {ROOT}." in here.stderr


def test_the_requirements_are_what_the_modules_import_at_the_versions_of_the_project(unpacked):
    own, project = pins(ROOT / "hosted/requirements.txt"), pins(ROOT / "requirements.txt")
    assert own.items() <= project.items()
    imported = {name for path in unpacked.rglob("*.py") for name in imports(path)} - {*components.ROOMS}
    named = {ALIASES.get(name, name).replace("_", "-") for name in imported - {*sys.stdlib_module_names}}
    assert {name for name in named if name not in own} == {name.replace("_", "-") for name in NOT_REQUIRED}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def pins(path):
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", path.read_text(), re.MULTILINE))


def test_two_archives_of_a_commit_have_the_same_bytes(tmp_path):
    first, second = (components.components_archive(tmp_path / name).read_bytes() for name in ("one", "two"))
    assert first == second
