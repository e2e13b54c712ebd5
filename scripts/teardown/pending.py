"""Pending creations of a state: wait until they become visible, and find the grants among them.

After a crash, Google may still be creating a resource that no list shows yet. The wait stops when the resource appears, when its operation has
finished, or `APPEAR_S` after the state was written.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cloud.capacity import capacity_kind, capacity_names
from cloud.clock import WaitClock
from cloud.found import FoundResource
from cloud.google_api import GoogleApi, GoogleListError, answer_of, lookup
from cloud.grants import PolicyHolder, bindings_of, found_grant, members_of
from cloud.kinds import BY_TYPE, Item, by_name
from cloud.search import resource_of
from contracts.answers import Absent, Present, Unknown
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.labels import PRODUCT, Ownership
from contracts.resource_types import CAPACITY_TYPE
from engine.atomic_file import write_private
from engine.state import StackState
from scripts.teardown.receipt import FOLDER

APPEAR_S: Final = 120.0
"""Seconds after the last write of the state in which a resource may become visible. Assumed; the TPU provider allows 60 s."""
OPERATION_LIMIT_S: Final = 1800.0
"""Maximum wait for a running operation, in seconds."""
_PAUSE_S: Final = 2.0
_STORED_KEYS: Final = ("type", "urn", "inputs")
_PROJECT_GRANT: Final = "gcp:projects/iAMMember:IAMMember"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A resource whose creation was started."""

    kind: str
    names: Sequence[str]
    """Possible full names. A queued resource can be in any of its zones."""
    project: str = ""
    """Its project, if the inputs name one."""


def expected(state: StackState) -> Sequence[Expected]:
    """Return the pending creations of the state."""
    return tuple(found for item in state.pending for found in _expected(item))


def started(api: GoogleApi, state: StackState) -> Iterator[FoundResource]:
    """Yield the pending creations that exist, because a list may show them later than a GET, and the grants of the state.

    A grant without a name of the stack is identified only by the state. Raises ScriptError.
    """
    for item in expected(state):
        kind = by_name(item.kind)
        for name in item.names:
            match lookup(api, kind.api, kind.address(name)):
                case Present(value=document):
                    owner = kind.owner(document)
                    if owner is not None and owner.stack == state.stack:
                        project = str(item.project or next(iter(state.projects), ""))
                        yield resource_of(kind, document, project=project, owner=owner)
                case Absent():
                    continue
                case Unknown(cause="denied"):
                    continue  # Google returns 403 for a location or an account that does not exist; the list is the proof
                case Unknown(why=why):
                    raise ScriptError(why)
    yield from _stated_grants(api, state)


def _stated_grants(api: GoogleApi, state: StackState) -> Iterator[FoundResource]:
    """Yield the existing grants on a project that the state contains, created or pending. Raises ScriptError."""
    policies: dict[str, Item] = {}
    for item in (*state.pending, *state.resources):
        if item.get("type") != _PROJECT_GRANT:
            continue
        inputs = as_mapping(item.get("inputs"))
        project = str(inputs.get("project"))
        holder = PolicyHolder(kind="project", project=project, name=f"projects/{project}")
        role, member = str(inputs.get("role")), str(inputs.get("member"))
        given = as_mapping(inputs.get("condition"))
        condition = {key: value for key, value in given.items() if key in {"title", "description", "expression"}}
        if project not in policies:
            policies[project] = _policy(api, holder)
        for binding in bindings_of(policies[project]):
            same = binding.get("role") == role and as_mapping(binding.get("condition")) == condition
            if same and member in members_of(binding):
                found = found_grant(holder, role, member, condition, Ownership(project=PRODUCT, stack=state.stack))
                yield replace(found, labels={}, document={**found.document, "stated": True})


def _policy(api: GoogleApi, holder: PolicyHolder) -> Item:
    """Return a policy, which is empty if its project does not exist. Raises ScriptError."""
    match answer_of(holder.api, lambda: holder.read(api)):
        case Present(value=policy):
            return policy
        case Absent():
            return {}
        case Unknown(why=why):
            raise ScriptError(why)


def wait(
    api: GoogleApi,
    states: Sequence[StackState],
    *,
    clock: WaitClock,
    now: Callable[[], datetime],
    report: Callable[[str], None],
) -> None:
    """Wait until each pending creation of the states is visible or can no longer appear."""
    missing = [(state, item) for state in states for item in expected(state)]
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


def _expected(item: Item) -> Iterator[Expected]:
    inputs = as_mapping(item.get("inputs"))
    kind, project = str(item.get("type")), str(inputs.get("project") or "")
    if kind == CAPACITY_TYPE:
        zones = [*as_sequence(inputs.get("zones")), *([inputs["zone"]] if inputs.get("zone") else [])]
        if zones and inputs.get("queuedResourceId"):
            yield Expected(kind=capacity_kind(inputs), names=capacity_names(inputs, zones), project=project)
    elif kind in BY_TYPE:
        # Types that are not in the table have no name of their own, or labels that every search finds.
        with suppress(KeyError):
            yield Expected(kind=BY_TYPE[kind].kind, names=[BY_TYPE[kind].named(inputs)], project=project)


def _visible(api: GoogleApi, item: Expected) -> bool:
    kind = by_name(item.kind)
    for name in item.names:
        match lookup(api, kind.api, kind.address(name)):
            case Present():
                return True
            case Absent() | Unknown():
                continue
    return False


def _may_come(api: GoogleApi, state: StackState, item: Expected, now: datetime) -> bool:
    """Return whether a resource can still appear: `APPEAR_S` has not passed or an operation on it is running."""
    written = datetime.fromisoformat(state.written).astimezone(UTC) if state.written else None
    if written is not None and (now - written).total_seconds() < APPEAR_S:
        return True
    return any(_runs(api, item.kind, name) for name in item.names)


def _runs(api: GoogleApi, kind_name: str, name: str) -> bool:
    """Return whether an operation on a resource is running. Artifact Registry and APIs without operations list none."""
    kind = by_name(kind_name)
    parent = name.rpartition("/")[0].rpartition("/")[0]
    if kind.api not in {"compute", "tpu", "run"}:
        return False
    try:
        for page in api.pages(kind.api, f"{kind.prefix}{parent}/operations"):
            operations = list(map(as_mapping, as_sequence(page.get("items") or page.get("operations"))))
            if any(_is_running(operation) and _target(operation).endswith(name) for operation in operations):
                return True
    except (GoogleListError, ScriptError):
        return False
    return False


def _is_running(operation: Item) -> bool:
    return operation.get("status") not in {None, "DONE"} or ("status" not in operation and not operation.get("done"))


def _target(operation: Item) -> str:
    metadata = as_mapping(operation.get("metadata"))
    return str(operation.get("targetLink") or metadata.get("target") or metadata.get("name") or "")


def remember(state: StackState) -> None:
    """Store the pending creations of the state until a teardown leaves no resource, because the engine drops them when a state is imported.

    Only the owner can read the file, and secrets in it are ciphertext.
    """
    if not state.pending:
        return
    path = _path(state.stack)
    path.parent.mkdir(parents=True, exist_ok=True)
    pending = [{key: item[key] for key in _STORED_KEYS if key in item} for item in state.pending]
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
