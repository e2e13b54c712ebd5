"""A plan can be judged: each change with its value before and after, without secrets, and what it does in one sentence."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.engine import steps as engine_changes
from gemma_serving.engine.exported_state import deployment_of
from gemma_serving.engine.steps import ResourceChange
from gemma_serving.scripts.preview import upcoming as deployed
from gemma_serving.scripts.preview.comment import _lines
from gemma_serving.scripts.preview.upcoming import SERVICE_TYPE, deployed_stack, effect_of_changes, headline
from tests.scripts.planted_states import stack_resource

CANARY = "hf_canary0123456789abcdef"
ROOT = Path(__file__).resolve().parents[3]
CAPACITY = "gcp-tpu:index:QueuedResource"
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "v1:abcdef"}
SCRIPT = "#!/bin/bash\n" + "".join(f"step {n} of the start\n" for n in range(1000))


def template(weights="8479f1", concurrency=16, args=("--max-model-len=8192",)):
    envs = [{"name": "GEMMA_SERVING_WEIGHTS", "value": weights}]
    return {
        "template": {"maxInstanceRequestConcurrency": concurrency, "containers": [{"args": list(args), "envs": envs}]}
    }


def service(after, *paths, op="update", kind="update", **more):
    return {
        "op": op,
        "urn": f"urn:pulumi:dev::gemma-serving::{SERVICE_TYPE}::vllm",
        "diffReasons": ["template"],
        "detailedDiff": {path: {"kind": kind, "inputDiff": False} for path in paths},
        "oldState": {"type": SERVICE_TYPE, "inputs": template()},
        "newState": {"type": SERVICE_TYPE, "inputs": after},
        **more,
    }


def machine(before, after, path="metadata"):
    states = {
        name: {"type": CAPACITY, "inputs": {"metadata": value}}
        for name, value in (("oldState", before), ("newState", after))
    }
    urn = f"urn:pulumi:dev::gemma-serving::gemma-serving:index:TpuQueuedResource${CAPACITY}::capacity"
    return {
        "op": "update",
        "urn": urn,
        "diffReasons": ["metadata"],
        "detailedDiff": {path: {"kind": "update"}},
        **states,
    }


def changes_of(*steps, secrets=()):
    return engine_changes.changes_of({"steps": list(steps)}, secrets)[0]


def shown(*steps, secrets=()):
    """Return what the comment and the agent show of the changes."""
    changes = changes_of(*steps, secrets=secrets)
    return [(one.path, one.before, one.after) for change in changes for one in change.changes]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"token": SECRET}, {"token": {**SECRET, "ciphertext": "v1:other"}}),
        ({"token": "[secret]"}, {"token": "[secret]"}),
        ({"token": f"x {CANARY}"}, {"token": f"y {CANARY}"}),
        ({"token": "our-own-pass phrase"}, {"token": "none of it"}),
        ({"token": json.dumps({"deep": {"token": CANARY}})}, {"token": json.dumps({"deep": {"token": "x"}})}),
        ({"token": f"{SCRIPT}export HF_TOKEN={CANARY}\n"}, {"token": f"{SCRIPT}export HF_TOKEN=other-{CANARY}\n"}),
        ({"token": json.dumps({"apiKey": "our-own-key-1"})}, {"token": json.dumps({"apiKey": "our-own-key-2"})}),
    ],
    ids=["marked", "blinded", "known form", "of the environment", "in a document", "in a script", "by its key"],
)
def test_no_secret_is_shown(old, new):
    changes = changes_of(machine(old, new, "metadata.token"), secrets=["our-own-pass phrase"])
    text = json.dumps([asdict(change) for change in changes]) + "\n".join(_lines(changes[0]))
    assert not [word for word in (CANARY, "v1:", "our-own", "4dabf18") if word in text]
    assert changes[0].changes


def test_a_secret_that_changes_is_said_to_change():
    (change,) = changes_of(machine({"token": "[secret]"}, {"token": "[secret]"}, "metadata.token"))
    assert list(_lines(change))[1] == "    metadata.token: [secret] → [secret] (another value)"


def test_of_a_script_the_first_part_that_differs_is_shown():
    new = SCRIPT.replace("step 500 of the start", "another step").replace("step 900 of the start\n", "")
    (change,) = changes_of(machine({"startup-script": SCRIPT}, {"startup-script": new}, 'metadata["startup-script"]'))
    (line,) = list(_lines(change))[1:]
    assert line.startswith('    metadata["startup-script"]: …t step 499 of the start step 500 ')
    assert " another step" in line.partition("→")[2]
    (whole,) = changes_of(
        machine({"startup-script": SCRIPT}, {"startup-script": "a\nb\n"}, 'metadata["startup-script"]')
    )
    assert len(json.dumps(asdict(whole))) < 1500


def test_what_was_changed_in_the_cloud_is_shown_although_the_inputs_are_the_same():
    """`preview --refresh` puts it back, and `refresh` alone takes it into the state."""
    path = "template.maxInstanceRequestConcurrency"
    back = service(template(), path)
    back["oldState"]["outputs"] = template(concurrency=80)
    assert shown(back) == [(path, "80", "16")]
    taken = service(template(), path)
    taken["oldState"]["outputs"], taken["newState"]["outputs"] = template(), template(concurrency=80)
    assert shown(taken) == [(path, "16", "80")]


def test_a_value_from_the_cloud_cannot_hide_text_or_steer_a_terminal():
    found = changes_of(machine({"a": "x\x1b[2J\u202e"}, {"a": "y"}, "metadata.a"))[0]
    assert found.changes[0].before == "x\\u001b[2J\\u202e"


def test_many_and_long_changes_are_cut_and_counted():
    args = [f"--flag-{n}={'x' * 500}" for n in range(90)]
    (change,) = changes_of(service(template(args=args), *(f"template.containers[0].args[{n}]" for n in range(90))))
    assert len(change.changes) + change.changes_left_out == 90
    assert len(json.dumps(asdict(change))) < 6000
    assert list(_lines(change))[-1] == f"    and {change.changes_left_out} more"


# The headline, and the price now.


def change(kind, op, *properties, forced=()):
    return ResourceChange(op=op, type=kind, name="n", properties=properties, forced_by=forced)


HEADLINES = {
    "nothing": ((), "dev: no change to running resources"),
    "beside": ((change("x", "update", "labels"),), "dev: updates other resources; the server keeps running"),
    "labels": ((change(CAPACITY, "update", "labels"),), "dev: updates other resources"),
    "restart": (
        (change(CAPACITY, "update", "metadata"),),
        "dev: restarts the server on its node and keeps the capacity",
    ),
    "revision": ((change(SERVICE_TYPE, "update", "template"),), "dev: creates a new revision"),
    "service": (
        (change(SERVICE_TYPE, "replace", "location", forced=("location",)),),
        "dev: replaces the service, forced by location",
    ),
    "capacity": (
        (change(CAPACITY, "replace", "zones", "name", forced=("acceleratorType", "name")),),
        "dev: releases its TPU capacity, forced by acceleratorType, name",
    ),
    "deleted": ((change(CAPACITY, "delete"),), "dev: releases its TPU capacity"),
    "target": ((change(CAPACITY, "delete"), change(SERVICE_TYPE, "create")), "dev: moves to another target"),
    "new service": ((change(SERVICE_TYPE, "create"), change("x", "create")), "dev: creates the service"),
    "new capacity": ((change(CAPACITY, "create"),), "dev: requests TPU capacity"),
}


@pytest.mark.parametrize("name", HEADLINES)
def test_the_headline_says_what_becomes_of_the_server(name):
    changes, words = HEADLINES[name]
    assert headline("dev", changes).startswith(words)
    assert (effect_of_changes(changes) in {"capacity", "service", "target"}) == (
        name in {"service", "capacity", "deleted", "target"}
    )


def test_the_price_now_is_that_of_the_deployed_stack_while_idle_and_with_all_instances(monkeypatch):
    for least, most in ((0, 3), (1, 1)):
        scaling = {"template": {"scaling": {"minInstanceCount": least, "maxInstanceCount": most}}}
        found = {"type": SERVICE_TYPE, "urn": "v", "inputs": scaling}
        document = {"version": 3, "deployment": {"resources": [stack_resource(), found]}}
        monkeypatch.setattr(deployed, "read_deployment", lambda _stack, it=document: deployment_of("dev", it))
        outputs, costs = deployed_stack("dev", {})
        assert (outputs.model, costs.now, costs.most) == ("google/gemma-4-E2B-it", least * 1.42, most * 1.42)


def test_a_stack_without_a_state_has_no_price(monkeypatch):
    def missing(_stack):
        raise CommandRefusedError("no stack")

    monkeypatch.setattr(deployed, "read_deployment", missing)
    assert deployed_stack("dev", {}) == (None, None)


@pytest.mark.parametrize(
    ("name", "effect"),
    [("gemma-serving-collector", "update"), ("startup-script", "update"), ("gemma-serving-document", "restart")],
)
def test_a_machine_whose_collector_or_script_alone_changes_keeps_its_server(name, effect):
    """tests/engine/test_tpu_stack.py: a changed start-up script leaves the server running."""
    for before in ({}, {name: "a"}):
        changes = changes_of(machine(before, {name: "b"}, f'metadata["{name}"]'))
        assert effect_of_changes(changes) == effect
