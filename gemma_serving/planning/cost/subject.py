"""The input of rules: the resolved deployment and all figures computed from it."""

from functools import partial

from gemma_serving.planning.cost.costs import cost_plan
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.memory.weights import WeightSizes, weights_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import Figures, MemoryPlan
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD
from gemma_serving.planning.speed.serving import server_of, throughput_plan, workload_plan
from gemma_serving.planning.speed.startup import startup_plan
from gemma_serving.planning.speed.unknown import or_none, unknown_figures


class Subject(Figures, frozen=True, kw_only=True):
    """A deployment with its figures."""

    resolved: Resolved
    weights: WeightSizes

    @property
    def device(self) -> str:
        """Name of one device in messages."""
        return "chip" if self.resolved.is_tpu else "GPU"


def examine(question: Question) -> Subject:
    """Return the figures of a deployment, without findings. Raises PlanningError as `planning.plan` does."""
    return subject_of(resolve(question))


def subject_of(resolved: Resolved, memory: MemoryPlan | None = None) -> Subject:
    """Return the figures of a resolved deployment. `memory`: its memory, if it was computed before."""
    memory = memory or memory_plan(resolved)
    workload = resolved.question.settings.workload
    startup = or_none(partial(startup_plan, resolved))
    server = or_none(partial(server_of, resolved, memory, workload or DEFAULT_WORKLOAD))
    throughput = or_none(partial(throughput_plan, server)) if server is not None else None
    cost = cost_plan(resolved, throughput)
    answer = None
    if workload is not None and server is not None and throughput is not None:
        answer = or_none(partial(workload_plan, server, cost.usd_per_hour))
    is_known = startup is not None and throughput is not None and (answer is None) is (workload is None)
    return Subject(
        accelerator=resolved.accelerator.name,
        resolved=resolved,
        weights=weights_of(resolved),
        memory=memory,
        known_startup=startup,
        known_throughput=throughput,
        unknown=() if is_known else tuple(unknown_figures(resolved)),
        cost=cost,
        workload=answer,
    )


def is_out_of_memory(memory: MemoryPlan) -> bool:
    """Return whether the server runs out of device memory while it loads, or has none left for the KV cache."""
    return memory.load_peak_device_gib > memory.usable_gib or memory.kv_gib <= 0
