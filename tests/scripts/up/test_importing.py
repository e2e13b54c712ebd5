"""Imports of `up`: a resource waits for its dependencies, one of another owner stops it, and a changed state is never overwritten."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemma_serving.cloud.kinds import POLICIES
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import UNKNOWN, PendingOperation, ResourceState, is_secret, parse_deployment
from gemma_serving.engine.previewed import creations_in
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack import engine_run, labelled, own_runs
from gemma_serving.scripts.up import importing, returning
from gemma_serving.scripts.up.lookup import KINDS, LookupResult
from gemma_serving.scripts.up.state_edit import REDACTED, candidates, is_complete, with_resource, without_unknown
from tests.cloud.populated import owner

STATES = Path(__file__).parents[2] / "fixtures" / "state"
STACK = "l4-qat"
HERE, ELSEWHERE = "file:///here", "gs://theirs?key=canary"


def stored(stack):
    return parse_deployment(stack, (STATES / f"{stack}.json").read_text())


class World:
    """A stack's state and what exists, in place of the engine and of Google."""

    def __init__(self, monkeypatch, tmp_path):
        self.whole = stored(STACK)
        self.state = self.whole
        self.owners, self.calls, self.said, self.asked = {}, [], [], []
        for name, value in {
            "read_deployment": lambda _stack: self.state,
            "write_deployment": self.write,
            "lookup": self.lookup,
        }.items():
            monkeypatch.setattr(importing, name, value)
        monkeypatch.setattr(engine_run, "change", lambda stack, *arguments, **_: self.calls.append(arguments))
        monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)

    def write(self, _stack, deployment):
        self.calls.append(("write", len(deployment.resources)))
        self.state = deployment.changed(pending=[])  # as `pulumi stack import` does

    def preview(self):
        """Return the resources that the program creates. A value of something that is not in the state is unknown, as in a preview."""
        missing = [each for each in self.whole.resources if each.urn not in self.state.urns]
        return {"steps": [{"op": "create", "newState": {**one.changed(id=None, outputs=None).raw}} for one in missing]}

    def lookup(self, _search, type_, urn, _inputs):
        if type_ not in KINDS:
            return None
        found = next(each for each in self.whole.resources if each.urn == urn)
        return LookupResult(owner=self.owners.get(found.name, "owned"), name=found.name, id=found.id)

    def lose(self, *names):
        """Forget resources, and begin their creation again."""
        gone = [each for each in self.whole.resources if each.raw.get("custom") and each.name in names]
        self.state = self.whole.changed(
            resources=[each for each in self.whole.resources if each not in gone],
            pending=[PendingOperation(kind="creating", resource=each.changed(id=None, outputs=None)) for each in gone],
        )

    def import_all(self):
        calls = {"preview": self.preview, "confirm": self.asked.append, "report": self.said.append}
        return importing.import_all(STACK, None, self.preview(), **calls)


@pytest.fixture
def world(monkeypatch, tmp_path):
    return World(monkeypatch, tmp_path)


def test_what_never_came_is_forgotten(world):
    world.lose("vllm")
    world.owners["vllm"] = "missing"
    world.import_all()
    assert world.state.pending == ()
    assert world.asked == [], "forgetting what does not exist needs no question"


def test_what_another_owner_has_stops_it_before_anything_changes(world):
    world.lose("vllm", "models")
    world.owners["models"] = "not_owned"
    with pytest.raises(CommandRefusedError, match="does not have the labels of this stack"):
        world.import_all()
    assert (world.calls, world.asked) == ([], [])


@pytest.mark.parametrize(
    ("zones", "says"), [(["a", "b"], ", leave b out of `tpu.zones`, or use another stack"), (["b"], ", or use another")]
)
def test_a_foreign_request_in_one_of_the_zones_can_be_left_out(zones, says):
    name = "projects/p/locations/b/queuedResources/gemma-x"
    resource = SimpleNamespace(type="gcp-tpu:index:QueuedResource", name="capacity", inputs={"zones": zones})
    one = importing.Examined(resource=resource, found=LookupResult(owner="not_owned", name=name))
    with pytest.raises(CommandRefusedError, match=re.escape(f"Delete it if it is yours{says}")):
        importing.require_own([one])


