"""The engine's events as progress: steps of the plan, and waits."""

import json

import pytest

from gemma_serving.contracts.masking import masked
from gemma_serving.engine.events import EventLog, is_stored


def event(kind, op, name, kind_of="gcp:cloudrunv2/service:Service"):
    return {kind: {"metadata": {"op": op, "urn": f"urn:pulumi:s::p::a:b:C${kind_of}::{name}"}}}


def said(severity, message, name="vllm"):
    return {"diagnosticEvent": {"severity": severity, "message": message, "urn": f"urn:pulumi:s::p::t::{name}"}}


EVENTS = [
    said("debug", "beginning rpc register resource", ""),
    event("resourcePreEvent", "same", "other"),
    event("resourcePreEvent", "create", "bucket", "gcp:storage/bucket:Bucket"),
    event("resourcePreEvent", "update", "vllm"),
    said("info", "<{%reset%}>waits for hf_secret0123456789\n"),
    said("info#err", "waits for 2 minutes"),
    said("debug", "Creating CallbackServicer"),
    event("resOutputsEvent", "same", "other"),
    event("resOutputsEvent", "create", "bucket", "gcp:storage/bucket:Bucket"),
    said("warning", "is slow"),
    event("resOpFailedEvent", "update", "vllm"),
    said("error", "does not start"),
]
TOLD = [
    ("1 of 2: creating gcp:storage:Bucket bucket", "1 of 2: creating gcp:storage:Bucket bucket"),
    ("2 of 2: updating gcp:cloudrunv2:Service vllm", "2 of 2: updating gcp:cloudrunv2:Service vllm"),
    ("vllm: waits for [masked]", "2 of 2: updating gcp:cloudrunv2:Service vllm"),
    ("vllm: waits for 2 minutes", "2 of 2: updating gcp:cloudrunv2:Service vllm"),
    ("1 of 2: created gcp:storage:Bucket bucket", "2 of 2: updating gcp:cloudrunv2:Service vllm"),
    ("vllm: is slow", "2 of 2: updating gcp:cloudrunv2:Service vllm"),
    ("2 of 2: update of gcp:cloudrunv2:Service vllm failed", None),
    ("vllm: does not start", None),
]


def test_progress_is_steps_of_the_plan_and_waits_without_secrets(tmp_path):
    log = EventLog(path=tmp_path / "events", plain=masked, steps=2)
    assert list(log.fresh()) == []
    text = "".join(json.dumps(event) + "\n" for event in EVENTS)
    (tmp_path / "events").write_text(text[:-30])
    first = list(log.fresh())
    with (tmp_path / "events").open("a") as file:
        file.write(text[-30:] + "not json\n")
    told = [*first, *log.fresh()]
    assert [(one.text, one.step) for one in told] == TOLD


STORED = {"custom": True, "inputs": {"a": 1}, "outputs": {"b": "[secret]"}, "protect": True}
OUTPUTS = {"outputs": {"endpoint": "https://a"}}


@pytest.mark.parametrize(
    ("op", "old", "new", "expected"),
    [
        ("same", STORED, STORED, True),
        ("same", OUTPUTS, OUTPUTS, True),
        ("same", OUTPUTS, {"outputs": {"endpoint": "https://b"}}, False),
        ("same", STORED, {**STORED, "inputs": {}}, False),
        ("same", STORED, {**STORED, "protect": False}, False),
        ("same", {"outputs": STORED["outputs"]}, {"outputs": STORED["outputs"]}, False),
        ("refresh", STORED, STORED, False),
        ("create", None, STORED, False),
    ],
)
def test_a_preview_is_stored_if_each_step_shows_the_same_properties_and_no_secret_of_the_program(
    op, old, new, expected, tmp_path
):
    log = tmp_path / "events"
    assert not is_stored(log)
    seen = {"resOutputsEvent": {"metadata": {"op": op, "old": old, "new": new}}}
    log.write_text(f"{json.dumps(seen)}\n")
    assert not is_stored(log), "the preview did not end"
    with log.open("a") as file:
        file.write(json.dumps({"summaryEvent": {"resourceChanges": {}}}) + "\n")
    assert is_stored(log) == expected
