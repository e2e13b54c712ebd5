"""An operation on one resource: API client, limits, progress reports, and the record of the resources in the cloud."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gcp_tpu_provider import wire
from gcp_tpu_provider.capacity_api import CapacityApi
from gcp_tpu_provider.desired_state import DesiredState, urn_hash
from gcp_tpu_provider.errors import CannotWaitError, ConflictError, ForeignError, TpuProviderError
from gcp_tpu_provider.forms import Form
from gcp_tpu_provider.resource_record import ResourceRecord, owner_labels
from gcp_tpu_provider.tpu_api import ABORTED, LongRunningOperation, NodeInfo, OwnCapacity, QueuedResourceInfo
from gcp_tpu_provider.transport import Pacing


def _now_s() -> float:
    """Return the time of the running event loop's clock in seconds. Pauses use the same clock."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class PollTimer:
    """One polling loop. Each pause is a fraction of the time already waited, with jitter, between `poll_first_s` and `poll_most_s`."""

    pacing: Pacing
    started: float = field(default_factory=_now_s)

    def seconds(self) -> float:
        """Return the seconds since the loop started."""
        return _now_s() - self.started

    async def pause(self) -> None:
        """Wait until the next poll."""
        share_s = self.seconds() * self.pacing.poll_share
        pause_s = min(self.pacing.poll_most_s, max(self.pacing.poll_first_s, share_s))
        await asyncio.sleep(pause_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter


def utc_now() -> datetime:
    """Return this machine's time, in UTC."""
    return datetime.now(UTC)


@dataclass
class ResourceOperation:
    """One create, read, update or delete of one resource.

    `record` is set before anything may exist in the cloud, and cleared when it is gone. Whether the operation succeeds or fails, the
    state must keep `record`. `committed` is True once the cloud has the new inputs.
    """

    api: CapacityApi
    pacing: Pacing
    desired: DesiredState
    report_progress: Callable[[str], Awaitable[None]]
    record: ResourceRecord | None = None
    committed: bool = False
    owners: frozenset[str] = frozenset()
    """Owner hashes from the state. A resource whose URN changed keeps its old label until its next update."""
    tried: dict[str, None] = field(default_factory=dict[str, None])
    """Zones, in order, in which this or an earlier operation created or found a request."""
    now: Callable[[], datetime] = utc_now
    """Google's time."""
    wait: PollTimer | None = None
    """Time since the operation started waiting for capacity. `waitTotalS` is measured from there."""
    form: Form | None = None
    """Form of capacity that is requested now."""
    form_wait: PollTimer | None = None
    """Time since the first request in this form."""

    def begin(self, form: Form) -> None:
        """Start the wait for a form of capacity, unless it is in progress. The first call starts the total wait too."""
        self.wait = self.wait or PollTimer(self.pacing)
        if form != self.form:
            self.form, self.form_wait = form, PollTimer(self.pacing)

    def total_left_s(self) -> float:
        """Return the remaining seconds of `waitTotalS`, or infinity if the inputs set no limit."""
        total_s = self.desired.wait_total_s
        return math.inf if total_s is None or self.wait is None else total_s - self.wait.seconds()

    def form_left_s(self) -> float:
        """Return the remaining seconds for the current form, or infinity if it has no limit of its own."""
        if self.form is None or self.form.wait_s is None or self.form_wait is None:
            return math.inf
        return self.form.wait_s - self.form_wait.seconds()

    def wait_left_s(self) -> float:
        """Return the remaining seconds for the current form and in total."""
        return min(self.total_left_s(), self.form_left_s())

    def owns(self, resource: QueuedResourceInfo, node: NodeInfo | None = None) -> bool:
        """Return whether the owner label of the queued resource or its node names this Pulumi resource."""
        labels = [item.labels for item in resource.nodes] + ([node.labels] if node else [])
        return any(self.own_labels(owner_labels(item)) for item in labels)

    def own_labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the owner labels that name this Pulumi resource. Only these may be in the state, which defines ownership."""
        accepted = {urn_hash(self.desired.urn), *self.owners}
        return {key: value for key, value in labels.items() if value in accepted}

    def require_owned(self, resource: QueuedResourceInfo) -> None:
        """Raise ForeignError unless the queued resource has this resource's owner label."""
        if not self.owns(resource):
            raise ForeignError(
                f"{resource.name} already exists, its labels do not name this Pulumi resource, and it was not modified. "
                "Choose another `queuedResourceId` or import it by that name."
            )

    def own(self, resource: QueuedResourceInfo, record: ResourceRecord) -> OwnCapacity | None:
        """Return the proof that the labels name this resource, or that it is the one in the record, whatever its labels name now."""
        is_recorded = bool(resource.create_time) and resource.create_time == record.observed.get("createTime")
        return OwnCapacity(resource.name) if is_recorded or self.owns(resource) else None

    def is_recorded(self, resource: QueuedResourceInfo, record: ResourceRecord) -> bool:
        """Return whether the labels name this resource, or it matches the record and no label names another owner."""
        claimed = any(owner_labels(item.labels) for item in resource.nodes)
        return self.owns(resource) or (not claimed and resource.create_time == record.observed.get("createTime"))

    def require_recorded(self, resource: QueuedResourceInfo, record: ResourceRecord) -> None:
        """Raise ForeignError unless the labels name this resource, or it matches the state and no label names another owner."""
        if self.is_recorded(resource, record):
            return
        if resource.create_time == record.observed.get("createTime"):
            raise ForeignError(
                f"The labels of {resource.name} now name another Pulumi resource. It was not modified. "
                "To release it to that resource, run `pulumi state delete`."
            )
        raise ForeignError(
            f"{resource.name} does not match the resource in the state and was not modified. Run `pulumi refresh`."
        )

    def outputs(self, inputs: wire.Properties) -> wire.Properties:
        """Return the outputs for the state: the record and the zones that were tried."""
        record = self.owned_record()
        known = record.outputs(inputs)
        if "ownerLabels" in known:
            known["ownerLabels"] = self.own_labels(known["ownerLabels"])
        return {**known, "triedZones": list({**self.tried, record.zone: None})}

    def owned_record(self) -> ResourceRecord:
        """Return the record. Raises TpuProviderError if it is missing, which is a bug in the provider."""
        if self.record is None:
            raise TpuProviderError("The provider lost its record of the queued resource. This is a bug. Report it.")
        return self.record

    async def finish(self, long_running: LongRunningOperation, what: str) -> None:
        """Wait until Google's operation is done. Raises CannotWaitError with Google's message, ConflictError after another client's change."""
        timer = PollTimer(self.pacing)
        while not long_running.done and long_running.name:
            if timer.seconds() > self.pacing.operation_s:
                raise CannotWaitError(f"{what} did not finish within {self.pacing.operation_s:.0f} s.")
            await timer.pause()
            long_running = await self.api.get_operation(long_running.name)
        if long_running.error:
            kind = ConflictError if long_running.error_code == ABORTED else CannotWaitError
            raise kind(f"{what} failed: {long_running.error}.")
