"""Teardowns to come: one that began and whose last search has not proved that no resource is left, and one at the limit of an assistant."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.installation import own_project
from gemma_serving.engine.atomic_file import write_private
from gemma_serving.engine.runner import project_folder
from gemma_serving.engine.state import StackState

FOLDER: Final = Path(".work") / "teardown"
LIMITS: Final = Path(".work") / "agent-limits"
_STORED_KEYS: Final = ("type", "urn", "inputs")


def remember(state: StackState) -> None:
    """Record that the deletions of a stack begin, with its projects and pending creations: an import drops these."""
    path = _path(state.stack)
    path.parent.mkdir(parents=True, exist_ok=True)
    pending = [{key: item[key] for key in _STORED_KEYS if key in item} for item in state.pending]
    write_private(path, json.dumps({"written": state.written, "projects": list(state.projects), "pending": pending}))


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
    """Record that no teardown of a stack is unfinished, and that no assistant's limit applies: the stack is gone, or a user deployed it."""
    _path(stack).unlink(missing_ok=True)
    if own_project() is not None:
        limit_file(stack).unlink(missing_ok=True)


def limit_file(stack: str) -> Path:
    """Return the file of a stack whose service an assistant deployed for some hours. A process that will delete the stack has its lock."""
    return project_folder() / LIMITS / stack


def _noted(stack: str) -> Mapping[str, object]:
    try:
        return as_mapping(json.loads(_path(stack).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}-begun.json"
