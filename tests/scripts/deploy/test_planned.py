"""A deployment runs the plan that was approved, or names what differs and deploys nothing."""

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.fields import from_json
from contracts.outputs import StackOutputs
from engine import runner
from scripts.cli.command import run_command
from scripts.deploy import __main__ as deploy
from scripts.deploy.steps import EngineSteps
from scripts.preview import __main__ as preview
from scripts.preview import saved
from scripts.preview.saved import PlanRefusedError, make_plan, read_plan, write_plan
from scripts.preview.saved_markdown import plan_markdown
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).resolve().parents[3]
STACK = "l4-qat"
SETTINGS = f"Pulumi.{STACK}.yaml"
CANARY = "hf_canaryCanaryCANARY0123456789"
PASSPHRASE = "a-passphrase-of-ours"
URN = f"urn:pulumi:{STACK}::gemma-serving::x$gcp:cloudrunv2/service:Service::vllm"
STEP = {
    "op": "update",
    "urn": URN,
    "diffReasons": ["template"],
    "oldState": {"inputs": {"template": {"token": CANARY, "length": 8192}}},
    "newState": {"inputs": {"template": {"token": PASSPHRASE, "length": 4096, "next": "[secret]"}}},
}
STATE = '{"version": 3, "deployment": {"resources": [{"urn": "u", "type": "t", "inputs": {"a": %d}}]}}'


class World:
    """An engine: what it says, and what it saw when it began."""

    def __init__(self, checkout):
        self.checkout, self.steps, self.state = checkout, [STEP], STATE % 1
        self.ran, self.options, self.during = [], [], lambda: None

    def query(self, words, **_):
        return self.state

    def run(self, *words, **_):
        return subprocess.CompletedProcess(words, 0, "", "")

    def previewed(self, stack, *options):
        self.options.append(options)
        return {"steps": self.steps}

    def change(self, stack, *words, after_failure):
        """The file is edited while the engine starts."""
        (self.checkout / SETTINGS).write_text("edited")
        (self.checkout / "stacks" / "tpu.py").write_text("edited")
        here = Path.cwd()
        self.ran.append((words, (here / SETTINGS).read_text(), (here / "stacks" / "tpu.py").read_text()))


def commit(folder):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    for arguments in (("add", "."), ("commit", "--quiet", "--message", "one")):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture
def world(tmp_path, monkeypatch):
    folder = tmp_path / "checkout"
    (folder / "stacks").mkdir(parents=True)
    (folder / "stacks" / "tpu.py").write_text("x = 1\n")
    for name in ("Pulumi.yaml", SETTINGS):
        (folder / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(folder)
    subprocess.run(["git", "init", "--quiet"], check=True, timeout=60)
    commit(folder)
    found = World(folder)
    for name in ("query", "run", "change"):
        monkeypatch.setattr(runner, name, getattr(found, name))
    for name in ("engine.previewed.preview", "scripts.deploy.steps.previewed"):
        monkeypatch.setattr(name, found.previewed)
    monkeypatch.setattr("scripts.deploy.steps.stack_outputs", lambda _: from_json(StackOutputs, sample_outputs()))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "a-project")
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://me:b-password@state")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", PASSPHRASE)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return found


def steps_with(plan, world):
    return EngineSteps(stack=STACK, out=world.checkout, source=None, threshold=0.1, plan=plan)


def test_what_was_previewed_is_deployed_and_an_edit_while_the_engine_starts_is_not(world):
    settings = (world.checkout / SETTINGS).read_text()
    steps_with(make_plan(STACK), world).up()
    assert world.ran == [(("up",), settings, "x = 1\n")]


def test_a_plan_after_a_comparison_with_google_is_deployed_with_one(world):
    steps_with(make_plan(STACK, refresh=True), world).up()
    assert set(world.options) == {("--refresh",)}
    assert world.ran[0][0] == ("up", "--refresh")


