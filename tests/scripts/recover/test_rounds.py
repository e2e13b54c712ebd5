"""The rounds: a resource waits for its dependencies, one of another owner blocks no other, and a changed state is never overwritten."""

import json
import os
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.resource_types import SERVER_TYPES, SERVICE_COMPONENT
from gemma_serving.engine import runner
from gemma_serving.engine.deployment import (
    PendingOperation,
    StateUnreadableError,
    parse_deployment,
    wrong_passphrase,
)
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.recover import __main__ as command
from gemma_serving.scripts.recover import rounds
from gemma_serving.scripts.recover.lookup import LookupResult
from gemma_serving.scripts.stack import engine_run

STATE = Path(__file__).parents[2] / "fixtures" / "state" / "l4-qat.json"
STACK = "l4-qat"


class World:
    """A stack's state and what exists, in place of the engine and of Google."""

    def __init__(self, monkeypatch, tmp_path):
        self.whole = parse_deployment(STACK, STATE.read_text())
        self.state = self.whole
        self.owners, self.calls, self.said, self.asked = {}, [], [], []
        (tmp_path / f"Pulumi.{STACK}.yaml").write_text("config: {}\n")
        for name, value in {
            "read_deployment": lambda _stack: self.read(),
            "write_deployment": self.write,
            "write_empty": self.write_empty,
            "declared": lambda _stack: self.declared(),
            "lookup": self.lookup,
        }.items():
            monkeypatch.setattr(rounds, name, value)
        monkeypatch.setattr("gemma_serving.scripts.stack.facts.stack_locks", lambda _stack: ())
        monkeypatch.setattr("gemma_serving.engine.state.read_deployment", lambda _stack: self.read())
        monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
        monkeypatch.setattr(engine_run, "change", lambda stack, *arguments, **_: self.calls.append(arguments))
        monkeypatch.setattr(runner, "query", lambda arguments, **_: self.query(arguments))
        monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
        monkeypatch.setattr("gemma_serving.scripts.stack.settings.stack_project", lambda _stack: "p")

    def read(self):
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def write(self, _stack, deployment):
        self.calls.append(("write", len(deployment.resources)))
        self.state = deployment.changed(pending=[])  # as `pulumi stack import` does

    def write_empty(self, stack, proof):
        assert f"{stack} is missing or cut off" in proof.claim
        self.write(stack, parse_deployment(STACK, '{"version": 3, "deployment": {}}'))

    def query(self, arguments):
        self.calls.append(tuple(arguments))
        if arguments[:2] == ["stack", "init"]:
            self.state = parse_deployment(STACK, '{"version": 3, "deployment": {}}')

    def declared(self):
        """What the program would create. A value of something that is not in the state is unknown, as in a preview."""
        missing = [each for each in self.whole.resources if each.urn not in self.state.urns]
        return {each.urn: each.changed(id=None, outputs=None) for each in missing}

    def lookup(self, _search, _type, urn, _inputs):
        found = next(each for each in self.whole.resources if each.urn == urn)
        owner = self.owners.get(found.name, "owned")
        return LookupResult(owner=owner, name=found.name, id=found.id)

    def lose(self, *names):
        """Forget resources, and begin their creation again."""
        gone = [each for each in self.whole.resources if each.raw.get("custom") and each.name in names]
        self.state = self.whole.changed(
            resources=[each for each in self.whole.resources if each not in gone],
            pending=[PendingOperation(kind="creating", resource=each.changed(id=None, outputs=None)) for each in gone],
        )

    def recover(self):
        return rounds.recover(STACK, None, report=self.said.append, confirm=self.asked.append)


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


def test_what_never_came_is_cleared(world):
    world.lose("vllm")
    world.owners["vllm"] = "missing"
    recovery = world.recover()
    (urn,) = world.whole.urns - world.state.urns
    assert recovery.cleared == [f"creating {urn}"]
    assert (recovery.imported, recovery.not_owned, world.state.pending) == ([], [], ())
    assert world.asked == [], "forgetting what does not exist needs no question"


