"""The running node: changed in place, and waited for until it says that it is ready."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gcp_tpu_provider.durations import for_people
from gcp_tpu_provider.errors import CannotWaitError
from gcp_tpu_provider.flow import Flow, Pace, Stopwatch
from gcp_tpu_provider.record import owner_labels
from gcp_tpu_provider.request import ReadyCheck, Wish
from gcp_tpu_provider.tpu_api import ACTIVE, Node

LOOK_AT_NODE_EVERY = 5
"""Looks at the guest attributes between two looks at the queued resource and its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The keys that this resource declared earlier: these it may take away, all others belong to somebody else."""

    labels: Collection[str] = ()
    metadata: Collection[str] = ()


async def settle(flow: Flow, wish: Wish, declared: Declared) -> None:
    """Patch the node until it is as wished. Raises CannotWaitError when there is no node to patch."""
    node = await _ready_node(flow)
    changes = _changes(wish, node, declared)
    if changes:
        body = {name: value for name, (_, value) in changes.items()}
        mask = ",".join(sorted(mask for mask, _ in changes.values()))
        await flow.say(f"changing {', '.join(sorted(changes))} in place")
        operation = await flow.api.patch_node(node.name, body, mask)
        await flow.finish_operation(operation, f"The change of {', '.join(sorted(changes))} at {node.name}")
        node = await flow.api.find_node(node.name)
    flow.committed = True
    flow.owned_record().see_node(node)


async def _ready_node(flow: Flow) -> Node:
    record = flow.owned_record()
    name = str(record.seen.get("nodeName") or "")
    pace, watch = Pace(flow.timing), Stopwatch()
    while True:
        node = await flow.api.find_node(name) if name else None
        record.see_node(node)
        if node is not None and (node.state == "READY" or not node.alive):
            break
        if watch.seconds() > flow.timing.appear_s:
            break
        await pace.pause()
    if node is None or not node.alive:
        raise CannotWaitError(
            f"{record.name} is {record.state}, but its node is {record.seen.get('nodeState') or 'missing'}."
        )
    return node


def _changes(wish: Wish, node: Node, declared: Declared) -> dict[str, tuple[str, Any]]:
    """Return what differs: property -> (path in the update mask, new value)."""
    foreign_labels = {
        key: value
        for key, value in node.labels.items()
        if key not in declared.labels and key not in owner_labels(node.labels)
    }
    foreign_metadata = {key: value for key, value in node.metadata.items() if key not in declared.metadata}
    external = bool(wish.inputs.get("enableExternalIps"))
    wanted: Mapping[str, tuple[str, Any, Any]] = {
        "labels": ("labels", {**foreign_labels, **wish.labels, **wish.owner_labels}, dict(node.labels)),
        "metadata": ("metadata", {**foreign_metadata, **wish.metadata}, dict(node.metadata)),
        "tags": ("tags", wish.tags, list(node.tags)),
        "description": ("description", str(wish.inputs.get("description") or ""), node.description),
        "networkConfig": (
            "network_config.enable_external_ips",
            {"enableExternalIps": external},
            {"enableExternalIps": node.enable_external_ips},
        ),
    }
    return {name: (mask, new) for name, (mask, new, old) in wanted.items() if new != old}


async def await_ready(flow: Flow, check: ReadyCheck) -> None:
    """Wait until the machine says `ready` about the wished document. Raises CannotWaitError with the machine's own words."""
    record = flow.owned_record()
    pace, watch, looks, phase = Pace(flow.timing), Stopwatch(), 0, ""
    while True:
        told = await flow.api.guest_attributes(str(record.seen["nodeName"]), check.namespace)
        reported = told.get("document-hash", "")
        about_wish = not check.document_hash or reported == check.document_hash
        phase = told.get("phase", "") if about_wish else ""
        record.see_guest(told.get("phase", ""), reported)
        if phase == "ready":
            return
        if phase == "failed":
            raise CannotWaitError(f"The server failed: {told.get('detail') or 'it did not say why'}")
        if watch.seconds() > check.timeout_s:
            raise CannotWaitError(_late(told, about_wish=about_wish, check=check))
        looks += 1
        if looks % LOOK_AT_NODE_EVERY == 0:
            await _require_alive(flow)
        detail = f" ({told['detail'][:100]})" if about_wish and told.get("detail") else ""
        limits = f"{for_people(watch.seconds())} of {for_people(check.timeout_s)}"
        await flow.say(f"{phase or 'waiting for the machine to take up its document'}{detail}, {limits}")
        await pace.pause()


def _late(told: Mapping[str, str], *, about_wish: bool, check: ReadyCheck) -> str:
    limit = f"The machine was not ready after {for_people(check.timeout_s)} (`ready.timeoutS`)"
    if not told:
        return (
            f"{limit} and has published nothing in the guest attributes {check.namespace}/: its start-up script did not run, "
            "or cannot reach the metadata server; look at the serial console."
        )
    if not about_wish:
        return f"{limit}: it still reports {told.get('phase', 'nothing')} about document {told.get('document-hash', '')[:12] or '(none)'}."
    return f"{limit}: its phase is {told.get('phase')}, {told.get('detail') or 'without detail'}."


async def _require_alive(flow: Flow) -> None:
    record = flow.owned_record()
    found = await flow.api.find_queued_resource(record.name)
    if found is None:
        raise CannotWaitError(f"{record.name} was deleted by somebody else while its machine was waited for.")
    record.see(found)
    node = await flow.api.find_node(str(record.seen["nodeName"]))
    record.see_node(node)
    if found.state != ACTIVE or node is None or not node.alive:
        raise CannotWaitError(
            f"{record.name} is {found.state} and its node is {record.seen.get('nodeState') or 'gone'}: the capacity was taken away."
        )
