"""Patch the running node in place and wait until it reports that it is ready."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gcp_tpu_provider.desired_state import DesiredState, ReadyCheck
from gcp_tpu_provider.durations import readable
from gcp_tpu_provider.errors import CannotWaitError, ConflictError, LostError
from gcp_tpu_provider.operation import PollTimer, ResourceOperation
from gcp_tpu_provider.resource_record import owner_labels
from gcp_tpu_provider.tpu_api import (
    ACTIVE,
    DEAD,
    FAILED_PHASE,
    READY_PHASE,
    RESTORING_PHASE,
    WAITING_PHASES,
    GuestReport,
    NodeInfo,
)

HASH_DIGITS = 12
REPORT_LIMIT = timedelta(minutes=10)
"""Age from which a report proves nothing. A TPU VM writes one each minute."""
POLLS_PER_NODE_CHECK = 5
"""Every fifth poll of the guest attributes also reads the queued resource and its node."""
RESTART_SUFFIX = "-restart"
"""The namespace of the guest attributes with it is the metadata key whose new value starts the same document again."""
_LOG_PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\)\s*)?(?:(?:DEBUG|INFO|WARNING|ERROR)\s+\d\d-\d\d\s+[\d:.]+\s+\[[^\]]*\]\s*)?"
)
"""Prefix of each message of vLLM's logger, such as "(APIServer pid=1) INFO 11-21 00:16:04 [backends.py:1] "."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredKeys:
    """Keys that this resource declared earlier. The provider may remove these. All other keys belong to other users."""

    labels: Collection[str] = ()
    metadata: Collection[str] = ()


async def patch_node(
    operation: ResourceOperation, declared: DeclaredKeys, before: GuestReport | None, more_tries: int = 2
) -> bool:
    """Patch the node to the desired state and return whether anything changed. Raises CannotWaitError without a node to patch.

    `before` is the TPU VM's report. If another client changes the node at the same time, it is read and compared again, `more_tries` times.
    """
    node = await _ready_node(operation)
    changes = _changes(operation, node, declared, before)
    if changes:
        body = {name: value for name, (_, value) in changes.items()}
        mask = ",".join(sorted(mask for mask, _ in changes.values()))
        names = ", ".join(sorted(changes))
        await operation.report_progress(f"changing {names} in place")
        try:
            for part in [{name: value} for name, value in body.items()] if operation.api.one_at_a_time else [body]:
                long_running = await operation.api.patch_node(node.name, part, mask)
                await operation.finish(long_running, f"The change of {', '.join(sorted(part))} at {node.name}")
        except ConflictError:
            if not more_tries:
                raise CannotWaitError(
                    f"Cannot change {names} of {node.name} because another client keeps changing it. Run `pulumi up` again."
                ) from None
            await patch_node(operation, declared, before, more_tries - 1)
            return True
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
        answer = f"{record.name} is {record.state}, but its node is {record.observed.get('nodeState') or 'missing'}."
        raise _lost(answer, by_google=node is not None)
    return node


def _changes(
    operation: ResourceOperation, node: NodeInfo, declared: DeclaredKeys, before: GuestReport | None
) -> dict[str, tuple[str, Any]]:
    """Return each property that differs, with its path in the update mask and its new value."""
    desired = operation.desired
    foreign_labels = {
        key: value
        for key, value in node.labels.items()
        if key not in declared.labels and key not in owner_labels(node.labels)
    }
    foreign_metadata = {key: value for key, value in node.metadata.items() if key not in declared.metadata}
    external = bool(desired.inputs.get("enableExternalIps"))
    retry = _retry_metadata(operation, before)
    metadata = {**foreign_metadata, **desired.metadata, **_deadline_metadata(desired, node), **retry}
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
    """Return the metadata with the TPU VM's deletion time, which its metadata server is not documented to provide."""
    key = desired.ready_check.deadline_key if desired.ready_check else ""
    return {key: node.deadline} if key and node.deadline else {}


def _retry_metadata(operation: ResourceOperation, before: GuestReport | None) -> Mapping[str, str]:
    """Return the metadata that starts a failed document again, if that interrupts no other server.

    It interrupts none if none serves, or if the document already failed before the other one stopped: an image that was away.
    """
    check = operation.desired.ready_check
    if before is None or check is None or before.phase != FAILED_PHASE:
        return {}
    is_same = check.document_hash in {"", before.document_hash}
    is_safe = not _other_serves(before) or not before.pause_began_at
    now = operation.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {f"{check.namespace}{RESTART_SUFFIX}": now} if is_same and is_safe else {}


async def report_before(operation: ResourceOperation, check: ReadyCheck) -> GuestReport | None:
    """Return the TPU VM's report before a change, or None if unknown."""
    name = str(operation.owned_record().observed.get("nodeName") or "")
    return await operation.api.find_guest_report(name, check.namespace) if name else None


