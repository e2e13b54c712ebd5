"""What every operation shares: the client, the limits, a voice, and the record of what exists."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeAlias

from gcp_tpu_provider.errors import CannotWaitError, ForeignError, ProviderError
from gcp_tpu_provider.record import Record, owner_labels
from gcp_tpu_provider.request import urn_hash
from gcp_tpu_provider.tpu_api import Node, Operation, QueuedResource, TpuApi
from gcp_tpu_provider.transport import Timing

Say: TypeAlias = Callable[[str], Awaitable[None]]
"""Shows one line of progress in the resource's row."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Seconds since its making."""

    started: float = field(default_factory=monotonic)

    def seconds(self) -> float:
        """Return the seconds that have passed."""
        return monotonic() - self.started


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses between looks: a share of the time that was waited already, so that the end is seen soon and nobody is pestered; never in step with others."""

    timing: Timing
    watch: Stopwatch = field(default_factory=Stopwatch)

    async def pause(self) -> None:
        """Wait until it is time for the next look."""
        share_s = self.watch.seconds() * self.timing.poll_share
        pause_s = min(self.timing.poll_most_s, max(self.timing.poll_first_s, share_s))
        await asyncio.sleep(pause_s * random.uniform(0.9, 1.1))  # noqa: S311 - jitter


@dataclass
class Flow:
    """One operation on one resource.

    `record` is set from before the moment at which something may exist in the cloud until it is seen to be gone: whatever ends the operation, this is what the
    state has to keep. `committed` says that the cloud already follows the new inputs.
    """

    api: TpuApi
    timing: Timing
    urn: str
    say: Say
    record: Record | None = None
    committed: bool = False
    owners: frozenset[str] = frozenset()
    """Owner hashes from the state: a resource that got another URN keeps its old label until its next update."""

    def owns(self, resource: QueuedResource, node: Node | None = None) -> bool:
        """Whether the labels that tie it to a Pulumi resource tie it to this one."""
        accepted = {urn_hash(self.urn), *self.owners}
        labels = [item.labels for item in resource.nodes] + ([node.labels] if node else [])
        return any(value in accepted for item in labels for value in owner_labels(item).values())

    def require_ours(self, resource: QueuedResource) -> None:
        """Raise ForeignError unless the queued resource is this resource's."""
        if not self.owns(resource):
            raise ForeignError(
                f"{resource.name} exists already and its labels do not tie it to this resource, so it is left alone; "
                "choose another `queuedResourceId`, or import it by that name."
            )

    def require_recorded(self, resource: QueuedResource, record: Record) -> None:
        """Raise ForeignError unless it is ours by its labels, or the very one that the state holds and nobody else's by its labels."""
        created = record.seen.get("createTime")
        claimed = any(owner_labels(item.labels) for item in resource.nodes)
        if not self.owns(resource) and (claimed or resource.create_time != created):
            raise ForeignError(
                f"{resource.name} is not the one that the state holds, or another Pulumi resource's by its labels, so it is left alone; "
                "run `pulumi refresh`."
            )

    def owned_record(self) -> Record:
        """Return the record. Raises ProviderError where there is none, which is a mistake of the provider."""
        if self.record is None:
            raise ProviderError("The provider lost its record of the queued resource; please report this.")
        return self.record

    async def finish_operation(self, operation: Operation, what: str) -> None:
        """Wait until a long-running operation is done. Raises ProviderError in Google's words."""
        pace, watch = Pace(self.timing), Stopwatch()
        while not operation.done and operation.name:
            if watch.seconds() > self.timing.operation_s:
                raise CannotWaitError(f"{what} did not finish within {self.timing.operation_s:.0f} s.")
            await pace.pause()
            operation = await self.api.operation(operation.name)
        if operation.error:
            raise CannotWaitError(f"{what} failed: {operation.error}.")
