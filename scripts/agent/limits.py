"""Records of the limits in hours that a server enforces, and the proof that a stack may be deleted at one."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence, to_json
from gemma_serving.contracts.processes import seconds_of
from gemma_serving.contracts.proof import Asker, Proof
from gemma_serving.engine import runner
from gemma_serving.engine.backend import memory
from gemma_serving.engine.locks import stack_locks
from gemma_serving.engine.state import StackState, read
from gemma_serving.scripts.stack.limit_record import LimitRecord, limit_name, limit_record

_MOST_ENTRIES: Final = "100"
"""Entries of a stack's history that are read, newest first."""


def new_record(stack: str, *, plan_id: str, project: str) -> LimitRecord:
    """Return the record of a stack before its first approved deployment. Raises ScriptError if its history is unknown."""
    try:
        entries = _history(stack)
    except CommandRefusedError:  # the stack does not exist yet
        entries = ()
    before = _name(entries[0]) if entries else ""
    return LimitRecord(project=project, plans=(plan_id,), since=datetime.now(UTC).isoformat(), before=before)


def write_record(lock: int, record: LimitRecord) -> None:
    """Replace the content of a record, whose open file is its lock. Raises OSError."""
    text = json.dumps(to_json(record)).encode()
    os.pwrite(lock, text, 0)
    os.ftruncate(lock, len(text))
    os.fsync(lock)


def add_plan(stack: str, plan_id: str) -> None:
    """Add an approved plan to the record of a stack. Raises CommandRefusedError without a record of this user."""
    record = read_record(stack)
    lock = os.open(memory().path(limit_name(stack)), os.O_RDWR)
    try:
        write_record(lock, replace(record, plans=(*record.plans, plan_id)))
    finally:
        os.close(lock)


def prove(stack: str) -> Proof | None:
    """Return the proof that the last change of a stack is a deployment that this user approved, or one of these that runs or was killed.

    None if another change came since, or if nothing is deployed. Raises CommandRefusedError if the record or the state proves nothing, and
    ScriptError if the backend does not answer.
    """
    record = read_record(stack)
    try:
        entries = _history(stack)
    except CommandRefusedError as error:
        raise _unproven(stack, str(error).rstrip(".")) from None
    names = [_name(entry) for entry in entries]
    if record.before and record.before not in names:
        raise _unproven(stack, f"the history of the stack lacks the entry of {record.before}, so it is another stack")
    newer = entries[: names.index(record.before)] if record.before else entries
    updates = [entry.get("message") for entry in newer if entry.get("kind") == "update"]
    is_approved = bool(updates) and {*updates} <= {*record.plans}
    # A destroy that failed, such as the last attempt of this process, keeps nothing.
    if not is_approved and any(entry.get("kind") != "destroy" for entry in newer):
        return None
    state = read(stack)
    if state.status != "read":
        raise ScriptError(state.detail)
    if not state.resources and not state.pending:
        return None
    if record.project not in state.projects:
        raise _unproven(stack, f"the stack is deployed in {', '.join(state.projects)}, not in {record.project}")
    if not is_approved and not _is_interrupted(state, record):
        raise _unproven(stack, "no approved plan is the last update of the stack, and none was interrupted")
    made = f"is the approved {updates[0]}" if is_approved else "is an approved plan that was interrupted"
    claim = f"the last update of stack {stack} {made}"
    proof = Proof(claim=claim, source="the stack's history and state", owners={stack: state.owner})
    proof.require(Asker(stack=stack))
    return proof


def _is_interrupted(state: StackState, record: LimitRecord) -> bool:
    """Return whether an update that began after the approval runs or was killed: its lock or its pending operations are left."""
    since_s = seconds_of(record.since)
    locks = [lock for lock in stack_locks(state.stack) if lock.host == socket.gethostname()]
    has_lock = any(seconds_of(lock.since) >= since_s for lock in locks)
    return has_lock or (bool(state.pending) and seconds_of(state.written) >= since_s)


def read_record(stack: str) -> LimitRecord:
    """Return the record of a stack. Raises CommandRefusedError without one that only this user can have written."""
    record = limit_record(stack)
    if record is None:
        raise _unproven(stack, "it is not a record that only this user can have written")
    return record


def _unproven(stack: str, why: str) -> CommandRefusedError:
    return CommandRefusedError(
        f"{memory().path(limit_name(stack))} does not prove that an assistant deployed stack {stack}: {why}. To delete the stack, run "
        f"`gemma teardown {stack} --keep-bucket`; to end its limit, delete this file."
    )


def _history(stack: str) -> Sequence[Mapping[str, object]]:
    """Return the entries of a stack's history of every kind, newest first. Raises ScriptError, and CommandRefusedError without the stack."""
    page = ["--page-size", _MOST_ENTRIES, "--page", "1"]
    listed = runner.query(["stack", "history", "--json", *page, "--stack", stack])
    return [as_mapping(row) for row in as_sequence(json.loads(listed))]


def _name(entry: Mapping[str, object]) -> str:
    return f"{entry.get('startTime') or ''} {entry.get('kind') or ''} {entry.get('message') or ''}".strip()