def test_what_cannot_be_looked_up_keeps_its_interrupted_operation(world, monkeypatch):
    """Without the operation nothing would know of a service that was made before the API was turned off."""
    world.lose("vllm", "models")
    before = world.state

    def off(*_):
        raise ScriptError("Could not look up vllm: the API run.googleapis.com is off or was just enabled.")

    monkeypatch.setattr(importing, "lookup", off)
    with pytest.raises(ScriptError, match="is off"):
        world.import_all()
    assert world.state is before
    assert world.calls == []


def test_a_lost_state_comes_back_after_one_question(world):
    world.state = parse_deployment(STACK, '{"version": 3, "deployment": {}}')
    world.import_all()
    absent = {each.type for each in world.whole.resources if each.urn not in world.state.urns}
    assert not absent & KINDS.keys(), "the next `up` writes the others"
    (lacking,) = world.asked
    assert lacking.sentence.startswith("The state lacks 7 resources that Google has of this stack: ")
    assert lacking.sentence.endswith(", 4 more.")
    assert lacking.has_server


def test_a_state_that_changed_meanwhile_is_not_overwritten(world, monkeypatch):
    world.lose("vllm")

    def lookup(*_):
        world.state = world.whole
        return LookupResult(owner="owned", name="n", id="x")

    monkeypatch.setattr(importing, "lookup", lookup)
    with pytest.raises(ScriptError, match=f"The state of stack {STACK} changed during the import"):
        world.import_all()
    assert world.calls == []


