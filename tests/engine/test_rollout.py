"""A rollout on Cloud Run with the real CLI: `up` moves no request, the checks run before the traffic moves, and a bad revision never serves."""

import contextlib
import json
import subprocess
import sys

import pytest
import yaml

from contracts.service_traffic import is_ready

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
    configure(workspace, "cloudRun.rollout", {})
    workspace.stage(STACK)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
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


def configure(workspace, key, value):
    """Set a key of the stack's file. `pulumi config set` writes a fraction as text."""
    path = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
    document = yaml.safe_load(path.read_text())
    first, *steps = f"gemma-serving:{key}".split(".")
    at, name = document["config"], first
    for step in steps:
        at, name = at.setdefault(name, {}), step
    at[name] = value
    path.write_text(yaml.safe_dump(document))


def up(workspace, expect=0):
    return workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=expect)


def assert_nothing_to_change(workspace):
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)


def assert_no_drift(workspace):
    workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", STACK)
    assert_nothing_to_change(workspace)


def test_a_first_deployment_serves_its_newest_revision(stack):
    assert service(stack)["traffic"] == [{"type": "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", "percent": 100}]


def test_a_good_change_gets_its_requests_after_its_checks_and_no_request_fails(stack):
    old, answers = latest(stack), {}
    with client_in_a_loop(stack, answers):
        configure(stack, "vllm.maxModelLen", 8192)
        made = up(stack)
        assert f"Revision {latest(stack)} has no traffic yet" in made.text
        assert shares(stack) == {old: 100}
        assert_nothing_to_change(stack)
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
    path = stack.folder / "project" / f"Pulumi.{STACK}.yaml"
    original, serving = path.read_text(), shares(stack)
    yield
    path.write_text(original)
    up(stack)
    assert shares(stack) == serving
    assert_nothing_to_change(stack)


@pytest.mark.parametrize("name", BAD_CHANGES)
def test_a_bad_change_never_serves_and_up_says_why(stack, changed_back, name):
    change, said = BAD_CHANGES[name]
    before, answers = shares(stack), {}
    with client_in_a_loop(stack, answers):
        for key, value in change.items():
            configure(stack, key, value)
        failed = up(stack, expect=None)
        assert failed.code != 0
        assert said in failed.text
        refused = stack.script("rollout", "--stack", STACK, expect=2)
    assert "did not start and gets no traffic" in refused.err
    assert shares(stack) == before
    assert answers["failed"] == []


def test_a_revision_that_fails_its_checks_gets_no_request(stack, changed_back):
    before, answers = shares(stack), {}
    configure(stack, "smoke.minDecodeTokPerS", 1e6)
    configure(stack, "vllm.maxNumSeqs", 24)
    with client_in_a_loop(stack, answers):
        up(stack)
        report = stack.script("rollout", "--stack", STACK, "--json", expect=1).json
    assert (report["outcome"], report["traffic"]) == ("rolled back", before)
    assert "failed its checks" in report["reason"]
    assert [target.get("tag") for target in service(stack)["traffic"]] == [None]
    assert shares(stack) == before
    assert answers["failed"] == []
    assert_no_drift(stack)


def test_a_rollout_that_was_killed_serves_and_goes_on_and_one_command_goes_back(stack):
    (old,) = shares(stack)
    configure(stack, "vllm.maxNumSeqs", 12)
    answers = {}
    with client_in_a_loop(stack, answers):
        up(stack)
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


def test_settings_say_who_gets_the_requests_and_nothing_else_moves_them(stack):
    """Go back by a setting: the program declares it, the command stands back, and a new template still gets no request."""
    path = stack.folder / "project" / f"Pulumi.{STACK}.yaml"
    original, (serving,) = path.read_text(), shares(stack)
    project = "v2/projects/local-project/locations/us-east4"
    revisions = stack.get("run", f"{project}/services/gemma-{STACK}/revisions")["revisions"]
    ready = {revision["name"].rpartition("/")[2] for revision in revisions if is_ready(revision)}
    other = max(ready - {serving})
    answers = {}
    with client_in_a_loop(stack, answers):
        configure(stack, "cloudRun.rollout.traffic", {"gemma-nothing": 100})
        refused = stack.pulumi("preview", "--stack", STACK, expect=None)
        assert "does not exist or never became ready. Ready revisions: " in refused.text
        configure(stack, "cloudRun.rollout.traffic", {other: 75, serving: 25})
        up(stack)
        assert shares(stack) == {other: 75, serving: 25}
        assert_no_drift(stack)
        said = stack.script("rollout", "--stack", STACK, expect=2).err
        assert "(cloudRun.rollout.traffic: {" in said
        assert f"{other}: 75" in said
        # All of it goes back: three revisions at a time would need more GPUs than the quota has.
        configure(stack, "cloudRun.rollout.traffic", {other: 100})
        up(stack)
        configure(stack, "vllm.maxNumSeqs", 20)
        assert "gemma rollout" not in up(stack).text
        assert shares(stack) == {other: 100}
        assert (
            "gemma rollout" not in stack.script("status", "--stack", STACK, "--json").json["stacks"][0]["next_command"]
        )
        assert_no_drift(stack)
        path.write_text(original)
        up(stack)
        assert shares(stack) == {other: 100}
        assert stack.script("rollout", "--stack", STACK, "--json").json["outcome"] == "rolled out"
    assert answers["failed"] == []
    assert_no_drift(stack)


def test_teardown_leaves_nothing(stack):
    assert stack.script("teardown", "--stack", STACK, "--yes", "--json").json["clean"] is True
