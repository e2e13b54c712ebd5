"""The job with the right to write deploys what was approved, and its output has no secret."""

import json
import subprocess

import pytest

from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from engine import runner
from engine.changes import ResourceChange
from engine.steps import losses_in
from scripts.cli.command import run_command
from scripts.preview import approved
from scripts.preview.run import StackPreview, write_previews

STACK = "tpu-v6e1"
CANARY = "hf_canaryCanaryCANARY0123456789"
PASSPHRASE = "a-passphrase-of-ours"
LOST = "replace urn:pulumi:a::p::t::capacity"


class World:
    """The result of the second preview, and the output of `up`."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now, self.ups, self.code = folder, {}, [], 0
        self.logins = []
        monkeypatch.setattr(approved, "preview_stacks", self.preview_stacks)
        monkeypatch.setattr(runner, "attended", self.attended)
        monkeypatch.setattr(approved, "_log_in_to_registry", self.logins.append)
        monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE)

    def preview_stacks(self, names, *, create):
        assert (names, create) == ([STACK], False)
        return [StackPreview(stack=STACK, **self.now)]

    def attended(self, *words, on_line):
        self.ups.append(words)
        for line in ("+ capacity created\n", f"  token {CANARY}\n", f"  phrase {PASSPHRASE}\n"):
            on_line(line)
        return self.code, ""

    def approve(self, **fields):
        write_previews(self.folder / "approved", [StackPreview(stack=STACK, **fields)])

    def deploy(self):
        options = ("--stack", STACK, "--approved", str(self.folder / "approved"), "--out", str(self.folder / "out"))
        return run_command(approved.COMMAND, options)


@pytest.fixture
def world(tmp_path, monkeypatch):
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(("shown", "now"), [((), ()), ((LOST,), (LOST,)), ((LOST,), ())])
def test_what_was_approved_is_deployed_and_no_secret_is_stored(world, capsys, shown, now):
    world.approve(losses=shown)
    world.now = {"losses": now}
    assert world.deploy() == ExitCode.DONE
    assert world.ups == [("up", "--yes", "--skip-preview", "--suppress-outputs", "--stack", STACK)]
    assert world.logins == [STACK]
    stored = (world.folder / "out" / "up.txt").read_text()
    assert stored == capsys.readouterr().out
    assert "+ capacity created" in stored
    assert CANARY not in stored
    assert PASSPHRASE not in stored


@pytest.mark.parametrize("now", [LOST, "delete urn:pulumi:a::p::t::capacity", "delete-replaced urn:pulumi:a::p::t::x"])
def test_what_was_not_approved_is_refused(world, capsys, now):
    world.approve(losses=("replace urn:pulumi:a::p::t::other",))
    world.now = {"losses": (now,)}
    assert world.deploy() == ExitCode.REFUSED
    said = capsys.readouterr().err
    assert f"would do what the approved preview does not show: {now}. Nothing was deployed." in said
    assert "Run all jobs of the workflow again" in said
    assert (world.ups, world.logins) == ([], [])


def test_a_preview_that_fails_deploys_nothing(world, capsys):
    world.approve()
    world.now = {"error": "no access"}
    assert world.deploy() == ExitCode.FAILED
    assert "Nothing was deployed. no access" in capsys.readouterr().err
    assert world.ups == []


@pytest.mark.parametrize("planted", [None, "{}", '{"stack": "tpu-v6e4"}', json.dumps({"stack": STACK, "error": "x"})])
def test_what_is_no_preview_of_this_stack_deploys_nothing(world, capsys, planted):
    if planted is not None:
        (world.folder / "approved").mkdir()
        (world.folder / "approved" / f"{STACK}.json").write_text(planted)
    assert world.deploy() == ExitCode.REFUSED
    assert "Nothing was deployed." in capsys.readouterr().err
    assert world.ups == []


def test_a_failed_up_names_the_teardown_and_the_price_last(world, capsys):
    world.approve()
    world.code = 255
    assert world.deploy() == ExitCode.FAILED
    last = capsys.readouterr().err.splitlines()[-1]
    after = (world.folder / "out" / "teardown.txt").read_text().strip()
    assert last.endswith(after)
    assert "$1.35 per hour" in after
    assert after.endswith(f"To delete it, run `gemma teardown {STACK}`.")


def test_the_preview_for_an_approval_names_price_losses_warnings_and_changes(world, capsys):
    change = ResourceChange(op="replace", type="gcp-tpu:index:QueuedResource", name="capacity", forced_by=("zones",))
    world.now = {"losses": (LOST,), "changes": (change,), "warnings": ("It is dear.",)}
    options = ("--stack", STACK, "--out", str(world.folder / "out"))
    assert run_command(approved.COMMAND, options) == ExitCode.DONE
    said = capsys.readouterr().out
    assert said.startswith(f"### {STACK}: releases its TPU capacity, forced by zones\n")
    for part in ("$1.35 per hour for each instance", f"- `{LOST}`", "It is dear.", "1 resource will change"):
        assert part in said
    assert world.ups == []
    world.now = {"error": "no access"}
    assert run_command(approved.COMMAND, options) == ExitCode.FAILED


def test_every_step_that_loses_something_is_a_loss():
    steps = [
        {"op": op, "urn": op}
        for op in ("same", "create", "update", "read", "refresh", "delete", "replace", "delete-replaced")
    ]
    assert losses_in({"steps": [*steps, *steps]}) == (
        "delete delete",
        "delete-replaced delete-replaced",
        "replace replace",
    )


@pytest.mark.parametrize("stack", ["tpu-v6e1-26b-w4a16", "tpu-v6e1"])
def test_docker_logs_in_only_for_a_stack_that_builds_its_image(monkeypatch, stack):
    words = ["gcloud", "auth", "configure-docker", "us-east5-docker.pkg.dev", "--quiet"]
    asked, code = [], [0]

    def ended(words):
        asked.append(words)
        return subprocess.CompletedProcess(words, code[0], "", "ERROR: (gcloud.auth) not signed in")

    monkeypatch.setattr(approved, "ended", ended)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    approved._log_in_to_registry(stack)
    assert asked == ([words] if "w4a16" in stack else [])
    if asked:
        code[0] = 1
        with pytest.raises(ScriptError, match=r"configure-docker us-east5-docker\.pkg\.dev --quiet` failed: ERROR"):
            approved._log_in_to_registry(stack)
