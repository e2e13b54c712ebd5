"""Each cell of the table in docs/authors/provider-gcp-tpu-internals.md: with the cloud in the state, the operation does what the cell says."""

from collections import deque
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gcp_tpu_provider.state_table import ABSENT, EFFECTS, SITUATIONS, Situation, table
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from localcloud.rest.discovery import document_for

PAGE = (Path(__file__).parents[2] / "docs" / "authors" / "provider-gcp-tpu-internals.md").read_text()
OPERATIONS = ("up", "change", "refresh", "destroy")
CELLS = [(row, operation) for row in SITUATIONS for operation in OPERATIONS]
A = "us-east5-a"
LOOKS = 4
"""How many times the fake cloud shows a state before it goes on."""


def enum(schema: str) -> set[str]:
    document = document_for("tpu", "v2alpha1/projects/p/locations")
    assert document
    return set(document.schemas[schema]["properties"]["state"]["enum"])


def put(row: Situation) -> tuple[FakeEngine, FakeTpu]:
    """Return an engine whose last `up` ended as the row says, and the cloud in the row's state."""
    cloud = FakeTpu()
    engine = FakeEngine(cloud)
    if row.recorded == "ACTIVE":
        engine.up(wanted())
    else:
        cloud.scripts[A] = ("WAITING_FOR_RESOURCES",)
        with pytest.raises(Aborted) as ended:
            engine.up(wanted(), timeout_s=0.05)
        assert ended.value.partial
    queued = cloud.queued[cloud.name(A)]
    queued.state = row.queued
    if row.queued == ABSENT:
        cloud.drop(queued)
    elif row.queued == "DELETING":
        queued.steps = deque(["DELETING"] * LOOKS)
    elif row.recorded == "waiting" and row.up == "continues":
        queued.steps = deque([*[row.queued] * LOOKS, "ACTIVE"])
    if row.queued != "ACTIVE" and row.recorded == "ACTIVE" and row.queued != "SUSPENDING":
        cloud.nodes.clear()
    if row.queued == "ACTIVE" and row.recorded == "ACTIVE":
        if row.node == ABSENT:
            cloud.nodes.clear()
            cloud.boot = lambda name, spec, body: None  # type: ignore[method-assign]
        else:
            cloud.nodes[cloud.node_name(A)]["state"] = row.node
    cloud.scripts.clear()
    cloud.calls.clear()
    return engine, cloud


def seen(row: Situation, operation: str) -> str:
    """Do the operation; return what could be seen of its effect."""
    engine, cloud = put(row)
    if operation == "refresh":
        return seen_in_refresh(engine)
    if operation == "destroy":
        return seen_in_destroy(engine, cloud)
    return seen_in_update(row, engine, cloud, wanted(tags=["other"]) if operation == "change" else wanted())


def seen_in_update(row: Situation, engine: FakeEngine, cloud: FakeTpu, given: dict[str, Any]) -> str:
    before = engine.state
    try:
        done = engine.up(given)
    except Aborted as refused:
        assert not cloud.made("POST")
        assert not cloud.made("DELETE")
        assert not cloud.made("PATCH")
        assert "`pulumi up --refresh`" in refused.message
        assert "Run `pulumi up --refresh` to request capacity again." in engine.warnings[-1]
        assert engine.state == before
        return "fails"
    if done == "same":
        assert not cloud.made("POST")
        assert not cloud.made("DELETE")
        assert not cloud.made("PATCH")
        assert not engine.warnings
        return "no change"
    assert (done, bool(engine.state and engine.state.outputs["state"] == "ACTIVE")) == ("update", True)
    if cloud.made("POST"):
        zone = engine.state.outputs["zone"] if engine.state else ""
        assert set(cloud.queued) == {cloud.name(zone)}
        return "requests again" if zone == A else "next zone"
    assert not cloud.made("DELETE")
    changed = bool(cloud.made("PATCH"))
    if row.recorded == "ACTIVE":
        assert changed
        return "in place"
    return "continues and changes" if changed else "continues"


def seen_in_refresh(engine: FakeEngine) -> str:
    engine.refresh()
    if engine.state is None:
        return "removed"
    engine.state.init_errors = []  # a refresh clears the engine's mark: only what Google says is left
    following: dict[str, str] = {"same": "read", "update": "read, continues", "replace": "read, replaces"}
    return following[engine.preview(wanted())]


def seen_in_destroy(engine: FakeEngine, cloud: FakeTpu) -> str:
    engine.destroy()
    assert not cloud.queued
    assert engine.state is None
    deletions = cloud.made("DELETE")
    if not deletions:
        return "awaited" if len(cloud.made(f"GET v2alpha1/{cloud.name(A)}")) > LOOKS else "nothing"
    forced = [call.endswith("?force") for call in deletions]
    if forced == [False, True]:
        return "tried"
    assert len(deletions) == 1
    return "forced" if deletions[0].endswith("?force") else "deleted"


def identity(cell: tuple[Situation, str]) -> str:
    row, operation = cell
    return f"{row.recorded}, now {row.queued} {row.node}: {operation}".replace("  ", " ")


def assert_happens(cell: tuple[Situation, str]) -> None:
    row, operation = cell
    assert seen(row, operation) == getattr(row, operation)


def test_each_cell_is_what_happens(subtests: pytest.Subtests):
    for cell in CELLS:
        with subtests.test(identity(cell)):
            assert_happens(cell)


def test_every_state_of_googles_documents_has_its_rows():
    waiting = {row.queued for row in SITUATIONS if row.recorded == "waiting"}
    assert waiting == enum("QueuedResourceState") | {ABSENT}
    ended = {row.queued for row in SITUATIONS if row.recorded == "ACTIVE"}
    in_the_queue = {"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "STATE_UNSPECIFIED"}
    assert ended == waiting - in_the_queue, "what was ACTIVE does not go back into the queue"
    nodes = {row.node for row in SITUATIONS if row.queued == "ACTIVE" and row.recorded == "ACTIVE"}
    assert nodes == enum("Node") | {ABSENT}


def test_every_row_has_every_operation_and_stands_once():
    assert {field.name for field in fields(Situation)} == {"queued", "node", "recorded", *OPERATIONS}
    keys = [(row.queued, row.node, row.recorded) for row in SITUATIONS]
    assert len(set(keys)) == len(keys)
    assert set(EFFECTS) == {getattr(row, operation) for row, operation in CELLS}


def test_the_page_has_this_table():
    shown = PAGE.partition("<!-- generated: provider-states -->\n\n")[2].partition("\n<!-- end -->\n")[0]
    assert shown == table(), "run `make docs`"
