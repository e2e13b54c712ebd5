"""What a preflight rule looks at: the resolved deployment and everything that was computed from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planning.resolve import Resolved
    from planning.types import CostPlan, MemoryPlan, StartupPlan, ThroughputPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A deployment with its figures."""

    r: Resolved
    memory: MemoryPlan
    startup: StartupPlan
    throughput: ThroughputPlan
    cost: CostPlan

    @property
    def device(self) -> str:
        """A device in words."""
        return "chip" if self.r.is_tpu else "GPU"


def is_out_of_memory(memory: MemoryPlan) -> bool:
    """Whether the server dies for lack of device memory: while it loads, or because nothing is left for the KV cache."""
    return memory.load_peak_device_gib > memory.usable_gib or memory.kv_gib <= 0
