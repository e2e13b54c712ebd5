"""Distance of a deployment from its memory limits: too little, enough, or so close that it may fail.

Each limit has two values: `minimum_gib`, below which it is known to fail, and `recommended_gib`, which is known to suffice.
Between them a server may fail. The limits: memory outside the budget, memory while the weights load, and KV cache for one request.
Where the need itself is planned, the two values are the need less and plus the error of the plan.
"""

from typing import Final

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.question.types import EdgeOfMemory, MemoryPlan

OUTSIDE_RULE: Final = "FIT05"
"""Id of the rule for memory outside the budget."""
CLOSE_RULE: Final = "FIT09"
"""Id of the rule for loading and the KV cache; other rules report deployments beyond these limits."""


def edge_outside_budget(memory: MemoryPlan) -> EdgeOfMemory:
    """Return the limit outside `gpu_memory_utilization`: compiled programs of a TPU, the context of a GPU."""
    return EdgeOfMemory(OUTSIDE_RULE, memory.headroom_gib, memory.outside_needs_gib, memory.outside_enough_gib)


def edge_while_loading(memory: MemoryPlan) -> EdgeOfMemory:
    """Return the limit of a device while the weights load."""
    peak = memory.load_peak_device_gib
    return EdgeOfMemory(CLOSE_RULE, memory.usable_gib, peak, peak * (1 + constant("WEIGHTS_SCATTER")))


def one_request(memory: MemoryPlan) -> EdgeOfMemory:
    """Return the limit of the KV cache: one request of the maximum length."""
    request = memory.kv_request_gib
    return EdgeOfMemory(CLOSE_RULE, memory.kv_gib, request - memory.kv_excess_gib, request + memory.kv_margin_gib)


def edges_of_memory(memory: MemoryPlan) -> tuple[EdgeOfMemory, ...]:
    """Return the limits, in the order in which a start reaches them."""
    return edge_while_loading(memory), one_request(memory), edge_outside_budget(memory)


def margin_of(memory: MemoryPlan) -> EdgeOfMemory | None:
    """Return the first limit at which the deployment may fail; None if none exists, or if it will certainly fail."""
    found = edges_of_memory(memory)
    if any(edge.is_short for edge in found):
        return None
    return next((edge for edge in found if edge.may_fail), None)


def margin_words(margin: EdgeOfMemory) -> str:
    """Return the figures of a margin as text, with the finding that names the limit."""
    return (
        f"{margin.rule}: {margin.available_gib:.2f} GiB, minimum {margin.minimum_gib:.2f}, "
        f"recommended {margin.recommended_gib:.2f}"
    )
