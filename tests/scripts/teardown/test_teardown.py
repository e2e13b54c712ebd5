"""Without an engine or a state, a teardown still finds everything of a stack, deletes it in order, and touches nothing else."""

import io
import json
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemma_serving.cloud import search as searching
from gemma_serving.cloud.kinds import KINDS
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.engine import runner
from gemma_serving.engine.backend import memory
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stack import engine_run
from gemma_serving.scripts.stack.unfinished_teardown import is_unfinished
from gemma_serving.scripts.teardown.__main__ import COMMAND
from gemma_serving.scripts.teardown.removal import Teardown, read_inputs
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions
from localcloud.world.scenario import Fault
from tests.cloud.populated import ALL_KINDS, PROJECT, TUNNEL_ROLE, open_world, owner
from tests.scripts.teardown.conftest import ROOT, SCENARIO, STACK, Desk

FORMER = ROOT / "tests" / "fixtures" / "state"


def test_everything_is_deleted_without_an_engine_and_strangers_stay(desk):
    desk.world.strangers(STACK)
    theirs, policy = desk.world.resources(), desk.world.policy()
    desk.world.everything(STACK, zone="asia-northeast1-b")
    code, report, said = desk.run("--yes")
    assert code == ExitCode.DONE, said
    assert report["clean"] is True
    assert {item["kind"] for item in report["deleted"]} == ALL_KINDS
    assert {item["outcome"] for item in report["deleted"]} <= {"deleted", "already deleted"}
    assert desk.world.resources() == theirs
    assert desk.world.policy() == policy
    assert desk.world.exists("storage", f"storage/v1/b/{PROJECT}-gemma-x-models-theirs/o/precious")


def test_a_name_that_nothing_has_is_refused(desk):
    code, report, said = desk.run("--yes", stack="tpu-v6e5")
    assert (code, report) == (ExitCode.REFUSED, None)
    assert "Stack tpu-v6e5 not found" in said


def test_the_question_has_the_list_of_the_dry_run_with_the_cost_and_only_yes_deletes(desk):
    desk.world.everything(STACK)
    before = desk.world.resources()
    for words in ((), ("--yes",)):
        desk.leave()
        code, report, _ = desk.run(*words)
        assert (code, desk.world.resources(), len(report["left"])) == (ExitCode.FAILED, before, 15)
        assert "They were left. To delete them, run `gemma teardown x` in a terminal." in " ".join(report["warnings"])
    desk.answer("no")
    code, report, said = desk.run()
    assert (code, report) == (ExitCode.REFUSED, None)
    assert "us-east5-a, $5.40/h" in said
    assert "At reported prices (2026-08-10): " in said
    assert (
        f"No state of this backend has 14 resources and 1 IAM grant with the labels of stack {STACK} of the Pulumi project gemma-serving, so another "
        "folder may have made them, with Cloud Run service gemma-x, TPU queued resource gemma-x, secret gemma-x-hf-token, image repository gemma-x, "
        "bucket local-project-gemma-x-models. Delete them? (yes/no) "
    ) in said
    assert desk.world.resources() == before
    desk.answer("yes")
    assert desk.run()[0] == ExitCode.DONE


def test_after_a_rename_the_list_has_what_the_state_names_and_nothing_else_of_the_former_stack(desk):
    former, zone = owner("before"), "us-east5-a"
    desk.world.queued("gemma-before", former.labels)
    desk.world.secret("gemma-before-key", former.labels)
    desk.world.secret("gemma-before-later", former.labels)
    place = f"projects/{PROJECT}/locations/{zone}"
    outputs = {"name": f"{place}/queuedResources/gemma-before", "nodeName": f"{place}/nodes/gemma-before-node"}
    inputs = {"project": PROJECT, "queuedResourceId": "gemma-before", "zones": [zone], "labels": former.labels}
    secret = {"project": PROJECT, "secretId": "gemma-before-key", "labels": former.labels}
    resources = [
        {"urn": "u1", "type": CAPACITY_TYPE, "id": "q", "inputs": inputs, "outputs": outputs},
        {
            "urn": "u2",
            "type": "gcp:secretmanager/secret:Secret",
            "id": f"projects/{PROJECT}/secrets/gemma-before-key",
            "inputs": secret,
        },
    ]
    desk.state({"manifest": {"time": "2026-11-01T00:00:00Z"}, "resources": resources})
    code, report, _ = desk.run("--dry-run")
    assert code == ExitCode.FAILED
    assert {item["kind"] for item in report["leaked"]} == {"TPU queued resource", "TPU node", "secret"}
    assert sum(item["usd_per_hour"] or 0 for item in report["leaked"]) > 0
    assert f"`pulumi stack rename before --stack {STACK}`" in " ".join(report["warnings"])
    desk.answer("yes")
    code, _, said = desk.run()
    question = f"Delete stack {STACK} of the Pulumi project gemma-serving: 3 resources in Google Cloud, with "
    assert f"{question}TPU queued resource gemma-before, secret gemma-before-key?" in said
    assert "its resources have the name before" in said
    assert {name.rpartition("/")[2] for name in desk.world.resources()} == {"gemma-before-later"}


