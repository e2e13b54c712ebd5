"""The proof of a limit in hours: drawn histories, states and locks against the rule, without an engine or a process."""

import socket
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.agent import limits
from gemma_serving.scripts.agent.keeper import Keepers
from gemma_serving.scripts.agent.limits import new_record, prove
from gemma_serving.scripts.stack.limit_record import LimitRecord
from tests.laws import examples

STACK, PROJECT = "l4-qat", "my-project"
APPROVED = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLANS = ("plan-1", "plan-2")
ENTRY = st.tuples(st.sampled_from(["update", "update", "destroy", "refresh"]), st.sampled_from([*PLANS, "by hand"]))
HISTORY = st.lists(ENTRY, max_size=4) | st.sampled_from([[], [("destroy", "by hand")]])
AGE_S = st.sampled_from([-1, 0, 1])
"""Seconds after the approval."""
UNKNOWN = StackState(stack=STACK, status="unreadable", detail="No answer.")


def at(seconds):
    return (APPROVED + timedelta(seconds=seconds)).isoformat()


@contextmanager
def backend(entries, state=UNKNOWN, locks=()):
    """A backend with this history, the newest entry first; None: it has no such stack."""

    def history(_stack):
        if entries is None:
            raise CommandRefusedError("No stack.")
        return [
            {"kind": kind, "message": text, "startTime": f"{number}"} for number, (kind, text) in enumerate(entries)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "_history", history)
        patch.setattr(limits, "read", lambda _stack: state)
        patch.setattr(limits, "stack_locks", lambda _stack: locks)
        yield patch


@effort(max_examples=examples(test=250, part=500, night=3000))
@given(
    HISTORY,
    st.none() | st.integers(0, 4),
    st.sampled_from(["resources", "resources", "pending", "pending", "nothing", "another project", "unknown"]),
    AGE_S,
    st.lists(st.tuples(AGE_S, st.booleans()), max_size=2),
)
def test_only_an_approved_or_an_interrupted_deployment_is_proved_and_a_users_change_ends_the_limit(
    entries, before, kind, written_s, held
):
    item = {"urn": f"urn:pulumi:{STACK}::gemma-serving::t::server"}
    has = {"pending": [item]} if kind == "pending" else {"resources": [] if kind == "nothing" else [item]}
    projects = ("another-project",) if kind == "another project" else (PROJECT,)
    state = StackState(stack=STACK, status="read", written=at(written_s), projects=projects, **has)
    locks = [
        StackLock(place="", user="me", host=socket.gethostname() if is_here else "another", pid=1, since=at(age_s))
        for age_s, is_here in held
    ]
    is_there = before is None or before < len(entries)
    name = "" if before is None else f"{before} {' '.join(entries[before])}" if is_there else "9 update lost"
    record = LimitRecord(project=PROJECT, plans=PLANS, since=at(0), before=name)
    newer = entries[:before]
    updates = [text for entry, text in newer if entry == "update"]
    approved = bool(updates) and "by hand" not in updates
    interrupted = any(age_s >= 0 and is_here for age_s, is_here in held) or (kind == "pending" and written_s >= 0)
    with backend(entries, UNKNOWN if kind == "unknown" else state, locks) as patch:
        patch.setattr(limits, "read_record", lambda _stack: record)
        if not is_there:
            with pytest.raises(CommandRefusedError, match="it is another stack"):
                prove(STACK)
        elif not approved and any(entry != "destroy" for entry, _ in newer):
            assert prove(STACK) is None
        elif kind == "unknown":
            with pytest.raises(ScriptError, match="No answer"):
                prove(STACK)
        elif kind == "nothing":
            assert prove(STACK) is None
        elif kind == "another project" or not (approved or interrupted):
            why = "is deployed in another-project, not in" if kind == "another project" else "none was interrupted"
            with pytest.raises(CommandRefusedError, match=why):
                prove(STACK)
        else:
            made = f"is the approved {updates[0]}" if approved else "is an approved plan that was interrupted"
            assert prove(STACK).claim == f"the last update of stack {STACK} {made}"


@pytest.mark.parametrize(
    ("entries", "before"), [(None, ""), ([], ""), ([("update", "a"), ("update", "b")], "0 update a")]
)
def test_a_record_names_the_newest_entry_before_the_approval(entries, before):
    with backend(entries):
        record = new_record(STACK, plan_id="plan-1", project=PROJECT)
    assert (record.before, record.plans, record.project) == (before, ("plan-1",), PROJECT)


@given(st.integers(1, 96).map(lambda quarters: quarters / 4))
def test_the_process_gets_the_moment_after_as_many_hours_as_the_user_allowed(hours):
    given_s, began_s = [], time.time()
    with backend(None) as patch:
        patch.setattr(Keepers, "_start", lambda _self, _stack, until_s, _lock: given_s.append(until_s) or True)
        Keepers().keep(STACK, hours, plan_id="plan-1", project=PROJECT)
    assert began_s <= given_s[0] - hours * 60 * 60 <= time.time()
