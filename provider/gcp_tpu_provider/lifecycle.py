"""Create, update, read and delete of one queued resource."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gcp_tpu_provider import capacity, serving, wire
from gcp_tpu_provider.errors import ProviderError
from gcp_tpu_provider.flow import Flow
from gcp_tpu_provider.properties import INPUT_BY_NAME
from gcp_tpu_provider.record import Record, owner_labels
from gcp_tpu_provider.request import DISK_MODES, Wish
from gcp_tpu_provider.serving import Declared
from gcp_tpu_provider.tpu_api import ACTIVE, DEAD, DELETING, MODELS, Node, QueuedResource

FULL_NAME = re.compile(r"projects/([^/]+)/locations/([^/]+)/queuedResources/([^/]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a read found."""

    resource_id: str
    inputs: wire.Properties
    outputs: wire.Properties


async def create(flow: Flow, wish: Wish) -> None:
    """Get capacity and wait as far as the wish says; `flow.record` then holds what there is."""
    resource = await capacity.acquire(flow, wish, wish.zones)
    await _finish(flow, wish, resource, {})


async def update(flow: Flow, wish: Wish, state: Mapping[str, Any], old_inputs: Mapping[str, Any]) -> None:
    """Bring what is there to the wish; finish a creation that was cut off, in another zone if need be."""
    record = Record.of_state(state)
    if record is None:
        raise ProviderError("The state does not say which queued resource this is; run `pulumi refresh`.")
    flow.record, flow.committed = record, record.state != ACTIVE
    found = await flow.api.find_queued_resource(record.name)
    if found is not None:
        flow.require_recorded(found, record)
    if record.state == ACTIVE and (found is None or found.state in DEAD or found.state == DELETING):
        now = "gone" if found is None else found.state
        raise ProviderError(f"{record.name} was ACTIVE and is {now}; run `pulumi up --refresh` to replace it.")
    try:
        await _finish(flow, wish, await _resume(flow, wish, found), old_inputs)
    finally:
        flow.record = flow.record or record  # the state keeps its entry; a refresh sees that there is nothing


async def _resume(flow: Flow, wish: Wish, found: QueuedResource | None) -> QueuedResource:
    record = flow.owned_record()
    others = [zone for zone in wish.zones if zone != record.zone]
    if found is None:
        return await capacity.acquire(flow, wish, wish.zones)
    result = await capacity.await_capacity(flow, wish)
    if isinstance(result, QueuedResource):
        return result
    await flow.say(f"{result.zone}: {result.answer}")
    return await capacity.acquire(flow, wish, others, spent=[result])


async def _finish(flow: Flow, wish: Wish, resource: QueuedResource, old_inputs: Mapping[str, Any]) -> None:
    if resource.state != ACTIVE:
        return
    asked = resource.config
    declared = Declared(
        labels=[*_keys(old_inputs, "labels"), *_keys(asked, "labels")],
        metadata=[*_keys(old_inputs, "metadata"), *_keys(asked, "metadata")],
    )
    await serving.settle(flow, wish, declared)
    if wish.wait_for == "ready" and wish.ready_check is not None:
        await serving.await_ready(flow, wish.ready_check)


def _keys(values: Mapping[str, Any], name: str) -> list[str]:
    return list(cast("Mapping[str, Any]", wire.reveal(values.get(name)) or {}))


async def delete(flow: Flow, resource_id: str, state: Mapping[str, Any]) -> None:
    """Delete what the state names; absent is done."""
    record = Record.of_state(state)
    name = record.name if record else resource_id
    if not FULL_NAME.fullmatch(name):
        return  # an id without a zone and a state without a name: nothing was ever asked for
    created = str(record.seen.get("createTime") or "") if record else ""
    await capacity.delete(flow, name, Wish.of(flow.urn, dict(state)).owner_labels, created)


