"""Read the deployed server from Google Cloud: a queued resource with its node and guest attributes, or a Cloud Run service."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from gemma_serving.cloud.caller import USER, GoogleCaller
from gemma_serving.cloud.capacity import (
    NO_SUCH_PLACE,
    ListedInstance,
    ListedNode,
    ListedQueuedResource,
    capacity_kind,
    capacity_names,
)
from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.google_api import GoogleApi, GoogleListError, lookup_resource
from gemma_serving.cloud.kinds import ACCOUNT, BY_TYPE, INSTANCE, NODE, QUEUED, SERVICE, by_name
from gemma_serving.cloud.search import resource_of
from gemma_serving.cloud.service_traffic import known_shares
from gemma_serving.cloud.shortage import read_instance_shortage, read_shortage
from gemma_serving.cloud.spending import account_of, spending
from gemma_serving.cloud.tpu_machine import TpuMachine, phase_of, reported
from gemma_serving.contracts.capacity_states import ACTIVE, DEAD, LOST_NODES
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.guest_attributes import (
    CONTAINER_KEY,
    DETAIL_KEY,
    DOCUMENT_HASH_KEY,
    FORMER_HASH_KEY,
    SERVING_HASH_KEY,
)
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.contracts.naming import Names, NamingError
from gemma_serving.contracts.resource_types import (
    CAPACITY_COMPONENT,
    CAPACITY_TYPE,
    SERVICE_COMPONENT,
    SERVICE_TYPE,
)
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.contracts.serving_document import DOCUMENT_METADATA_KEY, document_hash
from gemma_serving.contracts.stack_facts import MISSING, CloudFacts, FoundPart, StatedResource
from gemma_serving.contracts.three_answers import Absent, Present, Unknown
from gemma_serving.engine.state import Item, StackState
from gemma_serving.scripts.stack.costs import form_in_use, rounded
from gemma_serving.scripts.stack.settings import NO_PROJECT, stack_settings

_SERVER_COMPONENTS: Final = frozenset({CAPACITY_COMPONENT, SERVICE_COMPONENT})
CAPACITY: Final = (QUEUED, INSTANCE)
"""Kinds that our provider creates."""
_SERVICE_STATES: Final = {"CONDITION_SUCCEEDED": "READY", "CONDITION_FAILED": "FAILED"}


def serving(state: StackState) -> StatedResource | None:
    """Return the server of a stack, even if its creation is pending; None if the state has none."""
    found = next((item for item in state.servers if not item.get("delete")), None)
    return None if found is None else replace(server_of(found), is_recorded=found not in state.pending)


def has_server_component(state: StackState) -> bool:
    """Return whether the state has the component of a server: from the moment at which `up` begins with it."""
    return any(item.get("type") in _SERVER_COMPONENTS for item in state.resources)


def unrecorded_names(state: StackState) -> Sequence[str]:
    """Return the full names that a server has if it exists and the state lacks it, by the stack's settings; none if these cannot be read."""
    if serving(state) is not None or not has_server_component(state):
        return ()
    try:
        return named_server(state).names
    except (CommandRefusedError, NamingError):
        return ()


def stated_parts(state: StackState) -> Sequence[FoundPart]:
    """Return kind and name of each resource in a state that Google has under a name of its own."""
    kinds = [(BY_TYPE.get(str(item.get("type"))), item) for item in state.resources]
    return [(kind.kind, str(item.get("id")).rpartition("/")[2]) for kind, item in kinds if kind is not None]


def server_of(item: Item) -> StatedResource:
    """Return the server that an entry of a state declares."""
    inputs, outputs = as_mapping(item.get("inputs")), as_mapping(item.get("outputs"))
    project = str(inputs.get("project") or "")
    if item.get("type") == CAPACITY_TYPE:
        kind, names = capacity_kind(inputs), _capacity_names(inputs, outputs)
    else:
        kind, names = SERVICE, [f"projects/{project}/locations/{inputs.get('location')}/services/{inputs.get('name')}"]
    failed = bool(item.get("initErrors"))
    return StatedResource(kind=kind, names=names, project=project, inputs=inputs, outputs=outputs, has_failed=failed)


