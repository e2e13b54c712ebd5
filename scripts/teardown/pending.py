"""Wait for the pending creations of a state, which may appear late.

The wait is over when it appears, its operation has finished, or `APPEAR_S` after the state was written.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, lookup_resource
from gemma_serving.cloud.kinds import Item, ResourceKind, by_name
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.stack_facts import StatedResource
from gemma_serving.contracts.three_answers import Present
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.labelled import pending_creations

APPEAR_S: Final = 120.0
"""Seconds after the last write in which a resource may appear. Assumed; the TPU provider allows 60 s."""
OPERATION_LIMIT_S: Final = 1800.0
_PAUSE_S: Final = 2.0


def wait(
    api: GoogleApi,
    states: Sequence[StackState],
    *,
    clock: WaitClock,
    now: Callable[[], datetime],
    report: Callable[[str], None],
) -> None:
    """Wait until each pending creation of the states is visible or can no longer appear."""
    missing = [(state, item) for state in states for item in pending_creations(state)]
    end_s = clock.now_s() + OPERATION_LIMIT_S
    announced = False
    while True:
        missing = [(state, item) for state, item in missing if not _visible(api, item)]
        coming = [item for state, item in missing if _may_come(api, state, item, now())]
        if not coming or clock.now_s() > end_s:
            return
        if not announced:
            names = ", ".join(item.names[0].rpartition("/")[2] for item in coming)
            report(f"waiting for pending operations to finish: {names}")
        announced = True
        clock.sleep(_PAUSE_S)


def _visible(api: GoogleApi, item: StatedResource) -> bool:
    kind = by_name(item.kind)
    found = (lookup_resource(api, kind, name) for name in item.names)
    return any(isinstance(answer, Present) for answer in found)


def _may_come(api: GoogleApi, state: StackState, item: StatedResource, now: datetime) -> bool:
    """Return whether a resource can still appear: before `APPEAR_S`, or while it is created."""
    written = datetime.fromisoformat(state.written).astimezone(UTC) if state.written else None
    if written is not None and (now - written).total_seconds() < APPEAR_S:
        return True
    return any(_runs(api, by_name(item.kind), name) for name in item.names)


def _runs(api: GoogleApi, kind: ResourceKind, name: str) -> bool:
    """Return whether an operation on a resource is running, if the API lists operations."""
    parent = name.rpartition("/")[0].rpartition("/")[0]
    if kind.api not in {"compute", "tpu", "run"}:
        return False
    try:
        pages = [*api.pages(kind.api, f"{kind.prefix}{parent}/operations")]
    except (GoogleListError, ScriptError):
        return False
    listed = [item for page in pages for key in ("items", "operations") for item in as_sequence(page.get(key))]
    return any(_is_running(operation, name) for operation in map(as_mapping, listed))


def _is_running(operation: Item, name: str) -> bool:
    """Return whether an operation on a resource has not ended. Compute Engine has a `status`, the other APIs have `done`."""
    if operation.get("done") or operation.get("status") == "DONE":
        return False
    metadata = as_mapping(operation.get("metadata"))
    targets = (operation.get("targetLink"), metadata.get("target"), metadata.get("name"))
    return any(str(target).endswith(name) for target in targets)
