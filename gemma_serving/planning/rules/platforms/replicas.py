"""Rules for data parallelism: several copies of the model behind one port, and the changes that add or remove copies."""

from collections.abc import Iterator

from gemma_serving.planning.cost.subject import Subject, is_out_of_memory
from gemma_serving.planning.question.recommendation import replica_counts
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.registry import RuleResult, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.units import duration


def replicas_remedy(replicas: int | None, **others: object) -> Remedy:
    """Return the remedy that sets the replicas, each on an equal share of the devices; None is one replica on all of them."""
    return Remedy(
        changes={
            "vllm.data_parallel_size": replicas,
            "vllm.tensor_parallel_size": None,
            **{f"vllm.{name}": value for name, value in others.items()},
        }
    )


def more_replicas(resolved: Resolved, **others: object) -> Iterator[Remedy]:
    """Yield larger data-parallel sizes that may serve more (`replica_counts`), largest first, with other options of vLLM."""
    for count in replica_counts(resolved.spec, resolved.accelerator):
        if count > resolved.dp:
            yield replicas_remedy(count, **others)


def fewer_replicas(resolved: Resolved) -> Iterator[Remedy]:
    """Yield smaller data-parallel sizes, largest first, so each replica has more devices."""
    devices = resolved.accelerator.devices
    for count in range(resolved.dp - 1, 0, -1):
        if devices % count == 0:
            yield replicas_remedy(count if count > 1 else None)


@rule("DPL01")
def _experts(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    has_no_device = not resolved.is_tpu and resolved.tp * resolved.dp > resolved.accelerator.devices  # FIT08
    if resolved.dp == 1 or not resolved.spec.is_moe or has_no_device:
        return None
    reason = (
        "vLLM on TPU has failed to start so, and public logs show no working start"
        if resolved.is_tpu
        else "vLLM divides the experts among all replicas, which the plan does not model"
    )
    return RuleResult(
        f"vllm.dataParallelSize is {resolved.dp}, but {resolved.model_id} is a mixture of experts: {reason}.",
        remedies=(replicas_remedy(None),),
    )


@rule("DPL02")
def _arithmetic(subject: Subject) -> RuleResult | None:
    resolved, startup = subject.resolved, subject.known_startup
    is_blocked = resolved.spec.is_moe or resolved.tp * resolved.dp != resolved.accelerator.devices
    if resolved.dp == 1 or is_blocked or is_out_of_memory(subject.memory) or startup is None:
        return None
    return RuleResult(
        f"vllm.dataParallelSize is {resolved.dp}: the planned rates are {resolved.dp} times one replica's, which was "
        f"not measured. The start takes {duration(startup.total_s)} if the replicas load and compile at the "
        f"same speed as one alone, and up to {duration(startup.total_high_s)} if they slow each other down. Host "
        "memory counts each replica's load.",
        remedies=(replicas_remedy(None),),
        advice="Measure both before you rely on them, or accept this finding. Run `gemma bench STACK --preset grid`.",
    )