def named_server(state: StackState) -> StatedResource:
    """Return the server that a stack's settings name. Raises CommandRefusedError if they cannot be read, and NamingError."""
    project = next(iter(state.projects), NO_PROJECT)
    name = Names(project=project, stack=state.former_name or state.stack).base
    settings = stack_settings(state.stack, project=project)
    if settings.cloud_run is not None:
        inputs = {"project": project, "location": settings.cloud_run.region, "name": name}
        return replace(server_of({"type": SERVICE_TYPE, "inputs": inputs}), is_recorded=False)
    tpu = settings.tpu
    assert tpu is not None  # noqa: S101 - settings have one of the two blocks
    inputs = {"project": project, "queuedResourceId": name, "zones": list(tpu.zones), "api": tpu.api}
    return replace(server_of({"type": CAPACITY_TYPE, "inputs": inputs}), is_recorded=False)


def secret_versions(state: StackState) -> Mapping[str, str]:
    """Return the current version of each secret of the stack, by the name of its component, such as `api-key`."""
    outputs = [(urn.rpartition("::")[2], as_mapping(item.get("outputs"))) for urn, item in state.by_urn.items()]
    return {name: str(found["versionName"]) for name, found in outputs if found.get("versionName")}


def _capacity_names(inputs: Item, outputs: Item) -> Sequence[str]:
    tried, listed = as_sequence(outputs.get("triedZones")), as_sequence(inputs.get("zones"))
    zones = [outputs.get("zone"), *tried, inputs.get("zone"), *listed]
    known = [str(zone) for zone in dict.fromkeys(zones) if zone]
    named = [str(outputs["name"])] if outputs.get("name") else []
    return list(dict.fromkeys([*named, *capacity_names(inputs, known)]))


_Facts = tuple[CloudFacts, Sequence[FoundResource]]
"""Facts about a server, and its resources in Google Cloud."""


def cloud_facts(api: GoogleApi, found: StatedResource, *, stack: str, costs: bool = True) -> CloudFacts:
    """Return the facts from Google Cloud, with `costs` also age and cost. Raises ScriptError with Google's error message."""
    try:
        reader = {QUEUED: _queued, INSTANCE: _instance}.get(found.kind, _service)
        facts, owned = reader(api, found, stack)
        facts = replace(facts, form=form_in_use(found.inputs, found.outputs) or None)
        return _with_cost(api, _with_shortage(api, facts, found, owned), owned) if owned and costs else facts
    except GoogleListError as error:
        raise ScriptError(f"Google returned an error: {error}") from None


def _read(api: GoogleApi, kind: str, names: Sequence[str], is_ours: Callable[[Item], bool] = bool) -> Item | None:
    """Return the first resource that exists and is the stack's; None if none is. Raises ScriptError if that is unknown.

    Google returns 403 for a zone that does not exist. The first name is the recorded one.
    """
    of_kind, denied = by_name(kind), ""
    for name in names:
        match lookup_resource(api, of_kind, name):
            case Present(value=document) if is_ours(document):
                return document
            case Present() | Absent():
                continue
            case Unknown(cause="denied", why=why):
                is_other_place = NO_SUCH_PLACE in why and name != names[0]
                denied = denied if is_other_place else why
            case Unknown(cause="no connection" | "no login", why=why):
                raise ScriptError(why)
            case Unknown(why=why):
                raise ScriptError(f"Google returned an error: {why}")
    if denied:
        raise ScriptError(f"Google returned an error: {denied}")
    return None


def _document(api: GoogleApi, found: StatedResource, stack: str) -> Item | None:
    """Return the document of a server; None without one. A server of another owner may have one of its names. Raises ScriptError."""
    kind = by_name(found.kind)

    def is_ours(document: Item) -> bool:
        if found.is_recorded and kind.name(document) == found.names[0]:
            return True
        return kind.owner(document) == Ownership(project=PRODUCT, stack=stack)

    return _read(api, found.kind, found.names, is_ours)


