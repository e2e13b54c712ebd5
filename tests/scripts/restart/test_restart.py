"""Restarts on a local cloud without an engine: what is refused, what is asked before, what Google gets, and how each ends."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloud import google_api
from cloud.clock import WaitClock
from cloud.tpu_machine import TpuMachine
from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import from_json
from contracts.outputs import StackOutputs
from contracts.rollout import ROLLOUT_METADATA_KEY, RolloutLimits
from contracts.rollout_record import ROLLOUT_ANNOTATION, RolloutHolder, RolloutRecord
from contracts.service_traffic import TEMPLATE_LABEL, declared_targets, serving_shares, targets_of
from contracts.serving_document import DOCUMENT_METADATA_KEY, RESTART_METADATA_KEY, RESTART_NONCE
from engine.locks import StackLock
from localcloud.world.scenario import Fault, OperationDurations, Scenario
from scripts.cli.command import run_command
from scripts.restart import machine, run, service
from scripts.restart.__main__ import COMMAND
from scripts.restart.report import PlannedTimes
from tests.cloud.populated import PROJECT, open_world, owner
from tests.scripts.sample_outputs import sample_outputs
from tests.scripts.status.planted import NAME, queued, stack_resource
from tests.scripts.status.planted import service as service_resource
from tests.scripts.status.test_cloud_facts import publish

STACK = "x"
ROOT = Path(__file__).parents[3]
NODE = f"projects/{PROJECT}/locations/us-east5-a/nodes/{NAME}-node"
REQUEST = f"projects/{PROJECT}/locations/us-east5-a/queuedResources/{NAME}"
INSTANCE = f"projects/{PROJECT}/zones/us-east5-a/instances/{NAME}"
SERVICE = f"projects/{PROJECT}/locations/us-east4/services/{NAME}"
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
        time.sleep(0.01)

    @property
    def clock(self):
        return WaitClock(now_s=lambda: self.s, sleep=self.sleep)


@pytest.fixture
def clock():
    return Time()


class Command:
    """The command in this process, with a planted state and without an engine."""

    def __init__(self, world, monkeypatch, capsys, clock):
        self.world, self.capsys, self.refreshed, self.locks = world, capsys, [], ()
        self.resources = ()
        monkeypatch.setattr(run, "stack_locks", lambda _stack: self.locks)
        monkeypatch.setattr(run, "read_deployment", lambda _stack: SimpleNamespace(resources=self.resources))
        monkeypatch.setattr(run, "planned_times", lambda *_: PlannedTimes(restart_s=130, start_s=600))
        monkeypatch.setattr(service, "WaitClock", lambda: clock.clock)
        monkeypatch.setattr(machine, "TpuMachine", lambda **given: TpuMachine(**given, clock=clock.clock))
        monkeypatch.setattr(service.runner, "change", lambda *words, **_: self.refreshed.append(words))

    def deploy(self, *resources):
        self.resources = tuple(DeployedState(**one) for one in resources)

    def run(self, *words):
        code = run_command(COMMAND, ["--stack", STACK, *words])
        said = self.capsys.readouterr()
        return code, (json.loads(said.out) if said.out.startswith("{") else said.out), said.err


class DeployedState(SimpleNamespace):
    """A resource of the state."""

    delete = False
    inputs = outputs = {}  # noqa: RUF012 - never changed


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
        "runDuration": {"maxRunDuration": "14400s"},
    }
    world.call("POST", "tpu", f"v2alpha1/{parent}/queuedResources?queuedResourceId={NAME}", body)
    end = time.monotonic() + 30
    while world.call("GET", "tpu", f"v2alpha1/{REQUEST}")["state"]["state"] != "ACTIVE":
        assert time.monotonic() < end
        time.sleep(0.02)
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
    end = time.monotonic() + 30
    while world.call("GET", "compute", f"compute/v1/{INSTANCE}")["status"] != "RUNNING":
        assert time.monotonic() < end
        time.sleep(0.02)
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


PAUSE = {"pause_began_at": "2026-11-22T10:00:00.000Z", "pause_ended_at": "2026-11-22T10:01:35.000Z"}


class TestMachine:
    @pytest.mark.parametrize(("make", "name"), [(node, NODE), (instance, INSTANCE)])
    def test_the_nonce_is_the_only_key_that_changes_and_the_command_waits_for_its_phase(
        self, world, command, clock, make, name
    ):
        make(world)
        tpu(command, name, REQUEST if make is node else name, **READY)
        before = metadata_of(world, name)
        agent(command, clock, name, "starting", "loading", "ready", **PAUSE)
        code, report, said = command.run("--yes", "--json")
        assert code == ExitCode.DONE, said
        assert (report["outcome"], report["paused_s"], report["server"]) == ("restarted", 95.0, name)
        after = metadata_of(world, name)
        nonce = after[RESTART_METADATA_KEY]
        assert RESTART_NONCE.fullmatch(nonce)
        assert {key: value for key, value in after.items() if key != RESTART_METADATA_KEY} == before
        assert "requests fail for about 2 min 10 s (planned), up to 10 min" in said
        assert "Running requests get 30 s to finish." in said
        assert "loading" in said

    def test_a_ready_phase_of_the_time_before_is_not_the_end(self, world, command, clock):
        node(world)
        tpu(command, **READY, restart="older")
        agent(command, clock, NODE, *["ready"] * 5, nonce="older")
        code, report, _ = command.run("--yes", "--json")
        assert (code, report["outcome"]) == (ExitCode.FAILED, "timed out")
        assert "the machine has not read the request" in report["reason"]
        assert "--watch" in report["reason"]

    def test_a_document_that_fails_again_ends_with_its_reason_and_what_serves(self, world, command, clock):
        node(world)
        tpu(command, **{**READY, "phase": "failed"})
        agent(command, clock, NODE, "starting", "failed", detail="line\nValueError: no such flag.")
        code, report, said = command.run("--yes", "--json")
        assert (code, report["outcome"]) == (ExitCode.FAILED, "failed")
        assert report["reason"].startswith("ValueError: no such flag. Document aaaaaaaaaaaa is serving.")
        assert "The machine tries it again" in said

    def test_a_dry_run_changes_nothing_and_its_plan_runs(self, world, command, clock):
        node(world)
        tpu(command, **READY)
        code, look, _ = command.run("--dry-run", "--json")
        assert (code, look["dry_run"], look["requests_fail_s"]) == (ExitCode.DONE, True, 130)
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)
        code, _, said = command.run("--yes", "--plan", "plan-of-yesterday")
        assert (code, "is stale" in said) == (ExitCode.REFUSED, True)
        agent(command, clock, NODE, "ready")
        assert command.run("--yes", "--plan", look["plan"])[0] == ExitCode.DONE

    def test_without_a_yes_nothing_happens(self, world, command):
        node(world)
        tpu(command, **READY)
        code, _, said = command.run()
        assert (code, "Pass --yes to confirm" in said) == (ExitCode.REFUSED, True)
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)

    @pytest.mark.parametrize(
        ("published", "words"),
        [
            ({}, "has not published a phase yet"),
            ({**READY, "phase": "ending"}, "about to expire"),
        ],
    )
    def test_a_machine_that_cannot_is_refused_with_what_to_do(self, world, command, published, words):
        node(world)
        tpu(command, **published)
        code, _, said = command.run("--yes")
        assert (code, words in said) == (ExitCode.REFUSED, True), said
        assert RESTART_METADATA_KEY not in metadata_of(world, NODE)

    @pytest.mark.parametrize(("make", "name"), [(node, NODE), (instance, INSTANCE)])
    def test_a_machine_of_others_is_never_changed(self, world, command, make, name):
        make(world, labels=owner("y").labels)
        tpu(command, name, REQUEST if make is node else name, **READY)
        code, _, said = command.run("--yes")
        assert (code, "does not have the labels of stack x" in said) == (ExitCode.REFUSED, True)
        assert RESTART_METADATA_KEY not in metadata_of(world, name)

    def test_a_machine_that_changed_hands_after_the_prompt_is_not_changed(self, world):
        node(world, labels=owner("y").labels)
        with pytest.raises(CommandRefusedError, match="labels of stack x"):
            TpuMachine(api=world.api, name=NODE).set_metadata(RESTART_METADATA_KEY, "n", owner(STACK))

    def test_a_machine_that_is_gone_is_refused(self, command):
        tpu(command)
        code, _, said = command.run("--yes")
        assert (code, "pulumi up --refresh --stack x" in said) == (ExitCode.REFUSED, True)

    def test_capacity_that_is_not_there_yet_is_refused(self, command):
        command.deploy(stack_resource(target="tpu"), queued(state="WAITING_FOR_RESOURCES"))
        code, _, said = command.run("--yes")
        assert (code, "is WAITING_FOR_RESOURCES, not ACTIVE" in said) == (ExitCode.REFUSED, True)

    def test_a_stack_that_is_not_deployed_is_refused(self, command):
        code, _, said = command.run("--yes")
        assert (code, said) == (ExitCode.REFUSED, "restart: Stack x is not deployed. Run `gemma up x`.\n")

    def test_a_stack_that_another_update_holds_is_refused(self, world, command):
        node(world)
        tpu(command, **READY)
        command.locks = (StackLock(place="p", user="ana", host="elsewhere", pid=7, since="2026-11-22T10:00:00Z"),)
        code, _, said = command.run("--yes")
        assert (code, "by ana@elsewhere (process 7)" in said) == (ExitCode.REFUSED, True)

    def test_a_change_of_another_client_at_the_same_time_is_kept(self, world, monkeypatch):
        """Compute Engine refuses an old fingerprint, and the second attempt has the other client's key too."""
        instance(world)
        given, machine_ = world.api.post, TpuMachine(api=world.api, name=INSTANCE, clock=Time().clock)
        added = []

        def post(self, api, path, body):
            if path.endswith("/setMetadata") and not added:
                added.append(True)
                items = [
                    *({"key": k, "value": v} for k, v in metadata_of(world, INSTANCE).items()),
                    {"key": "theirs", "value": "1"},
                ]
                fresh = world.call("GET", "compute", f"compute/v1/{INSTANCE}")["metadata"]["fingerprint"]
                given(api, path, {"items": items, "fingerprint": fresh})
                time.sleep(0.2)
            return given(api, path, body)

        monkeypatch.setattr(google_api.GoogleApi, "post", post)
        machine_.set_metadata(RESTART_METADATA_KEY, "n-1", owner(STACK))
        found = metadata_of(world, INSTANCE)
        assert (found["theirs"], found[RESTART_METADATA_KEY], found["ssh-keys"]) == ("1", "n-1", METADATA["ssh-keys"])

    def test_a_permission_that_is_missing_is_googles_sentence(self, world, command):
        node(world)
        tpu(command, **READY)
        world.cloud.cloud.scenario = Scenario(
            operations=OperationDurations(instant=True),
            faults=[Fault(method="tpu.projects.locations.nodes.patch", count=9, status=403)],
        )
        code, _, said = command.run("--yes")
        assert (code, f"Cannot change the metadata of {NODE}" in said) == (ExitCode.FAILED, True), said


