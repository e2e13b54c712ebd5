"""Each cell of the table in dev/docs/provider-gcp-tpu-internals.md: with the cloud in the state, the operation does what the cell says."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from localcloud.rest.discovery import document_for

PAGE = (Path(__file__).parents[2] / "dev" / "docs" / "provider-gcp-tpu-internals.md").read_text()
HEAD = "| queued resource | node | last `up` | `up` | change in place | refresh | destroy |\n"
ABSENT = "absent"
EFFECTS: Mapping[str, str] = {
    "nothing": "no change",
    "changes the node in place": "in place",
    "fails without a change; the error names `pulumi up --refresh`": "fails",
    "continues waiting": "continues",
    "continues waiting, then changes the node": "continues and changes",
    "deletes it, then requests capacity in the next zone": "next zone",
    "requests it again": "requests again",
    "reads it; the next `up` changes nothing": "read",
    "reads it; the next `up` continues waiting": "read, continues",
    "reads it; the next `up` replaces it": "read, replaces",
    "removes it from the state; the next `up` creates it": "removed",
    "deletes it without force": "deleted",
    "deletes it without force, then with force if Google rejects that": "tried",
    "deletes it with force, which deletes its nodes": "forced",
    "waits until it is gone": "awaited",
    "treats it as deleted": "nothing",
}
"""Sentence of a cell: what can be seen."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A queued resource, its node ("" if it does not matter) and the state of the last `up`, with the effect of each operation."""

    queued: str
    node: str
    recorded: str
    up: str
    change: str
    refresh: str
    destroy: str


def situations() -> Iterator[Situation]:
    """Yield the rows of the page's table, one for each state that it names."""
    for line in PAGE.partition(HEAD)[2].partition("\n\n")[0].splitlines()[1:]:
        queued, nodes, last_up, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        recorded = {"interrupted": "waiting"}.get(last_up, last_up)
        for state, node in product(queued.split(", "), nodes.split(", ")):
            yield Situation(state, node, recorded, *(EFFECTS[cell] for cell in cells))


SITUATIONS = tuple(situations())
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


def test_every_row_stands_once_and_every_effect_happens():
    keys = [(row.queued, row.node, row.recorded) for row in SITUATIONS]
    assert len(set(keys)) == len(keys)
    assert set(EFFECTS.values()) == {getattr(row, operation) for row, operation in CELLS}
