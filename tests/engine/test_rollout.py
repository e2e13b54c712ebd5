"""A rollout on Cloud Run with the real CLI: `up` moves no request, the checks run before the traffic moves, and a bad revision never serves."""

import contextlib
import json
import subprocess
import sys

import pytest

from tests.engine.conftest import FAILURE

STACK = "l4-qat"
CLIENT = """
import json, pathlib, sys, requests
from scripts.cli.access import open_stack_access
from engine.state import stack_outputs
outputs, stop = stack_outputs(sys.argv[1]), pathlib.Path(sys.argv[2])
body = {"model": outputs.served_model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
answered, failed = 0, []
with open_stack_access(outputs) as access:
    while not stop.exists() or not answered:
        try:
            url = access.base_url + "/v1/chat/completions"
            status = requests.post(url, json=body, headers=dict(access.headers()), timeout=300).status_code
        except requests.RequestException as error:
            status = repr(error)
        if status == 200:
            answered += 1
        else:
            failed.append(status)
print(json.dumps({"answered": answered, "failed": failed}))
"""

KILLED = """
import os, signal, sys
from scripts.cli.command import run_command
from scripts.rollout import run
from scripts.rollout.__main__ import COMMAND

run.smoke_fault = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(run_command(COMMAND, ["--stack", sys.argv[1], "--json"]))
"""
BAD_CHANGES = {
    "a bad flag": (
        {"vllm.maxModelLen": 262144, "vllm.gpuMemoryUtilization": 0.85, "acceptFindings": ["FIT04"]},
        "The KV cache is too small for one request of 262,144 tokens",
    ),
    "an image that does not exist": (
        {"image.repository": "vllm/vllm-openai", "image.digest": "sha256:" + "0" * 64, "image.version": "0.20.0"},
        "not found",
    ),
    "too little memory": (
        {"cloudRun.memory": "16Gi", "cloudRun.cpu": 4, "acceptFindings": ["FIT03"]},
        "Memory limit of 16384 MiB exceeded",
    ),
}

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def stack(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.configure(STACK, **{"cloudRun.rollout": {}})
    workspace.stage(STACK)
    workspace.up(STACK)
    return workspace


@contextlib.contextmanager
def client_in_a_loop(workspace, found):
    """Send one request after the other while the block runs; `found` gets what was answered."""
    stop = workspace.folder / "stop"
    stop.unlink(missing_ok=True)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, STACK, str(stop)],
        cwd=workspace.folder / "project",
        env=workspace.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        stop.touch()
        found.update(json.loads(client.communicate(timeout=400)[0]))


def service(workspace):
    return workspace.get("run", f"v2/projects/local-project/locations/us-east4/services/gemma-{STACK}")


def shares(workspace):
    statuses = service(workspace)["trafficStatuses"]
    return {
        status.get("revision", latest(workspace)): status["percent"] for status in statuses if status.get("percent")
    }


def latest(workspace):
    return service(workspace)["latestReadyRevision"].rpartition("/")[2]


def assert_no_drift(workspace):
    workspace.assert_no_changes(STACK, "--refresh")
    workspace.assert_no_changes(STACK)


def test_a_first_deployment_serves_its_newest_revision(stack):
    assert service(stack)["traffic"] == [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}]


def test_a_good_change_gets_its_requests_after_its_checks_and_no_request_fails(stack):
    old, answers = latest(stack), {}
    with client_in_a_loop(stack, answers):
        stack.configure(STACK, **{"vllm.maxModelLen": 8192})
        made = stack.up(STACK)
        assert f"Revision {latest(stack)} has no traffic yet" in made.text
        assert shares(stack) == {old: 100}
        stack.assert_no_changes(STACK)
        status = stack.script("status", "--stack", STACK, "--json").json
        assert status["stacks"][0]["next_command"] == f"gemma rollout {STACK}"
        report = stack.script("rollout", "--stack", STACK, "--json").json
    assert (report["outcome"], report["traffic"]) == ("rolled out", {latest(stack): 100})
    assert service(stack)["traffic"] == [
        {"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION", "revision": latest(stack), "percent": 100}
    ]
    assert latest(stack) != old
    assert stack.served_length(STACK) == 8192
    assert answers["failed"] == []
    assert_no_drift(stack)


@pytest.fixture
def changed_back(stack):
    """Give back the settings as they were, deploy them, and see that nothing is left to change."""
    path = stack.settings(STACK)
    original, serving = path.read_text(), shares(stack)
    yield
    path.write_text(original)
    stack.up(STACK)
    assert shares(stack) == serving
    stack.assert_no_changes(STACK)


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_bad_change_never_serves_and_up_says_why(stack, changed_back, name):
    change, said = BAD_CHANGES[name]
    before, answers = shares(stack), {}
    with client_in_a_loop(stack, answers):
        stack.configure(STACK, **change)
        failed = stack.up(STACK, expect=FAILURE)
        assert said in failed.text
        refused = stack.script("rollout", "--stack", STACK, expect=2)
    assert "did not start and gets no traffic" in refused.err
    assert shares(stack) == before
    assert answers["failed"] == []


def test_a_revision_that_fails_its_checks_gets_no_request(stack, changed_back):
    before, answers = shares(stack), {}
    stack.configure(STACK, **{"smoke.minDecodeTokPerS": 1e6})
    stack.configure(STACK, **{"vllm.maxNumSeqs": 24})
    with client_in_a_loop(stack, answers):
        stack.up(STACK)
        report = stack.script("rollout", "--stack", STACK, "--json", expect=1).json
    assert (report["outcome"], report["traffic"]) == ("rolled back", before)
    assert "failed its checks" in report["reason"]
    assert [target.get("tag") for target in service(stack)["traffic"]] == [None]
    assert shares(stack) == before
    assert answers["failed"] == []
    assert_no_drift(stack)


def test_a_rollout_that_was_killed_serves_and_goes_on_and_one_command_goes_back(stack):
    (old,) = shares(stack)
    stack.configure(STACK, **{"vllm.maxNumSeqs": 12})
    answers = {}
    with client_in_a_loop(stack, answers):
        stack.up(STACK)
        new = latest(stack)
        stack.run(sys.executable, "-c", KILLED, STACK, expect=-9)
        status = stack.script("status", "--stack", STACK, "--json").json["stacks"][0]
        assert (status["cloud"]["traffic"], status["cloud"]["rollout_phase"]) == ({old: 100}, "waits")
        assert_no_drift(stack)
        assert stack.script("rollout", "--stack", STACK, "--json").json["traffic"] == {new: 100}
        report = stack.script("rollout", "--stack", STACK, "--to", old, "--json").json
    assert (report["outcome"], report["traffic"]) == ("rolled back manually", {old: 100})
    assert answers["failed"] == []
    assert_no_drift(stack)
    unknown = stack.script("rollout", "--stack", STACK, "--to", "gemma-nothing", expect=2)
    assert "Revision gemma-nothing does not exist. Ready revisions: " in unknown.err


def test_teardown_leaves_nothing(stack):
    stack.teardown(STACK)
