"""Restarts on a local cloud without an engine: what is refused, what is asked before, what Google gets, and how each ends."""

import json
import time

import pytest

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.tpu_machine import TpuMachine
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.rollout import ROLLOUT_METADATA_KEY, RolloutLimits
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY, RESTART_METADATA_KEY, RESTART_NONCE
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.engine import runner
from gemma_serving.engine.deployed_config import BUCKET_CREATION
from gemma_serving.engine.exported_state import deployment_of
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stack import facts, serves
from gemma_serving.scripts.up import machine, restarting, starting
from gemma_serving.scripts.up.__main__ import COMMAND
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, open_world, owner
from tests.polling import until
from tests.scripts.planted_states import NAME, queued, stack_resource
from tests.scripts.stack.test_deployed_server import publish

STACK = "x"
NODE = f"projects/{PROJECT}/locations/us-east5-a/nodes/{NAME}-node"
REQUEST = f"projects/{PROJECT}/locations/us-east5-a/queuedResources/{NAME}"
INSTANCE = f"projects/{PROJECT}/zones/us-east5-a/instances/{NAME}"
HASH = "a" * 64
READY = {"phase": "ready", "document_hash": HASH, "serving_hash": HASH}
METADATA = {
    "enable-guest-attributes": "TRUE",
    DOCUMENT_METADATA_KEY: '{"schema":1}',
    ROLLOUT_METADATA_KEY: RolloutLimits(drain_s=30).text(),
    "ssh-keys": "ana:ssh-ed25519 AAAA ana",
}


@pytest.fixture
def world():
    with open_world() as opened:
        yield opened


class Time:
    """A clock that goes on when something waits; `then` is called at each wait."""

    def __init__(self):
        self.s, self.then = 0.0, lambda: None

    def sleep(self, seconds):
        self.s += seconds
        self.then()
        time.sleep(0.01)  # the local cloud's machine changes in a thread of its own

    @property
    def clock(self):
        return WaitClock(now_s=lambda: self.s, sleep=self.sleep)


@pytest.fixture
def clock():
    return Time()


class Command:
    """The command in this process, with a planted state and without an engine."""

    def __init__(self, world, monkeypatch, capsys, clock):
        self.world, self.capsys, self.locks = world, capsys, ()
        self.edits = ""
        monkeypatch.setattr(machine, "stack_locks", lambda _stack: self.locks)
        monkeypatch.setattr(serves, "read_deployment", lambda _stack: deployment_of(STACK, self.document))
        monkeypatch.setattr(restarting, "waiting_edits", lambda _stack: self.edits)
        monkeypatch.setattr(restarting, "stack_settings", lambda _stack: None)
        monkeypatch.setattr(restarting, "read", lambda _stack: None)
        monkeypatch.setattr(restarting, "require_secrets", lambda *_, **__: ())
        monkeypatch.setattr(machine, "TpuMachine", lambda **given: TpuMachine(**given, clock=clock.clock))

    def deploy(self, *resources):
        self.document = {"version": 3, "deployment": {"resources": list(resources)}}

    def run(self, *words):
        code = run_command(COMMAND, ["--stack", STACK, "--restart", *words])
        said = self.capsys.readouterr()
        return code, (json.loads(said.out) if said.out.startswith("{") else said.out), said.err

    def ends(self, code, words, *arguments):
        """Run the command to an exit code, and require words of its errors."""
        found, _, said = self.run(*arguments)
        assert (found, words in said) == (code, True), said


@pytest.fixture
def command(world, monkeypatch, capsys, clock):
    return Command(world, monkeypatch, capsys, clock)


def cloud_state(world):
    return world.cloud.cloud.runtimes.machines


def node(world, labels=None, metadata=METADATA):
    """A machine of a queued resource; its full name."""
    parent = NODE.partition("/nodes/")[0]
    given = {
        "acceleratorType": "v6e-4",
        "runtimeVersion": "v2-alpha-tpuv6e",
        "labels": dict(owner(STACK).labels if labels is None else labels),
        "metadata": dict(metadata),
    }
    body = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": f"{NAME}-node", "node": given}]},
        "provisioningModel": "FLEX_START",
        "runDuration": {
            "maxRunDuration": "604800s"
        },  # of a clock that goes on 200 times as fast, whatever the machine's load
    }
    world.call("POST", "tpu", f"v2alpha1/{parent}/queuedResources?queuedResourceId={NAME}", body)
    until(lambda: world.call("GET", "tpu", f"v2alpha1/{REQUEST}")["state"]["state"] == "ACTIVE", "it is ACTIVE")
    return NODE