def test_what_is_foreign_is_named_and_the_rest_is_taken_over(world):
    world.lose("vllm", "models")
    world.owners["models"] = "not_owned"
    recovery = world.recover()
    assert {each.resource.name for each in recovery.not_owned} == {"models"}
    assert [each.resource.name for each in recovery.imported] == ["vllm"]
    assert recovery.to_json()["clean"] is False


def test_what_cannot_be_looked_up_keeps_its_interrupted_operation(world, monkeypatch):
    """Without the operation nothing would know of a service that was made before the API was turned off."""
    world.lose("vllm", "models")
    before = world.state

    def off(*_):
        raise ScriptError("Could not look up vllm: the API run.googleapis.com is off or was just enabled.")

    monkeypatch.setattr(rounds, "lookup", off)
    with pytest.raises(ScriptError, match="is off"):
        world.recover()
    assert world.state is before
    assert world.calls == []


def test_a_whole_state_is_refreshed_only(world):
    recovery = world.recover()
    assert (recovery.imported, recovery.cleared, recovery.backups) == ([], [], [])
    assert world.calls == [("refresh",)]


def test_a_lost_state_comes_back_after_one_question(world):
    world.state = CommandRefusedError(f"Stack {STACK} does not exist. Run `gemma up {STACK}` to deploy it.")
    recovery = world.recover()
    assert recovery.state_was == "missing"
    absent = {each.type for each in world.whole.resources if each.urn not in world.state.urns}
    assert absent == {"pulumi:providers:pulumi", "gemma-serving:index:StackDetails"}, "the next `up` writes them"
    assert world.asked[0] == ()
    assert len(world.asked) == 2


def test_what_is_left_of_a_truncated_state_is_copied_before_an_empty_one_replaces_it(world, monkeypatch, tmp_path):
    world.state = StateUnreadableError("unexpected EOF", cut_off=True)
    monkeypatch.setattr(rounds, "file_text", lambda _stack: '{"version": 3, "deplo', raising=False)
    assert world.recover().state_was == "unreadable"
    texts = [path.read_text() for path in (tmp_path / ".work" / "deployments").iterdir()]
    assert '{"version": 3, "deplo' in texts


def test_a_wrong_passphrase_never_starts_a_new_state(world):
    world.state = StateUnreadableError("The state cannot be decrypted.", cut_off=False)
    with pytest.raises(ScriptError, match="cannot be decrypted"):
        world.recover()
    assert world.calls == []


def test_a_wrong_passphrase_in_the_preview_changes_nothing(world, monkeypatch):
    """The engine exports a state without the passphrase, so only the preview shows that it is wrong."""
    world.lose("vllm")

    def refuse(stack):
        raise wrong_passphrase(stack)

    monkeypatch.setattr(rounds, "declared", refuse)
    with pytest.raises(StateUnreadableError, match=r"If the passphrase or key is lost, run `gemma teardown l4-qat"):
        world.recover()
    assert world.calls == []


def test_a_state_that_changed_meanwhile_is_not_overwritten(world, monkeypatch):
    world.lose("vllm")

    def lookup(*_):
        world.state = world.whole
        return LookupResult(owner="owned", name="n", id="x")

    monkeypatch.setattr(rounds, "lookup", lookup)
    with pytest.raises(ScriptError, match=f"The state of stack {STACK} changed during the recovery"):
        world.recover()
    assert world.calls == []