def _instance(api: GoogleApi, found: StatedResource, stack: str) -> _Facts:
    document = _document(api, found, stack)
    declared = _declared(found)
    if document is None:
        return _after_run(CloudFacts(state=MISSING, has_ended=True, declared=declared), found), ()
    instance = ListedInstance(document)
    stored = instance.serving_document
    facts = CloudFacts(
        machine=instance.name,
        state=instance.state,
        has_ended=instance.state in DEAD,
        state_since=instance.started or instance.created or None,
        place=instance.name.split("/")[3],
        declared=declared,
        deadline=instance.ends,
        stored=document_hash(stored) if stored else None,
    )
    if instance.status == "RUNNING":
        facts = _with_phase(api, facts, instance.name)
    return _after_run(facts, found), [_owned(INSTANCE, document, found.project, stack)]


def _declared(found: StatedResource) -> str | None:
    """Return the hash of the document that the program declares."""
    document = found.metadata(DOCUMENT_METADATA_KEY)
    return None if document is None else document_hash(document)


def _queued(api: GoogleApi, found: StatedResource, stack: str) -> _Facts:
    document = _document(api, found, stack)
    declared = _declared(found)
    if document is None:
        return CloudFacts(state=MISSING, has_ended=True, declared=declared), ()
    queued = ListedQueuedResource(document)
    facts = CloudFacts(
        state=queued.state,
        has_ended=queued.state in DEAD,
        state_since=str(document.get("createTime") or "") or None,
        place=queued.zone,
        declared=declared,
    )
    owned = [_owned(QUEUED, document, found.project, stack)]
    node_name = queued.node_name or str(found.outputs.get("nodeName") or "")
    node = _read(api, NODE, [node_name]) if node_name else None
    if node is not None:
        owned.append(_owned(NODE, node, found.project, stack))
        facts = _with_node(api, facts, ListedNode(node), node_name)
    elif queued.state == ACTIVE:
        facts = replace(facts, has_ended=True, phase=Present(f"node {MISSING}"))
    facts = _after_run(facts, found)
    stopped = queued.is_stopped_by_google and queued.state in {"SUSPENDING", "SUSPENDED"}
    preempted = stopped or (node is not None and ListedNode(node).state == "PREEMPTED")
    if facts.has_ended and facts.run_end is None and preempted and queued.provisioning == "spot":
        facts = replace(facts, run_end="preempted")
    return facts, owned


def _after_run(facts: CloudFacts, found: StatedResource) -> CloudFacts:
    """Return the facts with the reason for the end of the run. Google deletes a machine in the same way at its end and in a preemption."""
    planned = facts.deadline or str(found.outputs.get("deadline") or "")
    if not facts.has_ended or not planned:
        return facts
    is_over = datetime.fromisoformat(planned) <= GOOGLE_CLOCK.now()
    return replace(facts, run_end="planned" if is_over else "early", planned_end=planned, deadline=None)


def _with_node(api: GoogleApi, facts: CloudFacts, node: ListedNode, name: str) -> CloudFacts:
    stored = node.serving_document
    facts = replace(facts, machine=name, deadline=node.ends, stored=document_hash(stored) if stored else None)
    if node.state != "READY":
        is_lost = node.state in LOST_NODES
        phase = Present(f"node {node.state or 'UNKNOWN'}")
        return replace(facts, phase=phase, has_ended=facts.has_ended or is_lost)
    return _with_phase(api, facts, name)


def _with_phase(api: GoogleApi, facts: CloudFacts, name: str) -> CloudFacts:
    """Return the facts with the TPU VM's guest attributes. A machine without any is booting. An old report only says how old it is."""
    try:
        published = TpuMachine(api=api, name=name).published()
    except ScriptError as error:
        return replace(facts, unknown=(str(error),))
    now = GOOGLE_CLOCK.now()
    facts = replace(facts, idle=reported(published, now))
    phase = phase_of(published, now)
    if isinstance(phase, Unknown):
        old = f"The agent on TPU VM {name.rpartition('/')[2]} {phase.why}, so whether it serves is unknown."
        return replace(facts, phase=replace(phase, why=old))
    return replace(
        facts,
        phase=phase if isinstance(phase, Present) else Present("booting"),
        phase_detail=published.get(DETAIL_KEY) or None,
        reported=published.get(DOCUMENT_HASH_KEY) or None,
        running=published.get(SERVING_HASH_KEY) or None,
        former=published.get(FORMER_HASH_KEY) or None,
        container=published.get(CONTAINER_KEY) or None,
    )