def test_a_dry_run_changes_nothing(desk):
    desk.world.everything(STACK)
    before = desk.world.resources()
    code, report, _ = desk.run("--dry-run", "--yes")
    assert (code, report["dry_run"], report["deleted"]) == (ExitCode.FAILED, True, [])
    assert {item["kind"] for item in report["leaked"]} == ALL_KINDS
    assert desk.world.resources() == before
    desk.run("--yes")
    assert desk.run("--dry-run")[0] == ExitCode.DONE


def test_a_retained_bucket_stays_with_size_price_and_command_until_it_is_asked_for(desk):
    name = f"{PROJECT}-gemma-x-models"
    labels = {**owner(STACK).labels, "gemma-serving-retained": "true"}
    desk.world.bucket(name, labels, "m/config.json", "m/model.safetensors")
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    code, report, _ = desk.run("--yes")
    assert (code, report["clean"], report["leaked"]) == (ExitCode.DONE, True, [])
    [kept] = report["retained"]
    assert kept["name"] == f"projects/_/buckets/{name}"
    assert kept["command"] == f"gcloud storage rm --recursive gs://{name}" or name in kept["command"]
    assert kept["size_gib"] == 0.0
    assert kept["usd_per_month"] == 0.0
    assert desk.world.resources() == {name}
    assert desk.run("--yes", "--keep-bucket", "--include-retained")[0] == ExitCode.REFUSED
    code, report, _ = desk.run("--yes", "--include-retained")
    assert (code, report["retained"]) == (ExitCode.DONE, [])
    assert desk.world.resources() == set()


def test_all_stacks_of_the_product_go_and_nothing_else(desk):
    desk.world.everything("x")
    desk.world.everything("y", zone="us-east5-b")
    desk.world.secret("theirs", {"managed-by": "hand"})
    code, report, _ = desk.run("--yes", stack=None)
    assert (code, report["stack"]) == (ExitCode.DONE, None)
    assert {name.rpartition("/")[2] for name in desk.world.resources()} == {"theirs"}


