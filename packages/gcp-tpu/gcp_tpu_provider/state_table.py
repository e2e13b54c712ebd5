"""What each operation does in each state. The page's table and the tests come from this: `python -m gcp_tpu_provider.state_table` prints it.

States are those of Google's discovery document `tpu.v2alpha1`: QueuedResourceState.state and Node.state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, TypeAlias

ABSENT = "absent"
"""Of a queued resource or a node: it does not exist."""

Effect: TypeAlias = Literal[
    "no change",
    "warns",
    "in place",
    "fails",
    "goes on",
    "goes on and changes",
    "next zone",
    "asks again",
    "read",
    "read, goes on",
    "read, replaces",
    "removed",
    "deleted",
    "tried",
    "forced",
    "awaited",
    "nothing",
]
EFFECTS: Mapping[Effect, str] = {
    "no change": "nothing",
    "warns": "changes nothing, and warns: `pulumi up --refresh`",
    "in place": "changes the node in place",
    "fails": "fails without a change, and names `pulumi up --refresh`",
    "goes on": "goes on waiting",
    "goes on and changes": "goes on waiting, then changes the node",
    "next zone": "deletes it, and asks the next zone",
    "asks again": "requests it again",
    "read": "reads it; the next `up` changes nothing",
    "read, goes on": "reads it; the next `up` goes on waiting",
    "read, replaces": "reads it; the next `up` replaces it",
    "removed": "takes it out of the state; the next `up` creates it",
    "deleted": "deletes it without force",
    "tried": "deletes it without force, and with force if Google refuses that",
    "forced": "deletes it with force, which deletes its nodes",
    "awaited": "waits until it is gone",
    "nothing": "counts as deleted",
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What exists, what Pulumi's state says of it, and what each operation then does."""

    queued: str
    """State of the queued resource, or ABSENT."""
    node: str
    """State of its node, or ABSENT; "" where the node does not matter."""
    recorded: Literal["waiting", "ACTIVE"]
    """Whether the last `up` was interrupted while it waited, or ended with ACTIVE."""
    up: Effect
    """Without a change of the program."""
    change: Effect
    """With a change that can be made in place."""
    refresh: Effect
    destroy: Effect


LIVING_NODES = (
    "CREATING",
    "READY",
    "RESTARTING",
    "REIMAGING",
    "REPAIRING",
    "STOPPED",
    "STOPPING",
    "STARTING",
    "HIDING",
    "UNHIDING",
    "UNKNOWN",
    "STATE_UNSPECIFIED",
)
LOST_NODES = ("PREEMPTED", "TERMINATED", "DELETING", "HIDDEN", ABSENT)

SITUATIONS: tuple[Situation, ...] = (
    Situation("CREATING", "", "waiting", "goes on", "goes on and changes", "read, goes on", "forced"),
    Situation("ACCEPTED", "", "waiting", "goes on", "goes on and changes", "read, goes on", "deleted"),
    Situation("WAITING_FOR_RESOURCES", "", "waiting", "goes on", "goes on and changes", "read, goes on", "tried"),
    Situation("PROVISIONING", "", "waiting", "goes on", "goes on and changes", "read, goes on", "forced"),
    Situation("STATE_UNSPECIFIED", "", "waiting", "goes on", "goes on and changes", "read, goes on", "forced"),
    Situation("ACTIVE", "READY", "waiting", "goes on", "goes on and changes", "read", "forced"),
    Situation("FAILED", "", "waiting", "next zone", "next zone", "read, replaces", "deleted"),
    Situation("SUSPENDING", "", "waiting", "next zone", "next zone", "read, replaces", "forced"),
    Situation("SUSPENDED", "", "waiting", "next zone", "next zone", "read, replaces", "deleted"),
    Situation("DELETING", "", "waiting", "next zone", "next zone", "read, replaces", "awaited"),
    Situation(ABSENT, "", "waiting", "asks again", "asks again", "removed", "nothing"),
    *(Situation("ACTIVE", node, "ACTIVE", "no change", "in place", "read", "forced") for node in LIVING_NODES),
    *(Situation("ACTIVE", node, "ACTIVE", "warns", "fails", "read, replaces", "forced") for node in LOST_NODES),
    Situation("FAILED", "", "ACTIVE", "warns", "fails", "read, replaces", "deleted"),
    Situation("SUSPENDING", "", "ACTIVE", "warns", "fails", "read, replaces", "forced"),
    Situation("SUSPENDED", "", "ACTIVE", "warns", "fails", "read, replaces", "deleted"),
    Situation("DELETING", "", "ACTIVE", "warns", "fails", "read, replaces", "awaited"),
    Situation(ABSENT, "", "ACTIVE", "warns", "fails", "removed", "nothing"),
)


def table() -> str:
    """Return the table as Markdown. Neighbours that differ only in the state of the node share a row."""
    lines = [
        "| queued resource | node | last `up` | `up` | change in place | refresh | destroy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (queued, recorded, up, change, refresh, destroy), rows in groupby(SITUATIONS, key=_shared):
        nodes = ", ".join(row.node for row in rows)
        ended = "ACTIVE" if recorded == "ACTIVE" else "broke off"
        cells = [queued, nodes, ended, *(EFFECTS[effect] for effect in (up, change, refresh, destroy))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shared(row: Situation) -> tuple[str, str, Effect, Effect, Effect, Effect]:
    return row.queued, row.recorded, row.up, row.change, row.refresh, row.destroy


if __name__ == "__main__":
    print(table(), end="")