def _service(api: GoogleApi, found: StatedResource, stack: str) -> _Facts:
    document = _document(api, found, stack)
    declared = _short(found.outputs.get("latestCreatedRevision"))
    if document is None:
        return CloudFacts(state=MISSING, has_ended=True, declared=declared), ()
    condition = as_mapping(document.get("terminalCondition"))
    state = _SERVICE_STATES.get(str(condition.get("state")), "DEPLOYING")
    shares, ready = known_shares(document), _short(document.get("latestReadyRevision"))
    stored = _short(document.get("latestCreatedRevision"))
    reason = condition.get("revisionReason") or condition.get("executionReason") or condition.get("reason")
    message = str(condition.get("message") or "").partition("\n\n")[0]  # links follow
    facts = CloudFacts(
        state="DEPLOYING" if document.get("reconciling") else state,
        state_since=str(condition.get("lastTransitionTime") or "") or None,
        place=str(document.get("name")).split("/")[3],
        phase=Present(str(reason)) if reason and state != "READY" else Absent(),
        phase_detail=message or None,
        declared=declared,
        stored=stored,
        ready=ready,
        running=None if shares is None else next(iter(shares), ready),
        traffic=shares,
        scaling={
            key: value for key, value in as_mapping(document.get("scaling")).items() if value not in {0, "AUTOMATIC"}
        },
        unknown=() if shares is not None else ("Google did not return the traffic split of the service.",),
    )
    return facts, [_owned(SERVICE, document, found.project, stack)]


def _short(name: object) -> str | None:
    return str(name).rpartition("/")[2] if name else None


def _owned(kind: str, document: Item, project: str, stack: str) -> FoundResource:
    owner = Ownership(project=PRODUCT, stack=stack)
    return resource_of(by_name(kind), document, project=project, owner=owner)


def _account(api: GoogleApi, owned: FoundResource) -> Sequence[FoundResource]:
    """Return the account with the record of past TPU VMs. If unreadable, `spending` reports it."""
    try:
        document = api.get("iam", f"v1/{account_of(owned.project, owned.owner.stack)}")
    except GoogleListError:
        return ()
    is_own = by_name(ACCOUNT).owner(document) == owned.owner
    return [_owned(ACCOUNT, document, owned.project, owned.owner.stack)] if is_own else ()


def _with_shortage(
    api: GoogleApi, facts: CloudFacts, found: StatedResource, owned: Sequence[FoundResource]
) -> CloudFacts:
    """Return the facts with the cause of a request that waits or failed."""
    caller = GoogleCaller(project=found.project, google=api, member=USER)
    if found.kind == QUEUED:
        request = ListedQueuedResource(owned[0].document)
        zones = [str(zone) for zone in as_sequence(found.inputs.get("zones"))]
        return replace(facts, shortage=read_shortage(caller, request, zones))
    if found.kind != INSTANCE or not facts.place:
        return facts
    accelerator = str(found.inputs.get("acceleratorType"))
    shortage = read_instance_shortage(caller, facts.state, accelerator, facts.form or "", facts.place)
    return replace(facts, shortage=shortage)


def _with_cost(api: GoogleApi, facts: CloudFacts, owned: Sequence[FoundResource]) -> CloudFacts:
    spent = spending(api, [*owned, *_account(api, owned[0])], GOOGLE_CLOCK.now())[0]
    return replace(
        facts,
        since=spent.since,
        age_s=spent.age_s,
        usd=round(spent.usd, 4),
        usd_last_day=rounded(spent.usd_last_day),
        usd_is_least=spent.is_least,
        usd_per_hour=rounded(spent.usd_per_hour),
        running_usd_per_hour=rounded(spent.running_usd_per_hour),
        limits=spent.limits_text,
        exceeded=spent.exceeded,
        idle_after_s=spent.limits.idle_after_s,
        unknown=(*facts.unknown, *spent.unknown),
    )
