"""The running node: patch it in place, and wait until it reports that it is ready."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gcp_tpu_provider.desired_state import DesiredState, ReadyCheck
from gcp_tpu_provider.durations import for_people
from gcp_tpu_provider.errors import CannotWaitError, GoogleError, NoAnswerError
from gcp_tpu_provider.operation import PollTimer, ResourceOperation
from gcp_tpu_provider.resource_record import owner_labels
from gcp_tpu_provider.tpu_api import (
    ACTIVE,
    ENDING_PHASE,
    FAILED_PHASE,
    READY_PHASE,
    RESTORING_PHASE,
    GuestReport,
    NodeInfo,
)

HASH_DIGITS = 12
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


async def patch_node(operation: ResourceOperation, declared: DeclaredKeys) -> bool:
    """Patch the node to the desired state, and return whether something differed. Raises CannotWaitError if there is no node to patch."""
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
    return bool(changes)


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
            f"{record.name} is {record.state}, but its node is {record.observed.get('nodeState') or 'missing'}. "
            "Run `pulumi up --refresh` to replace it."
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
    metadata = {**foreign_metadata, **desired.metadata, **_deadline_metadata(desired, node)}
    compared: Mapping[str, tuple[str, Any, Any]] = {
        "labels": ("labels", {**foreign_labels, **desired.labels, **desired.owner_labels}, dict(node.labels)),
        "metadata": ("metadata", metadata, dict(node.metadata)),
        "tags": ("tags", desired.tags, list(node.tags)),
        "description": ("description", str(desired.inputs.get("description") or ""), node.description),
        "networkConfig": (
            "network_config.enable_external_ips",
            {"enableExternalIps": external},
            {"enableExternalIps": node.enable_external_ips},
        ),
    }
    return {name: (mask, new) for name, (mask, new, old) in compared.items() if new != old}


def _deadline_metadata(desired: DesiredState, node: NodeInfo) -> Mapping[str, str]:
    """Return the metadata that tells the machine when Google deletes it: its own metadata server is not documented to say so."""
    key = desired.ready_check.deadline_key if desired.ready_check else ""
    return {key: node.deadline} if key and node.deadline else {}


async def report_before(operation: ResourceOperation, check: ReadyCheck) -> GuestReport | None:
    """Return what the machine reports before a change, or None if that is not known."""
    name = str(operation.owned_record().observed.get("nodeName") or "")
    return await operation.api.find_guest_report(name, check.namespace) if name else None


async def await_ready(operation: ResourceOperation, check: ReadyCheck, *, stale: GuestReport | None = None) -> None:
    """Wait until the machine reports `ready` for the desired document. Raises CannotWaitError with the machine's own message.

    `stale` is what the machine reported before it was changed: if it was a failure, the same one says nothing about the change for a moment.
    """
    record = operation.owned_record()
    timer, polls = PollTimer(operation.pacing), 0
    while True:
        report = await operation.api.find_guest_report(str(record.observed["nodeName"]), check.namespace)
        record.observe_guest_report(report or GuestReport("", "", ""))
        is_stale = _is_stale(report, stale) and timer.seconds() < operation.pacing.stale_s
        is_current = report is not None and check.document_hash in {"", report.document_hash} and not is_stale
        current = report if is_current else None
        if current and current.phase == READY_PHASE:
            await operation.report_progress(f"ready after {for_people(timer.seconds())}{_pause(current)}")
            return
        if current and current.phase == FAILED_PHASE:
            raise CannotWaitError(_failed(current, check))
        # A machine that goes back to its last document gets as long for it as for the new one.
        if timer.seconds() > check.timeout_s * (2 if current and current.phase == RESTORING_PHASE else 1):
            raise CannotWaitError(_timed_out(report, check, is_current=current is not None))
        polls += 1
        if polls % POLLS_PER_NODE_CHECK == 0:
            await _require_alive(operation)
        phase = (current.phase if current else "") or "the machine has not read its document yet"
        detail = f": {last_line(current.detail)}" if current and current.detail else ""
        answers = ", the old server answers" if current and _other_serves(current) else ""
        waited = f"{for_people(timer.seconds())}/{for_people(check.timeout_s)}"
        await operation.report_progress(f"{waited} {phase}{answers}{detail}")
        await timer.pause()


async def drain(operation: ResourceOperation) -> None:
    """Let the machine end its running requests before it is deleted: it is told that its end is now.

    Does nothing for a machine that is told no deadline. Whatever goes wrong only cuts requests off.
    """
    check, name = operation.desired.ready_check, str(operation.owned_record().observed.get("nodeName") or "")
    if check is None or not check.deadline_key or not name:
        return
    try:
        node = await operation.api.find_node(name)
        if node is None or not node.alive:
            return
        end = min(operation.now(), datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = {**node.metadata, check.deadline_key: end}
        long_running = await operation.api.patch_node(name, {"metadata": told}, "metadata")
        await operation.finish(long_running, f"The change of metadata at {name}")
        await _await_end(operation, name, check)
    except (GoogleError, NoAnswerError, CannotWaitError) as error:
        await operation.report_progress(f"{name} could not be told to end its requests: {error}")


async def _await_end(operation: ResourceOperation, name: str, check: ReadyCheck) -> None:
    """Wait until the machine says that its server is stopped; at most `drain_s`, and not for one that says nothing."""
    timer = PollTimer(operation.pacing)
    while timer.seconds() <= operation.pacing.drain_s:
        report = await operation.api.find_guest_report(name, check.namespace)
        if report is None or (report.phase == ENDING_PHASE and not report.serving_hash):
            return
        await operation.report_progress(f"{for_people(timer.seconds())} the old machine ends its requests")
        await timer.pause()


def _is_stale(report: GuestReport | None, before: GuestReport | None) -> bool:
    return before is not None and before.phase == FAILED_PHASE and report == before


def _other_serves(report: GuestReport) -> bool:
    return report.serving_hash not in {"", report.document_hash}


def _pause(report: GuestReport) -> str:
    """Return for how long requests failed, for the last line; nothing if the machine does not say."""
    try:
        began, ended = (datetime.fromisoformat(text) for text in (report.pause_began_at, report.pause_ended_at))
    except ValueError:
        return ""
    return f", requests failed for {for_people((ended - began).total_seconds())}"


def _failed(report: GuestReport, check: ReadyCheck) -> str:
    """Return why the server failed, what serves now, and what to do."""
    words = f"The server failed: {report.detail or 'it gave no reason'}"
    if not _other_serves(report):
        return words
    asked = check.document_hash or report.document_hash
    return (
        f"{words}\nThe old configuration serves: document {report.serving_hash[:HASH_DIGITS]}, not {asked[:HASH_DIGITS]}{_pause(report)}. "
        "Mend or undo the change and run `pulumi up` again. The machine does not try the same document a second time."
    )


def last_line(detail: str) -> str:
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
        return f"{limit}. It still reports {phase} for document {report.document_hash[:HASH_DIGITS] or '(none)'}."
    serves = f" The document {report.serving_hash[:HASH_DIGITS]} serves." if _other_serves(report) else ""
    return f"{limit}. Its phase is {phase}, {report.detail or 'without detail'}.{serves}"


async def _require_alive(operation: ResourceOperation) -> None:
    record = operation.owned_record()
    found = await operation.api.find_queued_resource(record.name)
    if found is None:
        raise CannotWaitError(
            f"{record.name} is gone. {operation.api.lost} Run `pulumi up --refresh` to request it again."
        )
    record.observe(found)
    node = await operation.api.find_node(str(record.observed["nodeName"]))
    record.observe_node(node)
    if found.state != ACTIVE or node is None or not node.alive:
        raise CannotWaitError(
            f"{record.name} is {found.state} and its node is {record.observed.get('nodeState') or 'gone'}: Google took the capacity away. "
            "Run `pulumi up --refresh` to replace it."
        )
