"""States of capacity, in the terms of the Cloud TPU API (discovery: tpu.v2alpha1 QueuedResourceState)."""

from typing import Final

ACTIVE: Final = "ACTIVE"
IN_QUEUE: Final = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES"})
"""Google drops the request after its `validUntilDuration`, which the provider always sets."""
WAITING: Final = IN_QUEUE | {"PROVISIONING"}
"""Capacity is requested. In CREATING it is not requested yet."""
WITHOUT_MACHINE: Final = WAITING | {"UNKNOWN", "CREATING"}
"""The TPU VM does not exist yet. UNKNOWN means that the state was never read."""
ENDED: Final = frozenset({"SUSPENDING", "SUSPENDED"})
"""The TPU VMs existed and are gone."""
DEAD: Final = ENDED | {"FAILED"}
"""It will never serve again."""
LOST_NODES: Final = frozenset({"PREEMPTED", "TERMINATED", "DELETING", "HIDDEN"})
"""A node in such a state, or a missing one, never serves again (discovery: tpu.v2alpha1, Node.state)."""
GRANTED: Final = ENDED | {ACTIVE}
"""Machines were granted. DELETING proves nothing."""
BILLED: Final = frozenset({"PROVISIONING", ACTIVE, "SUSPENDING", "DELETING"})
"""Machines may exist."""

BILLED_STATUSES: Final = frozenset({"PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING"})
"""Statuses of an instance in which it has a TPU. Those before RUNNING are free, and short."""