async def read(flow: Flow, resource_id: str, state: Mapping[str, Any], inputs: Mapping[str, Any]) -> Found | None:
    """Read what is there; None when it is gone. Without a state this is an import by full name."""
    record = Record.of_state(state)
    name = record.name if record else resource_id
    if not FULL_NAME.fullmatch(name):
        raise ProviderError(
            f'"{resource_id}" names no queued resource; import it by full name, projects/P/locations/ZONE/queuedResources/ID.'
        )
    found = await flow.api.find_queued_resource(name)
    if found is None or (record is not None and _another(flow, found, record)):
        return None
    names = found.node_names()
    node = (
        await flow.api.find_node(names[0])
        if names and found.state not in {"ACCEPTED", "WAITING_FOR_RESOURCES"}
        else None
    )
    fresh = record or Record(zone=found.zone, name=name)
    fresh.see(found)
    fresh.see_node(node)
    seen = _refreshed(inputs, node) if inputs else _imported(found, node)
    if not inputs:
        fresh.seen["ownerLabels"] = _own(flow, fresh.seen.get("ownerLabels")) or None  # claimed by the next update
    wish = Wish.of(flow.urn, seen)
    if wish.inputs.get("ready") and node is not None and wish.ready_check is not None:
        told = await flow.api.guest_attributes(names[0], wish.ready_check.namespace)
        if told:
            fresh.see_guest(told.get("phase", ""), told.get("document-hash", ""))
    return Found(resource_id=wish.resource_id, inputs=seen, outputs=fresh.outputs(seen))


def _another(flow: Flow, found: QueuedResource, record: Record) -> bool:
    """Whether somebody else's queued resource has taken the name meanwhile."""
    created = record.seen.get("createTime")
    return bool(created) and found.create_time != created and not flow.owns(found)


def _own(flow: Flow, labels: object) -> dict[str, str]:
    mine = Wish(flow.urn, {}).owner_labels.values()
    return {key: value for key, value in cast("dict[str, str]", labels or {}).items() if value in mine}


def _refreshed(inputs: Mapping[str, Any], node: Node | None) -> wire.Properties:
    """Return the inputs with what the node says about what can change; keys that were never declared are not drift."""
    seen = dict(inputs)
    if node is None:
        return seen
    plain = cast("wire.Properties", wire.reveal(seen))
    live: wire.Properties = {
        "labels": {key: value for key, value in node.labels.items() if key in (plain.get("labels") or {})},
        "metadata": {key: value for key, value in node.metadata.items() if key in (plain.get("metadata") or {})},
        "tags": list(node.tags),
        "description": node.description,
        "enableExternalIps": node.enable_external_ips,
    }
    for name, value in live.items():
        if value != plain.get(name) and (value or plain.get(name)):
            seen[name] = wire.cover(value, seen.get(name))
    return seen


def _imported(found: QueuedResource, node: Node | None) -> wire.Properties:
    """Reconstruct inputs from what is there."""
    request = found.nodes[0] if found.nodes else None
    config = found.config
    network = cast("Mapping[str, Any]", config.get("networkConfig") or {})
    account = cast("Mapping[str, Any]", config.get("serviceAccount") or {})
    modes = {google: ours for ours, google in DISK_MODES.items()}
    disks = cast("list[Mapping[str, str]]", config.get("dataDisks") or [])
    labels: dict[str, str] = dict(node.labels if node else config.get("labels") or {})
    tags: list[str] = list(node.tags if node else config.get("tags") or [])
    metadata: dict[str, str] = dict(node.metadata if node else config.get("metadata") or {})
    match = FULL_NAME.fullmatch(found.name)
    project, zone, identifier = match.groups() if match else ("", found.zone, "")
    inputs: wire.Properties = {
        "project": project,
        "zone": zone,
        "queuedResourceId": identifier,
        "nodeId": request.node_id if request else None,
        "acceleratorType": config.get("acceleratorType"),
        "runtimeVersion": config.get("runtimeVersion"),
        "provisioningModel": {google: ours for ours, google in MODELS.items()}.get(
            found.provisioning_model, "standard"
        ),
        "reservationName": found.reservation_name or None,
        "maxRunDurationS": found.max_run_duration_s,
        "validUntilDurationS": found.valid_until_duration_s,
        "network": network.get("network"),
        "subnetwork": network.get("subnetwork"),
        "enableExternalIps": node.enable_external_ips if node else bool(network.get("enableExternalIps")),
        "serviceAccount": {"email": account["email"], "scopes": account.get("scope") or []}
        if account.get("email")
        else None,
        "description": (node.description if node else config.get("description")) or None,
        "labels": {key: value for key, value in labels.items() if key not in owner_labels(labels)} or None,
        "tags": tags or None,
        "metadata": metadata or None,
        "dataDisks": [
            {"sourceDisk": disk["sourceDisk"], "mode": modes.get(disk.get("mode", ""), "read-write")} for disk in disks
        ]
        or None,
    }
    return {key: value for key, value in inputs.items() if value is not None and key in INPUT_BY_NAME}
