"""The last deployment or deletion of a stack in this folder: without a person, `up` continues no other. It also has the zones' answers."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.engine.atomic_file import write_private
from gemma_serving.engine.backend import shown_url

FOLDER: Final = Path(".work") / "up"
_REFUSAL: Final = "No zone granted "
_ZONES: Final = ("  ", "Zones not tried")
"""Starts of the provider's error about capacity (`gcp_tpu_provider.capacity`), and of its lines about zones."""
RunState = Literal["begun", "done", "destroyed"]


def remember_run(stack: str, state: RunState, errors: Sequence[str] = (), program: str = "") -> None:
    """Record how far a deployment of this folder is, or that it destroyed the stack, with the backend of the state.

    `program`: hash of what a complete `up` ran (`frozen.program_digest`).
    Of its errors, the one about capacity is kept: the provider deletes requests that no zone granted, so Google has no answer left.
    """
    refused = [f"{start}{rest}" for _, start, rest in (error.partition(_REFUSAL) for error in errors) if start]
    record = {"backend": shown_url(), "state": state, "refusal": "".join(refused[-1:]), "program": program}
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_private(_path(stack), json.dumps(record))


def backend_of_run(stack: str) -> str:
    """Return the URL of the backend of the last run of this folder; empty if it had none."""
    return str(_last_run(stack).get("backend") or "")


def remembered_refusal(stack: str) -> Sequence[str]:
    """Return when no zone granted capacity, then the answer of each, as sentences; empty if the last `up` of this folder has no such error."""
    text = str(_last_run(stack).get("refusal") or "")
    if not text:
        return ()
    headline, *lines = text.splitlines()
    at = datetime.fromtimestamp(_path(stack).stat().st_mtime, UTC)
    zones = [" ".join(line.split()) for line in lines if line.startswith(_ZONES)]
    return [f"`gemma up` of {at:%Y-%m-%d %H:%M} UTC: {headline}", *zones]


def is_interrupted(stack: str) -> bool:
    """Return whether the last deployment of this folder did not end, or failed."""
    return _last_run(stack).get("state") == "begun"


def is_last_run(stack: str, program: str, written: str) -> bool:
    """Return whether the last run of this folder was a complete `up` of this program, and no later run wrote the state.

    `written`: time at which the state was written (RFC 3339).
    """
    last = _last_run(stack)
    is_same = (last.get("state"), last.get("backend"), last.get("program")) == ("done", shown_url(), program)
    return is_same and bool(written) and datetime.fromisoformat(written).timestamp() <= _path(stack).stat().st_mtime


def is_own(stack: str, *, has_server: bool) -> bool:
    """Return whether this folder made, with the backend that is chosen now, what exists of a stack.

    After a destroy, a server is another folder's; a bucket that was kept is this one's.
    """
    last = _last_run(stack)
    is_same = last.get("backend") == shown_url()
    return is_same and not (has_server and last.get("state") == "destroyed")


def _last_run(stack: str) -> Mapping[str, object]:
    try:
        return as_mapping(json.loads(_path(stack).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}.json"
