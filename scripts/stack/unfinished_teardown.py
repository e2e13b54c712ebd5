"""Teardowns to come: one that began and did not end, and one that Google delays."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.installation import own_project
from gemma_serving.engine.atomic_file import write_private
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.limit_record import limit_file, limited_plans

FOLDER: Final = Path(".work") / "teardown"
_SUFFIX: Final = "-begun.json"
_STORED_KEYS: Final = ("type", "urn", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNetwork:
    """The network of a deleted stack that Google held at the end of its last teardown in this folder."""

    names: frozenset[str] = frozenset()
    """Full names of the network and its subnetworks."""
    until: datetime

    @property
    def sentence(self) -> str:
        """The rest of the stack and its end in local time, as a sentence."""
        return f"Deleted. Google holds its network until about {self.until.astimezone():%H:%M}, $0."


def remember(state: StackState) -> None:
    """Record that the deletions of a stack begin, with its projects and pending creations: an import drops these."""
    pending = [{key: item[key] for key in _STORED_KEYS if key in item} for item in state.pending]
    _write(state.stack, {"written": state.written, "projects": list(state.projects), "pending": pending})


def remember_held(stack: str, names: Sequence[str], until: datetime) -> None:
    """Record that a stack is deleted except a network that Google holds: its full names, and until when at most."""
    projects = dict.fromkeys(name.split("/")[1] for name in names)
    _write(stack, {"projects": list(projects), "held": list(names), "until": until.isoformat()})


def held_networks(stack: str | None = None) -> Mapping[str, HeldNetwork]:
    """Return what Google held of the stacks that were torn down in this folder: of one, or of all."""
    records = {path.name.removesuffix(_SUFFIX): path for path in sorted(FOLDER.glob(f"*{_SUFFIX}"))}
    noted = {name: _noted(name) for name in records if stack in {None, name}}
    return {
        name: HeldNetwork(
            names=frozenset(map(str, as_sequence(one["held"]))), until=datetime.fromisoformat(str(one["until"]))
        )
        for name, one in noted.items()
        if "held" in one
    }


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


def forget(stack: str, *, plan: str | None = None) -> None:
    """Record that no teardown of a stack is unfinished, and that no assistant's limit applies: the stack is gone, or a user deployed it.

    `plan`: the plan that was deployed. The limit of one that an assistant deploys stays.
    """
    _path(stack).unlink(missing_ok=True)
    if own_project() is not None and not (plan and plan in limited_plans(stack)):
        limit_file(stack).unlink(missing_ok=True)


def _noted(stack: str) -> Mapping[str, object]:
    try:
        return as_mapping(json.loads(_path(stack).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _write(stack: str, record: Mapping[str, object]) -> None:
    path = _path(stack)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, json.dumps(record))


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}{_SUFFIX}"