def instance(world, labels=None):
    """A machine of Compute Engine; its full name."""
    email = world.account(NAME, owner(STACK).description)
    body = {
        "name": NAME,
        "serviceAccounts": [{"email": email, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
        "machineType": f"projects/{PROJECT}/zones/us-east5-a/machineTypes/ct6e-standard-4t",
        "labels": dict(owner(STACK).labels if labels is None else labels),
        "metadata": {"items": [{"key": key, "value": value} for key, value in METADATA.items()]},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
                },
            }
        ],
        "networkInterfaces": [{"network": f"projects/{PROJECT}/global/networks/default"}],
        "scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": False},
    }
    world.call("POST", "compute", f"compute/v1/{INSTANCE.rpartition('/')[0]}", body)
    until(lambda: world.call("GET", "compute", f"compute/v1/{INSTANCE}")["status"] == "RUNNING", "it runs")
    return INSTANCE


def metadata_of(world, name):
    return TpuMachine(api=world.api, name=name).metadata(
        world.call(
            "GET", *(("compute", f"compute/v1/{name}") if "/instances/" in name else ("tpu", f"v2alpha1/{name}"))
        )
    )


def tpu(command, name=NODE, request=REQUEST, **published):
    """Deploy a TPU stack whose machine has published this."""
    found = queued(nodeName=name, name=request, state="ACTIVE", zone="us-east5-a")
    found["inputs"] |= {"metadata": METADATA, **({"api": "compute-engine"} if request == INSTANCE else {})}
    command.deploy(stack_resource(target="tpu"), found)
    if published:
        publish(command.world, name, **published)


def agent(command, clock, name, *phases, nonce=None, **more):
    """At each wait the machine publishes the next of these phases, for the nonce of its metadata."""
    left = list(phases)

    def go_on():
        asked = cloud_state(command.world).metadata[name].get(RESTART_METADATA_KEY)
        if asked and left:
            phase = left.pop(0)
            serving = {"serving_hash": HASH if phase in {"ready", "failed"} else ""}
            publish(command.world, name, **{**READY, "phase": phase, **serving, "restart": nonce or asked, **more})

    clock.then = go_on


def unanswered(*_):
    raise ScriptError("tpu.googleapis.com failed 4 times (HTTP 502). Try again later.")


@pytest.fixture
def ready(world, command):
    """A node whose server is ready."""
    node(world)
    tpu(command, **READY)


