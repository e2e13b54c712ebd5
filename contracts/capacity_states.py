"""How far capacity is, in the words of the Cloud TPU API (discovery: tpu.v2alpha1 QueuedResourceState): of queued resources, and of instances too.

The provider keeps a table of its own, because it imports nothing of the project; a test compares the two.
"""

from collections.abc import Mapping
from typing import Final

ACTIVE: Final = "ACTIVE"
IN_QUEUE: Final = frozenset({"ACCEPTED", "WAITING_FOR_RESOURCES"})
"""Google ends it after its `validUntilDuration`, which the provider always sets."""
WAITING: Final = IN_QUEUE | {"PROVISIONING"}
"""It asks for capacity. CREATING asks for nothing yet."""
WITHOUT_MACHINE: Final = WAITING | {"UNKNOWN", "CREATING"}
"""Its machine does not exist yet. UNKNOWN is the word of a state that was never read."""
ENDED: Final = frozenset({"SUSPENDING", "SUSPENDED"})
"""It had its machines, and lost them."""
DEAD: Final = ENDED | {"FAILED"}
"""It never serves again."""
GRANTED: Final = ENDED | {ACTIVE}
"""It got its machines. DELETING says nothing."""
BILLED: Final = frozenset({"PROVISIONING", ACTIVE, "SUSPENDING", "DELETING"})
"""It can have machines."""

INSTANCE_STATES: Final[Mapping[str, str]] = {
    "PENDING": "WAITING_FOR_RESOURCES",
    "PROVISIONING": "PROVISIONING",
    "STAGING": "PROVISIONING",
    "RUNNING": ACTIVE,
    "REPAIRING": ACTIVE,
    "PENDING_STOP": "SUSPENDING",
    "STOPPING": "SUSPENDING",
    "SUSPENDING": "SUSPENDING",
    "DEPROVISIONING": "SUSPENDING",
    "TERMINATED": "SUSPENDED",
    "STOPPED": "SUSPENDED",
    "SUSPENDED": "SUSPENDED",
}
"""Status of an instance (Compute Engine, "Instance lifecycle") -> state."""
BILLED_STATUSES: Final = frozenset({"PROVISIONING", "STAGING", "RUNNING", "REPAIRING", "PENDING_STOP", "STOPPING"})
"""Statuses of an instance in which it has a TPU (Compute Engine, "Instance lifecycle"; those before RUNNING are free, and short)."""
