"""A stack that does not exist, or is not deployed, is refused with exit code 2 and one sentence: the real CLI on an empty backend."""

import os
import subprocess
import sys

import pytest

from tests.engine.conftest import copy_project
from tests.safetensors_files import safetensors

pytestmark = pytest.mark.engine

STACK = "l4-qat"
COMMANDS = {
    "smoke": ("smoke", "--stack"),
    "bench": ("bench", "--out", "results", "--stack"),
    "teardown": ("teardown", "--yes", "--stack"),
    "stage_model": ("stage_model", "--from", "checkpoint", "--stack"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("missing")
    copy_project(folder / "project")
    (folder / "backend").mkdir()
    checkpoint = folder / "project" / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(safetensors(b"\0" * 64))
    hidden = ("PULUMI_", "GOOGLE_", "CLOUDSDK_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)} | {
        "PULUMI_BACKEND_URL": f"file://{folder / 'backend'}",
        "PULUMI_CONFIG_PASSPHRASE": "x",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "GOOGLE_CLOUD_PROJECT": "my-project",
    }

    def command(*words):
        return subprocess.run(
            [str(word) for word in words],
            cwd=folder / "project",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return command


@pytest.mark.parametrize(
    "name", ["smoke", "teardown", *(pytest.param(name, marks=pytest.mark.long) for name in ("bench", "stage_model"))]
)
def test_a_stack_that_does_not_exist_is_refused(run, name):
    done = run(sys.executable, "-m", f"scripts.{COMMANDS[name][0]}", *COMMANDS[name][1:], STACK)
    assert (done.returncode, done.stdout) == (2, "")
    said = "has no state. Continuing without" if name == "teardown" else "does not exist. Run `gemma up"
    assert f"{name}: Stack {STACK} {said}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name", ["preview", *(pytest.param(name, marks=pytest.mark.long) for name in ("stage_model", "teardown", "plan"))]
)
def test_a_stack_without_settings_is_refused(run, name):
    words = {"preview": ("preview", "run", "--out", "out", "--stack"), "plan": ("plan", "--stack")}.get(name)
    words = words or COMMANDS[name]
    done = run(sys.executable, "-m", f"scripts.{words[0]}", *words[1:], "no-such-stack")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name}: Pulumi.no-such-stack.yaml not found. Stacks with a settings file: " in done.stderr


@pytest.mark.parametrize("name", ["smoke", pytest.param("bench", marks=pytest.mark.long)])
def test_a_stack_that_is_not_deployed_is_refused(run, name):
    pulumi = os.path.join(os.path.dirname(sys.executable), "pulumi")  # noqa: PTH118, PTH120 - beside the interpreter, unresolved
    run(pulumi, "stack", "init", STACK, "--non-interactive", "--no-select")
    done = run(sys.executable, "-m", f"scripts.{COMMANDS[name][0]}", *COMMANDS[name][1:], STACK)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{name}: Stack {STACK} is not deployed. Run `gemma up {STACK}`." in done.stderr
