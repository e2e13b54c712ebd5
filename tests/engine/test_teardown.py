"""After any crash and with any state, one command leaves nothing of a stack: the real engine, killed in the middle of its work."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import requests

STACK = "tpu-v6e4"
ZONE = "us-east5-a"
ALICE = "user:alice@example.com"
GRANTS, SUBNETWORK = "cloudresourcemanager.projects.setIamPolicy", "compute.subnetworks.insert"
LIMIT_S = 240

pytestmark = pytest.mark.engine


class Cycle:
    """A workspace in which an `up` is stopped in its middle."""

    def __init__(self, workspace):
        self.workspace = workspace
        self.settings = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
        self.original = self.settings.read_text()
        self.process = None
        self.state = workspace.folder / "cloud" / "pulumi" / ".pulumi" / "stacks" / "gemma-serving" / f"{STACK}.json"

    def scenario(self, **changes):
        self.workspace.change_scenario(changes)

    def start(self):
        """Start an `up` that takes a group of its own, and return the engine's process."""
        self.workspace.pulumi("stack", "init", STACK, expect=None)
        log = (self.workspace.folder / "up.log").open("w")
        self.process = subprocess.Popen(
            [str(self.workspace.engine), "up", "--yes", "--skip-preview", "--stack", STACK, "--non-interactive"],
            cwd=self.workspace.folder / "project",
            env=self.workspace.environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self.process

    def wait(self, condition, what):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"{what}\n{(self.workspace.folder / 'up.log').read_text()[-3000:]}"
            time.sleep(0.1)

    def kill(self, process):
        """Kill the engine, and wait until its children have followed it."""
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            end = time.monotonic() + 60
            while time.monotonic() < end:
                os.killpg(process.pid, 0)
                time.sleep(0.1)

    def half_made(self):
        """Stop an `up` when Google has made a subnet and a grant, and the engine knows of neither.

        The grants of a project are made one after the other, in any order: the first one hangs.
        """
        hangs = [
            {"method": GRANTS, "count": 99, "action": "hang", "when": "after", "hang_s": 600},
            {"method": SUBNETWORK, "count": 99, "action": "hang", "when": "after", "hang_s": 600},
        ]
        self.scenario(faults=hangs)
        self.settings.write_text(
            self.original.replace("gemma-serving:tpu:\n", f"gemma-serving:tpu:\n    tunnelMembers: ['{ALICE}']\n")
        )
        process = self.start()
        self.wait(lambda: self.has_alice() and self.left("/subnetworks/"), "no subnet, or no grant")
        self.scenario(faults=[])
        return process

    def has_alice(self):
        return any(ALICE in item["members"] for item in self.policy())

    def policy(self):
        base = self.workspace.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDRESOURCEMANAGER"]
        url = f"{base}v1/projects/local-project:getIamPolicy"
        body = {"options": {"requestedPolicyVersion": 3}}
        return requests.post(url, json=body, headers=self.workspace.identity, timeout=60).json()["bindings"]

    def left(self, part=f"gemma-{STACK}"):
        names = [item["name"] for item in self.workspace.admin("resources")["resources"]]
        return [name for name in names if part in name and f"gemma-{STACK}" in name]

    def teardown(self, *words, expect=0, **options):
        return self.workspace.script("teardown", "--stack", STACK, "--yes", "--json", *words, expect=expect, **options)

    def status(self):
        (found,) = self.workspace.script("status", "--stack", STACK, "--json").json["stacks"]
        return found

    def assert_nothing_left(self):
        assert self.left() == []
        members = {member for item in self.policy() for member in item["members"]}
        assert not any(f"gemma-{STACK}" in member for member in members)
        assert ALICE not in members


@pytest.fixture
def cycle(workspace):
    made = Cycle(workspace)
    yield made
    if made.process and made.process.poll() is None:
        made.kill(made.process)
    made.settings.write_text(made.original)
    made.scenario(faults=[], tpu={"zones": {ZONE: {"accelerator_types": ["v6e-4"], "flex_start": True}}})


def test_a_request_in_a_zone_that_the_settings_no_longer_name_is_found(cycle):
    """The request would get its capacity later, and cost money: it is deleted also if the state is protected and its owner gone."""
    cycle.scenario(
        tpu={"zones": {ZONE: {"accelerator_types": ["v6e-4"], "flex_start": True, "capacity": {"v6e-4": 0}}}}
    )
    cycle.workspace.wait_for_capacity(STACK)
    process = cycle.start()
    cycle.wait(lambda: cycle.left("/queuedResources/"), "no queued resource")
    cycle.wait(lambda: cycle.status()["waits"], "the status does not tell the wait")
    waiting = cycle.status()
    assert waiting["cloud"]["state"] in {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"}
    assert waiting["cloud"]["place"] == ZONE
    assert any(f"process {process.pid}" in wait for wait in waiting["waits"])
    assert waiting["next_command"] == f"gemma status {STACK} --watch"
    cycle.kill(process)
    killed = cycle.status()
    assert any("no longer running" in wait for wait in killed["waits"])
    assert killed["next_command"] == f"gemma recover {STACK}"
    nothing = cycle.workspace.script("logs", "--stack", STACK)
    assert (nothing.out, "no logs of stack" in nothing.err) == ("", True)
    assert f"zones: [{ZONE}, " in cycle.original
    cycle.settings.write_text(cycle.original.replace(f"zones: [{ZONE}, ", "zones: ["))
    cycle.workspace.pulumi("cancel", "--yes", "--stack", STACK)
    cycle.workspace.pulumi("state", "protect", "--all", "--yes", "--stack", STACK)
    report = cycle.teardown().json
    assert report["clean"] is True
    assert report["destroyed"] > 10
    cycle.assert_nothing_left()


def test_a_live_lock_is_refused_and_a_dead_one_ends_and_a_half_made_network_and_grants_go(cycle):
    process = cycle.half_made()
    before = cycle.left()
    refused = cycle.teardown(expect=2)
    assert f"process {process.pid}" in refused.err
    assert "Traceback" not in refused.err
    assert set(before) <= set(cycle.left())
    cycle.kill(process)
    done = cycle.teardown()
    assert "removing stale lock" in done.err
    assert {"subnetwork", "IAM grant"} <= {item["kind"] for item in done.json["deleted"]}
    assert done.json["clean"] is True
    cycle.assert_nothing_left()
    assert json.loads(cycle.state.read_text())["checkpoint"]["latest"].get("resources") in (None, [])


@pytest.mark.parametrize(
    "loss", ["deleted", *(pytest.param(loss, marks=pytest.mark.long) for loss in ("cut in half", "no engine"))]
)
def test_what_a_crash_left_is_found_without_the_state_and_without_the_engine(cycle, loss):
    cycle.kill(cycle.half_made())
    text = cycle.state.read_text()
    environment = None
    if loss == "deleted":
        cycle.state.unlink()
    elif loss == "cut in half":
        cycle.state.write_text(text[: len(text) // 2])
    else:
        environment = {"PATH": "/usr/bin:/bin"}
    if environment:
        words = (sys.executable, "-m", "scripts.teardown", "--stack", STACK, "--yes", "--json")
        done = cycle.workspace.run(*words, expect=None, environment=environment)
    else:
        done = cycle.teardown(expect=None)
    assert "Traceback" not in done.err
    assert done.code == 0, done.text
    assert done.json["leaked"] == []
    cycle.assert_nothing_left()
    if loss == "cut in half":
        cycle.workspace.pulumi("stack", "export", "--stack", STACK)
        assert any("was truncated. It is now empty" in line for line in done.json["warnings"])