def test_a_network_in_use_by_another_stack_is_refused_before_any_deletion_and_its_owner_goes_last(desk, subtests):
    """Google deletes no network in use, so a gateway of a former version goes after the machines in its network."""
    world, rule = desk.world, "gemma-machine-server"
    world.network("gemma-x", owner(STACK).description)
    allowed = {"allowed": [{"IPProtocol": "tcp", "ports": ["8000"]}], "sourceRanges": ["10.64.0.0/24"]}
    link = f"projects/{PROJECT}/global/networks/gemma-x"
    body = {"name": rule, "network": link, "description": owner("machine").description, **allowed}
    world.call("POST", "compute", f"compute/v1/projects/{PROJECT}/global/firewalls", body)
    before = world.resources()
    with subtests.test("refused, with the command for the other stack"):
        code, _, said = desk.run("--yes")
        assert (code, world.resources()) == (ExitCode.REFUSED, before)
        assert "`gemma teardown machine` first. Nothing was changed." in said
    with subtests.test("a dry run warns"):
        code, receipt, _ = desk.run("--dry-run")
        assert (code, "resources of machine" in " ".join(receipt["warnings"])) == (ExitCode.FAILED, True)
    with subtests.test("a stack beyond its limits goes as far as it can"):
        options = TeardownOptions(stack=STACK, yes=True, over_limit=True)
        limited = Teardown(options=options, known=read_inputs(options), api=world.api)
        limited.search()
        limited._require_no_guests()
        assert "resources of machine" in " ".join(limited.warnings)
    with subtests.test("all stacks: those with machines first"):
        folder = desk.backend / "stacks" / "gemma-serving"
        folder.mkdir(parents=True)
        for stack, target in (("a-gateway", "gateway"), ("machine", "tpu")):
            urn = f"urn:pulumi:{stack}::gemma-serving::pulumi:pulumi:Stack::gemma-serving-{stack}"
            outputs = {"target": target, "project": PROJECT}
            resources = [{"urn": urn, "type": "pulumi:pulumi:Stack", "custom": False, "outputs": outputs}]
            latest = {"manifest": {"time": "2026-11-01T00:00:00Z"}, "resources": resources}
            (folder / f"{stack}.json").write_text(json.dumps({"version": 3, "checkpoint": {"latest": latest}}))
        stacks = [state.stack for state in read_inputs(TeardownOptions(all_stacks=True)).states]
        assert stacks == ["machine", "a-gateway", STACK]
    with subtests.test("after the other stack, it goes"):
        assert desk.run("--yes", stack="machine")[0] == ExitCode.DONE
        assert desk.run("--yes")[0] == ExitCode.DONE
        assert world.resources() == set()


def test_what_cannot_be_read_is_not_called_gone(tmp_path, monkeypatch, capsys):
    faults = (Fault(method="storage.buckets.list", count=99, status=403),)
    with open_world(SCENARIO.model_copy(update={"faults": faults})) as world:
        code, report, _ = Desk(world, tmp_path, monkeypatch, capsys).run("--yes")
    assert (code, report["clean"]) == (ExitCode.FAILED, False)
    assert any("Could not check whether a bucket still exists" in line for line in report["unknown"])


ENABLE = f"`gcloud services enable run.googleapis.com --project={PROJECT}`"


def switch(desk, api, verb):
    desk.world.call("POST", "serviceusage", f"v1/projects/{PROJECT}/services/{api}.googleapis.com:{verb}", {})


def use_cloud_run(desk):
    (desk.folder / f"Pulumi.{STACK}.yaml").write_text((ROOT / "Pulumi.l4-qat.yaml").read_text())


def test_a_service_whose_api_is_off_is_not_called_gone(desk):
    """Without a state: the settings say that the stack uses Cloud Run. The GPU service lives and is billed."""
    use_cloud_run(desk)
    desk.world.everything(STACK)
    switch(desk, "run", "disable")
    for stack, words in ((STACK, ["--dry-run"]), (STACK, ["--yes"]), (None, ["--yes", "--over-limit"])):
        code, report, said = desk.run(*words, stack=stack)
        assert (code, report["clean"], len(report["unknown"])) == (ExitCode.FAILED, False, 1), words
        assert ENABLE in report["unknown"][0]
        assert "no stack of this product has resources" not in said
    assert "unknown whether a stack of this product has resources in the project" in said
    assert desk.world.resources() == {f"projects/{PROJECT}/locations/us-east4/services/gemma-{STACK}"}
    switch(desk, "run", "enable")
    code, report, _ = desk.run("--yes")
    assert (code, report["clean"]) == (ExitCode.DONE, True)
    assert desk.world.resources() == set()


@pytest.mark.parametrize(("has_settings", "code"), [(True, ExitCode.DONE), (False, ExitCode.FAILED)])
def test_an_api_that_is_off_holds_nothing_of_a_stack_whose_settings_do_not_use_it(desk, has_settings, code):
    if not has_settings:
        (desk.folder / f"Pulumi.{STACK}.yaml").unlink()
    switch(desk, "run", "disable")
    desk.world.queued(f"gemma-{STACK}", dict(owner(STACK).labels))
    ended, report, _ = desk.run("--yes")
    assert (ended, report["clean"], len(report["unknown"])) == (code, has_settings, not has_settings)
    assert desk.world.resources() == set()