# Permission


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder without a terminal, and its backend."""
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.setenv("GEMMA_SERVING_FOLDER", str(tmp_path))
    monkeypatch.setattr("sys.stdin", type("Pipe", (), {"isatty": lambda _: False})())
    monkeypatch.setenv("PULUMI_BACKEND_URL", HERE)
    monkeypatch.setattr(labelled, "renamed", lambda _stack: "")


SERVER = FoundResource(
    kind="TPU queued resource", name="projects/p/locations/us-east5-a/queuedResources/q", location="us-east5-a",
    created="2026-11-28T01:46:09Z", command="", owner=owner(STACK),
)  # fmt: skip
BUCKET = FoundResource(kind="storage bucket", name="projects/_/buckets/b", command="", owner=owner(STACK))


def test_without_a_terminal_only_what_this_folder_made_is_imported(world, folder, capsys):
    world.lose("vllm")
    lacking = importing.examine(STACK, None, world.preview())
    with pytest.raises(CommandRefusedError, match=r"run `gemma up l4-qat` in a terminal"):
        returning.may_import(STACK, lacking)
    own_runs.remember_run(STACK, "begun")
    returning.may_import(STACK, lacking)
    assert "has of this stack: Cloud Run service vllm. `up` imports" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "found", "backend"),
    [
        (None, SERVER, HERE),
        ("done", SERVER, ELSEWHERE),
        ("destroyed", SERVER, HERE),
        (None, BUCKET, HERE),
    ],
)
def test_a_stack_of_another_folder_or_backend_is_not_taken_over(folder, monkeypatch, state, found, backend):
    if state is not None:
        monkeypatch.setenv("PULUMI_BACKEND_URL", backend)
        own_runs.remember_run(STACK, state)
        monkeypatch.setenv("PULUMI_BACKEND_URL", HERE)
    said = []
    monkeypatch.setattr(returning, "print_progress", lambda _command, text: said.append(text))
    with pytest.raises(
        CommandRefusedError, match=r"To take the stack over into this one, run `gemma up l4-qat` in a terminal"
    ):
        returning.may_take_over(STACK, [found])
    (sentence,) = said
    assert ("runs in us-east5-a since 2026-11-28 01:46 UTC" in sentence) is (found is SERVER)
    assert f"The backend {HERE} has no state of it." in sentence
    assert ("`pulumi login gs://theirs`" in sentence) is (backend == ELSEWHERE)
    assert "canary" not in sentence, "options of a backend's URL may have credentials"


@pytest.mark.parametrize(("state", "found"), [("done", SERVER), ("destroyed", BUCKET)])
def test_what_this_folder_made_comes_back_without_a_question(folder, state, found):
    own_runs.remember_run(STACK, state)
    returning.may_take_over(STACK, [found])


def test_a_stack_whose_state_has_another_name_is_not_taken_over(folder, monkeypatch):
    own_runs.remember_run(STACK, "done")
    monkeypatch.setattr(
        labelled, "renamed", lambda stack: f"Stack new was renamed: its resources have the name {stack}."
    )
    with pytest.raises(CommandRefusedError, match="was renamed"):
        returning.may_take_over(STACK, [SERVER])


def test_a_state_that_was_cut_off_is_copied_before_an_empty_one_replaces_it(folder, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(returning, "file_text", lambda _stack: '{"version": 3, "deplo')
    monkeypatch.setattr(returning, "write_empty", lambda stack, proof: written.append((stack, proof.claim)))
    state = StackState(stack=STACK, status="unreadable", detail="unexpected EOF", is_cut_off=True)
    with pytest.raises(CommandRefusedError):
        returning.replace_cut_off(state)
    assert written == []
    own_runs.remember_run(STACK, "begun")
    returning.replace_cut_off(state)
    assert written == [(STACK, f"the state of stack {STACK} is missing or cut off")]
    assert [path.read_text() for path in (tmp_path / ".work" / "deployments").iterdir()] == ['{"version": 3, "deplo']


# States with what was imported: parents and providers first, no unknown values, and existing resources unchanged.


STACKS = ["tpu-v6e4", "l4-qat"]
REPEATABLE = frozenset({"docker:index/image:Image", "gcp:projects/serviceIdentity:ServiceIdentity", *POLICIES})
"""Types that can be created again without a conflict and that leave no resource behind.

An image has the same digest again, and a policy has a member once.
Generating a service identity again returns the same account, which cannot be deleted
(discovery: serviceusage.v1beta1, services.generateServiceIdentity).
"""


def empty(stack):
    return stored(stack).changed(resources=[])


def assert_whole(deployment):
    """The engine's own rules of a state (pulumi/pulumi, resource/deploy/snapshot.go, VerifyIntegrity): what a resource refers to comes before it."""
    seen, providers = set(), set()
    for resource in deployment.resources:
        assert resource.urn not in seen
        assert not resource.parent or resource.parent in seen, resource.urn
        assert set(resource.raw.get("dependencies") or ()) <= seen, resource.urn
        for urns in resource.raw.get("propertyDependencies", {}).values():
            assert set(urns) <= seen
        assert resource.raw.get("provider") in {None, "", *providers}, resource.urn
        assert bool(resource.id) is bool(resource.raw.get("custom")), resource.urn
        seen.add(resource.urn)
        if resource.type.startswith("pulumi:providers:"):
            providers.add(f"{resource.urn}::{resource.id}")


def test_every_class_that_the_program_uses_can_be_looked_up():
    folder = Path(__file__).parents[3]
    texts = [path.read_text() for room in ("components", "stacks") for path in (folder / room).glob("*.py")]
    generated = {match for text in texts for match in re.findall(r"\bgcp\.(\w+)\.([A-Z]\w+)\(", text)}
    types = {
        f"gcp:{module}/{name[0].lower()}{name[1:]}:{name}" for module, name in generated if not name.endswith("Args")
    }
    assert len(types) > 18
    assert types <= {*KINDS, *REPEATABLE}


