"""Reports about running capacity in the state: before its run expires, and when Google or the TPU VM reports that it no longer serves."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.capacity_api import CapacityApi
from gcp_tpu_provider.diff import is_dead
from gcp_tpu_provider.durations import readable
from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.serving import HASH_DIGITS, last_line
from gcp_tpu_provider.tpu_api import (
    ACTIVE,
    FAILED_PHASE,
    GONE,
    READY_PHASE,
    GuestReport,
    NodeInfo,
    QueuedResourceInfo,
)

LEAST_LEFT = timedelta(minutes=30)
LEAST_SHARE_LEFT = 0.1
"""A warning is shown if less than this share of the run duration is left, or less than LEAST_LEFT."""
LIMIT_S = 5.0
"""Timeout for both responses. A preview without a network continues without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineReport:
    """Google's answer about a machine that the state records as running."""

    has_ended: bool = False
    """True if Google reports that the TPU VM no longer exists. Without an answer it may still exist."""
    warnings: Sequence[str] = ()


_NOTHING: Final = MachineReport()


async def machine_report(
    api: CapacityApi, outputs: Mapping[str, Any], news: Mapping[str, Any], *, replaces: bool
) -> MachineReport:
    """Return whether the TPU VM is gone, and warnings if it is or if it rolled back to an older document."""
    state = cast("wire.Properties", wire.reveal(dict(outputs)))
    name = state.get("nodeName")
    if not name or state.get("state") != ACTIVE or is_dead(state):
        return _NOTHING
    ready = cast("wire.Properties", wire.reveal(news.get("ready")) or {})
    namespace = str(ready.get("guestAttributeNamespace") or "")
    with suppress(TpuProviderError, TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            found, node = await asyncio.gather(api.find_queued_resource(str(state["name"])), api.find_node(str(name)))
            if found is None or found.state in GONE or node is None or not node.alive:
                return MachineReport(has_ended=True, warnings=[_gone(str(state["name"]), found, node)])
            report = await api.find_guest_report(node.name, namespace) if namespace else None
            if report is not None and not replaces:
                return MachineReport(warnings=_went_back(state, report))
    return _NOTHING


def _gone(name: str, found: QueuedResourceInfo | None, node: NodeInfo | None) -> str:
    state = f"is {found.state}" if found is not None and found.state != ACTIVE else "is gone"
    if found is not None and found.state == ACTIVE and node is not None:
        state = f"has a TPU VM that is {node.state}"
    return (
        f"{name} {state}, but this stack's state records it as ACTIVE. Nothing serves, and an update without a refresh fails. "
        "Run `pulumi up --refresh` to request capacity again."
    )


def _went_back(state: wire.Properties, report: GuestReport) -> list[str]:
    """Return a warning if the document was ready when the last update finished and has failed since."""
    failed_since = report.phase == FAILED_PHASE and state.get("phase") == READY_PHASE
    if not failed_since or report.document_hash != state.get("documentHash"):
        return []
    others = report.serving_hash not in {"", report.document_hash}
    serves = (
        f"Document {report.serving_hash[:HASH_DIGITS]}, the last known good one, serves" if others else "Nothing serves"
    )
    text = f"was ready at the last `pulumi up` and has failed since: {last_line(report.detail)}"
    return [f"Document {report.document_hash[:HASH_DIGITS]} {text} {serves}. Change the settings and run `pulumi up`."]


def deadline_warning(outputs: Mapping[str, Any], now: datetime) -> str:
    """Return a warning that Google will soon delete the TPU VM or has already deleted it. Empty if none is needed."""
    state = cast("wire.Properties", wire.reveal(dict(outputs)))
    text = state.get("deadline")
    if not isinstance(text, str) or not text or is_dead(state):
        return ""
    try:
        deadline = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return ""
    run_s = state.get("maxRunDurationS")
    share = timedelta(seconds=float(run_s) * LEAST_SHARE_LEFT) if isinstance(run_s, int | float) else timedelta()
    left = deadline - now
    if left > max(LEAST_LEFT, share):
        return ""
    at = f"{deadline:%Y-%m-%d %H:%M} UTC"
    if left <= timedelta():
        return f"The run of {state.get('name')} expired at {at}. Run `pulumi up --refresh` to request capacity again."
    return (
        f"Google will delete the TPU VM of {state.get('name')} at {at}, in {readable(left.total_seconds())}. "
        "After that, run `pulumi up --refresh` to request capacity again."
    )