@pytest.mark.parametrize("words", [["--yes"], ["--dry-run"], ["--yes", "--over-limit"]])
def test_a_rejected_login_ends_before_anything_starts_with_the_login_command(tmp_path, monkeypatch, capsys, words):
    with open_world(SCENARIO.model_copy(update={"faults": (Fault(method="*", count=999, status=401),)})) as world:
        desk = Desk(world, tmp_path, monkeypatch, capsys)
        engine = FakeEngine(desk)
        code, report, said = desk.run(*words)
    assert (code, report, engine.calls.count("destroy")) == (ExitCode.FAILED, None, 0)
    assert said.endswith(
        "teardown: Google rejected the access token in GOOGLE_OAUTH_ACCESS_TOKEN. "
        "Run `unset GOOGLE_OAUTH_ACCESS_TOKEN`, then the same command again.\n"
    )
    assert len(said.splitlines()) == 1


def test_what_cannot_be_deleted_is_left_with_its_command(tmp_path, monkeypatch, capsys):
    faults = (Fault(method="secretmanager.projects.secrets.delete", count=999, status=403),)
    command = f"gcloud secrets delete gemma-x-hf-token --project={PROJECT}"
    with open_world(SCENARIO.model_copy(update={"faults": faults})) as world:
        world.secret("gemma-x-hf-token", owner(STACK).labels)
        code, report, _ = Desk(world, tmp_path, monkeypatch, capsys).run("--yes")
        assert code == ExitCode.FAILED
        assert [(item["kind"], item["command"]) for item in report["leaked"]] == [("secret", command)]
        assert run_command(COMMAND, ["--stack", STACK, "--yes"]) == ExitCode.FAILED
    said = capsys.readouterr().out
    assert "Leaked: secret projects/" in said
    assert f"  {command}" in said
    assert "No leaked resources" not in said


@pytest.mark.parametrize(
    ("place", "has_temporary"), [("a file in place of the folder", True), ("a full device", False)]
)
def test_without_a_place_for_its_receipt_a_teardown_prints_it(desk, tmp_path, place, has_temporary):
    desk.world.everything(STACK, zone="asia-northeast1-b")
    (tmp_path / "elsewhere").mkdir()
    desk.monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("elsewhere" if has_temporary else "nowhere")))
    (tmp_path / ".work").write_text("")
    words = ["--receipt", "/dev/full"] if place == "a full device" else []
    code, report, said = desk.run("--yes", *words)
    assert (code, report["clean"], report["leaked"]) == (ExitCode.FAILED, True, [])
    assert {item["kind"] for item in report["deleted"]} == ALL_KINDS
    sentence = said.splitlines()[-1]
    assert sentence.startswith("teardown: Cannot write the receipt ")
    assert not has_temporary or json.loads(Path(sentence.rpartition(" ")[2].rstrip(".")).read_text()) == report
    assert has_temporary or sentence.endswith("It is on stdout.")


@pytest.mark.parametrize("has_copy", [True, False])
def test_a_receipt_without_a_file_follows_the_text_only_if_no_copy_exists(desk, tmp_path, has_copy):
    desk.monkeypatch.setattr("tempfile.tempdir", str(tmp_path if has_copy else tmp_path / "nowhere"))
    assert run_command(COMMAND, ["--stack", STACK, "--yes", "--receipt", "/dev/full"]) == ExitCode.FAILED
    out, err = desk.capsys.readouterr()
    assert "No leaked resources" in out
    assert ("A copy is in " in err, '"clean": true' in out) == (has_copy, not has_copy)


# States


def test_projects_of_the_state_of_the_settings_and_of_the_environment_are_all_searched(desk):
    desk.state({"resources": [{"type": "pulumi:pulumi:Stack", "urn": "u", "outputs": {"project": "first-project"}}]})
    _, report, _ = desk.run("--yes")
    assert report["projects"] == ["first-project", PROJECT]
    assert any("first-project" in call["path"] for call in report["calls"])


def interrupted(*_, **__):
    raise KeyboardInterrupt


