"""Pending creations of a state, stored with the receipts until a teardown leaves no resource.

The engine drops pending operations when a state is imported. This file keeps them for a teardown that is interrupted after the import.
"""

import json
from dataclasses import replace
from pathlib import Path

from contracts.fields import as_mapping, as_sequence
from engine.atomic_file import write_private
from engine.state import StackState
from scripts.teardown.receipt import FOLDER

_KEYS = ("type", "urn", "inputs")


def remember(state: StackState) -> None:
    """Store the pending creations of the state in a file only its owner can read. Secrets in it are ciphertext."""
    if not state.pending:
        return
    path = _path(state.stack)
    path.parent.mkdir(parents=True, exist_ok=True)
    pending = [{key: item[key] for key in _KEYS if key in item} for item in state.pending]
    write_private(path, json.dumps({"written": state.written, "projects": list(state.projects), "pending": pending}))


def remembered(state: StackState) -> StackState:
    """Return the state with the pending creations that an interrupted teardown stored."""
    try:
        noted = as_mapping(json.loads(_path(state.stack).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return state
    earlier = [as_mapping(item) for item in as_sequence(noted.get("pending"))]
    known = {item.get("urn") for item in state.pending}
    projects = [str(project) for project in as_sequence(noted.get("projects"))]
    return replace(
        state,
        pending=(*state.pending, *(item for item in earlier if item.get("urn") not in known)),
        written=state.written or str(noted.get("written") or ""),
        projects=tuple(dict.fromkeys([*state.projects, *projects])),
    )


def forget(state: StackState) -> None:
    """Delete the stored pending creations of a stack."""
    _path(state.stack).unlink(missing_ok=True)


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}-begun.json"
