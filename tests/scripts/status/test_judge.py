"""What the facts of a stack mean."""

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gemma_serving.engine.locks import StackLock
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.unfinished_teardown import forget, remember
from gemma_serving.scripts.status.judge import drift_of, next_command, waits_of
from gemma_serving.scripts.status.report import CloudFacts, ServesNow, StackStatus
from tests.scripts.status.planted import queued, state

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOST = socket.gethostname()
ALIVE = StackLock(place="", user="me", host=HOST, pid=os.getpid(), since="2100-01-01T00:00:00+00:00")
"""Taken after this process started, as each lock of a living process was."""
DEAD = replace(ALIVE, pid=2**22 + 7)
READY = CloudFacts(state="ACTIVE", phase="ready", declared="a", stored="a", running="a")
DEPLOYED = StackStatus(stack="x", deployed=True, serves=ServesNow(word="deployed"), target="tpu", cloud=READY)
NOTHING = StackStatus(stack="x", deployed=False, serves=ServesNow(word="not deployed"))
EMPTY = StackState(stack="x", status="read")


def service(google, phase=None):
    return replace(DEPLOYED, target="cloud-run", cloud=CloudFacts(state=google, phase=phase))


@pytest.mark.parametrize(
    ("status", "kept", "command"),
    [
        (NOTHING, EMPTY, "gemma teardown x"),
        (NOTHING, replace(EMPTY, status="missing"), "gemma teardown x"),
        (replace(DEPLOYED, deployed=False), EMPTY, "gemma teardown x"),
        (DEPLOYED, EMPTY, "gemma connect x"),
    ],
)
def test_an_unfinished_teardown_is_continued_unless_the_stack_is_deployed_again(
    monkeypatch, tmp_path, status, kept, command
):
    monkeypatch.chdir(tmp_path)
    remember(EMPTY)
    assert next_command(status, kept, ()) == command
    forget("x")
    assert next_command(NOTHING, EMPTY, ()) == "gemma up x"


@pytest.mark.parametrize(
    ("status", "kept", "locks", "command"),
    [
        (DEPLOYED, EMPTY, (), "gemma connect x"),
        (service("READY"), EMPTY, (), "gemma connect x"),
        (DEPLOYED, EMPTY, (ALIVE,), "gemma status x --watch"),
        (DEPLOYED, EMPTY, (DEAD,), "gemma recover x"),
        (DEPLOYED, replace(EMPTY, status="unreadable"), (), "gemma recover x"),
        (
            NOTHING,
            replace(EMPTY, status="missing"),
            (),
            "gemma up x",
        ),
        (NOTHING, EMPTY, (), "gemma up x"),
        (
            replace(DEPLOYED, cloud=replace(READY, state="SUSPENDED", has_ended=True)),
            EMPTY,
            (),
            "gemma up x",
        ),
        (service("FAILED", "HEALTH_CHECK_CONTAINER_ERROR"), EMPTY, (), "gemma logs x"),
        (replace(DEPLOYED, cloud=replace(READY, phase="failed")), EMPTY, (), "gemma logs x"),
        (
            replace(DEPLOYED, cloud=replace(READY, phase="waiting for the hub")),
            EMPTY,
            (),
            "gemma logs x",
        ),
        (replace(DEPLOYED, deployed=False), state(pending=[queued()]), (), "gemma recover x"),
        (
            replace(DEPLOYED, deployed=False, cloud=replace(READY, state="WAITING_FOR_RESOURCES")),
            EMPTY,
            (),
            "gemma up x",
        ),
        (replace(DEPLOYED, drift=("It differs.",)), EMPTY, (), "gemma preview x"),
        (replace(DEPLOYED, cloud=None), EMPTY, (), "gemma doctor x"),
        (
            replace(DEPLOYED, cloud=replace(READY, phase="compiling")),
            EMPTY,
            (),
            "gemma logs x --follow",
        ),
    ],
)
def test_each_situation_names_the_next_command(status, kept, locks, command):
    assert next_command(status, kept, locks) == command
    if command.startswith("gemma connect"):
        assert next_command(status, kept, locks, lost_bucket=True) == "gemma up x --refresh"


@pytest.mark.parametrize(
    ("cloud", "words"),
    [
        (READY, ()),
        (None, ()),
        (replace(READY, stored="b", running="b"), ("changed outside Pulumi: b instead of a",)),
        (replace(READY, running="b"), ("Document b is serving instead of a",)),
        (
            replace(READY, phase="failed", declared="b", stored="b"),
            ("Document b failed. The TPU VM rolled back to the last known good document, a.",),
        ),
        (replace(READY, stored="b" * 64), ("changed outside Pulumi: bbbbbbbbbbbb instead of a",)),
        (replace(READY, state="MISSING", has_ended=True), ()),
    ],
)
def test_what_runs_is_compared_with_what_was_declared(cloud, words):
    found = drift_of(cloud, "tpu")
    assert len(found) == len(words)
    assert all(part in sentence for part, sentence in zip(words, found, strict=True))


def test_a_wait_says_where_for_what_and_since_when():
    cloud = CloudFacts(state="WAITING_FOR_RESOURCES", place="us-east5-a", state_since="2026-11-01T11:45:00Z")
    assert waits_of(EMPTY, (), cloud, NOW) == ["us-east5-a: WAITING_FOR_RESOURCES since 11:45 UTC (15 min)."]


def test_capacity_that_came_since_the_last_up_is_for_the_next_one():
    kept = state(queued(state="ACCEPTED"))
    assert waits_of(kept, (), READY, NOW) == [
        "The capacity became active after the last `gemma up`. The next one continues with it."
    ]
    assert next_command(DEPLOYED, kept, ()) == "gemma up x"
    taken = state(queued(state="ACTIVE"))
    assert waits_of(taken, (), READY, NOW) == []
    assert next_command(DEPLOYED, taken, ()) == "gemma connect x"


def test_a_renewal_that_is_not_finished_is_for_the_next_up():
    name = "projects/p/locations/us-east5-a/queuedResources/gemma-x-b"
    kept = state(queued(state="ACTIVE", renewalName=name, renewalState="WAITING_FOR_RESOURCES"))
    assert waits_of(kept, (), READY, NOW) == [
        "A renewal is not finished: gemma-x-b in us-east5-a was WAITING_FOR_RESOURCES. The next `gemma up` continues it."
    ]
    assert next_command(DEPLOYED, kept, ()) == "gemma up x"


def test_locks_and_creations_that_never_ended_are_waits():
    (held,) = waits_of(EMPTY, (ALIVE,), None, NOW)
    (dead,) = waits_of(EMPTY, (DEAD,), None, NOW)
    assert "no longer running" not in held
    assert dead == f"A killed command left a lock: {DEAD.holder} is no longer running."
    (begun,) = waits_of(state(pending=[queued()]), (), None, NOW)
    assert begun == "An interrupted run may have created these resources: capacity."