def pending(kind, **inputs):
    resource = {"type": kind, "urn": f"urn:{kind}", "inputs": {"project": PROJECT, **inputs}}
    return {
        "manifest": {"time": datetime.now(UTC).isoformat()},
        "resources": [],
        "pending_operations": [{"resource": resource, "type": "creating"}],
    }


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_grant_that_was_being_made_is_taken_back_also_after_an_interrupted_teardown(desk, is_interrupted):
    """No mark says whose the grant is, but the state does. The engine forgets begun creations when it imports a state."""
    desk.world.grant(TUNNEL_ROLE, "user:alice@example.com")
    desk.world.grant(TUNNEL_ROLE, "user:bob@example.com")
    desk.state(pending("gcp:projects/iAMMember:IAMMember", role=TUNNEL_ROLE, member="user:alice@example.com"))
    note = memory().path("teardown-x.json")
    if is_interrupted:
        with desk.monkeypatch.context() as broken:
            broken.setattr("gemma_serving.scripts.teardown.removal.delete_all", interrupted)
            assert desk.run("--yes")[0] == ExitCode.INTERRUPTED
        assert note.stat().st_mode & 0o777 == 0o600
        desk.state({"resources": []})
    code, report, said = desk.run("--yes")
    assert code == ExitCode.DONE, (report, said)
    assert {member for role, member in desk.world.policy() if role == TUNNEL_ROLE} == {"user:bob@example.com"}
    assert not note.exists()


def test_what_becomes_visible_only_later_is_waited_for(desk):
    desk.state(pending("gcp:secretmanager/secret:Secret", secretId="gemma-x-hf-token"))
    looks = []

    def later(_s):
        looks.append(_s)
        if len(looks) == 3:
            desk.world.secret("gemma-x-hf-token", owner(STACK).labels)

    desk.sleeps(later)
    code, report, said = desk.run("--yes")
    assert code == ExitCode.DONE
    assert [item["kind"] for item in report["deleted"]] == ["secret"]
    assert "waiting for pending operations to finish: gemma-x-hf-token" in said


def test_what_no_list_shows_yet_is_found_by_its_address(desk):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    desk.state(pending("gcp:secretmanager/secret:Secret", secretId="gemma-x-hf-token"))
    desk.monkeypatch.setattr(searching, "KINDS", [item for item in KINDS if item.kind != "secret"])
    code, report, _ = desk.run("--yes")
    assert (code, [item["kind"] for item in report["deleted"]]) == (ExitCode.DONE, ["secret"])
    assert desk.world.resources() == set()


def test_what_was_being_made_under_a_name_that_somebody_else_has_stays(desk):
    desk.world.secret("gemma-x-hf-token", {"managed-by": "hand"})
    state = pending("gcp:secretmanager/secret:Secret", secretId="gemma-x-hf-token")
    desk.state(state)
    code, report, _ = desk.run("--yes")
    assert (code, report["deleted"]) == (ExitCode.DONE, [])
    assert len(desk.world.resources()) == 1


# The engine


class FakeEngine:
    """An engine with a state, whose destroy fails in a way that a test chooses."""

    def __init__(self, desk, *failures, protect=False):
        self.failures, self.calls = list(failures), []
        network = {"urn": "urn:network", "type": "gcp:compute/network:Network", "inputs": {"project": PROJECT}}
        self.resources = [{**network, "protect": True}] if protect else [network]
        desk.monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
        desk.monkeypatch.setattr(runner, "query", self.query)
        desk.monkeypatch.setattr(engine_run, "destroy", self.destroy)

    def query(self, arguments, **_):
        self.calls.append(" ".join(arguments[:2]))
        if arguments[:2] == ["stack", "import"]:
            self.resources = json.loads(Path(arguments[-1]).read_text())["deployment"]["resources"]
        return json.dumps({"version": 3, "deployment": {"resources": self.resources}})

    def destroy(self, stack, proof, *options, after_failure, **_):
        assert f"the state of stack {stack} names" in proof.claim
        self.calls.append(" ".join(["destroy", *options]))
        if self.failures:
            raise runner.PulumiFailedError(f"`pulumi destroy` failed. {after_failure}", self.failures.pop(0))
        assert not any(item.get("protect") for item in self.resources)
        self.resources = []


