"""Locks of a stack: holders, detection of stale locks, and removal.

The engine's file backends write one file per lock, with process, user, host and time, and list them in the error of a
blocked command (pulumi/pulumi, pkg/backend/diy/lock.go: lockContent and lockError).
"""

import json
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT
from gemma_serving.contracts.stack_lock import FILE, StackLock
from gemma_serving.engine import runner
from gemma_serving.engine.backend import state_folder

_LOCKED: Final = re.compile(r"currently locked by \d+ lock|Another update is currently in progress", re.IGNORECASE)
_LINE: Final = re.compile(r"(\S+): created by ([^@\s]+)@(\S+) \(pid (\d+)\) at (\S+)")


def is_lock_error(text: str) -> bool:
    """Return whether an engine's output reports that the stack is locked."""
    return _LOCKED.search(text) is not None


def parse_locks(text: str) -> tuple[StackLock, ...]:
    """Return the locks listed in an engine's error. Pulumi Cloud lists none."""
    return tuple(
        StackLock(place=place.partition("?")[0], user=user, host=host, pid=int(pid), since=since)
        for place, user, host, pid, since in _LINE.findall(text)
    )


def read_locks(folder: Path) -> tuple[StackLock, ...]:
    """Return the locks in a folder. The writer of an incomplete file never got the lock, or is alive."""
    found: list[StackLock] = []
    for path in sorted(folder.glob("*.json")):
        try:
            raw = as_mapping(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
        if raw:
            user = str(raw.get("username") or "")
            host = str(raw.get("hostname") or "")
            since = str(raw.get("timestamp") or "")
            found.append(
                StackLock(place=f"{FILE}{path}", user=user, host=host, pid=int(str(raw.get("pid") or 0)), since=since)
            )
    return tuple(found)


def past_dead_locks(stack: str, work: Callable[[], object], *, report: Callable[[str], None]) -> None:
    """Run `work` of the engine. If the stack is locked and every holder is gone, remove the locks and run it again.

    `report` gets a line about the removed locks. Raises CommandRefusedError if a holder may be alive, and the errors of `work`.
    """
    past_locks(work, lambda found: end_dead_locks(stack, found, report=report))


def past_locks(work: Callable[[], object], end: Callable[[Sequence[StackLock]], None]) -> None:
    """Run `work`, again if a lock blocked it and `end` removed the lock."""
    try:
        work()
    except runner.PulumiFailedError as error:
        if not is_lock_error(error.output):
            raise
        end(parse_locks(error.output))
        work()


def end_dead_locks(stack: str, locks: Sequence[StackLock], *, report: Callable[[str], None]) -> None:
    """Remove a stack's locks. Raises CommandRefusedError, and removes none, if a holder may be alive.

    `pulumi cancel` also removes newer locks, and fails if the state is unreadable.
    """
    require_dead(stack, locks)
    files = [Path(lock.place.removeprefix(FILE)) for lock in locks if lock.place.startswith(FILE)]
    for path in files:
        path.with_name(f"{path.name}.attrs").unlink(missing_ok=True)
    if len(files) < len(locks) or not all(path.is_file() for path in files):
        runner.query(["cancel", "--yes", "--stack", stack])
    for path in files:
        path.unlink(missing_ok=True)
    report(f"removed the stale lock of {' and '.join(lock.holder for lock in locks)}, which is no longer running")


def stack_locks(stack: str) -> tuple[StackLock, ...]:
    """Return the locks of a stack in a file backend. Other backends return none: their locks only show when a command is blocked."""
    folder = _folder(stack)
    return read_locks(folder) if folder else ()


def remove_lock_files(stack: str) -> None:
    """Remove a stack's lock files from a file backend, like `pulumi cancel` without an engine."""
    folder = _folder(stack)
    for path in folder.glob("*.json") if folder else ():
        path.unlink(missing_ok=True)


def _folder(stack: str) -> Path | None:
    backend = state_folder()
    return backend / "locks" / "organization" / PRODUCT / stack if backend else None


def locked(locks: Sequence[StackLock]) -> str:
    """Return how long and by whom a stack is locked, as the end of a sentence."""
    named = " and ".join(lock.held() for lock in locks if lock.pid)
    return named or "locked by an update that the backend does not name"


def require_dead(stack: str, locks: Sequence[StackLock]) -> None:
    """Raise CommandRefusedError unless the process of every lock is known to be gone."""
    alive = [lock for lock in locks if not lock.is_dead]
    if locks and not alive:
        return
    here = alive and all(lock.host == socket.gethostname() for lock in alive)
    advice = (
        "Wait for it to finish" if here else f"If it is no longer running, run `pulumi cancel --yes --stack {stack}`"
    )
    raise CommandRefusedError(f"Stack {stack} is {locked(alive)}. {advice}, then retry.")