@pytest.mark.parametrize(("owner", "code"), [("owned", 0), ("not_owned", 1)])
def test_the_command_says_what_it_did(world, monkeypatch, capsys, owner, code):
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _project: None)
    world.lose("vllm")
    world.owners["vllm"] = owner
    assert run_command(command.COMMAND, ["--stack", STACK, "--yes", "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["clean"] is (code == 0)
    assert [each["name"] for each in report["imported"]] == (["vllm"] if owner == "owned" else [])
    world.lose("vllm")
    assert run_command(command.COMMAND, ["--stack", STACK, "--yes"]) == code
    said = capsys.readouterr().out
    assert ("does not have the labels of this stack. It was not modified." in said) is bool(code)
    again = f"Resolve the problems above, then run `gemma recover {STACK}` again."
    assert said.strip().endswith(again if code else f"Run `gemma up {STACK}`.")


@pytest.mark.parametrize("words", [["--yes"], ["--dry-run"]])
def test_a_half_deleted_stack_is_continued_by_teardown(world, monkeypatch, capsys, words):
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _project: None)
    left = [each for each in world.whole.resources if each.type not in {*SERVER_TYPES, SERVICE_COMPONENT}]
    world.state = world.whole.changed(resources=left)
    world.owners["vllm"] = "missing"
    assert run_command(command.COMMAND, ["--stack", STACK, *words]) == 0
    said = capsys.readouterr().out
    assert "A teardown did not finish: the state still has" in said
    assert f"`gemma teardown {STACK}` continues it" in said
    assert f"Run `gemma up {STACK}`" not in said


def test_without_yes_and_without_a_terminal_nothing_is_changed(world, monkeypatch, capsys):
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _project: None)
    world.lose("vllm")
    assert run_command(command.COMMAND, ["--stack", STACK]) == 2
    assert "Pass --yes" in capsys.readouterr().err
    assert world.calls == []


def test_a_dry_run_changes_nothing(world, monkeypatch, capsys):
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _project: None)
    world.lose("vllm")
    assert run_command(command.COMMAND, ["--stack", STACK, "--dry-run"]) == 0
    assert "To import (1):\n  Cloud Run service vllm" in capsys.readouterr().out
    assert world.calls == []


def test_a_dry_run_of_a_lost_state_lists_what_comes_back_and_changes_nothing(world, monkeypatch, capsys):
    backends = []

    def create(_stack):
        backends.append(os.environ["PULUMI_BACKEND_URL"])
        world.query(["stack", "init"])

    monkeypatch.setattr(rounds, "create_state", create)
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _project: None)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://real")
    world.state = CommandRefusedError(f"Stack {STACK} does not exist. Run `gemma up {STACK}` to deploy it.")
    assert run_command(command.COMMAND, ["--stack", STACK, "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "To import (7):\n  Cloud Run service vllm" in said.out
    assert f"the state of stack {STACK} is missing, so a recovery starts from an empty one" in said.err
    assert ([backend.startswith("file://") for backend in backends], world.calls) == ([True], [("stack", "init")])


def test_with_a_plan_only_what_a_dry_run_showed_is_taken_over(world, monkeypatch, capsys):
    monkeypatch.setattr("gemma_serving.cloud.google_api.connect", lambda _project: None)
    world.lose("vllm")
    assert run_command(command.COMMAND, ["--stack", STACK, "--dry-run"]) == 0
    plan = capsys.readouterr().out.rpartition("Plan: ")[2].strip()
    words = ["--stack", STACK, "--yes", "--plan"]
    assert run_command(command.COMMAND, [*words, "plan-0123456789abcdef"]) == 2
    assert f"is stale: a dry run now has the id {plan}. Nothing was changed." in capsys.readouterr().err
    assert world.calls == []
    assert run_command(command.COMMAND, [*words, plan]) == 0
    assert world.calls != []


def test_a_renamed_stack_is_refused_with_the_command_that_renames_it_back(world):
    for act in (rounds.recover, rounds.inspect_stack):
        options = {"confirm": world.asked.append} if act is rounds.recover else {}
        with pytest.raises(CommandRefusedError, match=rf"`pulumi stack rename {STACK} --stack moved`"):
            act("moved", None, report=world.said.append, **options)
    assert (world.calls, world.asked) == ([], [])
