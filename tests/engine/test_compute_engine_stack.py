"""A TPU stack on Compute Engine with the real CLI: Ctrl-C in the wait, a change in place, the tunnel, an instance that is gone, and nothing left."""

import contextlib
import json
import signal
import subprocess
import time

import pytest
import requests

from tests.engine.conftest import LIMIT_S

STACK = "tpu-v6e1"
ALICE = "user:alice@example.com"
ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b", "southamerica-west1-a")

pytestmark = [pytest.mark.engine, pytest.mark.long]


def compute(workspace, method, path, **more):
    base = workspace.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"]
    answer = requests.request(
        method, f"{base}projects/local-project/{path}", headers=workspace.identity, timeout=60, **more
    )
    answer.raise_for_status()
    return answer.json()


def instances(workspace):
    scopes = compute(workspace, "GET", "aggregated/instances")["items"]
    return {item["name"]: item for scope in scopes.values() for item in scope["instances"]}


def queued(workspace):
    resources = json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
    (found,) = [item for item in resources if item["type"] == "gcp-tpu:index:QueuedResource"]
    return found


def metadata(item):
    return {pair["key"]: pair["value"] for pair in item["metadata"]["items"]}


@pytest.fixture(scope="module")
def interrupted(workspace):
    """An `up` without capacity, interrupted while its instance is PENDING: the instance, and what the state knew."""
    workspace.pulumi("stack", "init", STACK)
    for path, value in (("tpu.api", "compute-engine"), ("tpu.tunnelMembers[0]", ALICE)):
        workspace.pulumi("config", "set", "--path", f"gemma-serving:{path}", value, "--stack", STACK)
    workspace.wait_for_capacity(STACK, "2h")  # the most that Compute Engine takes
    scenario = workspace.admin("scenario")
    free = {zone: {**scenario["tpu"]["zones"][zone], "capacity": {}} for zone in ZONES}
    none = {zone: {**facts, "capacity": {"v6e-1": 0}} for zone, facts in free.items()}
    workspace.change_scenario({"tpu": {"zones": none}})
    up = subprocess.Popen(
        [workspace.engine, "up", "--yes", "--skip-preview", "--non-interactive", "--stack", STACK],
        cwd=workspace.folder / "project",
        env=workspace.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    end = time.monotonic() + LIMIT_S
    while not any(item["status"] == "PENDING" for item in instances(workspace).values()):
        assert up.poll() is None, up.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.1)
    up.send_signal(signal.SIGINT)
    said, _ = up.communicate(timeout=LIMIT_S)
    assert up.returncode != 0, said
    waiting, known = instances(workspace), queued(workspace)
    workspace.change_scenario({"tpu": {"zones": {zone: {"capacity": {"v6e-1": None}} for zone in ZONES}}})
    return waiting, known, said


def test_an_interrupted_wait_is_in_the_state(interrupted):
    waiting, known, said = interrupted
    (item,) = waiting.values()
    assert item["status"] == "PENDING"
    assert known["outputs"]["name"].endswith(f"/instances/{item['name']}")
    # Ctrl-C can come before the first look at what was made.
    assert known["outputs"]["state"] in {"UNKNOWN", "WAITING_FOR_RESOURCES"}
    assert "kept in the state" in said


@pytest.fixture(scope="module")
def deployed(workspace, interrupted):
    return workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)


def test_up_goes_on_and_serves(workspace, deployed):
    (item,) = instances(workspace).values()
    assert item["status"] == "RUNNING"
    assert item["machineType"].endswith("/ct6e-standard-1t")
    assert "accessConfigs" not in item["networkInterfaces"][0]
    found = queued(workspace)["outputs"]
    assert (found["state"], found["phase"], found["nodeState"]) == ("ACTIVE", "ready", "READY")
    outputs = workspace.outputs(STACK)
    assert outputs["deadline"] == item["resourceStatus"]["scheduling"]["terminationTimestamp"]
    workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", STACK)


def test_the_tunnel_goes_through_gclouds_general_track(workspace, deployed):
    assert workspace.outputs(STACK)["tunnel"]["argv"][:3] == ["gcloud", "compute", "ssh"]
    assert workspace.script("smoke", "--stack", STACK, "--json").json["passed"] is True


