"""Create, update, read and delete one queued resource."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from gcp_tpu_provider import capacity, serving, wire
from gcp_tpu_provider.capacity_api import capacity_api
from gcp_tpu_provider.compute_request import CLOUD_TPU, COMPUTE_ENGINE, is_instance
from gcp_tpu_provider.desired_state import DesiredState
from gcp_tpu_provider.errors import CannotWaitError, LostError, TpuProviderError
from gcp_tpu_provider.operation import ResourceOperation
from gcp_tpu_provider.properties import MIN_BOOT_DISK_GB
from gcp_tpu_provider.properties import inputs as known_inputs
from gcp_tpu_provider.resource_record import UNOBSERVED, ResourceRecord, owner_labels
from gcp_tpu_provider.serving import DeclaredKeys
from gcp_tpu_provider.tpu_api import ACTIVE, GONE, NodeInfo, QueuedResourceInfo, own_model
from gcp_tpu_provider.transport import TpuTransport

FULL_NAME = re.compile(r"projects/([^/]+)/(?:locations|zones)/([^/]+)/(?:queuedResources|instances)/([^/]+)")
_ID = re.compile(r"projects/([^/]+)/queuedResources/([^/]+)")
"""Pulumi's id, which a state shows (`DesiredState.resource_id`)."""
_IMPORT = (
    "Import it by its full name, projects/P/locations/ZONE/queuedResources/ID or projects/P/zones/ZONE/instances/ID."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """A resource as it was read: its id, and its inputs and outputs in the cloud."""

    resource_id: str
    inputs: wire.Properties
    outputs: wire.Properties


async def create(operation: ResourceOperation) -> None:
    """Request capacity and wait as `waitFor` requires. `operation.record` then holds the resource."""
    resource = await capacity.acquire(operation, operation.desired.zones)
    await _finish_somewhere(operation, resource, {}, is_new=True)


async def update(operation: ResourceOperation, state: Mapping[str, Any], old_inputs: Mapping[str, Any]) -> None:
    """Change the resource to the desired state. Finish an interrupted creation, in another zone if necessary."""
    record = ResourceRecord.of_state(state)
    if record is None:
        raise TpuProviderError("The state does not name the queued resource. Run `pulumi refresh`.")
    operation.record = record
    was_active = record.state == ACTIVE
    operation.committed = not was_active
    found = await operation.api.find_queued_resource(record.name)
    if found is not None:
        operation.require_recorded(found, record)
    if record.state == ACTIVE and (found is None or found.state in GONE):
        now = "gone" if found is None else found.state
        raise TpuProviderError(
            f"Nothing serves: {record.name} was ACTIVE and is {now}. Run `pulumi up --refresh` to replace it."
        )
    if found is not None:
        await capacity.remove_elsewhere(operation, operation.tried)
    try:
        resource = await _resume(operation, found)
        if resource.state == ACTIVE:  # a request that was given up can be granted later, in a zone that no state names
            await capacity.remove_elsewhere(operation, {**operation.tried, **dict.fromkeys(operation.desired.zones)})
        await _finish_somewhere(operation, resource, old_inputs, is_new=not was_active)
    finally:
        operation.record = (
            operation.record or record
        )  # the state keeps its entry; a refresh removes it if nothing exists


async def _resume(operation: ResourceOperation, found: QueuedResourceInfo | None) -> QueuedResourceInfo:
    record, zones = operation.owned_record(), operation.desired.zones
    if found is None:  # start with the zone of a request that got no response, because it can still appear there
        lost_first = sorted(zones, key=lambda zone: zone != record.zone)
        return await capacity.acquire(operation, lost_first if record.state == UNOBSERVED else zones)
    form = capacity.form_to_continue(operation.desired, found)
    if form is None:
        await capacity.remove(operation)
        return await capacity.acquire(operation, zones)
    operation.begin(form)
    result = await capacity.await_capacity(operation, form)
    if isinstance(result, QueuedResourceInfo):
        return result
    await operation.report_progress(f"{result.zone}: not granted: {result.answer}")
    return await capacity.acquire(operation, zones, earlier=[result])


async def _finish_somewhere(
    operation: ResourceOperation, resource: QueuedResourceInfo, old_inputs: Mapping[str, Any], *, is_new: bool
) -> None:
    """Finish capacity. If Google takes back what is new, its zone counts as refused: the next one is requested, within the same waits."""
    lost: list[capacity.Refused] = []
    while True:
        try:
            return await _finish(operation, resource, old_inputs)
        except LostError as error:
            if not is_new:
                text = f"{error} Google reclaimed the capacity. Run `pulumi up --refresh` to replace it."
                raise CannotWaitError(text) from None
            answer = f"granted, then lost: {error}"
        await operation.report_progress(f"{resource.zone}: {answer}")
        await capacity.remove(operation)
        lost.append(capacity.Refused(resource.zone, answer, operation.form.model if operation.form else ""))
        resource = await capacity.acquire(operation, operation.desired.zones, earlier=lost)


async def _finish(operation: ResourceOperation, resource: QueuedResourceInfo, old_inputs: Mapping[str, Any]) -> None:
    if resource.state != ACTIVE:
        return
    config = resource.config
    declared = DeclaredKeys(
        labels=[*_keys(old_inputs, "labels"), *_keys(config, "labels")],
        metadata=[*_keys(old_inputs, "metadata"), *_keys(config, "metadata")],
    )
    check = operation.desired.ready_check if operation.desired.wait_for == "ready" else None
    before = await serving.report_before(operation, check) if old_inputs and check else None
    is_changed = await serving.patch_node(operation, declared, before)
    if check is not None:
        await serving.await_ready(operation, check, stale=before if is_changed else None)


def _keys(values: Mapping[str, Any], name: str) -> list[str]:
    return list(cast("Mapping[str, Any]", wire.reveal(values.get(name)) or {}))


async def delete(operation: ResourceOperation, resource_id: str, state: Mapping[str, Any]) -> None:
    """Delete the resource in the state, and our resources with its id in any zone. Treat a missing one as deleted."""
    record = ResourceRecord.of_state(state)
    name = record.name if record else resource_id
    if not FULL_NAME.fullmatch(name):
        return  # an id without a zone and a state without a name, so nothing was requested
    operation.record = record
    created = str(record.observed.get("createTime") or "") if record else ""
    lost = record is not None and record.state == UNOBSERVED
    await capacity.delete(operation, name, created, late_s=operation.pacing.late_s if lost else 0.0)
    if record is not None:
        known = {**operation.tried, **dict.fromkeys(operation.desired.zones)}
        await capacity.remove_elsewhere(operation, known, everywhere=True)
        if second := record.former_second:
            await capacity.delete(operation, second.name, "")


async def full_name(transport: TpuTransport, resource_id: str) -> str:
    """Return the full name of Pulumi's id from a search of all zones; another name unchanged. Raises TpuProviderError unless one zone has it."""
    match = _ID.fullmatch(resource_id)
    if match is None:
        return resource_id
    project, identifier = match.groups()
    found: list[str] = []
    for kind in (CLOUD_TPU, COMPUTE_ENGINE):
        api = capacity_api(kind, transport)
        desired = DesiredState("", {"api": kind, "project": project, "queuedResourceId": identifier})
        names = [desired.name(zone) for zone in await api.zones_to_search(project, identifier)]
        found += [name for name in names if await api.find_queued_resource(name) is not None]
    if len(found) == 1:
        return found[0]
    listed = " and ".join(found) or "no queued resource and no instance"
    raise TpuProviderError(f'"{resource_id}" is the id of {listed}. {_IMPORT}')


async def read(
    operation: ResourceOperation, resource_id: str, state: Mapping[str, Any], inputs: Mapping[str, Any]
) -> ReadResult | None:
    """Return the resource, or None if it is gone. Without a state, import by full name."""
    record = ResourceRecord.of_state(state)
    name = record.name if record else resource_id
    if not FULL_NAME.fullmatch(name):
        raise TpuProviderError(f'"{resource_id}" is not the name of a queued resource or instance. {_IMPORT}')
    found = await (capacity.find_recorded(operation, record) if record else operation.api.find_queued_resource(name))
    if found is None and record is not None and record.former_second:
        record = record.former_second
        found = await operation.api.find_queued_resource(record.name)
    if found is None or (record is not None and operation.own(found, record) is None):
        return None
    fresh = record or ResourceRecord(zone=found.zone, name=found.name)
    if found.zone != fresh.zone:  # the resource in the state is gone, and ours is in another zone
        tried = {"triedZones": list({**operation.tried, fresh.zone: None})}
        fresh = ResourceRecord(zone=found.zone, name=found.name, observed=tried, history=fresh.history)
    names = found.node_names()
    node = (
        await operation.api.find_node(names[0])
        if names and found.state not in {"ACCEPTED", "WAITING_FOR_RESOURCES"}
        else None
    )
    fresh.observe(found)
    fresh.observe_node(node)
    current = _refreshed(inputs, node) if inputs else _imported(found, node)
    labels = operation.own_labels(cast("dict[str, str]", fresh.observed.get("ownerLabels") or {}))
    fresh.observed["ownerLabels"] = (
        labels if inputs else labels or None
    )  # the next update adds the label that an import lacks
    desired = DesiredState.of(operation.desired.urn, current)
    if desired.inputs.get("ready") and node is not None and desired.ready_check is not None:
        with suppress(CannotWaitError):  # a policy hides the report, which refresh and teardown do not need
            report = await operation.api.find_guest_report(names[0], desired.ready_check.namespace)
            if report:
                fresh.observe_guest_report(report)
    return ReadResult(resource_id=desired.resource_id, inputs=current, outputs=fresh.outputs(current))


def _refreshed(inputs: Mapping[str, Any], node: NodeInfo | None) -> wire.Properties:
    """Return the inputs with current values from the node. Keys that the program never declared are not drift."""
    current = dict(inputs)
    if node is None:
        return current
    plain = cast("wire.Properties", wire.reveal(current))
    live: wire.Properties = {
        "labels": {key: value for key, value in node.labels.items() if key in (plain.get("labels") or {})},
        "metadata": {key: value for key, value in node.metadata.items() if key in (plain.get("metadata") or {})},
        "tags": list(node.tags),
        "description": node.description,
        "enableExternalIps": node.enable_external_ips,
    }
    for name, value in live.items():
        if value != plain.get(name) and (value or plain.get(name)):
            current[name] = wire.cover(value, current.get(name))
    return current


def _imported(found: QueuedResourceInfo, node: NodeInfo | None) -> wire.Properties:
    """Return inputs that describe the resource. An input that Google does not report is absent."""
    inputs: wire.Properties = {
        **_imported_capacity(found),
        **_imported_network(found.config, node),
        **_imported_machine(found.config, node),
    }
    return {key: value for key, value in inputs.items() if value is not None and key in known_inputs()}


def _imported_capacity(found: QueuedResourceInfo) -> wire.Properties:
    """Return the inputs of the request for capacity: names, accelerator, provisioning model and durations."""
    request = found.nodes[0] if found.nodes else None
    match = FULL_NAME.fullmatch(found.name)
    project, zone, identifier = match.groups() if match else ("", found.zone, "")
    return {
        "api": COMPUTE_ENGINE if is_instance(found.name) else None,
        "project": project,
        "zone": zone,
        "queuedResourceId": identifier,
        "nodeId": request.node_id if request else None,
        "acceleratorType": found.config.get("acceleratorType"),
        "runtimeVersion": found.config.get("runtimeVersion"),
        "provisioningModel": own_model(found.provisioning_model),
        "reservationName": found.reservation_name or None,
        "maxRunDurationS": found.max_run_duration_s,
        "validUntilDurationS": found.valid_until_duration_s,
    }


def _imported_network(config: Mapping[str, Any], node: NodeInfo | None) -> wire.Properties:
    """Return the inputs of the node's network and service account."""
    network = cast("Mapping[str, Any]", config.get("networkConfig") or {})
    account = cast("Mapping[str, Any]", config.get("serviceAccount") or {})
    tags: list[str] = list(node.tags if node else config.get("tags") or [])
    has_account = bool(account.get("email"))
    return {
        "network": network.get("network"),
        "subnetwork": network.get("subnetwork"),
        "enableExternalIps": node.enable_external_ips if node else bool(network.get("enableExternalIps")),
        "serviceAccount": {"email": account["email"], "scopes": account.get("scope") or []} if has_account else None,
        "tags": tags or None,
    }


def _imported_machine(config: Mapping[str, Any], node: NodeInfo | None) -> wire.Properties:
    """Return the inputs of the node's boot disk, labels, metadata and description."""
    boot_disk_gb = int(cast("Mapping[str, str]", config.get("bootDiskConfig") or {}).get("diskSizeGb") or 0)
    labels: dict[str, str] = dict(node.labels if node else config.get("labels") or {})
    metadata: dict[str, str] = dict(node.metadata if node else config.get("metadata") or {})
    return {
        "bootDiskSizeGb": boot_disk_gb if boot_disk_gb > MIN_BOOT_DISK_GB else None,  # Google may report its default
        "description": (node.description if node else config.get("description")) or None,
        "labels": {key: value for key, value in labels.items() if key not in owner_labels(labels)} or None,
        "metadata": metadata or None,
    }
