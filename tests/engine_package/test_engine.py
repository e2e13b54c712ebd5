"""What the engine says is passed on as one sentence with the next step."""

import json
import os
import socket
import subprocess
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.labels import Ownership
from gemma_serving.engine import runner
from gemma_serving.engine import state as states
from gemma_serving.engine.exported_state import StateUnreadableError
from gemma_serving.engine.previewed import PreviewFailedError, preview, preview_errors, previewed
from gemma_serving.engine.secrets_provider import create_state
from tests.engine_package.test_locks import dead_pid

NO_LOGIN = "error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions\n"


def answers(monkeypatch, said):
    monkeypatch.setattr(
        runner, "run", lambda *arguments, **_: subprocess.CompletedProcess(arguments, 255, "", f"{said}\n")
    )


def test_a_missing_login_is_not_taken_for_a_missing_stack(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    answers(monkeypatch, NO_LOGIN)
    assert states.read("x").status == "unreadable"
    answers(monkeypatch, "error: no stack named 'x' found")
    assert states.read("x").status == "missing"


@pytest.fixture
def project(monkeypatch, tmp_path):
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    for stack in ("tpu-v6e1", "tpu-v6e4", "mine"):
        (tmp_path / f"Pulumi.{stack}.yaml").write_text("config: {}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("TPU-V6E1", "Stack TPU-V6E1 does not exist. Did you mean tpu-v6e1? Pass an existing stack."),
        ("xyzzy", "Stack xyzzy does not exist. Stacks: mine, tpu-v6e1, tpu-v6e4. Pass"),
        ("mine", "Stack mine does not exist in this backend. Run `gemma up mine`"),
    ],
)
def test_a_typing_error_names_the_nearest_stack_and_creates_none(monkeypatch, project, typed, said):
    answers(monkeypatch, f"error: no stack named 'organization/p/{typed}' found")
    with pytest.raises(CommandRefusedError) as refused:
        runner.query(["stack", "output"])
    assert str(refused.value).startswith(said)
    assert "stack init" not in str(refused.value)


@pytest.mark.parametrize(
    ("copy", "former"),
    [
        (None, None),
        ("cut", None),
        ([], ""),
        (["theirs"], ""),
        (["x"], ""),
        (["old"], "old"),
        (["theirs", "old"], "old"),
    ],
)
def test_the_copy_of_a_broken_state_knows_the_former_name(monkeypatch, project, copy, former):
    """Unknown without a copy, or with a broken one. Stacks of other projects own nothing here."""
    owners = {"theirs": Ownership(project="billing", stack="theirs")}
    resources = [
        {
            "urn": f"urn:pulumi:x::gemma-serving::t:T::{stack}",
            "type": "t:T",
            "inputs": {"labels": dict(owners.get(stack, Ownership(project="gemma-serving", stack=stack)).labels)},
        }
        for stack in (copy or ())
        if copy != "cut"
    ]
    whole = json.dumps({"version": 3, "checkpoint": {"latest": {"manifest": {}, "resources": resources}}})
    cut = whole[: len(whole) // 2]
    folder = project / "state/.pulumi/stacks/gemma-serving"
    folder.mkdir(parents=True)
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{project}/state")
    (folder / "x.json").write_text(cut)
    if copy is not None:
        (folder / "x.json.bak").write_text(cut if copy == "cut" else whole)
    found = states.stored("x")
    assert (found.before is None, found.former_name) == (former is None, former or "")


def test_a_list_of_stacks_with_a_truncated_state_names_the_command_that_shows_which(monkeypatch, project):
    answers(monkeypatch, "error: place 1: unexpected end of JSON input")
    with pytest.raises(ScriptError, match=r"The state of a stack cannot be read .* run `gemma status`\.$"):
        runner.listed_stacks()


def test_a_deleted_settings_file_names_the_command_that_restores_it(monkeypatch, project):
    """tests/scripts/test_mistakes.py has a typing error, and a file that is committed."""
    (project / "Pulumi.mine.yaml").unlink()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CommandRefusedError, match=r"^Pulumi.mine.yaml not found. Stacks with a settings file: "):
        runner.require_stacks(["mine"])
    monkeypatch.setattr(runner, "query", lambda _: '[{"name": "mine"}]')
    with pytest.raises(CommandRefusedError, match=r"mine exists\. .*`pulumi config refresh --stack mine --force`\.$"):
        runner.require_stacks(["mine"])


@pytest.mark.parametrize(
    ("code", "printed", "told"),
    [
        (-9, "", "it was killed by SIGKILL, for example because the machine ran out of memory"),
        (-9, "updating....", "it was killed by SIGKILL, for example because the machine ran out of memory"),
        (-15, "error: update failed\n", "update failed"),
        (-15, "", "it was killed by SIGTERM"),
        (255, "", "it exited with code 255"),
        (255, "error: update failed\n  gcp:S (x):\n    error: before hook failed: no x\n", "before hook failed: no x"),
        (255, "error: preview failed\nerror: an unhandled error\nerror: later\n", "an unhandled error"),
        (255, "error: update canceled\nerror: update failed\n", "update canceled"),
    ],
)
def test_an_engine_that_had_no_time_to_say_why_is_told_by_its_end(code, printed, told):
    assert runner.error_of(subprocess.CompletedProcess([], code, printed, "")) == told


