"""Effect of each operation in each state, for the documentation and the tests. `python -m gcp_tpu_provider.state_table` prints it.

States come from Google's discovery document `tpu.v2alpha1`: QueuedResourceState.state and Node.state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

ABSENT = "absent"
"""State of a queued resource or a node that does not exist."""

EFFECTS: Mapping[str, str] = {
    "no change": "nothing",
    "in place": "changes the node in place",
    "fails": "fails without a change; the error names `pulumi up --refresh`",
    "continues": "continues waiting",
    "continues and changes": "continues waiting, then changes the node",
    "next zone": "deletes it, then requests capacity in the next zone",
    "requests again": "requests it again",
    "read": "reads it; the next `up` changes nothing",
    "read, continues": "reads it; the next `up` continues waiting",
    "read, replaces": "reads it; the next `up` replaces it",
    "removed": "removes it from the state; the next `up` creates it",
    "deleted": "deletes it without force",
    "tried": "deletes it without force, then with force if Google rejects that",
    "forced": "deletes it with force, which deletes its nodes",
    "awaited": "waits until it is gone",
    "nothing": "treats it as deleted",
}
"""Name of each effect: its sentence."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A combination of cloud state and Pulumi state, and the effect of each operation."""

    queued: str
    """State of the queued resource, or ABSENT."""
    node: str
    """State of its node, or ABSENT; "" if the node does not matter."""
    recorded: Literal["waiting", "ACTIVE"]
    """State recorded by the last `up`, which was interrupted while waiting or finished with ACTIVE."""
    up: str
    """Effect without a change of the program."""
    change: str
    """Effect with an in-place change."""
    refresh: str
    destroy: str


LIVING_NODES = (
    "CREATING", "READY", "RESTARTING", "REIMAGING", "REPAIRING", "STOPPED",
    "STOPPING", "STARTING", "HIDING", "UNHIDING", "UNKNOWN", "STATE_UNSPECIFIED",
)  # fmt: skip
LOST_NODES = ("PREEMPTED", "TERMINATED", "DELETING", "HIDDEN", ABSENT)

SITUATIONS: tuple[Situation, ...] = (
    Situation("CREATING", "", "waiting", "continues", "continues and changes", "read, continues", "forced"),
    Situation("ACCEPTED", "", "waiting", "continues", "continues and changes", "read, continues", "deleted"),
    Situation("WAITING_FOR_RESOURCES", "", "waiting", "continues", "continues and changes", "read, continues", "tried"),
    Situation("PROVISIONING", "", "waiting", "continues", "continues and changes", "read, continues", "forced"),
    Situation("STATE_UNSPECIFIED", "", "waiting", "continues", "continues and changes", "read, continues", "forced"),
    Situation("ACTIVE", "READY", "waiting", "continues", "continues and changes", "read", "forced"),
    Situation("FAILED", "", "waiting", "next zone", "next zone", "read, replaces", "deleted"),
    Situation("SUSPENDING", "", "waiting", "next zone", "next zone", "read, replaces", "forced"),
    Situation("SUSPENDED", "", "waiting", "next zone", "next zone", "read, replaces", "deleted"),
    Situation("DELETING", "", "waiting", "next zone", "next zone", "read, replaces", "awaited"),
    Situation(ABSENT, "", "waiting", "requests again", "requests again", "removed", "nothing"),
    *(Situation("ACTIVE", node, "ACTIVE", "no change", "in place", "read", "forced") for node in LIVING_NODES),
    *(Situation("ACTIVE", node, "ACTIVE", "fails", "fails", "read, replaces", "forced") for node in LOST_NODES),
    Situation("FAILED", "", "ACTIVE", "fails", "fails", "read, replaces", "deleted"),
    Situation("SUSPENDING", "", "ACTIVE", "fails", "fails", "read, replaces", "forced"),
    Situation("SUSPENDED", "", "ACTIVE", "fails", "fails", "read, replaces", "deleted"),
    Situation("DELETING", "", "ACTIVE", "fails", "fails", "read, replaces", "awaited"),
    Situation(ABSENT, "", "ACTIVE", "fails", "fails", "removed", "nothing"),
)


def table() -> str:
    """Return the table as Markdown. Rows with equal operations are merged."""
    lines = [
        "| queued resource | node | last `up` | `up` | change in place | refresh | destroy |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    merged: dict[tuple[str, ...], list[str]] = {}
    for (queued, recorded, up, change, refresh, destroy), rows in groupby(SITUATIONS, key=_shared):
        nodes = ", ".join(row.node for row in rows)
        ended = "ACTIVE" if recorded == "ACTIVE" else "interrupted"
        cells = (nodes, ended, *(EFFECTS[effect] for effect in (up, change, refresh, destroy)))
        merged.setdefault(cells, []).append(queued)
    lines += [f"| {' | '.join((', '.join(states), *cells))} |" for cells, states in merged.items()]
    return "\n".join(lines) + "\n"


def _shared(row: Situation) -> tuple[str, ...]:
    return row.queued, row.recorded, row.up, row.change, row.refresh, row.destroy


if __name__ == "__main__":
    print(table(), end="")
