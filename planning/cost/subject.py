"""The input of rules: the resolved deployment and all figures computed from it."""

from msgspec import Struct
from msgspec.structs import replace

from planning.cost.costs import cost_plan
from planning.memory.budget import memory_plan
from planning.memory.resolve import resolve
from planning.memory.weights import WeightSizes
from planning.question.resolved import Resolved
from planning.question.types import CostPlan, Deployment, MemoryPlan, StartupPlan, ThroughputPlan, WorkloadPlan
from planning.question.workload import DEFAULT_WORKLOAD
from planning.speed.serving import server_of, throughput_plan, workload_plan
from planning.speed.startup import startup_plan


class Subject(Struct, frozen=True, kw_only=True):
    """A deployment with its figures."""

    resolved: Resolved
    weights: WeightSizes
    memory: MemoryPlan
    startup: StartupPlan
    throughput: ThroughputPlan
    cost: CostPlan
    workload: WorkloadPlan | None
    """Results for the deployment's workload; None if it has none."""

    @property
    def device(self) -> str:
        """Name of one device in messages."""
        return "chip" if self.resolved.is_tpu else "GPU"


def examine(deployment: Deployment) -> Subject:
    """Return the figures of a deployment, without findings. Raises PlanningError as `planning.plan` does."""
    resolved = resolve(deployment)
    startup = startup_plan(resolved)
    is_late = startup.probe_limit_s is not None and startup.total_s > startup.probe_limit_s
    if deployment.weights_mode is None and is_late:
        # The plain mount is only the default; if it cannot start in time, use the mode that can.
        resolved = replace(resolved, weights_mode="fuse-buffered")
    return subject_of(resolved)


def subject_of(resolved: Resolved) -> Subject:
    """Return the figures of a resolved deployment."""
    memory = memory_plan(resolved)
    workload = resolved.deployment.workload
    server = server_of(resolved, memory, workload or DEFAULT_WORKLOAD)
    throughput = throughput_plan(server)
    cost = cost_plan(resolved, throughput)
    return Subject(
        resolved=resolved,
        weights=server.weights,
        memory=memory,
        startup=startup_plan(resolved),
        throughput=throughput,
        cost=cost,
        workload=None if workload is None else workload_plan(server, cost.usd_per_hour),
    )


def is_out_of_memory(memory: MemoryPlan) -> bool:
    """Return whether the server runs out of device memory while it loads, or has none left for the KV cache."""
    return memory.load_peak_device_gib > memory.usable_gib or memory.kv_gib <= 0