def test_the_reason_of_a_failed_preview_is_not_that_it_failed():
    def said(*messages):
        return {"diagnostics": [{"severity": "error", "message": f"{text}\n"} for text in messages]}

    assert preview_errors(said("preview failed", "FIT01 does not fit", "preview failed")) == ["FIT01 does not fit"]
    assert preview_errors(said("preview failed")) == ["preview failed"]


@pytest.mark.parametrize(
    ("text", "next_"),
    [
        ("incorrect passphrase", "Set PULUMI_CONFIG_PASSPHRASE to its passphrase"),
        ("get stack secrets manager: passphrase must be set with X", "Set PULUMI_CONFIG_PASSPHRASE to its passphrase"),
        ("failed to load checkpoint: place 1: unexpected end of JSON input", "Run `gemma up x`, which repairs it"),
    ],
)
def test_a_preview_of_a_state_that_cannot_be_read_names_the_next_command(monkeypatch, text, next_):
    monkeypatch.setattr("gemma_serving.engine.previewed.require_passphrase", lambda _stack: None)
    answers(monkeypatch, f"error: {text}")
    with pytest.raises(StateUnreadableError, match=next_):
        preview("x")


def test_a_change_that_deletes_a_protected_resource_is_refused_with_the_command(monkeypatch):
    urn = "urn:pulumi:x::gemma-serving::gemma-serving:index:ModelBucket$gcp:storage/bucket:Bucket::models"
    text = f'Preview failed: resource "{urn}" cannot be deleted\nbecause it is protected. To unprotect the resource, either remove ...'

    def failed(*_words):
        raise PreviewFailedError([text])

    monkeypatch.setattr("gemma_serving.engine.previewed.preview", failed)
    with pytest.raises(CommandRefusedError) as refused:
        previewed("x")
    assert str(refused.value) == (
        "The change deletes gcp:storage/bucket:Bucket models, which is protected. Nothing was changed. To delete it with its contents, run "
        f"`pulumi state unprotect '{urn}' --yes --stack x`, then `gemma up x`."
    )


@pytest.mark.parametrize(
    ("text", "end"),
    [("word " * 100 + "Run this. " + "word " * 100, "Run this."), ("word " * 200, "word ..."), ("Short.", "Short.")],
)
def test_a_long_reason_ends_after_a_sentence_or_a_word(text, end):
    shown = runner.first_error(f"error: {text}", 1)
    assert shown.endswith(end)
    assert len(shown) <= 604


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("error: 2 errors occurred:\n    1) saving stack config\n    2) open a: read-only\n", "saving stack config: open a: read-only"),
        ("  error: 1 error occurred:\n  \t* The server failed: no\n\nerror: update failed", "The server failed: no"),
        ("error: 2 errors occurred:\n", "2 errors occurred:"),
        ("error: `maxRunDurationS` changes.", "`tpu.maxRunDuration` changes."),
        ("error: `zones` changes. Set `allowReplaceActive` to true.", "`tpu.zones` changes. Set `tpu.allowReplaceActive` to true."),
    ],
)  # fmt: skip
def test_the_parts_of_several_errors_are_the_reason(text, reason):
    assert runner.first_error(text, 1) == reason


def test_a_state_is_not_created_for_a_settings_file_without_room_for_its_salt(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.setattr(runner, "query", lambda *_: pytest.fail("created"))
    path = tmp_path / "Pulumi.x.yaml"
    path.write_text("config: {}\n")
    # Tests may run as root, who may write to a read-only file.
    monkeypatch.setattr("gemma_serving.engine.secrets_provider.os.access", lambda at, _mode: at != path)
    with pytest.raises(CommandRefusedError, match=f"{path} is read-only, .* Run `chmod u[+]w {path}`"):
        create_state("x", print)


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_state_is_created_past_the_lock_of_a_killed_command_and_of_no_other(monkeypatch, tmp_path, is_dead):
    """A lock outlives the state whose file was deleted, and `pulumi cancel` refuses a stack without a state."""
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    (tmp_path / "Pulumi.x.yaml").write_text("config: {}\n")
    lock, said = tmp_path / "lock.json", []
    lock.touch()
    holder = f"root@{socket.gethostname()} (pid {dead_pid() if is_dead else os.getpid()})"
    blocked = f"error: the stack is currently locked by 1 lock(s).\n  file://{lock}: created by {holder} at {datetime.now(UTC).isoformat()}"

    def query(words):
        assert words[:3] == ["stack", "init", "x"]
        if lock.exists():
            raise runner.PulumiFailedError("locked", blocked)

    monkeypatch.setattr(runner, "query", query)
    with nullcontext() if is_dead else pytest.raises(CommandRefusedError, match="Wait for it to finish"):
        create_state("x", said.append)
    assert (lock.exists(), [line.split(" of ")[0] for line in said]) == (
        not is_dead,
        ["removed the stale lock"] if is_dead else [],
    )


def test_a_stack_that_an_up_of_this_folder_deploys_is_not_told_to_be_deployed(monkeypatch):
    with runner.noted_up("x"):
        assert runner.running_up("x") == ""  # this process deploys it itself
        monkeypatch.setattr(os, "getpid", lambda: 0)
        assert "`gemma up x` runs (process " in runner.no_such_stack("x")
        assert runner.running_up("x") == runner.no_such_stack("x")
        assert runner.running_up("y") == ""
    assert runner.running_up("x") == ""