class TestMachine:
    @pytest.mark.parametrize(("make", "name"), [(node, NODE), (instance, INSTANCE)])
    def test_the_nonce_is_the_only_key_that_changes_and_the_command_waits_for_its_phase(
        self, world, command, clock, make, name
    ):
        make(world)
        tpu(command, name, REQUEST if make is node else name, **READY)
        before = metadata_of(world, name)
        agent(command, clock, name, "starting", "loading", "ready")
        code, report, said = command.run("--yes", "--json")
        assert code == ExitCode.DONE, said
        assert (report["outcome"], report["server"]) == ("restarted", name)
        after = metadata_of(world, name)
        nonce = after[RESTART_METADATA_KEY]
        assert RESTART_NONCE.fullmatch(nonce)
        assert {key: value for key, value in after.items() if key != RESTART_METADATA_KEY} == before
        assert "Running requests get 30 s to finish, then requests fail for about 95 s (planned)." in said
        assert "loading" in said

    def test_a_machine_whose_first_up_never_ended_restarts_within_its_declared_limit(self, world, command, clock):
        node(world)
        tpu(command, phase="failed", document_hash=HASH, serving_hash="")
        found = queued(nodeName=NODE, name=REQUEST, state="ACTIVE", zone="us-east5-a")
        found["inputs"] |= {"metadata": METADATA, "ready": {"timeoutS": 60}}
        command.deploy(found)
        agent(command, clock, NODE, "starting", "ready")
        code, _, said = command.run("--yes")
        assert code == ExitCode.DONE, said
        assert "requests fail for an unknown time." in said
        clock.then = lambda: None
        command.ends(ExitCode.FAILED, "not ready within 3 min 30 s", "--yes")

    def test_a_disabled_secret_version_is_refused_before_the_question(self, world, ready, command, monkeypatch):
        def refuse(*_, **__):
            raise CommandRefusedError("v is DISABLED")

        monkeypatch.setattr(restarting, "require_secrets", refuse)
        command.ends(ExitCode.REFUSED, "\nup: v is DISABLED\n")
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)

    def test_a_ready_phase_of_the_time_before_is_not_the_end(self, world, command, clock):
        node(world)
        tpu(command, **READY, restart="older")
        agent(command, clock, NODE, *["ready"] * 5, nonce="older")
        code, _, said = command.run("--yes", "--json")
        assert code == ExitCode.FAILED
        assert "The server was not ready within" in said
        assert "(waiting for the TPU VM to read the request)" in said

    @pytest.mark.parametrize(("last", "code"), [("ready", ExitCode.DONE), ("failed", ExitCode.FAILED)])
    def test_another_restart_that_took_its_place_ends_it(self, world, command, clock, last, code):
        node(world)
        tpu(command, **READY)
        agent(command, clock, NODE, "starting", last, nonce="of another folder")
        follow = clock.then

        def replace():
            follow()
            own = TpuMachine(api=world.api, name=NODE)
            own.set_metadata(RESTART_METADATA_KEY, "of another folder", owner(STACK))
            clock.then = follow

        clock.then = replace
        found, _, said = command.run("--yes")
        assert (found, "up: another restart took its place\n" in said) == (code, True), said

    def test_a_document_that_fails_again_ends_with_its_reason_and_what_serves(self, world, command, clock):
        node(world)
        tpu(command, **{**READY, "phase": "failed"})
        agent(command, clock, NODE, "starting", "failed", detail="line\nValueError: no such flag.")
        code, _, said = command.run("--yes", "--json")
        assert code == ExitCode.FAILED
        assert "up: ValueError: no such flag. Document aaaaaaaaaaaa is serving after " in said

    def test_a_dry_run_changes_nothing_and_its_plan_runs(self, world, ready, command, clock):
        code, look, _ = command.run("--dry-run", "--json")
        assert (code, look["dry_run"], look["requests_fail_s"]) == (ExitCode.DONE, True, 95)
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)
        command.ends(ExitCode.REFUSED, "is stale", "--yes", "--plan", "plan-of-yesterday")
        agent(command, clock, NODE, "ready")
        assert command.run("--yes", "--plan", look["plan"])[0] == ExitCode.DONE

    def test_edits_of_the_file_are_named_and_wait(self, ready, command, clock):
        command.edits = "Edits of Pulumi.x.yaml wait for `gemma up x`: vllm.maxModelLen."
        assert command.run("--dry-run", "--json")[1]["sentences"][1] == command.edits
        agent(command, clock, NODE, "ready")
        command.ends(ExitCode.DONE, command.edits, "--yes", "--json")

    def test_without_a_yes_nothing_happens(self, world, ready, command):
        command.ends(ExitCode.REFUSED, "Pass --yes to confirm")
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)

    @pytest.mark.parametrize(
        ("published", "words"),
        [
            ({}, "is booting, so its server cannot be restarted now"),
            ({**READY, "phase": "ending"}, "is ending, so its server cannot be restarted now"),
            (
                {**READY, "updated_at": "2026-11-01T10:00:00Z"},
                "ago, so whether it serves is unknown. Run `gemma logs x`. The server was not restarted.",
            ),
        ],
    )
    def test_a_machine_that_cannot_is_refused_with_what_to_do(self, world, command, published, words):
        node(world)
        tpu(command, **published)
        command.ends(ExitCode.REFUSED, words, "--yes")
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)

    @pytest.mark.parametrize(("make", "name"), [(node, NODE), (instance, INSTANCE)])
    def test_a_machine_of_others_is_never_changed(self, world, command, make, name):
        make(world, labels=owner("y").labels)
        tpu(command, name, REQUEST if make is node else name, **READY)
        command.ends(ExitCode.REFUSED, "does not have the labels of stack x", "--yes")
        assert RESTART_METADATA_KEY not in metadata_of(world, name)

    def test_a_machine_that_changed_hands_after_the_prompt_is_not_changed(self, world):
        node(world, labels=owner("y").labels)
        with pytest.raises(CommandRefusedError, match="labels of stack x"):
            TpuMachine(api=world.api, name=NODE).set_metadata(RESTART_METADATA_KEY, "n", owner(STACK))

    def test_a_change_that_google_does_not_answer_names_the_machine_and_the_next_command(self, world, monkeypatch):
        node(world)
        monkeypatch.setattr(TpuMachine, "_change", unanswered)
        with pytest.raises(ScriptError) as failed:
            TpuMachine(api=world.api, name=NODE).set_metadata(RESTART_METADATA_KEY, "n", owner(STACK))
        assert str(failed.value) == (
            f"Cannot change the metadata of {NODE}: tpu.googleapis.com failed 4 times (HTTP 502). Try again later. "
            f"Run `gemma up {STACK} --restart` again."
        )

    def test_a_machine_that_is_gone_is_refused(self, command):
        tpu(command)
        command.ends(ExitCode.REFUSED, "To serve again, run `gemma up x`.", "--yes")

    def test_capacity_that_is_not_there_yet_is_refused(self, command, monkeypatch):
        waits = CloudFacts(state="WAITING_FOR_RESOURCES")
        monkeypatch.setattr(facts, "cloud_facts", lambda *_, **__: waits)
        command.deploy(stack_resource(target="tpu"), queued(state="WAITING_FOR_RESOURCES"))
        command.ends(ExitCode.REFUSED, "Stack x has no TPU VM. `gemma status x` shows what it has", "--yes")

    def test_a_machine_that_goes_away_during_the_wait_ends_it(self, world, ready, command, clock):
        clock.then = lambda: world.call("DELETE", "tpu", f"v2alpha1/{REQUEST}?force=true")
        command.ends(ExitCode.FAILED, f"Machine {NODE} of stack x does not exist", "--yes")

    def test_a_stack_that_another_update_holds_is_refused(self, ready, command):
        command.locks = (StackLock(place="p", user="ana", host="elsewhere", pid=7, since="2026-11-22T10:00:00Z"),)
        command.ends(ExitCode.REFUSED, "by ana@elsewhere (process 7)", "--yes")

    def test_a_permission_that_is_missing_is_googles_sentence(self, world, ready, command):
        world.cloud.cloud.scenario = Scenario(
            operations=OperationDurations(instant=True),
            faults=[Fault(method="tpu.projects.locations.nodes.patch", count=9, status=403)],
        )
        command.ends(ExitCode.FAILED, f"Cannot change the metadata of {NODE}", "--yes")


