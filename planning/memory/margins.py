"""How far a deployment is from the edge of its memory: too little, enough, or so close that it may fail.

Two figures bound each edge: `minimum_gib`, less than which was seen to fail or cannot work, and `recommended_gib`, which was seen to work.
Between them a server may fail. The edges: memory outside the budget, memory while the weights load, and KV cache for one request.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from planning.data import overheads
from planning.question.types import Margin, MemoryPlan

Edge = Literal["outside", "loading", "kv"]

_ROUNDING_GIB: Final = 1e-9
"""A budget is a product; its difference to the whole is not exact."""
OUTSIDE_RULE: Final = "FIT05"
"""Id of the rule of what lies outside the budget."""
CLOSE_RULE: Final = "FIT09"
"""Id of the rule of loading and of the KV cache; behind their edges stand rules of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeOfMemory:
    """What there is at one edge, and what it takes."""

    edge: Edge
    available_gib: float
    minimum_gib: float
    """Less fails."""
    recommended_gib: float
    """This much is enough."""

    @property
    def is_short(self) -> bool:
        """Whether there is less than what fails."""
        return self.available_gib + _ROUNDING_GIB < self.minimum_gib

    @property
    def may_fail(self) -> bool:
        """Whether there is more than what fails, and less than what is enough."""
        return not self.is_short and self.available_gib + _ROUNDING_GIB < self.recommended_gib


def outside(memory: MemoryPlan) -> EdgeOfMemory:
    """Return the edge of what lies outside `gpu_memory_utilization`: compiled programs of a TPU, the context of a GPU."""
    return EdgeOfMemory(
        edge="outside",
        available_gib=memory.headroom_gib,
        minimum_gib=memory.outside_needs_gib,
        recommended_gib=memory.outside_enough_gib,
    )


def loading(memory: MemoryPlan) -> EdgeOfMemory:
    """Return the edge of a device while the weights load."""
    peak = memory.load_peak_device_gib
    return EdgeOfMemory(
        edge="loading", available_gib=memory.usable_gib, minimum_gib=peak, recommended_gib=peak * (1 + overheads.WEIGHTS_SCATTER)
    )


def one_request(memory: MemoryPlan) -> EdgeOfMemory:
    """Return the edge of the KV cache: one request of the longest length. Heavier weights would take their memory from it."""
    request = memory.kv_request_gib
    scatter_gib = overheads.WEIGHTS_SCATTER * memory.weights_gib
    return EdgeOfMemory(edge="kv", available_gib=memory.kv_gib, minimum_gib=request, recommended_gib=request + scatter_gib)


def edges(memory: MemoryPlan) -> Iterator[EdgeOfMemory]:
    """Yield the edges, in the order in which a start meets them."""
    yield loading(memory)
    yield one_request(memory)
    yield outside(memory)


def margin_of(memory: MemoryPlan) -> Margin | None:
    """Return the first edge at which the deployment may fail; None if there is none, or if it fails for certain."""
    found = tuple(edges(memory))
    if any(edge.is_short for edge in found):
        return None
    close = next((edge for edge in found if edge.may_fail), None)
    if close is None:
        return None
    return Margin(
        verdict="may fail",
        finding=OUTSIDE_RULE if close.edge == "outside" else CLOSE_RULE,
        available_gib=close.available_gib,
        minimum_gib=close.minimum_gib,
        recommended_gib=close.recommended_gib,
    )


def margin_words(margin: Margin) -> str:
    """Return the figures of a margin in words, with the finding that names the edge."""
    return f"{margin.finding}: {margin.available_gib:.2f} GiB, and it takes {margin.minimum_gib:.2f} to {margin.recommended_gib:.2f}"
