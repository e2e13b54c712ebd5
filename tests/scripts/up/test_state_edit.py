"""Imported resources are complete: parents and providers first, no unknown values, and existing resources unchanged."""

import json
import re
from pathlib import Path

import pytest

from gemma_serving.cloud.kinds import POLICIES
from gemma_serving.engine.deployment import UNKNOWN, PendingOperation, ResourceState, is_secret, parse_deployment
from gemma_serving.engine.previewed import creations_in
from gemma_serving.scripts.up.lookup import KINDS
from gemma_serving.scripts.up.state_edit import REDACTED, candidates, is_complete, with_resource, without_unknown

STATES = Path(__file__).parents[2] / "fixtures" / "state"
STACKS = ["tpu-v6e4", "l4-qat"]
REPEATABLE = frozenset({"docker:index/image:Image", "gcp:projects/serviceIdentity:ServiceIdentity", *POLICIES})
"""Types that can be created again without a conflict and that leave no resource behind.

An image has the same digest again, and a policy has a member once.
Generating a service identity again returns the same account, which cannot be deleted
(discovery: serviceusage.v1beta1, services.generateServiceIdentity).
"""


def stored(stack):
    return parse_deployment(stack, (STATES / f"{stack}.json").read_text())


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
