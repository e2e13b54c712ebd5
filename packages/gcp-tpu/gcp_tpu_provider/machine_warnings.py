"""Warnings about running capacity in the state, read from Google and the machine during a preview or update without a refresh."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from gcp_tpu_provider import wire
from gcp_tpu_provider.capacity_api import CapacityApi
from gcp_tpu_provider.diff import is_dead
from gcp_tpu_provider.errors import TpuProviderError
from gcp_tpu_provider.serving import HASH_DIGITS, last_line
from gcp_tpu_provider.tpu_api import (
    ACTIVE,
    DEAD,
    DELETING,
    FAILED_PHASE,
    READY_PHASE,
    GuestReport,
    NodeInfo,
    QueuedResourceInfo,
)

LIMIT_S = 5.0
"""Timeout for both responses. A preview without a network continues without them."""


async def machine_warnings(
    api: CapacityApi, outputs: Mapping[str, Any], news: Mapping[str, Any], *, replaces: bool
) -> list[str]:
    """Return warnings before an update: the machine is gone, rolled back to an older document, or runs an older agent.

    A missing response is not a warning, because the machine may or may not exist.
    """
    state = cast("wire.Properties", wire.reveal(dict(outputs)))
    name = state.get("nodeName")
    if not name or state.get("state") != ACTIVE or is_dead(state) or state.get("renewalName"):
        return []
    ready = cast("wire.Properties", wire.reveal(news.get("ready")) or {})
    namespace = str(ready.get("guestAttributeNamespace") or "")
    with suppress(TpuProviderError, TimeoutError):
        async with asyncio.timeout(LIMIT_S):
            found, node = await asyncio.gather(api.find_queued_resource(str(state["name"])), api.find_node(str(name)))
            if found is None or found.state in {*DEAD, DELETING} or node is None or not node.alive:
                return [_gone(str(state["name"]), found, node)]
            report = await api.find_guest_report(node.name, namespace) if namespace else None
            if report is not None and not replaces:
                abilities = cast("list[str]", wire.reveal(news.get("agentAbilities")) or [])
                return [
                    *_went_back(state, report),
                    *_old_agent(node.name, report, abilities),
                ]
    return []


def _gone(name: str, found: QueuedResourceInfo | None, node: NodeInfo | None) -> str:
    state = f"is {found.state}" if found is not None and found.state != ACTIVE else "is gone"
    if found is not None and found.state == ACTIVE and node is not None:
        state = f"has a machine that is {node.state}"
    return (
        f"{name} {state}, but this stack's state records it as ACTIVE. Nothing serves, and an update without a refresh will not change that. "
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


def _old_agent(node: str, report: GuestReport, abilities: Sequence[str]) -> list[str]:
    lacking = abilities[report.agent_version :]
    if not lacking:
        return []
    words = "; and ".join(lacking)
    version = f"of version {report.agent_version}" if report.agent_version else "of unknown version"
    return [
        (
            f"The machine runs an agent {version}, but this program has version {len(abilities)}. Until a reboot {words}. "
            f"To update the agent, run `{reboot_command(node)}`. This restarts the server."
        )
    ]


def reboot_command(node: str) -> str:
    """Return the command that reboots a machine and keeps its capacity, for the machine's full name.

    Compute Engine resets an instance with the method `instances.reset`. Cloud TPU only has stop and start, which release the capacity.
    """
    _, project, _, zone, kind, name = node.split("/")
    place = f"--project={project} --zone={zone}"
    if kind == "instances":
        return f"gcloud compute instances reset {name} {place}"
    return f'gcloud alpha compute tpus tpu-vm ssh {name} {place} --tunnel-through-iap --command="sudo reboot"'
