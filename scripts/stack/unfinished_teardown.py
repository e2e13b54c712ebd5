"""A teardown that began and did not end."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence, json_object
from gemma_serving.engine.backend import memory
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.old_limits import forget_limit

_STORED_KEYS: Final = ("type", "urn", "inputs")


def remember(state: StackState) -> None:
    """Record that the deletions of a stack begin, with its projects and pending creations: an import drops these. Raises OSError."""
    pending = [{key: item[key] for key in _STORED_KEYS if key in item} for item in state.pending]
    record = {"written": state.written, "projects": list(state.projects), "pending": pending}
    memory().write(_name(state.stack), json.dumps(record))


def remembered(state: StackState) -> StackState:
    """Return the state with the projects and pending creations that an unfinished teardown recorded."""
    noted = _noted(state.stack)
    earlier = [as_mapping(item) for item in as_sequence(noted.get("pending"))]
    known = {item.get("urn") for item in state.pending}
    projects = [str(project) for project in as_sequence(noted.get("projects"))]
    return replace(
        state,
        pending=(*state.pending, *(item for item in earlier if item.get("urn") not in known)),
        written=state.written or str(noted.get("written") or ""),
        projects=tuple(dict.fromkeys([*state.projects, *projects])),
    )


def is_unfinished(stack: str) -> bool:
    """Return whether a teardown of a stack, started in this folder, has begun and not ended. `gemma up` ends it too."""
    return bool(_noted(stack))


def forget(stack: str) -> None:
    """Record that no teardown of a stack is unfinished: the stack is gone, or a user deployed it."""
    memory().remove(_name(stack))
    forget_limit(stack)


def _noted(stack: str) -> Mapping[str, object]:
    return json_object(memory().read(_name(stack)) or "")


def _name(stack: str) -> str:
    return f"teardown-{stack}.json"
