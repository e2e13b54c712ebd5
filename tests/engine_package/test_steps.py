"""Two previews are compared step by step, and what differs is named."""

import json
from dataclasses import asdict

import pytest

from gemma_serving.engine.steps import shown_changes, steps_of

CANARY = "hf_canaryCanaryCANARY0123456789"
PARENT = "urn:pulumi:dev::gemma-serving::gemma-serving:index:CloudRunGpuService$gcp:cloudrunv2/service:Service"
URN = f"{PARENT}::vllm"
UPDATE = {
    "op": "update",
    "urn": URN,
    "diffReasons": ["template"],
    "detailedDiff": {"template.containers[0].args[1]": {"kind": "update", "inputDiff": False}},
    "oldState": {"inputs": {"template": {"containers": [{"args": ["serve", "--max-model-len=8192"]}]}}},
    "newState": {"inputs": {"template": {"containers": [{"args": ["serve", "--max-model-len=4096"]}]}, "name": "x"}},
}


def steps(*raw):
    quiet = [{"op": op, "urn": "urn:pulumi:dev::p::t::stack"} for op in ("same", "refresh")]
    return steps_of({"steps": [*quiet, *raw]})


def other(**changes):
    return {**UPDATE, **changes}


NEW_INPUTS = {"inputs": {"template": {"containers": [{"args": ["serve", "--max-model-len=2048"]}]}, "name": "x"}}
OTHERS = {
    "an operation": [other(op="replace", replaceReasons=["location"])],
    "a property": [other(diffReasons=["labels", "template"])],
    "a value": [other(newState=NEW_INPUTS)],
    "a new input": [other(newState={"inputs": {**UPDATE["newState"]["inputs"], "ingress": "ALL"}})],
    "a value before": [other(oldState=NEW_INPUTS)],
    "a resource less": [],
    "a second operation": [UPDATE, other(op="delete", diffReasons=[])],
}


def test_the_same_steps_in_another_order_are_the_same_plan():
    second = {"op": "create", "urn": "urn:pulumi:dev::p::t::bucket", "newState": {"inputs": {"a": 1}}}
    assert steps(UPDATE, second) == steps(second, UPDATE)


@pytest.mark.parametrize("kind", OTHERS)
def test_what_differs_is_another_plan(kind):
    assert [step.digest for step in steps(UPDATE)] != [step.digest for step in steps(*OTHERS[kind])]


def test_no_secret_is_kept_neither_of_a_known_form_nor_of_the_environment_nor_in_part():
    for secret in (CANARY, "a-passphrase-of-ours"):
        for padding in range(0, 90, 7):
            values = {"inputs": {"env": f"{'x' * padding}{secret}{'y' * 90}"}}
            raw = other(diffReasons=["env"], detailedDiff={}, oldState={"inputs": {"env": "x"}}, newState=values)
            found, _ = shown_changes(raw, ["a-passphrase-of-ours"])
            text = json.dumps([asdict(change) for change in found])
            assert secret[:12] not in text, (secret, padding)