def test_a_plan_without_changes_is_a_plan_too(world):
    world.steps = []
    plan = make_plan(STACK)
    assert "No resource changes." in plan_markdown(plan)
    steps_with(plan, world).up()
    assert len(world.ran) == 1


def edit_program(world):
    (world.checkout / "stacks" / "tpu.py").write_text("x = 2\n")


def edit_settings(world):
    path = world.checkout / SETTINGS
    path.write_text(path.read_text() + "# edited\n")


def edit_image(world):
    path = world.checkout / SETTINGS
    image = f"{{ repository: me/mine, digest: 'sha256:{'a' * 64}' }}"
    path.write_text(path.read_text() + f"  gemma-serving:image: {image}\n")


def other_state(world):
    world.state = STATE % 2


def other_step(world):
    world.steps = [{**STEP, "op": "replace"}]


def no_step(world):
    world.steps = []


CHANGES = {
    edit_program: "the program's files changed",
    edit_settings: "the stack's settings, or a file they reference, changed",
    edit_image: "the image changed",
    other_state: "the stack was deployed or refreshed",
    other_step: f"`{URN}`: planned update of template, now replace of template",
    no_step: f"`{URN}`: planned update of template, now no change",
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_differs_is_named_and_nothing_is_deployed(world, change):
    plan = make_plan(STACK)
    change(world)
    for stage in (steps_with(plan, world).require_plan, steps_with(plan, world).up):
        with pytest.raises(PlanRefusedError) as refused:
            stage()
        assert CHANGES[change] in str(refused.value)
        assert "Nothing was deployed" in str(refused.value)
    assert world.ran == []


def test_the_environment_is_compared_too(world, monkeypatch):
    plan = make_plan(STACK)
    for name, value, words in (
        ("PULUMI_BACKEND_URL", "gs://other", r"backend .*gs://state → gs://other"),
        ("GOOGLE_CLOUD_PROJECT", "other-project", r"project .*a-project → other-project"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(PlanRefusedError, match=words):
                steps_with(plan, world).up()
    assert world.ran == []


def test_a_state_that_changes_during_the_comparison_is_noticed(world, monkeypatch):
    plan = make_plan(STACK)

    def previewed(stack, *options):
        other_state(world)
        return {"steps": world.steps}

    monkeypatch.setattr("engine.previewed.preview", previewed)
    with pytest.raises(PlanRefusedError, match="the stack was deployed or refreshed during the comparison"):
        steps_with(plan, world).up()
    world.state = STATE % 1
    with pytest.raises(ScriptError, match="The stack changed during the preview: the stack was deployed or refreshed"):
        make_plan(STACK)


def test_a_comparison_that_fails_deploys_nothing_and_rolls_nothing_back(world, monkeypatch):
    plan = make_plan(STACK)

    def fails(_words, **_):
        raise ScriptError("The backend does not answer.")

    monkeypatch.setattr(runner, "query", fails)
    with pytest.raises(PlanRefusedError, match=r"could not be compared\. Nothing was deployed\. The backend does not"):
        steps_with(plan, world).up()
    assert world.ran == []


def test_a_plan_expires(world, monkeypatch):
    plan = make_plan(STACK)
    old = plan.model_copy(update={"expires_at": datetime.now(UTC) - timedelta(seconds=1)})
    with pytest.raises(PlanRefusedError, match="it expired at"):
        steps_with(old, world).up()
    assert plan.expires_at - plan.made_at == saved.VALID


def test_the_file_and_the_summary_hold_no_secret(world, tmp_path, monkeypatch, capsys):
    summary, path = tmp_path / "summary.md", tmp_path / "out" / "plan.json"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert run_command(preview.COMMAND, ["save", "--stack", STACK, "--out", str(path)]) == ExitCode.DONE
    printed = capsys.readouterr().out
    assert printed == summary.read_text()
    for text in (path.read_text(), printed):
        assert not [word for word in (CANARY, PASSPHRASE, "b-password") if word in text]
    plan = read_plan(path, stack=STACK)
    assert printed.startswith(f"### `{STACK}`: `{plan.id}`")
    assert "/h" in printed
    assert "`template." in printed
    assert plan == make_plan(STACK).model_copy(update={"made_at": plan.made_at, "expires_at": plan.expires_at})


def test_a_plan_that_replaces_what_serves_says_so_first(world):
    other_step(world)
    assert "**This replaces or deletes serving resources: `vllm`.**" in plan_markdown(make_plan(STACK)).splitlines()[2]
    world.steps = [STEP]
    assert "**" not in plan_markdown(make_plan(STACK))


def stranger(document):
    return {**document, "more": 1}


def newer(document):
    return {**document, "schema_version": 2}


def of_another_stack(document):
    return {**document, "stack": "other"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (stranger, "is not a plan. To save one, run `python -m scripts.preview save"),
        (newer, "has schema_version 2, but this version reads 1"),
        (of_another_stack, "is for stack other, but --stack is l4-qat"),
        (lambda _: [1], "is not a plan"),
        (None, "plan.json: No such file or directory"),
    ],
)
def test_a_file_that_is_no_plan_of_this_stack_is_refused_before_anything_is_done(
    world, tmp_path, capsys, change, words
):
    path = tmp_path / "plan.json"
    if change is not None:
        write_plan(path, make_plan(STACK))
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    asked = ["--stack", STACK, "--out", str(tmp_path / "out"), "--plan", str(path)]
    assert run_command(deploy.COMMAND, asked) == ExitCode.REFUSED
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_plan_that_was_edited_is_refused(world, tmp_path):
    path = tmp_path / "plan.json"
    plan = make_plan(STACK)
    step = plan.steps[0].model_copy(update={"op": "replace"})
    for change in ({"refresh": True}, {"steps": (step,)}, {"usd_per_hour_at_most": 0.0}, {"steps": ()}):
        write_plan(path, plan.model_copy(update=change))
        with pytest.raises(CommandRefusedError, match="was edited: its content does not match the id"):
            read_plan(path, stack=STACK)


def test_a_refusal_is_in_the_summary_with_the_next_command(world, tmp_path, monkeypatch, capsys):
    path, summary = tmp_path / "plan.json", tmp_path / "summary.md"
    write_plan(path, make_plan(STACK))
    other_state(world)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    asked = ["--stack", STACK, "--out", str(tmp_path / "out"), "--plan", str(path)]
    assert run_command(deploy.COMMAND, asked) == ExitCode.REFUSED
    assert "To save and review a new plan, run" in capsys.readouterr().err
    assert "refused" in summary.read_text()
    assert world.ran == []


def test_files_that_are_not_committed_are_no_plan(world):
    edit_settings(world)
    with pytest.raises(CommandRefusedError, match="has uncommitted changes"):
        make_plan(STACK)


def test_a_plan_that_cannot_be_written_is_one_sentence(world, capsys):
    assert (
        run_command(preview.COMMAND, ["save", "--stack", STACK, "--out", SETTINGS + "/plan.json"]) == ExitCode.REFUSED
    )
    assert f"Cannot write --out {SETTINGS}/plan.json" in capsys.readouterr().err


def test_settings_of_another_stack_replace_none(world):
    with pytest.raises(CommandRefusedError, match=f"--settings-of conflicts with the existing Pulumi.{STACK}.yaml"):
        make_plan(STACK, settings_of=STACK)


def test_a_roll_back_shows_what_nobody_approved_before_it_runs(world, capsys):
    world.change = lambda *_, **__: world.ran.append("up")
    steps = steps_with(make_plan(STACK), world)
    runner.change = world.change  # the fixture takes it back
    steps.up_at("HEAD")
    assert world.ran == ["up"]
    assert "rollback: vllm (gcp:cloudrunv2/service:Service): update of template" in capsys.readouterr().err
