"""What the facts of a stack mean."""

import os
import socket
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations

import pytest

from gemma_serving.contracts.resource_types import CAPACITY_COMPONENT
from gemma_serving.contracts.stack_facts import CloudFacts, ServesNow
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.facts import facts_of
from gemma_serving.scripts.stack.serves import after_locks, lock_sentence, serves_now
from gemma_serving.scripts.stack.unfinished_teardown import forget, remember
from gemma_serving.scripts.status.judge import drift_of, next_command, waits_of
from gemma_serving.scripts.status.report import StackStatus
from tests.scripts.planted_states import queued, resource, stack_resource, state

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
HOST = socket.gethostname()
ALIVE = StackLock(place="", user="me", host=HOST, pid=os.getpid(), since="2100-01-01T00:00:00+00:00")
"""Taken after this process started, as each lock of a living process was."""
DEAD = replace(ALIVE, pid=2**22 + 7)
READY = CloudFacts(state="ACTIVE", phase=Present("ready"), declared="a", stored="a", running="a")
DEPLOYED = StackStatus(stack="x", deployed=True, serves=ServesNow(word="deployed"), target="tpu", cloud=READY)
NOTHING = StackStatus(stack="x", deployed=False, serves=ServesNow(word="not deployed"))
EMPTY = StackState(stack="x", status="read")


def reported(kept, cloud=READY):
    """The facts of a state with Google's report."""
    return replace(facts_of(kept), server=Present(cloud) if cloud else None)


def service(google, phase=None):
    return replace(DEPLOYED, target="cloud-run", cloud=CloudFacts(state=google, phase=phase))


@pytest.mark.parametrize(
    ("status", "kept", "command"),
    [
        (NOTHING, EMPTY, "gemma teardown x"),
        (NOTHING, replace(EMPTY, status="missing"), "gemma teardown x"),
        (replace(DEPLOYED, deployed=False), EMPTY, "gemma teardown x"),
        (DEPLOYED, state(stack_resource(target="tpu"), queued(state="ACTIVE")), "gemma connect x"),
    ],
)
def test_an_unfinished_teardown_is_continued_unless_the_stack_is_deployed_again(
    monkeypatch, tmp_path, status, kept, command
):
    monkeypatch.chdir(tmp_path)
    remember(EMPTY)
    assert next_command(status, facts_of(kept)) == command
    forget("x")
    assert next_command(NOTHING, facts_of(EMPTY)) == "gemma up x"


@pytest.mark.parametrize(
    ("status", "kept", "locks", "command"),
    [
        (DEPLOYED, EMPTY, (), "gemma connect x"),
        (service("READY"), EMPTY, (), "gemma connect x"),
        (DEPLOYED, EMPTY, (ALIVE,), "gemma status x --watch"),
        (DEPLOYED, EMPTY, (DEAD,), "gemma up x"),
        (DEPLOYED, replace(EMPTY, status="unreadable"), (), "gemma doctor x"),
        (DEPLOYED, replace(EMPTY, status="unreadable", is_cut_off=True), (), "gemma up x"),
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
        (replace(DEPLOYED, cloud=replace(READY, phase=Present("failed"))), EMPTY, (), "gemma logs x"),
        (
            replace(DEPLOYED, cloud=replace(READY, phase=Present("waiting for the hub"))),
            EMPTY,
            (),
            "gemma logs x",
        ),
        (replace(DEPLOYED, deployed=False), state(pending=[queued()]), (), "gemma up x"),
        (
            replace(DEPLOYED, deployed=False, cloud=replace(READY, state="WAITING_FOR_RESOURCES")),
            EMPTY,
            (),
            "gemma up x",
        ),
        (replace(DEPLOYED, drift=("It differs.",)), EMPTY, (), "gemma up x --refresh"),
        (replace(DEPLOYED, cloud=None), EMPTY, (), "gemma doctor x"),
        (
            replace(DEPLOYED, cloud=replace(READY, phase=Present("compiling"))),
            EMPTY,
            (),
            "gemma logs x --follow",
        ),
    ],
)
def test_each_situation_names_the_next_command(status, kept, locks, command):
    facts = facts_of(kept, locks=locks)
    assert next_command(status, facts) == command


@pytest.mark.parametrize(
    ("cloud", "command"),
    [
        (READY, "gemma connect x"),
        (replace(READY, phase=Present("failed")), "gemma logs x"),
        (replace(READY, phase=Present("failed"), stored="b", running="a"), "gemma up x"),
        (replace(READY, state="SUSPENDED", has_ended=True), "gemma up x"),
        (replace(READY, state="SUSPENDED", has_ended=True, exceeded=["maxAge 24 h (age 25 h)"]), "gemma teardown x"),
        (replace(READY, exceeded=["maxAge 24 h (age 25 h)"]), "gemma connect x"),
    ],
)
def test_the_next_command_can_work(cloud, command):
    """`up` undoes a document that was changed by hand, and refuses a stack whose run and limits are over."""
    kept = state(stack_resource(target="tpu"), queued(state="ACTIVE"))
    assert next_command(replace(DEPLOYED, cloud=cloud), reported(kept, cloud)) == command