def test_a_stack_of_a_former_target_goes_although_its_settings_are_refused(desk):
    """A gateway, as the last version that had one left its state, its settings and its labels."""
    stack, name, own = "gateway", "gemma-gateway", owner("gateway")
    engine, world = FakeEngine(desk), desk.world
    engine.resources = json.loads((FORMER / f"{stack}.json").read_text())["deployment"]["resources"]
    settings = "config:\n  gemma-serving:target: gateway\n  gemma-serving:gateway: { region: us-east5 }\n"
    (desk.folder / f"Pulumi.{stack}.yaml").write_text(settings)
    world.network(name, own.description)
    world.account(name, own.description)
    world.repository(name, own.labels)
    world.service(name, own.labels)
    world.watched(name, own.labels)
    code, report, said = desk.run("--yes", stack=stack)
    assert (code, report["clean"], world.resources()) == (ExitCode.DONE, True, set()), said
    assert "gemma-serving:target = \"gateway\": expected 'tpu' or 'cloud-run'." in said
    (destroyed,) = (call for call in engine.calls if call.startswith("destroy"))
    assert destroyed.count("--exclude=") == 4, "the networks of Cloud Run go last, by the search"


def test_what_a_failed_destroy_leaves_is_deleted_and_the_state_is_emptied(desk):
    FakeEngine(desk, "error: in use")
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    code, report, _ = desk.run("--yes")
    assert (code, report["state"], report["leaked"]) == (ExitCode.DONE, [], [])
    assert any("`pulumi destroy` failed" in line for line in report["warnings"])
    assert desk.world.resources() == set()


@pytest.mark.parametrize(("is_read", "is_named"), [(True, True), (False, True), (True, False)])
def test_a_truncated_state_becomes_empty_only_after_a_search_that_read_every_list_under_a_name_that_is_proven(
    tmp_path, monkeypatch, capsys, is_read, is_named
):
    """An unread list may have what only the rest of the state names. Only the state knows the former name of a renamed stack."""
    cut = '{"version": 3, "deployment": {"resources": [{"urn": "urn:netw'
    denied = () if is_read else (Fault(method="storage.buckets.list", count=99, status=403),)
    with open_world(SCENARIO.model_copy(update={"faults": denied})) as world:
        desk = Desk(world, tmp_path, monkeypatch, capsys)
        desk.state(cut)
        engine = FakeEngine(desk)
        answered = engine.query
        monkeypatch.setattr(runner, "query", lambda words, **_: answered(words) and cut)
        world.secret("gemma-token", owner(STACK if is_named else "before").labels)
        code, report, _ = desk.run("--yes")
        is_kept = "gemma-token" in str(world.resources())
    assert ("stack import" in engine.calls) is (is_read and is_named)
    assert any("It is now empty" in line for line in report["warnings"]) is (is_read and is_named)
    assert is_kept is not is_named
    assert (code, report["clean"]) == ((ExitCode.DONE, True) if is_read and is_named else (ExitCode.FAILED, False))
    assert any("`gemma teardown --all --dry-run`" in line for line in report["unknown"]) is not is_named


def test_without_an_engine_a_truncated_state_proves_no_name_either(desk):
    desk.state('{"version": 3, "checkpoint": {"latest": {"resources": [{"urn": "urn:netw')
    code, report, _ = desk.run("--yes")
    assert (code, len(report["unknown"])) == (ExitCode.FAILED, 1)


def test_a_state_that_no_engine_can_empty_is_empty_once_the_search_read_everything(desk):
    FakeEngine(desk, "error: incorrect passphrase", "error: incorrect passphrase")
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    code, report, _ = desk.run("--yes")
    assert (code, report["leaked"], report["state"]) == (ExitCode.DONE, [], [])
    (warning,) = [
        line for line in report["warnings"] if "although the search read every list and found no resource" in line
    ]
    assert "although the search read every list and found no resource. The state is now empty" in warning
    copy = desk.folder / warning.rpartition("A copy is in ")[2].removesuffix(".")
    assert [item["urn"] for item in json.loads(copy.read_text())["deployment"]["resources"]] == ["urn:network"]
    assert desk.world.resources() == set()


