"""Records of the limits in hours that a server enforces, and the proof that a stack may be deleted at one."""

import json
import os
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import ContractError, as_mapping, as_sequence, from_json, to_json
from gemma_serving.contracts.proof import Proof
from gemma_serving.engine import runner
from gemma_serving.engine.atomic_file import OWNER_ONLY, open_private
from gemma_serving.engine.children import ended
from gemma_serving.engine.state import read
from gemma_serving.scripts.stack.limit_record import LimitRecord, limit_file

_MOST_UPDATES: Final = "100"
"""Entries of a stack's history that are read, newest first."""


def new_record(stack: str, *, plan_id: str, project: str) -> LimitRecord:
    """Return the record of a stack before its first approved deployment. Raises ScriptError if its history is unknown."""
    try:
        updates = _updates(stack)
    except CommandRefusedError:  # the stack does not exist yet
        updates = ()
    before = _name(updates[0]) if updates else ""
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
    lock = open_private(limit_file(stack), os.O_RDWR)
    try:
        write_record(lock, replace(record, plans=(*record.plans, plan_id)))
    finally:
        os.close(lock)


def prove(stack: str) -> Proof | None:
    """Return the proof that this user's assistant made each update of a stack since its record.

    None if somebody else made one, or if nothing is deployed. Raises CommandRefusedError if the record or the state proves nothing, and
    ScriptError if the backend does not answer.
    """
    record = read_record(stack)
    try:
        updates = _updates(stack)
    except CommandRefusedError as error:
        raise _unproven(stack, str(error).rstrip(".")) from None
    names = [_name(update) for update in updates]
    if record.before and record.before not in names:
        raise _unproven(stack, f"the history of the stack lacks the update of {record.before}, so it is another stack")
    since = updates[: names.index(record.before)] if record.before else updates
    if any(update.get("message") not in record.plans for update in since):
        return None
    state = read(stack)
    if state.status != "read":
        raise ScriptError(state.detail)
    if not state.resources and not state.pending:
        return None
    if record.project not in state.projects:
        raise _unproven(stack, f"the stack is deployed in {', '.join(state.projects)}, not in {record.project}")
    if not since and datetime.fromisoformat(state.written) < datetime.fromisoformat(record.since):
        raise _unproven(stack, "none of the approved plans has changed the stack")
    made = f"is the approved {since[0].get('message')}" if since else "is an approved plan that was interrupted"
    return Proof(claim=f"the last update of stack {stack} {made}", source="the stack's history and state")


def read_record(stack: str) -> LimitRecord:
    """Return the record of a stack. Raises CommandRefusedError unless only this user can have written it."""
    path = limit_file(stack)
    try:
        _require_own_folder(stack, path.parent)
        with os.fdopen(open_private(path, os.O_RDONLY), encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) != OWNER_ONLY:
                raise _unproven(stack, "other users can read or write it")
            return from_json(LimitRecord, as_mapping(json.load(file)))
    except OSError as error:
        raise _unproven(stack, str(error.strerror)) from None
    except (ValueError, ContractError):
        raise _unproven(stack, "its content is not a record") from None


def _require_own_folder(stack: str, folder: Path) -> None:
    """Raise CommandRefusedError if another user or a commit can have written a folder. `.work` may be a link of a local cloud's copy."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise _unproven(stack, f"{folder} is not a folder that only this user can read and write")
    real = folder.resolve()
    if not any((place / ".git").exists() for place in real.parents):
        return
    words = ["git", "-C", str(real), "ls-files", "--", "."]
    try:
        listed = ended(words)
    except OSError:
        listed = None
    if listed is None or listed.returncode:
        raise _unproven(stack, f"`{shlex.join(words)}` failed, so a commit can have written it")
    if listed.stdout:
        raise _unproven(stack, "git tracks it, so a commit can have written it")


def _unproven(stack: str, why: str) -> CommandRefusedError:
    return CommandRefusedError(
        f"{limit_file(stack)} does not prove that an assistant deployed stack {stack}: {why}. To delete the stack, run "
        f"`gemma teardown {stack} --keep-bucket`; to end its limit, delete this file."
    )


def _updates(stack: str) -> Sequence[Mapping[str, object]]:
    """Return the stack's updates, newest first. Raises ScriptError, and CommandRefusedError without the stack."""
    page = ["--page-size", _MOST_UPDATES, "--page", "1"]
    listed = runner.query(["stack", "history", "--json", *page, "--stack", stack])
    rows = [as_mapping(row) for row in as_sequence(json.loads(listed))]
    return [row for row in rows if row.get("kind") == "update"]


def _name(update: Mapping[str, object]) -> str:
    return f"{update.get('startTime')} {update.get('message')}".strip()
