"""Output and questions of a teardown, on a local cloud. Laws judge what it deletes: test_owners.py, test_removal_laws.py, tests/cloud."""

import json
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.engine.backend import memory
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.stack.unfinished_teardown import is_unfinished
from gemma_serving.scripts.teardown import removal
from gemma_serving.scripts.teardown.__main__ import COMMAND
from gemma_serving.scripts.teardown.teardown_options import TeardownOptions
from tests.cloud.populated import PROJECT, TUNNEL_ROLE, owner
from tests.scripts.teardown.conftest import ROOT, STACK


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
    question = "3 resources in Google Cloud, with TPU queued resource gemma-before, secret gemma-before-key"
    assert (
        f"{question}; compiled programs" in said
        or f"{question}, and what else its state names, may be another's" in said
    )
    assert said.count("its resources have the name before") == 2
    assert {name.rpartition("/")[2] for name in desk.world.resources()} == {"gemma-before-later"}


@pytest.mark.parametrize(
    ("listed", "stack", "step"),
    [
        ((), "chta", "Did you mean chat? Pass another --stack, or --all."),
        (("chart-old",), "chart-odl", "Did you mean chart-old? Pass another --stack, or --all."),
        (("a",), "nosuch", "Stacks: a, chat, x. Pass another --stack, or --all."),
    ],
)
def test_a_name_of_nothing_gets_the_nearest_one_and_no_receipt(desk, listed, stack, step):
    (desk.folder / "Pulumi.chat.yaml").write_text("config: {}\n")
    desk.monkeypatch.setattr(removal.runner, "listed_stacks", lambda: frozenset(listed))
    code, report, said = desk.run(stack=stack)
    sentence = f"Stack {stack} not found: no state, settings or resource has this name."
    assert (code, report) == (ExitCode.REFUSED, None)
    assert said.splitlines()[-1] == f"teardown: {sentence} {step}"
    assert "receipt" not in said
    assert not [*desk.folder.glob("**/*receipt*"), *desk.folder.glob("teardown*")]


@pytest.mark.parametrize("dry_run", [False, True])
def test_of_all_stacks_those_with_machines_go_first_and_what_was_not_read_is_printed(monkeypatch, capsys, dry_run):
    """Google deletes no network in use, so a gateway of a former version goes after the machines in its network. A dry run's text has the rest."""
    found = [SimpleNamespace(stack=target, printed={"target": target}) for target in ("gateway", "tpu", "cloud-run")]
    monkeypatch.setattr(removal.states, "all_states", lambda: found)
    monkeypatch.setattr(
        removal,
        "searched_stacks",
        lambda _, ordered: SimpleNamespace(states=ordered, projects=["p"], read_errors=["No state."]),
    )
    known = removal.read_inputs(TeardownOptions(all_stacks=True, dry_run=dry_run))
    assert [state.stack for state in known.states] == ["tpu", "gateway", "cloud-run"]
    assert ("No state." in capsys.readouterr().err) is not dry_run


def test_a_service_whose_api_is_off_is_not_called_gone(desk):
    """Without a state: the settings say that the stack uses Cloud Run. The GPU service lives and is billed."""
    (desk.folder / f"Pulumi.{STACK}.yaml").write_text((ROOT / "Pulumi.l4-qat.yaml").read_text())
    desk.world.service(f"gemma-{STACK}", owner(STACK).labels)
    desk.world.call("POST", "serviceusage", f"v1/projects/{PROJECT}/services/run.googleapis.com:disable", {})
    for stack, words in ((STACK, ["--yes"]), (None, ["--yes", "--over-limit"])):
        code, report, said = desk.run(*words, stack=stack)
        assert (code, report["clean"], len(report["unknown"])) == (ExitCode.FAILED, False, 1), words
        assert f"`gcloud services enable run.googleapis.com --project={PROJECT}`" in report["unknown"][0]
    assert "no stack of this product has resources" not in said
    assert "unknown whether a stack of this product has resources in the project" in said
    assert len(desk.world.resources()) == 1