DEPLOYED = {
    "gemma-serving:apiKey": {"secret": True},
    "gemma-serving:target": {"value": "tpu", "secret": False},
    "gemma-serving:alerts": {"value": '{"dailyCost":true}', "objectValue": {"dailyCost": True}, "secret": False},
    "gemma-serving:vllm": {"value": '{"maxModelLen":8192}', "objectValue": {"maxModelLen": 8192}, "secret": False},
}
FILE = """config:
  gemma-serving:apiKey: { secure: v1:abc }
  gemma-serving:target: tpu
  gemma-serving:alerts: { dailyCost: true }
  gemma-serving:vllm: { maxModelLen: 8192 }
"""
WAIT = "Edits of Pulumi.x.yaml wait for `gemma up x`: "


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("", ""), ""),
        (("8192", "4096"), f"{WAIT}vllm.maxModelLen."),
        (("dailyCost: true", "email: a@example.com"), f"{WAIT}alerts.dailyCost, alerts.email."),
        (("  gemma-serving:apiKey: { secure: v1:abc }\n", ""), f"{WAIT}apiKey."),
    ],
)
def test_what_waits_is_each_setting_that_differs_from_the_last_up(monkeypatch, tmp_path, edit, said):
    updates = [
        {"kind": "update", "result": "succeeded", "message": BUCKET_CREATION, "config": {}},
        {"kind": "update", "result": "failed", "config": {}},
        {"kind": "update", "result": "succeeded", "config": DEPLOYED},
    ]
    monkeypatch.setattr(runner, "query", lambda _words: json.dumps(updates))
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    (tmp_path / "Pulumi.x.yaml").write_text(FILE.replace(*edit))
    assert starting.waiting_edits("x") == said
    monkeypatch.setattr(runner, "query", lambda _words: "[]")
    assert starting.waiting_edits("x").startswith("Whether Pulumi.x.yaml has edits is unknown")
