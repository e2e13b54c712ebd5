"""A deployment by a saved plan, with the real CLI: what was reviewed runs, and nothing else does."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from tests.engine.conftest import HF_CANARY, LIMIT_S
from tests.engine.test_deploy import commit, git

RUN, TPU = "l4-12b-qat", "tpu-v6e1"
SERVICE = "gcp:cloudrunv2/service:Service"
PLAN = "results/plan.json"

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


def project(workspace):
    return workspace.folder / "project"


def save(workspace, stack, *options):
    """Save a plan, and return it."""
    workspace.script("preview", "save", "--stack", stack, "--out", PLAN, *options)
    return json.loads((project(workspace) / PLAN).read_text())


def deploy(workspace, stack, out, **options):
    return workspace.script(
        "deploy", "--stack", stack, "--no-bench", "--out", f"results/{out}", "--plan", PLAN, "--json", **options
    )


def service(workspace):
    path = f"v2/projects/local-project/locations/us-east4/services/gemma-{RUN}"
    return path, workspace.get("run", path)


def replaced(workspace, file, old, new):
    path = project(workspace) / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def ready(workspace):
    """Both stacks in a git repository, not deployed. One has a secret; the other is unknown to the backend."""
    (project(workspace) / ".gitignore").write_text(".venv\n__pycache__/\nresults/\n.work/\n")
    git(workspace, "init", "--quiet")
    workspace.pulumi("stack", "init", RUN)
    workspace.pulumi("config", "set", "--secret", "hfToken", "--stack", RUN, stdin=HF_CANARY)
    workspace.stage(RUN)
    workspace.wait_for_capacity(TPU)
    commit(workspace, "one")
    return workspace


def ups(workspace):
    """Return the processes of `pulumi up` of this cloud."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            environment = (path.parent / "environ").read_bytes()
        except OSError:
            continue
        if b"up" in words and b"--skip-preview" in words and str(workspace.folder).encode() in environment:
            found.append(path)
    return found


def test_what_was_reviewed_is_deployed_although_a_file_is_edited_while_the_engine_starts(ready):
    plan = save(ready, RUN)
    assert HF_CANARY not in json.dumps(plan)
    assert any(step["op"] == "create" and SERVICE in step["urn"] for step in plan["steps"])
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "scripts.deploy", "--stack", RUN, "--no-bench"),
            *("--out", "results/one", "--plan", PLAN, "--json"),
        ],
        cwd=project(ready),
        env=ready.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + LIMIT_S
    while not ups(ready):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    replaced(ready, f"Pulumi.{RUN}.yaml", "maxInstances: 1", "maxInstances: 3")
    replaced(ready, "stacks/cloud_run.py", "deletion_protection=run.deletion_protection", "deletion_protection=True")
    said, errors = process.communicate(timeout=LIMIT_S)
    git(ready, "checkout", "--quiet", "--", ".")
    assert process.returncode == 0, errors
    assert json.loads(said)["plan"] == plan["id"]
    resources = json.loads(ready.state(RUN))["checkpoint"]["latest"]["resources"]
    (inputs,) = [resource["inputs"] for resource in resources if resource["type"] == SERVICE]
    assert inputs["template"]["scaling"]["maxInstanceCount"] == 1
    assert not inputs["deletionProtection"]
    # What was deployed is what the checkout says: the run in a copy leaves no difference.
    assert save(ready, RUN)["steps"] == []


@pytest.mark.long
def test_settings_that_changed_after_the_plan_are_refused_and_nothing_is_deployed(ready):
    save(ready, RUN)
    before = ready.state(RUN)
    replaced(ready, f"Pulumi.{RUN}.yaml", "maxModelLen: 8192", "maxModelLen: 4096")
    commit(ready, "two")
    refused = deploy(ready, RUN, "two", expect=2)
    assert "the stack's settings, or a file they reference, changed" in refused.err
    assert ready.state(RUN) == before
    shown = save(ready, RUN)
    (step,) = shown["steps"]
    assert step["changes"][0]["before"] == "--max-model-len=8192"
    assert step["changes"][0]["after"] == "--max-model-len=4096"
    git(ready, "revert", "--no-edit", "HEAD")


@pytest.mark.long
def test_a_change_in_the_cloud_after_a_plan_with_refresh_is_named(ready):
    save(ready, RUN, "--refresh")
    path, found = service(ready)
    patched = requests.patch(
        f"{ready.environment['LOCALCLOUD_URL']}/run/{path}?updateMask=ingress",
        json={**found, "ingress": "INGRESS_TRAFFIC_INTERNAL_ONLY"},
        headers=ready.identity,
        timeout=60,
    )
    patched.raise_for_status()
    ready.advance(600)
    refused = deploy(ready, RUN, "four", expect=2)
    assert "::vllm`: planned no change, now update of ingress" in refused.err, refused.err


@pytest.mark.long
def test_an_interrupted_wait_goes_on_under_a_plan_that_shows_it(ready):
    zone = {"accelerator_types": ["v6e-1"], "flex_start": True}
    ready.change_scenario({"tpu": {"zones": {"us-east5-a": {**zone, "capacity": {"v6e-1": 0}}}}})
    new = save(ready, TPU)
    assert new["identity"]["state"] == ""
    assert TPU not in ready.pulumi("stack", "ls").out
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "scripts.deploy", "--stack", TPU, "--no-bench"),
            *("--out", "results/five", "--plan", PLAN),
        ],
        cwd=project(ready),
        env=ready.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if "WAITING (zone 1" in line:
            break
    # As Ctrl-C in a terminal: the engine gets it too.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    created = "requests?id=tpu.projects.locations.queuedResources.create"
    before = ready.admin(created)["requests"]
    assert before
    ready.change_scenario({"tpu": {"zones": {"us-east5-a": {**zone, "capacity": {"v6e-1": 1}}}}})
    # The stack was new: the engine's salt came back from the copy, and has to be kept.
    assert "encryptionsalt" in git(ready, "diff", "--unified=0")
    commit(ready, "salt")
    stale = deploy(ready, TPU, "six", expect=2)
    assert "the stack was deployed or refreshed" in stale.err
    plan = save(ready, TPU)
    assert any(step["op"] == "update" and "QueuedResource" in step["urn"] for step in plan["steps"]), plan["steps"]
    done = deploy(ready, TPU, "seven")
    assert done.json["plan"] == plan["id"]
    assert ready.admin(created)["requests"] == before