async def await_ready(operation: ResourceOperation, check: ReadyCheck, *, stale: GuestReport | None = None) -> None:
    """Wait until the TPU VM reports `ready` for the desired document. Raises CannotWaitError with the TPU VM's message.

    `stale` is the TPU VM's report before the change. If it was a failure, an identical report is ignored for a short time.
    """
    record = operation.owned_record()
    timer, polls = PollTimer(operation.pacing), 0
    while True:
        report = await operation.api.find_guest_report(str(record.observed["nodeName"]), check.namespace)
        record.observe_guest_report(report or GuestReport("", "", ""))
        is_stale = _is_stale(report, stale) and timer.seconds() < operation.pacing.stale_s
        age = timedelta() if report is None else report.age(operation.now())
        old = f"The TPU VM last reported {readable(age.total_seconds())} ago" if age > REPORT_LIMIT else ""
        is_current = report is not None and check.document_hash in {"", report.document_hash} and not (is_stale or old)
        current = report if is_current else None
        if old and timer.seconds() > min(REPORT_LIMIT.total_seconds(), check.timeout_s):
            raise CannotWaitError(
                f"{old}, so it does not read its document. Read its log. The capacity is kept, and costs money until you delete it."
            )
        if current and current.phase == READY_PHASE:
            await operation.report_progress(f"ready after {readable(timer.seconds())}{_pause(current)}")
            return
        if current and current.phase == FAILED_PHASE:
            raise CannotWaitError(_failed(current, check))
        # A machine that rolls back gets the same time again for its last known good document.
        if timer.seconds() > check.timeout_s * (2 if current and current.phase == RESTORING_PHASE else 1):
            raise CannotWaitError(_timed_out(report, check, is_current=current is not None))
        polls += 1
        if polls % POLLS_PER_NODE_CHECK == 0:
            await _require_alive(operation)
        phase = (current.phase if current else old) or "waiting for the TPU VM to read its document"
        detail = f": {last_line(current.detail)}" if current and current.detail else ""
        serving = ", previous server still serving" if current and _other_serves(current) else ""
        waited = f"{readable(timer.seconds())}/{readable(check.timeout_s)}"
        await operation.report_progress(f"{waited} {phase}{serving}{detail}")
        await timer.pause()


def _is_stale(report: GuestReport | None, before: GuestReport | None) -> bool:
    return before is not None and before.phase == FAILED_PHASE and report == before


def _other_serves(report: GuestReport) -> bool:
    return report.serving_hash not in {"", report.document_hash}


def _pause(report: GuestReport) -> str:
    """Return how long requests failed, for the last progress line. Empty if the TPU VM does not report it."""
    try:
        began = datetime.fromisoformat(report.pause_began_at)
        ended = datetime.fromisoformat(report.pause_ended_at)
    except ValueError:
        return ""
    return f", requests failed for {readable((ended - began).total_seconds())}"


def _failed(report: GuestReport, check: ReadyCheck) -> str:
    """Return the failure of the server with its reason first, the document that serves now, and the fix."""
    *before, reason = _lines(report.detail) or ["no reason reported"]
    log = "\nLast lines before it:\n" + "\n".join(before) if before else ""
    text = f"The server failed: {_LOG_PREFIX.sub('', reason.strip())}{log}"
    if not _other_serves(report):
        return (
            f"{text}\nThe capacity is kept, and costs money until you delete it. Fix the cause, then run `pulumi up`, which starts the "
            "server again."
        )
    desired = check.document_hash or report.document_hash
    if report.pause_began_at:
        fix = "The TPU VM does not retry the same document. Fix or revert the change, then run `pulumi up`."
    else:
        fix = "Fix the cause or revert the change, then run `pulumi up`."
    return (
        f"{text}\nThe previous configuration is serving: document {report.serving_hash[:HASH_DIGITS]}, not {desired[:HASH_DIGITS]}{_pause(report)}. "
        f"{fix}"
    )


def last_line(detail: str) -> str:
    """Return the message of the log's last line, shortened for a progress line. It is the reason for the agent's retry."""
    lines = _lines(detail)
    return _LOG_PREFIX.sub("", lines[-1].strip())[:200] if lines else ""


def _lines(detail: str) -> list[str]:
    return [line for line in detail.splitlines() if line.strip()]


def _timed_out(report: GuestReport | None, check: ReadyCheck, *, is_current: bool) -> str:
    limit = f"The TPU VM was not ready after {readable(check.timeout_s)} (`ready.timeoutS`)"
    if report is None:
        return (
            f"{limit} and published no guest attributes in {check.namespace}/. Its start-up script did not run or cannot reach "
            "the metadata server. Read the serial console."
        )
    phase = report.phase or "no phase"
    if not is_current:
        return f"{limit}. It still reports {phase} for document {report.document_hash[:HASH_DIGITS] or '(none)'}."
    serves = f" Document {report.serving_hash[:HASH_DIGITS]} is serving." if _other_serves(report) else ""
    tries = " The TPU VM keeps trying until its run expires, and is billed." if report.phase in WAITING_PHASES else ""
    return f"{limit}. Phase: {phase}. Detail: {report.detail or 'none'}.{serves}{tries}"


def _lost(answer: str, *, by_google: bool) -> CannotWaitError:
    """Return the error about capacity that is gone. What a user may have deleted is not requested elsewhere."""
    return LostError(answer) if by_google else CannotWaitError(f"{answer} Run `pulumi up --refresh` to replace it.")


async def _require_alive(operation: ResourceOperation) -> None:
    """Raise LostError if Google took the capacity back, and CannotWaitError if its run ended or a user may have deleted it."""
    record = operation.owned_record()
    planned_end = record.observed.get("deadline")
    found = await operation.api.find_queued_resource(record.name)
    if found is None:
        raise _lost(f"{record.name} is gone. {operation.api.lost}", by_google=False)
    record.observe(found)
    node = await operation.api.find_node(str(record.observed["nodeName"]))
    record.observe_node(node)
    if found.state == ACTIVE and node is not None and node.alive:
        return
    record.observed |= {"deadline": planned_end}  # with it, `gemma status` knows that the run has ended
    answer = f"{record.name} is {found.state} and its node is {record.observed.get('nodeState') or 'gone'}."
    if isinstance(planned_end, str) and datetime.fromisoformat(planned_end) <= operation.now():
        raise _lost(f"{answer} Its run has ended.", by_google=False)
    is_dead = found.state in DEAD or (found.state == ACTIVE and node is not None)
    raise _lost(answer, by_google=is_dead and found.state_initiator != "USER")