def deployed_service(world, labels=None, kept=False, record=None):
    """A service with one ready revision, as a stack deploys it; with `kept`, a rollout moves its traffic."""
    more = {TEMPLATE_LABEL: "f" * 40} if kept else {}
    world.account(NAME, owner(STACK).description)
    world.service(NAME, {**(owner(STACK).labels if labels is None else labels), **more})
    end = time.monotonic() + 30
    while (found := read_service(world)).get("reconciling") or not found.get("latestReadyRevision"):
        assert time.monotonic() < end
        time.sleep(0.02)
    if record is not None:
        body = {"annotations": {ROLLOUT_ANNOTATION: record.text()}}
        world.call("PATCH", "run", f"v2/{SERVICE}?updateMask=annotations", body)
    return read_service(world)


def read_service(world):
    return world.call("GET", "run", f"v2/{SERVICE}")


ROLLOUT = {
    "service": SERVICE,
    "steps": [10, 100],
    "requests": 4,
    "maxSlowdown": 2.0,
    "maxFailed": 0.0,
    "traffic": None,
}


def cloud_run(command, **outputs):
    command.deploy(stack_resource(**outputs), {**service_resource(), "outputs": {}})


class TestService:
    def test_a_new_revision_of_the_same_template_gets_the_traffic(self, world, command):
        before = deployed_service(world)
        cloud_run(command)
        code, report, said = command.run("--yes", "--json")
        assert (code, report["outcome"]) == (ExitCode.DONE, "restarted"), said
        after = read_service(world)
        assert after["template"] == before["template"], "so a preview has nothing to change"
        assert after["traffic"] == before["traffic"]
        assert report["revision"] == after["latestReadyRevision"].rpartition("/")[2] != before["latestReadyRevision"]
        assert report["traffic"] == {report["revision"]: 100}
        assert "No requests fail." in said
        assert command.refreshed, "otherwise status reports the revision as drift"

    def test_with_a_rollout_the_new_revision_is_ready_without_traffic(self, world, command):
        before = deployed_service(world, kept=True)
        (serving,) = serving_shares(before)
        cloud_run(command, rollout=ROLLOUT)
        code, report, said = command.run("--yes", "--json")
        assert (code, report["outcome"]) == (ExitCode.DONE, "waits for rollout"), said
        assert report["traffic"] == {serving: 100}
        assert "scripts.rollout --stack x" in report["reason"]
        after = read_service(world)
        assert after["latestReadyRevision"] != before["latestReadyRevision"]
        assert declared_targets(after, "f" * 40) == targets_of(after), "so the next preview declares Google's traffic"

    def test_a_revision_that_waits_for_its_rollout_is_not_copied(self, world, command):
        deployed_service(world, kept=True)
        cloud_run(command, rollout=ROLLOUT)
        command.run("--yes")
        code, _, said = command.run("--yes")
        assert (code, "does not have all the traffic" in said) == (ExitCode.REFUSED, True), said

    def test_a_rollout_that_runs_is_not_disturbed(self, world, command):
        holder = RolloutHolder(id="1", user="ana", host="elsewhere", process=7, since="2999-01-01T00:00:00Z")
        record = RolloutRecord(holder=holder, revision="r", serving="s", renewed_at="2999-01-01T00:00:00Z")
        deployed_service(world, kept=True, record=record)
        cloud_run(command, rollout=ROLLOUT)
        code, _, said = command.run("--yes")
        assert (code, "ana@elsewhere" in said) == (ExitCode.REFUSED, True), said

    def test_a_fixed_traffic_split_is_refused(self, world, command):
        deployed_service(world, kept=True)
        cloud_run(command, rollout={**ROLLOUT, "traffic": {"a": 100}})
        code, _, said = command.run("--yes")
        assert (code, "cloudRun.rollout.traffic" in said) == (ExitCode.REFUSED, True)

    def test_a_service_of_others_is_never_changed(self, world, command):
        before = deployed_service(world, labels=owner("y").labels)
        cloud_run(command)
        code, _, said = command.run("--yes")
        assert (code, "does not have the labels of stack x" in said) == (ExitCode.REFUSED, True)
        assert read_service(world)["etag"] == before["etag"]

    def test_a_service_that_somebody_changes_meanwhile_is_not_restarted(self, world, command, monkeypatch):
        deployed_service(world)
        cloud_run(command)
        look = service.ServiceRestart.look

        def looking(self):
            found = look(self)
            world.call("PATCH", "run", f"v2/{SERVICE}?updateMask=annotations", {"annotations": {"a": "b"}})
            return found

        monkeypatch.setattr(service.ServiceRestart, "look", looking)
        code, _, said = command.run("--yes")
        assert (code, "was changed by another client" in said) == (ExitCode.FAILED, True), said

    def test_a_revision_that_does_not_start_leaves_the_old_one_serving(self, world, command, monkeypatch):
        before = deployed_service(world)
        (serving,) = serving_shares(before)
        cloud_run(command)
        revisions = world.cloud.cloud.runtimes.revisions

        async def fails(_revision):
            from localcloud.world.runtime import RevisionFailedError  # noqa: PLC0415 - one use

            raise RevisionFailedError("The container failed its startup probe.")

        monkeypatch.setattr(revisions, "start", fails)
        code, report, _ = command.run("--yes", "--json")
        assert (code, report["outcome"]) == (ExitCode.FAILED, "failed")
        assert f"{serving} serves" in report["reason"]
        assert "startup probe" in report["reason"]

    def test_a_state_that_cannot_be_refreshed_is_said_and_the_restart_is_done(self, world, command, monkeypatch):
        deployed_service(world)
        cloud_run(command)

        def fail(*_, **__):
            raise ScriptError("The engine failed. Run `pulumi refresh --stack x`.")

        monkeypatch.setattr(service.runner, "change", fail)
        code, report, _ = command.run("--yes", "--json")
        assert (code, report["state_is_behind"]) == (ExitCode.DONE, True)
        assert "pulumi refresh --stack x" in report["reason"]

    def test_both_revisions_count_until_one_is_left(self, world, command):
        deployed_service(world)
        cloud_run(command)
        _, look, _ = command.run("--dry-run", "--json")
        assert look["usd_per_hour"] == pytest.approx(2 * look["usd_per_hour_after"])
        assert read_service(world)["latestCreatedRevision"].endswith(
            "-00001-" + read_service(world)["latestCreatedRevision"][-3:]
        )


def test_the_planned_times_come_from_the_settings_or_else_from_the_last_deployment(tmp_path, monkeypatch):
    outputs = from_json(StackOutputs, sample_outputs(target="tpu", project=PROJECT))
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    monkeypatch.chdir(tmp_path)
    assert run.planned_times("tpu-v6e1", outputs) == PlannedTimes(restart_s=120, start_s=180), "without a settings file"
    (tmp_path / "Pulumi.tpu-v6e1.yaml").write_text((ROOT / "Pulumi.tpu-v6e1.yaml").read_text())
    planned = run.planned_times("tpu-v6e1", outputs)
    assert 0 < planned.restart_s < planned.start_s != 180