@pytest.mark.parametrize(
    ("place", "has_temporary"), [("a file in place of the folder", True), ("a full device", False)]
)
def test_without_a_place_for_its_receipt_a_teardown_prints_it(desk, tmp_path, place, has_temporary):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    (tmp_path / "elsewhere").mkdir()
    desk.monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("elsewhere" if has_temporary else "nowhere")))
    (tmp_path / ".work").write_text("")
    words = ["--receipt", "/dev/full"] if place == "a full device" else []
    code, report, said = desk.run("--yes", *words)
    assert (code, report["clean"], report["leaked"]) == (ExitCode.FAILED, True, [])
    assert [item["kind"] for item in report["deleted"]] == ["secret"]
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


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_grant_that_was_being_made_is_taken_back_also_after_an_interrupted_teardown(desk):
    """No mark says whose the grant is, but the state does. The engine forgets begun creations when it imports a state."""
    for name in ("alice", "bob"):
        desk.world.grant(TUNNEL_ROLE, f"user:{name}@example.com")
    inputs = {"project": PROJECT, "role": TUNNEL_ROLE, "member": "user:alice@example.com"}
    grant = {"type": "gcp:projects/iAMMember:IAMMember", "urn": "urn:grant", "inputs": inputs}
    now = {"time": datetime.now(UTC).isoformat()}
    desk.state({"manifest": now, "pending_operations": [{"resource": grant, "type": "creating"}]})
    note = memory().path("teardown-x.json")
    with desk.monkeypatch.context() as broken:
        broken.setattr(removal, "delete_all", interrupted)
        assert desk.run("--yes")[0] == ExitCode.INTERRUPTED
    assert note.stat().st_mode & 0o777 == 0o600
    desk.state({"resources": []})
    code, report, said = desk.run("--yes")
    assert code == ExitCode.DONE, (report, said)
    assert {member for role, member in desk.world.policy() if role == TUNNEL_ROLE} == {"user:bob@example.com"}
    assert not note.exists()


def test_a_lock_that_may_be_in_use_is_asked_for_even_with_yes(desk):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as holder:
        path = desk.lock(holder.pid)
        desk.leave()
        code, _, said = desk.run("--yes")
        assert code == ExitCode.REFUSED
        assert f"Stack x is locked for less than 1 min by me@{socket.gethostname()} (process {holder.pid}" in said
        assert path.exists()
        assert len(desk.world.resources()) == 1
        desk.answer("yes", "yes")
        assert desk.run("--yes")[0] == ExitCode.DONE
        assert not path.exists()
        holder.communicate(b"\n")


def test_an_interrupt_leaves_a_receipt_of_what_was_done(desk, tmp_path):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)

    desk.monkeypatch.setattr(removal, "delete_all", interrupted)
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


def test_an_interrupt_before_the_first_deletion_says_that_nothing_was_deleted(desk):
    desk.world.secret("gemma-x-hf-token", owner(STACK).labels)
    desk.monkeypatch.setattr(removal, "agreed", interrupted)
    code, _, said = desk.run()
    assert code == ExitCode.INTERRUPTED
    assert "teardown: nothing was deleted.\n" in said
    assert "in progress" not in said
    assert not is_unfinished(STACK)


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        ((), "compiled programs go too"),
        (("--keep-bucket",), "compiled programs in the retained bucket are ignored without their key"),
    ],
)
def test_question_and_receipt_say_that_compiled_programs_end_with_their_key(desk, words, clause):
    labels, end = owner(STACK).labels, f"{clause}: the next start is a first one"
    desk.world.bucket("local-project-gemma-x-models", labels, "compile-cache/v6e-4/a/b.tar.signed")
    assert desk.run("--dry-run", *words)[1]["compiled_programs"] == ""
    desk.world.secret("gemma-x-archive-key", labels)
    assert desk.run("--dry-run", *words)[1]["compiled_programs"] == end
    code, receipt, said = desk.run(*words)
    assert f"; {end}. Delete them? (yes/no)" in " ".join(said.split())
    assert (code, receipt["compiled_programs"]) == (ExitCode.DONE, end)