def test_a_member_of_the_tunnel_needs_no_right_to_change_the_machine(workspace, deployed):
    roles = {
        item["inputs"]["role"]
        for item in json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
        if item["type"] == "gcp:projects/iAMMember:IAMMember" and item["inputs"]["member"] == ALICE
    }
    assert roles == {"roles/iap.tunnelResourceAccessor", "roles/compute.osLogin"}


def test_status_reads_the_instance(workspace, deployed):
    (status,) = workspace.script("status", "--stack", STACK, "--json").json["stacks"]
    cloud = status["cloud"]
    assert (status["target"], cloud["state"], cloud["phase"]) == ("tpu", "ACTIVE", "ready")
    assert cloud["usd_per_hour"] > 1
    assert cloud["deadline"]
    assert status["drift"] == []


def test_a_flag_changes_in_place(workspace, deployed):
    before = instances(workspace)
    workspace.pulumi("config", "set", "--path", "gemma-serving:vllm.maxModelLen", "8192", "--stack", STACK)
    assert set(workspace.pulumi("preview", "--json", "--stack", STACK).json["changeSummary"]) <= {"same", "update"}
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    after = instances(workspace)
    assert {name: item["id"] for name, item in before.items()} == {name: item["id"] for name, item in after.items()}
    assert all(metadata(before[name]) != metadata(after[name]) for name in before)
    assert workspace.served_length(STACK) == 8192
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)


def test_a_command_for_the_other_api_says_what_to_do_instead(workspace, deployed):
    answer = workspace.script("capacity", "--stack", STACK, expect=2)
    assert f"For its quota, run `gemma doctor {STACK}`." in answer.err


def test_the_doctor_knows_the_machine_type_and_its_quota(workspace, deployed):
    lines = {
        line["check"]: line
        for line in workspace.script("doctor", "--stack", STACK, "--json", expect=None).json["checks"]
    }
    assert lines["ct6e-standard-1t in us-east5-a"]["status"] == "ok"
    assert lines["quota of chips in us-east5"]["status"] == "ok"


def test_an_instance_that_google_took_is_made_again(workspace, deployed):
    (item,) = instances(workspace).values()
    zone = item["zone"].rpartition("/")[2]
    compute(workspace, "DELETE", f"zones/{zone}/instances/{item['name']}")
    end = time.monotonic() + LIMIT_S
    while instances(workspace):
        assert time.monotonic() < end
        time.sleep(0.1)
    workspace.pulumi("up", "--refresh", "--yes", "--skip-preview", "--stack", STACK)
    (again,) = instances(workspace).values()
    assert again["id"] != item["id"]
    assert queued(workspace)["outputs"]["phase"] == "ready"


def test_a_lost_state_is_built_again_from_what_exists(workspace, deployed):
    with contextlib.suppress(FileNotFoundError):
        (workspace.folder / "lost.json").unlink()
    exported = workspace.pulumi("stack", "export", "--stack", STACK).json
    exported["deployment"]["resources"] = []
    lost = workspace.folder / "lost.json"
    lost.write_text(json.dumps(exported))
    before = instances(workspace)
    workspace.pulumi("stack", "import", "--force", "--file", str(lost), "--stack", STACK)
    workspace.script("recover", "--stack", STACK, "--yes")
    assert queued(workspace)["id"].endswith(f"/queuedResources/{next(iter(before))}")
    assert {name: item["id"] for name, item in instances(workspace).items()} == {
        name: item["id"] for name, item in before.items()
    }


def test_teardown_leaves_nothing_and_says_so(workspace, deployed):
    found = workspace.script("teardown", "--stack", STACK, "--dry-run", "--json", expect=None).text
    assert "/instances/" in found
    report = workspace.script("teardown", "--stack", STACK, "--yes", "--json").json
    assert instances(workspace) == {}
    names = [row["name"] for row in workspace.admin("resources")["resources"]]
    assert not [name for name in names if "gemma-tpu-v6e1" in name], report
