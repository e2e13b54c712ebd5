"""The running node: patch it in place, and wait until it reports that it is ready."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gcp_tpu_provider.desired_state import DesiredState, ReadyCheck
from gcp_tpu_provider.durations import for_people
from gcp_tpu_provider.errors import CannotWaitError
from gcp_tpu_provider.operation import PollTimer, ResourceOperation
from gcp_tpu_provider.resource_record import owner_labels
from gcp_tpu_provider.tpu_api import ACTIVE, NodeInfo

POLLS_PER_NODE_CHECK = 5
"""Every fifth poll of the guest attributes also reads the queued resource and its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKeys:
    """Keys that this resource declared earlier. The provider may remove these; all other keys belong to someone else."""

    labels: Collection[str] = ()
    metadata: Collection[str] = ()


async def patch_node(operation: ResourceOperation, declared: DeclaredKeys) -> None:
    """Patch the node to the desired state. Raises CannotWaitError if there is no node to patch."""
    node = await _ready_node(operation)
    changes = _changes(operation.desired, node, declared)
    if changes:
        body = {name: value for name, (_, value) in changes.items()}
        mask = ",".join(sorted(mask for mask, _ in changes.values()))
        names = ", ".join(sorted(changes))
        await operation.report_progress(f"changing {names} in place")
        long_running = await operation.api.patch_node(node.name, body, mask)
        await operation.finish(long_running, f"The change of {names} at {node.name}")
        node = await operation.api.find_node(node.name)
    operation.committed = True
    operation.owned_record().observe_node(node)


async def _ready_node(operation: ResourceOperation) -> NodeInfo:
    record = operation.owned_record()
    name = str(record.observed.get("nodeName") or "")
    timer = PollTimer(operation.pacing)
    while True:
        node = await operation.api.find_node(name) if name else None
        record.observe_node(node)
        if node is not None and (node.state == "READY" or not node.alive):
            break
        if timer.seconds() > operation.pacing.appear_s:
            break
        await timer.pause()
    if node is None or not node.alive:
        raise CannotWaitError(
            f"{record.name} is {record.state}, but its node is {record.observed.get('nodeState') or 'missing'}."
        )
    return node


def _changes(desired: DesiredState, node: NodeInfo, declared: DeclaredKeys) -> dict[str, tuple[str, Any]]:
    """Return each property that differs, with its path in the update mask and its new value."""
    foreign_labels = {
        key: value
        for key, value in node.labels.items()
        if key not in declared.labels and key not in owner_labels(node.labels)
    }
    foreign_metadata = {key: value for key, value in node.metadata.items() if key not in declared.metadata}
    external = bool(desired.inputs.get("enableExternalIps"))
    compared: Mapping[str, tuple[str, Any, Any]] = {
        "labels": ("labels", {**foreign_labels, **desired.labels, **desired.owner_labels}, dict(node.labels)),
        "metadata": ("metadata", {**foreign_metadata, **desired.metadata}, dict(node.metadata)),
        "tags": ("tags", desired.tags, list(node.tags)),
        "description": ("description", str(desired.inputs.get("description") or ""), node.description),
        "networkConfig": (
            "network_config.enable_external_ips",
            {"enableExternalIps": external},
            {"enableExternalIps": node.enable_external_ips},
        ),
    }
    return {name: (mask, new) for name, (mask, new, old) in compared.items() if new != old}


async def await_ready(operation: ResourceOperation, check: ReadyCheck) -> None:
    """Wait until the machine reports `ready` for the desired document. Raises CannotWaitError with the machine's own message."""
    record = operation.owned_record()
    timer, polls = PollTimer(operation.pacing), 0
    while True:
        reported = await operation.api.guest_attributes(str(record.observed["nodeName"]), check.namespace)
        document_hash, detail = reported.get("document-hash", ""), reported.get("detail", "")
        current = not check.document_hash or document_hash == check.document_hash
        phase = reported.get("phase", "") if current else ""
        record.observe_guest_attributes(reported.get("phase", ""), document_hash)
        if phase == "ready":
            return
        if phase == "failed":
            raise CannotWaitError(f"The server failed: {detail or 'it gave no reason'}")
        if timer.seconds() > check.timeout_s:
            raise CannotWaitError(_timed_out(reported, current=current, check=check))
        polls += 1
        if polls % POLLS_PER_NODE_CHECK == 0:
            await _require_alive(operation)
        shown = f" ({detail[:100]})" if current and detail else ""
        waited = f"{for_people(timer.seconds())} of {for_people(check.timeout_s)}"
        await operation.report_progress(f"{phase or 'waiting for the machine to read its document'}{shown}, {waited}")
        await timer.pause()


def _timed_out(reported: Mapping[str, str], *, current: bool, check: ReadyCheck) -> str:
    limit = f"The machine was not ready after {for_people(check.timeout_s)} (`ready.timeoutS`)"
    phase = reported.get("phase", "no phase")
    if not reported:
        return (
            f"{limit} and published no guest attributes in {check.namespace}/. Its start-up script did not run or cannot reach "
            "the metadata server. Read the serial console."
        )
    if not current:
        return f"{limit}. It still reports {phase} for document {reported.get('document-hash', '')[:12] or '(none)'}."
    return f"{limit}. Its phase is {phase}, {reported.get('detail') or 'without detail'}."


async def _require_alive(operation: ResourceOperation) -> None:
    record = operation.owned_record()
    found = await operation.api.find_queued_resource(record.name)
    if found is None:
        raise CannotWaitError(f"Someone else deleted {record.name} while the provider waited for its machine.")
    record.observe(found)
    node = await operation.api.find_node(str(record.observed["nodeName"]))
    record.observe_node(node)
    if found.state != ACTIVE or node is None or not node.alive:
        raise CannotWaitError(
            f"{record.name} is {found.state} and its node is {record.observed.get('nodeState') or 'gone'}: Google took the capacity away."
        )