def test_an_output_that_is_the_engines_marker_of_an_unknown_value_is_no_value():
    """`stage_model` deploys only the bucket, so the engine writes markers as the stack's outputs."""
    stack = ResourceState(
        {"urn": "u", "type": "pulumi:pulumi:Stack", "outputs": {"a": "b", "endpoint": UNKNOWN, "c": [UNKNOWN]}}
    )
    (found,) = without_unknown(empty("l4-qat").changed(resources=[stack])).resources
    assert found.outputs == {"a": "b"}


@pytest.mark.parametrize("stack", STACKS)
def test_an_interrupted_creation_comes_back_with_its_inputs_and_its_secrets(stack):
    whole = stored(stack)
    last = next(each for each in reversed(whole.resources) if each.raw.get("custom"))
    begun = PendingOperation(kind="creating", resource=last.changed(id=None, outputs=None))
    before = whole.changed(resources=[each for each in whole.resources if each.urn != last.urn], pending=[begun])
    (candidate,) = candidates(before, [])
    assert candidate.urn == last.urn
    after = with_resource(before.changed(pending=()), candidate, last.id, {"more": 1}, {})
    assert_whole(after)
    assert json.loads(after.text())["deployment"].get("pending_operations") is None
    entry = after.resources[-1]
    assert (entry.id, entry.raw.get("provider"), entry.inputs) == (last.id, last.raw.get("provider"), last.inputs)
    assert entry.outputs["more"] == 1
    assert after.resources[:-1] == before.resources


def resource(type_="gcp:secretmanager/secretVersion:SecretVersion", **inputs):
    urn = f"urn:pulumi:dev::gemma-serving::{type_}::n"
    provider = f"urn:pulumi:dev::gemma-serving::pulumi:providers:gcp::default::{UNKNOWN}"
    return ResourceState({"urn": urn, "type": type_, "custom": True, "inputs": inputs, "provider": provider})


def test_a_value_that_the_preview_hides_makes_the_refresh_an_import():
    given = resource(secret="projects/p/secrets/s", secretData=REDACTED, deletionPolicy="DELETE")
    after = with_resource(empty("l4-qat"), given, "x", {"name": "x"}, {})
    entry = after.resources[-1]
    assert entry.inputs == {"secret": "projects/p/secrets/s", "deletionPolicy": "DELETE"}
    assert entry.raw["outputs"] == {}
    assert_whole(after)


def test_nested_unknowns_never_reach_the_state():
    given = resource("gcp:cloudrunv2/service:Service", name="n", template={"serviceAccount": UNKNOWN}, labels={})
    entry = with_resource(empty("l4-qat"), given, "x", {}, {}).resources[-1]
    assert UNKNOWN not in json.dumps(entry.raw)
    assert entry.inputs == {"name": "n", "labels": {}}
    assert not is_complete(given)


def test_a_ciphertext_is_an_output_as_it_is_an_input():
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "v1:a"}
    entry = with_resource(empty("l4-qat"), resource(secretData=secret), "x", {}, {}).resources[-1]
    assert is_secret(entry.outputs["secretData"])
    assert entry.outputs["secretData"] == secret


def test_a_queued_resource_with_unknown_inputs_is_imported_by_its_full_name():
    given = resource("gcp-tpu:index:QueuedResource", queuedResourceId="q", network=UNKNOWN)
    outputs = {"name": "projects/p/full"}
    entry = with_resource(empty("l4-qat"), given, "projects/p/queuedResources/q", outputs, {}).resources[-1]
    assert (entry.id, entry.inputs, entry.raw["outputs"]) == ("projects/p/full", {}, {})


def test_a_preview_names_what_it_would_create_and_nothing_else():
    steps = [
        {"op": op, "urn": op, "newState": {"urn": f"u-{op}", "type": "t"}}
        for op in ("create", "same", "update", "replace")
    ]
    assert list(creations_in({"steps": steps})) == ["u-create"]
