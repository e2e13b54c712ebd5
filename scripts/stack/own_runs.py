"""The last deployment or deletion of a stack in this folder: without a person, `up` continues no other. It also has the zones' answers."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from gemma_serving.contracts.fields import json_object
from gemma_serving.contracts.installation import home_folder
from gemma_serving.contracts.memory import Memory, memory_of
from gemma_serving.engine.backend import memory, shown_url
from gemma_serving.scripts.cli.command import not_written, print_progress

_UP: Final = "up-"
"""Start of the names of these records."""
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
    try:
        memory().write(_name(stack), json.dumps(record))
    except OSError as error:
        if state == "begun" and not errors:
            lost = f"If this run is interrupted, `gemma up {stack}` asks in a terminal before it continues."
            print_progress("up", f"{not_written(error)} {lost}")


def backend_of_run(stack: str) -> str:
    """Return the URL of the backend of the last run of this folder; empty if it had none."""
    every = [one for one in memory_of(home_folder()).of_backends() if _last_run(stack, one)]
    newest = max(every, key=lambda one: one.written_s(_name(stack)), default=None)
    return "" if newest is None else str(_last_run(stack, newest).get("backend") or "")


def remembered_refusal(stack: str) -> Sequence[str]:
    """Return when no zone granted capacity, then the answer of each, as sentences; empty if the last `up` of this folder has no such error."""
    text = str(_last_run(stack).get("refusal") or "")
    if not text:
        return ()
    headline, *lines = text.splitlines()
    at = datetime.fromtimestamp(memory().written_s(_name(stack)), UTC)
    zones = [" ".join(line.split()) for line in lines if line.startswith(_ZONES)]
    return [f"`gemma up` of {at:%Y-%m-%d %H:%M} UTC: {headline}", *zones]


def without_file() -> Sequence[str]:
    """Return the stacks that this folder deployed with the chosen backend, and whose settings file is gone."""
    return [stack for stack in memory().stacks(_UP) if not (home_folder() / f"Pulumi.{stack}.yaml").is_file()]


def is_interrupted(stack: str) -> bool:
    """Return whether the last deployment of this folder did not end, or failed."""
    return _last_run(stack).get("state") == "begun"


def is_destroyed(stack: str) -> bool:
    """Return whether the last run of this folder deleted the stack."""
    return _last_run(stack).get("state") == "destroyed"


def was_kept(stack: str, created: str) -> bool:
    """Return whether the last run of this folder deleted the stack, and left a resource that was created before (RFC 3339)."""
    if not created or not is_destroyed(stack):
        return False
    return datetime.fromisoformat(created).timestamp() <= memory().written_s(_name(stack))


def is_last_run(stack: str, program: str, written: str) -> bool:
    """Return whether the last run of this folder was a complete `up` of this program, and no later run wrote the state.

    `written`: time at which the state was written (RFC 3339).
    """
    last = _last_run(stack)
    is_same = (last.get("state"), last.get("program")) == ("done", program)
    return is_same and bool(written) and datetime.fromisoformat(written).timestamp() <= memory().written_s(_name(stack))


def is_own(stack: str, *, has_server: bool) -> bool:
    """Return whether this folder made, with the backend that is chosen now, what exists of a stack.

    After a destroy, a server is another folder's; a bucket that was kept is this one's.
    """
    last = _last_run(stack)
    return bool(last) and not (has_server and last.get("state") == "destroyed")


def _last_run(stack: str, of: Memory | None = None) -> Mapping[str, object]:
    return json_object((of or memory()).read(_name(stack)) or "")


def _name(stack: str) -> str:
    return f"{_UP}{stack}.json"
