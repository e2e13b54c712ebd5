"""State machine of queued resources as pure functions: from a record and the conditions to the next record and its effects.

States and their order: Cloud TPU's documentation of queued resources. CREATING, ACCEPTED, WAITING_FOR_RESOURCES, PROVISIONING, ACTIVE;
then SUSPENDING, SUSPENDED when the nodes stop (run duration, deletion, preemption); FAILED; DELETING.
"""

from dataclasses import dataclass, replace
from enum import Enum

from localcloud.json_values import JsonObject
from localcloud.services.capacity_words import EXPIRED
from localcloud.world.scenario import TpuDurations


class QueuedResourceState(Enum):
    """States of a queued resource, as the API names them."""

    CREATING = "CREATING"
    ACCEPTED = "ACCEPTED"
    WAITING = "WAITING_FOR_RESOURCES"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    SUSPENDING = "SUSPENDING"
    SUSPENDED = "SUSPENDED"
    FAILED = "FAILED"
    DELETING = "DELETING"


DELETABLE = (QueuedResourceState.ACCEPTED, QueuedResourceState.SUSPENDED, QueuedResourceState.FAILED)
"""States in which a delete without force is accepted.

Discovery document tpu.v2alpha1, `queuedResources.delete`, `force`: otherwise "the queued resource will only be deleted if its nodes
have already been deleted or the queued resource is in the ACCEPTED, FAILED, or SUSPENDED state". One public log of gcloud lists
WAITING_FOR_RESOURCES too (the message of `refused_deletion`); the local cloud follows the narrower text.
"""
RESTING = {QueuedResourceState.SUSPENDED, QueuedResourceState.FAILED}
"""States that do not change with time."""


class Effect(Enum):
    """Effects of a transition on the nodes and on the queued resource."""

    CREATE_NODES = "create nodes"
    BOOT_NODES = "boot nodes"
    STOP_NODES = "stop nodes"
    DELETE_NODES = "delete nodes"
    FORGET = "forget the queued resource"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """One queued resource in the state machine. Times are simulated seconds, lifetimes real seconds (see `localcloud.world.timeline`)."""

    state: QueuedResourceState
    since_s: float
    valid_after_s: float = 0.0
    valid_until_s: float | None = None
    run_duration_s: float | None = None
    active_since_life_s: float | None = None
    granted_s: float | None = None
    """Time of the grant that a deletion came too late for. None without such a deletion."""
    initiator: str = "SERVICE"
    error: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Conditions that determine transitions.

    `quota_error` is a google.rpc.Status if the quota does not suffice, `stockout` the one of a zone without capacity that lets nothing wait.
    `capacity`: the zone has capacity now. `plenty`: the scenario does not limit the capacity. Times are simulated seconds; `life_s` is the
    clock of run durations.
    """

    durations: TpuDurations
    quota_error: JsonObject | None
    stockout: JsonObject | None
    capacity: bool
    plenty: bool
    now_s: float
    life_s: float


def step(queued: Queued, conditions: Conditions) -> tuple[Queued, list[Effect]]:  # noqa: PLR0911 - one return per state
    """Return the record after at most one transition, and its effects. Without a due transition, the record is unchanged and the list is empty."""
    lengths = {
        QueuedResourceState.CREATING: conditions.durations.creating,
        QueuedResourceState.ACCEPTED: conditions.durations.accepted,
        QueuedResourceState.WAITING: conditions.durations.waiting_for_resources,
        QueuedResourceState.PROVISIONING: conditions.durations.provisioning,
        QueuedResourceState.SUSPENDING: conditions.durations.suspending,
        QueuedResourceState.DELETING: conditions.durations.deleting,
    }
    if queued.state is QueuedResourceState.ACTIVE:
        return _end_of_run(queued, conditions)
    if queued.state in RESTING:
        return queued, []
    due_s = queued.since_s + lengths[queued.state]
    if queued.state is QueuedResourceState.WAITING:
        return _wait(queued, conditions, max(due_s, queued.valid_after_s))
    if conditions.now_s < due_s:
        return queued, []
    match queued.state:
        case QueuedResourceState.CREATING:
            return replace(queued, state=QueuedResourceState.ACCEPTED, since_s=due_s), []
        case QueuedResourceState.ACCEPTED:
            if conditions.quota_error is not None:
                return replace(
                    queued, state=QueuedResourceState.FAILED, since_s=due_s, error=conditions.quota_error
                ), []
            return replace(queued, state=QueuedResourceState.WAITING, since_s=due_s), []
        case QueuedResourceState.PROVISIONING:
            return replace(
                queued, state=QueuedResourceState.ACTIVE, since_s=due_s, active_since_life_s=conditions.life_s
            ), [Effect.BOOT_NODES]
        case QueuedResourceState.SUSPENDING:
            return replace(queued, state=QueuedResourceState.SUSPENDED, since_s=due_s), [Effect.DELETE_NODES]
        case _:
            return queued, [Effect.DELETE_NODES, Effect.FORGET]


def _wait(queued: Queued, conditions: Conditions, due_s: float) -> tuple[Queued, list[Effect]]:
    """Provision if the wait is over, the zone has capacity and the request has not expired."""
    if queued.granted_s is not None:
        if conditions.now_s < queued.granted_s:
            return queued, []
        return replace(queued, state=QueuedResourceState.PROVISIONING, since_s=queued.granted_s), [Effect.CREATE_NODES]
    end_s = queued.valid_until_s
    if conditions.capacity and conditions.now_s >= due_s and (end_s is None or due_s <= end_s):
        since_s = due_s if conditions.plenty else conditions.now_s
        return replace(queued, state=QueuedResourceState.PROVISIONING, since_s=since_s), [Effect.CREATE_NODES]
    if conditions.stockout is not None and conditions.now_s >= due_s and (end_s is None or due_s < end_s):
        return replace(queued, state=QueuedResourceState.FAILED, since_s=due_s, error=conditions.stockout), []
    if end_s is not None and conditions.now_s >= end_s:
        return replace(
            queued, state=QueuedResourceState.FAILED, since_s=end_s, error={"code": 4, "message": EXPIRED}
        ), []
    return queued, []


def _end_of_run(queued: Queued, conditions: Conditions) -> tuple[Queued, list[Effect]]:
    if (
        queued.run_duration_s is None
        or queued.active_since_life_s is None
        or conditions.life_s < queued.active_since_life_s + queued.run_duration_s
    ):
        return queued, []
    return suspend(queued, conditions.now_s, initiator="SERVICE")


def suspend(queued: Queued, now_s: float, *, initiator: str) -> tuple[Queued, list[Effect]]:
    """Stop the nodes when the run expires, after a user's deletion, or after a preemption."""
    return replace(queued, state=QueuedResourceState.SUSPENDING, since_s=now_s, initiator=initiator), [
        Effect.STOP_NODES
    ]


def delete(queued: Queued, now_s: float) -> tuple[Queued, list[Effect]]:
    """Start to delete the queued resource. The caller checks that its state allows it."""
    return replace(queued, state=QueuedResourceState.DELETING, since_s=now_s, initiator="USER"), [Effect.STOP_NODES]
