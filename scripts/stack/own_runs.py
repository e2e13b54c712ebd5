"""The last deployment or deletion of a stack in this folder, and its backend: without a person, `up` continues no other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from gemma_serving.cloud.kinds import INSTANCE, NODE, QUEUED, SERVICE
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.engine.atomic_file import write_private
from gemma_serving.engine.backend import chosen_url
from gemma_serving.engine.runner import project_folder
from gemma_serving.scripts.stack.costs import found_sentence

FOLDER: Final = Path(".work") / "up"
_SERVERS: Final = (QUEUED, INSTANCE, SERVICE, NODE)
RunState = Literal["begun", "done", "destroyed"]


def remember_run(stack: str, state: RunState) -> None:
    """Record how far a deployment of this folder is, or that it destroyed the stack, with the backend of the state."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    write_private(_path(stack), f"{chosen_url(project_folder())}\n{state}")


def backend_of_run(stack: str) -> str:
    """Return the URL of the backend of the last run of this folder; empty if it had none."""
    return _last_run(stack)[0]


def servers_in(found: Sequence[FoundResource]) -> Sequence[FoundResource]:
    """Return the machines and services among what Google has of a stack."""
    return [item for kind in _SERVERS for item in found if item.kind == kind]


def without_state(stack: str, found: Sequence[FoundResource]) -> str:
    """Return what Google has of a stack of which this backend has no state, and who may have it, in sentences."""
    servers, before, url = servers_in(found), backend_of_run(stack), chosen_url(project_folder()).partition("?")[0]
    runs = f"Google has resources of stack {stack}"
    if servers:
        since = f" since {servers[0].created[:16].replace('T', ' ')} UTC" if servers[0].created else ""
        runs = f"Stack {stack} runs in {servers[0].location}{since}"
    is_here = before == chosen_url(project_folder())
    where = f" This folder deployed it with `pulumi login {before}`." if before and not is_here else ""
    return f"{runs}: {found_sentence(found)} The backend {url} has no state of it.{where}"


def is_interrupted(stack: str) -> bool:
    """Return whether the last deployment of this folder did not end, or failed."""
    return _last_run(stack)[1] == "begun"


def is_own(stack: str, *, has_server: bool) -> bool:
    """Return whether this folder made, with the backend that is chosen now, what exists of a stack.

    After a destroy, a server is another folder's; a bucket that was kept is this one's.
    """
    url, state = _last_run(stack)
    return bool(state) and url == chosen_url(project_folder()) and not (has_server and state == "destroyed")


def _last_run(stack: str) -> tuple[str, str]:
    try:
        url, state = _path(stack).read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return "", ""
    return url, state


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}.txt"