def test_a_state_stays_while_a_kind_could_not_be_read(desk):
    """`pulumi stack rm` would forget the service, which no list shows."""
    made = FakeEngine(desk, "error: 403 SERVICE_DISABLED", "error: 403 SERVICE_DISABLED")
    made.resources.append({"urn": "urn:vllm", "type": "gcp:cloudrunv2/service:Service", "inputs": {"project": PROJECT}})
    desk.world.everything(STACK)
    switch(desk, "run", "disable")
    code, report, _ = desk.run("--yes")
    assert (code, report["clean"], report["leaked"], len(report["state"])) == (ExitCode.FAILED, False, [], 2)
    assert ENABLE in report["unknown"][0]
    assert any(
        "The state of stack x was not changed because some lists could not be read. Fix the failed checks" in line
        for line in report["warnings"]
    )
    assert "stack rm" not in json.dumps(report)
    assert "stack import" not in made.calls


def test_a_grant_of_the_state_without_a_mark_goes_although_the_engine_fails(desk):
    desk.world.grant(TUNNEL_ROLE, "user:alice@example.com")
    made = FakeEngine(desk, "error: incorrect passphrase", "error: incorrect passphrase")
    inputs = {"project": PROJECT, "role": TUNNEL_ROLE, "member": "user:alice@example.com"}
    made.resources.append({"urn": "urn:grant", "type": "gcp:projects/iAMMember:IAMMember", "inputs": inputs})
    assert desk.run("--yes")[0] == ExitCode.DONE
    assert TUNNEL_ROLE not in {role for role, _ in desk.world.policy()}


def test_protection_is_taken_out_of_the_state_before_the_destroy(desk):
    made = FakeEngine(desk, protect=True)
    assert desk.run("--yes")[0] == ExitCode.DONE
    assert made.calls.index("stack import") < made.calls.index("destroy")


def test_a_lock_that_names_nobody_is_asked_for_and_ends(desk):
    made = FakeEngine(desk, "error: [409] Conflict: Another update is currently in progress.")
    desk.monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, said = desk.run("--yes")
    assert code == ExitCode.REFUSED
    assert "Stack x is locked by an update that the backend does not name" in said
    assert "cancel --yes" not in made.calls
    made = FakeEngine(desk, "error: [409] Conflict: Another update is currently in progress.")
    desk.answer("yes")
    code, report, _ = desk.run("--yes")
    assert (code, report["destroyed"]) == (ExitCode.DONE, 1)
    assert "cancel --yes" in made.calls


# Locks


@pytest.mark.parametrize("host", [None, "another-machine"])
def test_a_lock_that_may_be_in_use_is_asked_for_even_with_yes(desk, host):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    before = desk.world.resources()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        path = desk.lock(holder.pid, host)
        desk.leave()
        code, _, said = desk.run("--yes")
        assert code == ExitCode.REFUSED
        assert (
            f"Stack x is locked for less than 1 min by me@{host or socket.gethostname()} (process {holder.pid}" in said
        )
        assert path.exists()
        assert desk.world.resources() == before
        desk.answer("yes", "yes")
        assert desk.run("--yes")[0] == ExitCode.DONE
        assert not path.exists()
        holder.communicate(b"\n")


def test_an_interrupt_leaves_a_receipt_of_what_was_done(desk, tmp_path):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)

    desk.monkeypatch.setattr("gemma_serving.scripts.teardown.removal.delete_all", interrupted)
    path = tmp_path / "receipt.json"
    code, _, said = desk.run("--yes", "--receipt", str(path))
    assert code == ExitCode.INTERRUPTED
    assert said.endswith(
        "teardown: deletions already in progress continue.\n"
        f"teardown: partial receipt: {path}\n"
        "teardown: interrupted. Run the same command again to continue.\n"
    )
    assert json.loads(path.read_text())["interrupted"] is True
    assert is_unfinished(STACK)


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_an_interrupt_before_the_first_deletion_says_that_nothing_was_deleted(desk, words):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)

    at = "removal.retained_bucket" if words else "removal.agreed"
    if words:
        desk.world.bucket(f"{PROJECT}-gemma-x-models", {**owner(STACK).labels, "gemma-serving-retained": "true"})
    desk.monkeypatch.setattr(f"gemma_serving.scripts.teardown.{at}", interrupted)
    code, _, said = desk.run(*words)
    assert code == ExitCode.INTERRUPTED
    assert "teardown: nothing was deleted.\n" in said
    assert "in progress" not in said
    assert not is_unfinished(STACK)
