"""`pip install --require-hashes -r requirements.txt` and `python -m dev.tools.link` are enough to deploy and to use the scripts: no local cloud, no test."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement

from tests.engine.conftest import ROOMS, ROOT, Workspace, until
from tests.scripts.test_commands_page import other_lines

pytestmark = [pytest.mark.engine, pytest.mark.long]
PAGE = ROOT / "docs" / "get-started.md"
CLOUD_RUN, TPU = "l4-12b-qat", "tpu-v6e1"
"""One stack of each target."""
EVERYTHING = """
import importlib, json, pkgutil, sys
found = [name for _, name, _ in pkgutil.walk_packages(["gemma_serving"], "gemma_serving.") if not name.startswith("gemma_serving.vm_agent")]
missing = set()
for name in found:
    if not name.endswith(".__main__"):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing.add(error.name)
print(json.dumps({"found": len(found), "missing": sorted(missing)}))
"""
FROM_ELSEWHERE = ("-c", "import os; os.chdir('/'); import gcp_tpu_provider; print(gcp_tpu_provider.__file__)")
OF_THE_AGENT = {"mcp", "httpx2", "anyio", "uvicorn", "starlette"}
"""Packages of requirements/agent.txt."""
COLD_STARTS = True  # the engine starts the program itself, as a user's does

NOT_INSTALLED = ("googleapiclient", "pytest", "hypothesis", "jsonschema")


def pinned():
    """Return the packages of requirements.txt that apply on this machine."""
    lines = [line.removesuffix("\\") for line in (ROOT / "requirements.txt").read_text().splitlines()]
    wanted = [Requirement(line) for line in lines if not line.strip().startswith("--hash=")]
    return [item.name for item in wanted if item.marker is None or item.marker.evaluate()]


def install(names, target):
    """Link the installed packages into a folder: whole where a package has a top-level name for itself, else file by file."""
    files = {
        name: [
            path
            for path in distribution(name).files or ()
            if ".." not in path.parts and "__pycache__" not in path.parts
        ]
        for name in names
    }
    owners = Counter(top for paths in files.values() for top in {path.parts[0] for path in paths})
    source = Path(sysconfig.get_paths()["purelib"])
    for paths in files.values():
        for path in paths:
            part = PurePosixPath(path.parts[0]) if owners[path.parts[0]] == 1 else path
            link = target / part
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(source / part)


@pytest.fixture(scope="module")
def user(workspace, tmp_path_factory):
    """A user's checkout beside the running local cloud: no `packages/localcloud/`, no tests, an environment with requirements.txt alone."""
    folder = tmp_path_factory.mktemp("user")
    project = folder / "project"
    shutil.copytree(
        workspace.folder / "project",
        project,
        symlinks=True,
        ignore=shutil.ignore_patterns("dev", "localcloud", ".venv"),
    )
    environment = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install(pinned(), next(environment.glob("lib/*/site-packages")))
    for tool in Path(sys.executable).parent.glob("pulumi*"):
        (environment / "bin" / tool.name).symlink_to(tool)
    path = os.pathsep.join([str(environment / "bin"), workspace.environment["PATH"]])
    variables = {name: value for name, value in workspace.environment.items() if name != "PYTHONPATH"}
    made = Workspace(folder, {**variables, "PATH": path, "VIRTUAL_ENV": str(environment)})
    assert made.run(python(made), *FROM_ELSEWHERE, expect=1).err.endswith("No module named 'gcp_tpu_provider'\n")
    made.run(python(made), "-m", "dev.tools.link")
    return made


def python(user):
    return user.folder / "project" / ".venv" / "bin" / "python"


def test_the_environment_has_nothing_of_the_local_cloud_and_the_tests(user):
    assert "packages" in ROOMS
    for name in (*NOT_INSTALLED, "localcloud"):
        assert (
            user.run(python(user), "-c", f"import {name}", expect=1).err.strip().endswith(f"No module named '{name}'")
        )


def test_the_pages_lines_let_it_find_the_packages_of_its_own_checkout(user):
    page = PAGE.read_text()
    assert ".venv/bin/pip install --require-hashes -r requirements.txt\n" in page
    assert ".venv/bin/python -m dev.tools.link " in page
    found = user.run(python(user), *FROM_ELSEWHERE).out.strip()
    assert Path(found).is_relative_to(user.folder / "project" / "packages" / "gcp-tpu")


def test_every_module_loads_without_the_packages_of_the_tests(user):
    seen = user.run(python(user), "-c", EVERYTHING).json
    assert seen["found"] > 200
    assert set(seen["missing"]) <= OF_THE_AGENT


@pytest.mark.parametrize("stack", [CLOUD_RUN, TPU])
def test_a_user_deploys_checks_measures_and_takes_down(user, stack):
    user.pulumi("stack", "select", "--create", stack)
    if stack.startswith("l4"):
        user.stage(stack)
    assert "to create" in user.pulumi("preview", "--stack", stack).text
    user.up(stack)
    scripts = [python(user), "-m"]
    said = user.run(*scripts, "scripts.connect", "chat", "--stack", stack, "Say hello.", "--max-tokens", "8")
    assert said.out.strip()
    assert "simulated" in said.err
    user.run(*scripts, "scripts.smoke", "--stack", stack)
    load = ["--concurrency", "2", "--requests", "4", "--input-tokens", "16", "--output-tokens", "8", "--allow-invalid"]
    user.run(*scripts, "scripts.bench", "--stack", stack, *load, "--out", user.folder / stack)
    assert (user.folder / stack / "report.html").is_file()
    before = status(user, stack, "--tunnel", "--wake", "--refresh")
    assert (before["cloud"]["state"], before["health"], before["unanswered"]) == (
        "READY" if stack.startswith("l4") else "ACTIVE",
        "ready",
        [],
    )
    assert before["server"]["waiting_requests"] == 0
    assert (before["cloud"]["running"], before["drift"]) == (before["cloud"]["declared"], [])
    assert before["next_command"] == f"gemma connect {stack}"
    logs = [*scripts, "scripts.logs", "--stack", stack]
    # Entries can be listed some seconds after they were written.
    until(lambda: "Application startup complete" in user.run(*logs, "--lines", "5000").out, "the log", 60)
    user.run(*scripts, "scripts.teardown", "--stack", stack, "--yes")
    gone = user.run(python(user), "-m", "scripts.status", "--stack", stack, "--json", expect=2)
    assert f"Stack {stack} is not deployed. Run `gemma up {stack}`." in gone.err
    assert "Application startup complete" in user.run(*logs, "--lines", "5000").out


def test_the_lines_of_pulumi_alone_deploy_and_delete_a_stack_as_written(user):
    lines = [line.split("#")[0].split() for line in other_lines(PAGE) if line.startswith("pulumi ") and TPU in line]
    assert [words[1] for words in lines] == ["preview", "up", "stack", "destroy"]
    user.pulumi("stack", "select", "--create", TPU)
    preview, up, output, destroy = (words[1:] for words in lines)
    user.pulumi(*preview)
    user.pulumi(*up, "--yes")
    assert "endpoint" in user.pulumi(*output).out
    user.pulumi(*destroy, "--yes")
    assert json.loads(user.pulumi("stack", "export", "--stack", TPU).out)["deployment"].get("resources", []) == []


def status(user, stack, *options):
    (found,) = user.run(python(user), "-m", "scripts.status", "--stack", stack, "--json", *options).json["stacks"]
    return found
