"""One Ctrl-C while the network is made loses nothing, and `up` goes on to a machine that members of the tunnel can log in to."""

import json
import signal
import subprocess
import sys
import time

import pytest
import requests

from tests.engine.conftest import LIMIT_S

STACK = "tpu-v6e1"
ALICE = "user:alice@example.com"
LOG_IN = """
import sys
from localcloud.running.shims.gcloud import log_in
from localcloud.running.shims.gcloud_login import Login
log_in(sys.argv[1], Login(account=sys.argv[2]))
"""
CREATION_S = 3
"""Real seconds that each resource of the network takes."""

pytestmark = pytest.mark.engine


def await_call(workspace, method):
    end = time.monotonic() + LIMIT_S
    while not workspace.admin(f"requests?id={method}")["requests"]:
        assert time.monotonic() < end, f"nobody called {method}"
        time.sleep(0.1)


def policy(workspace):
    url = f"{workspace.environment['LOCALCLOUD_URL']}/cloudresourcemanager/v1/projects/local-project:getIamPolicy"
    body = {"options": {"requestedPolicyVersion": 3}}
    answer = requests.post(url, json=body, headers=workspace.identity, timeout=60)
    answer.raise_for_status()
    return answer.json()


def recorded_and_made(workspace):
    """Ids of the network's resources in the state, and in the cloud."""
    resources = json.loads(workspace.state(STACK))["checkpoint"]["latest"].get("resources", [])
    recorded = {r["id"] for r in resources if r["type"].startswith("gcp:compute/") and "routerNat" not in r["type"]}
    kinds = {"networks", "subnetworks", "firewalls", "routers"}
    rows = [row for row in workspace.admin("resources")["resources"] if row["kind"] in kinds]
    return recorded, {row["name"] for row in rows if not row["name"].partition("/")[2].endswith("default")}


@pytest.fixture(scope="module")
def interrupted(workspace):
    """An `up` that was interrupted once while the network was made: what the state knew and what was there, then."""
    workspace.pulumi("stack", "init", STACK)
    workspace.pulumi("config", "set", "--path", "gemma-serving:tpu.tunnelMembers[0]", ALICE, "--stack", STACK)
    speed = float(workspace.environment["LOCALCLOUD_SPEED"])
    workspace.change_scenario({"operations": {"compute_s": CREATION_S * speed}})
    up = subprocess.Popen(
        [workspace.engine, "up", "--yes", "--skip-preview", "--non-interactive", "--stack", STACK],
        cwd=workspace.folder / "project",
        env=workspace.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    await_call(workspace, "compute.subnetworks.insert")
    up.send_signal(signal.SIGINT)
    said, _ = up.communicate(timeout=LIMIT_S)
    assert up.returncode != 0, said
    workspace.change_scenario({"operations": {"compute_s": None}})
    return recorded_and_made(workspace)


def test_one_interrupt_while_the_network_is_made_loses_nothing_and_up_goes_on(workspace, interrupted):
    recorded, made = interrupted
    assert any("/subnetworks/" in name for name in made), made
    assert made <= recorded
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)


def test_a_member_of_the_tunnel_can_log_in_to_the_machine(workspace, interrupted):
    node = workspace.outputs(STACK)["tunnel"]["argv"]
    name, zone = node[6], next(word.partition("=")[2] for word in node if word.startswith("--zone="))
    full = f"projects/local-project/locations/{zone}/nodes/{name}"
    workspace.run(sys.executable, "-c", LOG_IN, full, ALICE.partition(":")[2])
    stranger = workspace.run(sys.executable, "-c", LOG_IN, full, "bob@example.com", expect=1)
    assert "Permission 'tpu.nodes.get' denied" in stranger.text


def test_a_refresh_with_conditional_grants_finds_no_drift_and_destroy_leaves_no_grant(workspace, interrupted):
    workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", STACK)
    assert ALICE in json.dumps(policy(workspace))
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", STACK)
    assert recorded_and_made(workspace) == (set(), set())
    left = json.dumps(policy(workspace))
    assert ALICE not in left
    assert "deleted:" not in left