@pytest.mark.parametrize(
    ("cloud", "words"),
    [
        (READY, ()),
        (None, ()),
        (replace(READY, stored="b", running="b"), ("changed outside Pulumi: b instead of a",)),
        (replace(READY, running="b"), ("Document b is serving instead of a",)),
        (
            replace(READY, phase=Present("failed"), declared="b", stored="b"),
            ("Document b failed. The TPU VM rolled back to the last known good document, a.",),
        ),
        (replace(READY, stored="b" * 64), ("changed outside Pulumi: bbbbbbbbbbbb instead of a",)),
        (replace(READY, state="MISSING", has_ended=True), ()),
    ],
)
def test_what_runs_is_compared_with_what_was_declared(cloud, words):
    found = drift_of(reported(state(queued()), cloud), "tpu")
    assert len(found) == len(words)
    assert all(part in sentence for part, sentence in zip(words, found, strict=True))


def test_a_wait_says_where_for_what_and_since_when():
    cloud = CloudFacts(state="WAITING_FOR_RESOURCES", place="us-east5-a", state_since="2026-11-01T11:45:00Z")
    assert waits_of(reported(EMPTY, cloud), NOW) == ["us-east5-a: WAITING_FOR_RESOURCES since 11:45 UTC (15 min)."]


def test_capacity_that_came_since_the_last_up_is_for_the_next_one():
    kept = state(queued(state="ACCEPTED"))
    assert waits_of(reported(kept), NOW) == [
        "The capacity became active after the last `gemma up`. The next one continues with it."
    ]
    assert next_command(DEPLOYED, reported(kept)) == "gemma up x"
    taken = state(queued(state="ACTIVE"))
    assert waits_of(reported(taken), NOW) == []
    assert next_command(DEPLOYED, reported(taken)) == "gemma connect x"


def test_a_teardown_that_never_reached_the_server_is_told_with_what_ends_it():
    deployed = facts_of(state(stack_resource(target="tpu"), queued(state="ACTIVE")))
    began = replace(deployed, teardown_began=True)
    (said,) = waits_of(began, NOW)
    assert "interrupted before it deleted the server" in said
    assert "`gemma teardown x`" in said
    assert "`gemma up x`" in said
    assert waits_of(deployed, NOW) == []
    assert waits_of(replace(facts_of(EMPTY), teardown_began=True), NOW) == []


def test_locks_and_creations_that_never_ended_are_waits():
    (held,) = waits_of(facts_of(EMPTY, locks=(ALIVE,)), NOW)
    (dead,) = waits_of(facts_of(EMPTY, locks=(DEAD,)), NOW)
    assert "no longer running" not in held
    assert dead == f"A killed command left a lock: {DEAD.holder} is no longer running."
    (begun,) = waits_of(facts_of(state(pending=[queued()])), NOW)
    assert begun == "An interrupted run may have created these resources: capacity."


def test_a_command_that_ends_while_its_lock_is_read_left_no_lock(tmp_path):
    """Planted: the lock was read, then its command ended. The lock of a killed one stays."""
    path = tmp_path / "lock.json"
    lock = replace(DEAD, place=f"file://{path}")
    assert "no longer running" not in lock_sentence(lock, NOW)
    assert after_locks(facts_of(EMPTY, locks=(lock,)), ServesNow(word="deployed")) == "gemma status x --watch"
    path.touch()
    assert "no longer running" in lock_sentence(lock, NOW)
    assert after_locks(facts_of(EMPTY, locks=(lock,)), ServesNow(word="deployed")) == "gemma up x"
    began = replace(facts_of(EMPTY, locks=(lock,)), teardown_began=True)
    assert after_locks(began, ServesNow(word="no server")) == "gemma teardown x"


def test_a_server_that_the_state_lacks_is_imported_before_anything_else():
    facts = reported(state(resource("gcp:compute/network:Network", "network")))
    assert drift_of(facts, "tpu") == ["Google has a server of this stack that the stack's state does not have."]
    assert next_command(replace(DEPLOYED, deployed=False), facts) == "gemma up x"


def test_a_teardown_that_did_not_finish_is_continued_by_teardown():
    facts = facts_of(state(stack_resource(), resource("gcp:compute/network:Network", "network")))
    assert next_command(NOTHING, facts) == "gemma teardown x"


REPORTS = (
    None,
    Absent(),
    Unknown("no answer"),
    *(Present(CloudFacts(state=name)) for name in ("ACTIVE", "READY", "DEPLOYING", "WAITING_FOR_RESOURCES")),
    *(Present(CloudFacts(state=name, has_ended=True)) for name in ("SUSPENDED", "MISSING")),
)
PARTS = (
    (stack_resource(target="tpu", auth="tunnel", state="ACTIVE"),),
    (resource(CAPACITY_COMPONENT, "capacity"),),
    (queued(state="ACTIVE"),),
    (resource("gcp:compute/network:Network", "network"),),
)


@pytest.mark.parametrize("report", REPORTS, ids=str)
@pytest.mark.parametrize("kept", [sum(parts, ()) for n in range(5) for parts in combinations(PARTS, n)], ids=len)
def test_whatever_the_state_has_no_answer_of_google_is_read_as_another(kept, report):
    """Every state of four parts, with each answer: what lives is never gone, what is unknown is neither, and no paid server gets `gemma up`."""
    facts = replace(facts_of(state(*kept)), server=report)
    found = serves_now(facts)
    if isinstance(report, Unknown):
        assert found.word == "unknown"
    elif isinstance(report, Present) and not report.value.has_ended:
        assert found.word in {"deployed", "waiting"}
    elif report is not None:
        assert found.word in {"ended", "no server", "not deployed"}
    status = replace(NOTHING, serves=found, cloud=facts.cloud)
    command = next_command(status, facts)
    if facts.is_unrecorded and not facts.teardown_began:
        assert command == "gemma up x"
    assert (command == "gemma teardown x") is facts.teardown_began
