"""The running node: patch it in place, and wait until it reports that it is ready."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gcp_tpu_provider.desired_state import DesiredState, ReadyCheck
from gcp_tpu_provider.durations import for_people
from gcp_tpu_provider.errors import CannotWaitError
from gcp_tpu_provider.operation import PollTimer, ResourceOperation
from gcp_tpu_provider.resource_record import owner_labels
from gcp_tpu_provider.tpu_api import ACTIVE, FAILED_PHASE, READY_PHASE, GuestReport, NodeInfo

POLLS_PER_NODE_CHECK = 5
"""Every fifth poll of the guest attributes also reads the queued resource and its node."""
_LOG_PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\)\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR)\s+\d\d-\d\d\s+[\d:.]+\s+\[[^\]]*\]\s*)?"
)
"""What vLLM's logger writes before each message, such as "(APIServer pid=1) INFO 11-21 00:16:04 [backends.py:1] "."""


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
        report = await operation.api.find_guest_report(str(record.observed["nodeName"]), check.namespace)
        record.observe_guest_report(report or GuestReport("", "", ""))
        current = report if report and check.document_hash in {"", report.document_hash} else None
        if current and current.phase == READY_PHASE:
            await operation.report_progress(f"ready after {for_people(timer.seconds())}")
            return
        if current and current.phase == FAILED_PHASE:
            raise CannotWaitError(f"The server failed: {current.detail or 'it gave no reason'}")
        if timer.seconds() > check.timeout_s:
            raise CannotWaitError(_timed_out(report, check, is_current=current is not None))
        polls += 1
        if polls % POLLS_PER_NODE_CHECK == 0:
            await _require_alive(operation)
        phase = (current.phase if current else "") or "the machine has not read its document yet"
        detail = f": {_last_line(current.detail)}" if current and current.detail else ""
        waited = f"{for_people(timer.seconds())}/{for_people(check.timeout_s)}"
        await operation.report_progress(f"{waited} {phase}{detail}")
        await timer.pause()


def _last_line(detail: str) -> str:
    """Return what fits a progress line: the message of the log's last line, which says why the agent tries again."""
    return _LOG_PREFIX.sub("", detail.strip().rpartition("\n")[2])[:200]


def _timed_out(report: GuestReport | None, check: ReadyCheck, *, is_current: bool) -> str:
    limit = f"The machine was not ready after {for_people(check.timeout_s)} (`ready.timeoutS`)"
    if report is None:
        return (
            f"{limit} and published no guest attributes in {check.namespace}/. Its start-up script did not run or cannot reach "
            "the metadata server. Read the serial console."
        )
    phase = report.phase or "no phase"
    if not is_current:
        return f"{limit}. It still reports {phase} for document {report.document_hash[:12] or '(none)'}."
    return f"{limit}. Its phase is {phase}, {report.detail or 'without detail'}."


async def _require_alive(operation: ResourceOperation) -> None:
    record = operation.owned_record()
    found = await operation.api.find_queued_resource(record.name)
    if found is None:
        raise CannotWaitError(
            f"Someone else deleted {record.name} while the provider waited for its machine. Run `pulumi up --refresh` to request it again."
        )
    record.observe(found)
    node = await operation.api.find_node(str(record.observed["nodeName"]))
    record.observe_node(node)
    if found.state != ACTIVE or node is None or not node.alive:
        raise CannotWaitError(
            f"{record.name} is {found.state} and its node is {record.observed.get('nodeState') or 'gone'}: Google took the capacity away. "
            "Run `pulumi up --refresh` to replace it."
        )
