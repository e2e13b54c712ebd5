"""What a state names in Google Cloud: its resources, its grants, and its pending creations, which may appear late.

After a crash, one may appear late. The wait is over when it appears, its operation has finished, or `APPEAR_S` after the state was written.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from gemma_serving.cloud.capacity import capacity_kind, capacity_names
from gemma_serving.cloud.clock import WaitClock
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, answer_of, lookup
from gemma_serving.cloud.grants import PolicyHolder, bindings_of, found_grant, members_of
from gemma_serving.cloud.kinds import BY_TYPE, Item, ResourceKind, by_name
from gemma_serving.cloud.search import resource_of
from gemma_serving.cloud.search_results import FoundResource
from gemma_serving.contracts.answers import Absent, Present, Unknown
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.contracts.resource_types import CAPACITY_TYPE
from gemma_serving.engine.state import StackState

APPEAR_S: Final = 120.0
"""Seconds after the last write in which a resource may appear. Assumed; the TPU provider allows 60 s."""
OPERATION_LIMIT_S: Final = 1800.0
_PAUSE_S: Final = 2.0
_CAPACITY_OUTPUTS: Final = ("name", "nodeName", "renewalName")
_PROJECT_GRANT: Final = "gcp:projects/iAMMember:IAMMember"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A resource whose creation was started."""

    kind: ResourceKind
    names: Sequence[str]
    """Possible full names. A queued resource can be in any of its zones."""
    project: str = ""


def pending_creations(state: StackState) -> Iterator[Expected]:
    """Yield the pending creations of the state."""
    for item in state.pending:
        inputs = as_mapping(item.get("inputs"))
        type_ = str(item.get("type"))
        project = str(inputs.get("project") or "")
        if type_ == CAPACITY_TYPE:
            zones = [*as_sequence(inputs.get("zones")), *filter(None, [inputs.get("zone")])]
            if zones and inputs.get("queuedResourceId"):
                names = capacity_names(inputs, zones)
                yield Expected(kind=by_name(capacity_kind(inputs)), names=names, project=project)
        elif type_ in BY_TYPE:
            # Types that are not in the table have no separate name, or labels that every search finds.
            with suppress(KeyError):
                yield Expected(kind=BY_TYPE[type_], names=[BY_TYPE[type_].named(inputs)], project=project)


def stated_names(state: StackState) -> Iterator[str]:
    """Yield the full names in Google Cloud of the resources in a state, and of the node of a queued resource."""
    for item in state.resources:
        inputs, outputs = as_mapping(item.get("inputs")), as_mapping(item.get("outputs"))
        type_ = str(item.get("type"))
        if type_ == CAPACITY_TYPE:
            yield from (str(outputs[key]) for key in _CAPACITY_OUTPUTS if outputs.get(key))
        elif type_ in BY_TYPE:
            yield str(item.get("id"))
            with suppress(KeyError):
                yield BY_TYPE[type_].named(inputs)


def existing_creations(api: GoogleApi, state: StackState) -> Iterator[FoundResource]:
    """Yield the pending creations that exist, because a list may show them later than a GET, and the grants of the state.

    Raises ScriptError if Google does not tell whether one exists.
    """
    for item in pending_creations(state):
        kind = item.kind
        for name in item.names:
            match lookup(api, kind.api, kind.address(name)):
                case Present(value=document):
                    owner = kind.owner(document)
                    if owner is not None and owner.stack in {state.stack, state.former_name}:
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
    """Yield the grants on a project that the state has and that exist. Raises ScriptError."""
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
    answer = answer_of(holder.api, lambda: holder.read(api))
    if isinstance(answer, Unknown):
        raise ScriptError(answer.why)
    return answer.value if isinstance(answer, Present) else {}


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


def _visible(api: GoogleApi, item: Expected) -> bool:
    found = (lookup(api, item.kind.api, item.kind.address(name)) for name in item.names)
    return any(isinstance(answer, Present) for answer in found)


def _may_come(api: GoogleApi, state: StackState, item: Expected, now: datetime) -> bool:
    """Return whether a resource can still appear: before `APPEAR_S`, or while it is created."""
    written = datetime.fromisoformat(state.written).astimezone(UTC) if state.written else None
    if written is not None and (now - written).total_seconds() < APPEAR_S:
        return True
    return any(_runs(api, item.kind, name) for name in item.names)


def _runs(api: GoogleApi, kind: ResourceKind, name: str) -> bool:
    """Return whether an operation on a resource is running, if the API lists operations."""
    parent = name.rpartition("/")[0].rpartition("/")[0]
    if kind.api not in {"compute", "tpu", "run"}:
        return False
    try:
        for page in api.pages(kind.api, f"{kind.prefix}{parent}/operations"):
            for operation in map(as_mapping, as_sequence(page.get("items") or page.get("operations"))):
                metadata = as_mapping(operation.get("metadata"))
                target = str(operation.get("targetLink") or metadata.get("target") or metadata.get("name") or "")
                if target.endswith(name) and _is_running(operation):
                    return True
    except (GoogleListError, ScriptError):
        return False
    return False


def _is_running(operation: Item) -> bool:
    return operation.get("status") not in {None, "DONE"} or ("status" not in operation and not operation.get("done"))
