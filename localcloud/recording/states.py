"""The state that an answer shows: of an operation, a queued resource, a service, or that the resource is missing."""

import re
from typing import Final

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.recording.recordings import RecordedExchange

RUNNING: Final = "running"
DONE: Final = "done"
_READING: Final = re.compile(r":(?:get|list|test|fetch|search|query)[A-Z]\w*$|/wait$|:wait$|:access$")
"""Custom methods that change nothing, such as `:getGuestAttributes`."""
STATE_FIELDS: Final = frozenset(
    {"done", "status", "state", "reconciling", "terminalCondition", "conditions", "response", "error"}
)
"""Fields of an operation or resource that follow its state."""


def state_of(status: int, answer: object) -> str:
    """Return the state in an answer, such as `ACTIVE`, `done` or `404`; empty if it shows none."""
    if status >= 400 or status == 0:  # noqa: PLR2004 - HTTP
        return str(status)
    document = as_object(answer)
    if is_operation(document):
        return _of_operation(document)
    state: object = document.get("state")
    inner = as_object(state)
    if inner:
        return str(inner.get("state", ""))
    if document.get("reconciling") is True:
        return "reconciling"
    condition = as_object(document.get("terminalCondition"))
    if condition:
        return str(condition.get("state", ""))
    shown = state if state is not None else document.get("status")
    return shown if isinstance(shown, str) else ""


def is_operation(document: JsonObject) -> bool:
    """Tell if an answer is a long-running operation."""
    if str(document.get("kind", "")) == "compute#operation":
        return True
    name = document.get("name")
    return isinstance(name, str) and ("/operations/" in name or name.startswith("operations/"))


def _of_operation(document: JsonObject) -> str:
    error = as_object(document.get("error"))
    if error:
        listed = as_list(error.get("errors"))
        return f"failed: {as_object(listed[0]).get('code') if listed else error.get('code')}"
    finished = document.get("done") is True or document.get("status") == "DONE"
    return DONE if finished else RUNNING


def order_of(states: list[str]) -> list[str]:
    """Return the states without repetitions of the one before, and without the running of an operation, which may be short."""
    found: list[str] = []
    for state in states:
        if state != RUNNING and (not found or found[-1] != state):
            found.append(state)
    return found


def is_order_within(recorded: list[str], here: list[str]) -> bool:
    """Tell if the recorded states come in the same order here. States between two polls may be missing in the recording."""
    rest = iter(here)
    return all(any(state == other for other in rest) for state in recorded)


def polls(exchanges: tuple[RecordedExchange, ...]) -> dict[int, int]:
    """Return, for each read, the number of the first read of its group: reads of one thing without a change of it between them."""
    first: dict[int, int] = {}
    running: dict[str, int] = {}
    for number, exchange in enumerate(exchanges):
        key = f"{exchange.path}?{sorted(exchange.query.items())!r} {exchange.request!r}"
        if is_read(exchange):
            first[number] = running.setdefault(key, number)
            continue
        changed = exchange.path.partition(":")[0]
        running = {known: at for known, at in running.items() if not _concerns(changed, exchanges[at].path)}
    return first


def is_read(exchange: RecordedExchange) -> bool:
    """Tell if a request changes nothing."""
    return exchange.method == "GET" or _READING.search(exchange.path) is not None


def _concerns(changed: str, path: str) -> bool:
    """Tell if a change of one path may change what another shows: one lies below the other, or both in the same collection."""
    return path.startswith(changed) or changed.startswith(path)
