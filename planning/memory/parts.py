"""Checkpoints that a server loads in addition to its model: drafter and adapters. Their size on disk, over the network and in host memory."""

from planning.memory.adapters import adapter_bytes
from planning.memory.speculation import speculation_of, unknown_drafter_bytes
from planning.memory.weights import weights_of
from planning.question.lora import adapters_of, lora_of
from planning.question.resolved import Resolved


def parts_bytes(resolved: Resolved) -> float:
    """Return the size of all parts; an adapter counts with the largest rank, and an unknown drafter with its reserve on a device."""
    drafter = speculation_of(resolved)
    known = drafter.resolved if drafter is not None else None
    drafted = weights_of(known).checkpoint if known is not None else unknown_drafter_bytes(resolved)
    lora = lora_of(resolved)
    adapters = 0.0 if lora is None else len(adapters_of(resolved)) * adapter_bytes(resolved.spec, lora.rank)
    return drafted + adapters
