"""What a preview and an update without a refresh do about a machine that the state counts as running."""

from typing import Any

import pytest

from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted

DOCUMENT, OTHER = "d" * 64, "e" * 64
GONE = "Run `pulumi up --refresh` to request capacity again."


def given(**changes: Any) -> dict[str, Any]:
    ready = {"guestAttributeNamespace": "gemma-serving", "timeoutS": 5}
    metadata = {"enable-guest-attributes": "TRUE"}
    return wanted(ready=ready, metadata=metadata, **changes)


@pytest.fixture
def cloud() -> FakeTpu:
    cloud = FakeTpu()
    cloud.boots = lambda _metadata: [published("ready")]
    return cloud


def published(phase: str, **values: str) -> dict[str, str]:
    named = {key.replace("_", "-"): value for key, value in values.items()}
    return {"phase": phase, "document-hash": DOCUMENT, "serving-hash": DOCUMENT, **named}


@pytest.fixture
def engine(cloud: FakeTpu) -> FakeEngine:
    engine = FakeEngine(cloud)
    engine.up(given())
    return engine


def said(engine: FakeEngine, operation: str = "same") -> list[str]:
    """Return the warnings of one preview of this operation."""
    engine.warnings.clear()
    assert engine.preview(given()) == operation
    return list(engine.warnings)


def put(cloud: FakeTpu, *reports: dict[str, str]) -> None:
    """Let the machine publish something else."""
    (name,) = cloud.nodes
    cloud.guests[name] = list(reports)


def test_a_machine_that_serves_is_no_warning(engine: FakeEngine):
    assert said(engine) == []


def test_a_machine_that_is_gone_is_an_update_that_fails_with_the_command(engine: FakeEngine, cloud: FakeTpu):
    (node,) = cloud.nodes
    cloud.nodes[node]["state"] = "PREEMPTED"
    (warning,) = said(engine, "update")
    assert engine.detailed == {"state": "UPDATE"}
    assert "has a TPU VM that is PREEMPTED" in warning
    assert warning.endswith(GONE)
    before = engine.state
    with pytest.raises(
        Aborted,
        match=r"its node is PREEMPTED\. Google reclaimed the capacity\. Run `pulumi up --refresh` to replace it\.",
    ):
        engine.up(given())
    assert engine.state == before
    cloud.nodes.clear()
    cloud.boot = lambda name, spec, body: None  # type: ignore[method-assign]
    assert "is gone, but this stack's state records it as ACTIVE" in said(engine, "update")[0]
    engine.refresh()
    assert engine.preview(given()) == "replace"


@pytest.mark.parametrize("fault", ["503", "unsent", "dropped"])
def test_an_answer_that_does_not_come_is_no_proof_that_the_machine_is_gone(
    engine: FakeEngine, cloud: FakeTpu, fault: str
):
    cloud.faults.append(("/nodes/", fault))
    assert said(engine) == []


def test_a_document_that_failed_after_the_last_update_is_named_with_what_serves(engine: FakeEngine, cloud: FakeTpu):
    detail = "a line\nThe server stopped with exit code 137 (killed, most likely out of memory)."
    put(cloud, published("failed", serving_hash=OTHER, detail=detail))
    (warning,) = said(engine)
    assert "Document dddddddddddd was ready at the last `pulumi up` and has failed since: The server stopped" in warning
    assert warning.endswith(
        "Document eeeeeeeeeeee, the last known good one, serves. Change the settings and run `pulumi up`."
    )
    put(cloud, published("failed", serving_hash="", detail=detail))
    assert "Nothing serves." in said(engine)[0]
