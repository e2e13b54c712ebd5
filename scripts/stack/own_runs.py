"""The last deployment or deletion of a stack in this folder: without a person, `up` continues no other. It also has the zones' answers."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from gemma_serving.cloud.kinds import INSTANCE, NODE, QUEUED, SERVICE
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.engine.atomic_file import write_private
from gemma_serving.engine.backend import chosen_url
from gemma_serving.engine.runner import project_folder
from gemma_serving.scripts.stack.costs import found_sentence

FOLDER: Final = Path(".work") / "up"
_SERVERS: Final = (QUEUED, INSTANCE, SERVICE, NODE)
_REFUSAL: Final = "No zone granted "
_ZONES: Final = ("  ", "Zones not tried")
"""Starts of the provider's error about capacity (`gcp_tpu_provider.capacity`), and of its lines about zones."""
RunState = Literal["begun", "done", "destroyed"]


def remember_run(stack: str, state: RunState, errors: Sequence[str] = ()) -> None:
    """Record how far a deployment of this folder is, or that it destroyed the stack, with the backend of the state.

    Of its errors, the one about capacity is kept: the provider deletes requests that no zone granted, so Google has no answer left.
    """
    refused = [f"{start}{rest}" for _, start, rest in (error.partition(_REFUSAL) for error in errors) if start]
    record = {"backend": chosen_url(project_folder()), "state": state, "refusal": "".join(refused[-1:])}
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


def servers_in(found: Sequence[FoundResource]) -> Sequence[FoundResource]:
    """Return the machines and services among what Google has of a stack."""
    return [item for kind in _SERVERS for item in found if item.kind == kind]


def without_state(stack: str, found: Sequence[FoundResource]) -> str:
    """Return what Google has of a stack of which this backend has no state, and who may have it, in sentences."""
    servers, before, url = servers_in(found), backend_of_run(stack), chosen_url(project_folder())
    runs = f"Google has resources of stack {stack}"
    if servers:
        since = f" since {servers[0].created[:16].replace('T', ' ')} UTC" if servers[0].created else ""
        runs = f"Stack {stack} runs in {servers[0].location}{since}"
    where = f" This folder deployed it with `pulumi login {before}`." if before not in {"", url} else ""
    return f"{runs}: {found_sentence(found)} The backend {url.partition('?')[0]} has no state of it.{where}"


def is_interrupted(stack: str) -> bool:
    """Return whether the last deployment of this folder did not end, or failed."""
    return _last_run(stack).get("state") == "begun"


def is_own(stack: str, *, has_server: bool) -> bool:
    """Return whether this folder made, with the backend that is chosen now, what exists of a stack.

    After a destroy, a server is another folder's; a bucket that was kept is this one's.
    """
    last = _last_run(stack)
    is_same = last.get("backend") == chosen_url(project_folder())
    return is_same and not (has_server and last.get("state") == "destroyed")


def _last_run(stack: str) -> Mapping[str, object]:
    try:
        return as_mapping(json.loads(_path(stack).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _path(stack: str) -> Path:
    return FOLDER / f"{stack}.json"
