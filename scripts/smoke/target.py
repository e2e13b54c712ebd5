"""The server to check and its thresholds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

from contracts.features import ServedFeatures
from contracts.gateway import GATEWAY_START_S
from contracts.outputs import MemorySummary, SmokeThresholds, StackOutputs
from planning.solve.residuals import SmokeFigures

CACHE_CONFIG_LABELS: Final = {
    "blockSize": "block_size",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "kvCacheDtype": "cache_dtype",
}
"""`cache_config_info` labels by vLLM settings key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTarget:
    """A server and its thresholds. A metric whose threshold is None is reported but not checked."""

    model: str
    """The name to send as `model`."""
    thresholds: SmokeThresholds
    memory: MemorySummary | None = None
    """Planned memory and KV cache; None without a stack."""
    cache_options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Expected options, by `cache_config_info` label."""
    replicas: int = 1
    """Expected engines, each with a `cache_config_info` of its own: `vllm.dataParallelSize` times the servers of a gateway."""
    features: ServedFeatures | None = None
    """Features from the stack's settings; None without a stack."""
    stack: str | None = None
    opens_origins: bool = False
    """True if the stack's extra arguments allow other web origins."""
    planned: SmokeFigures | None = None
    """Planned speed for the requests of these checks; None without a stack."""
    failure: Callable[[], str | None] | None = None
    """Returns why the server will not become ready, to stop waiting early. None if no such source exists."""


def stack_target(
    stack: str,
    outputs: StackOutputs,
    planned: SmokeFigures | None = None,
    failure: Callable[[], str | None] | None = None,
) -> SmokeTarget:
    """Return the target for a stack's outputs and plan."""
    thresholds = outputs.smoke
    if outputs.target == "gateway":  # it does not start its servers
        budget_s = min(thresholds.startup_budget_s, GATEWAY_START_S)
        thresholds = replace(thresholds, startup_budget_s=budget_s)
    options = {
        CACHE_CONFIG_LABELS[key]: str(value) for key, value in outputs.vllm.items() if key in CACHE_CONFIG_LABELS
    }
    given = outputs.vllm.get("extraArgs")
    extra = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
    return SmokeTarget(
        stack=stack,
        model=outputs.served_model,
        thresholds=thresholds,
        memory=outputs.plan.memory,
        cache_options=options,
        replicas=outputs.engines,
        features=outputs.features,
        opens_origins=any("allowed-origins" in str(word).replace("_", "-") for word in extra),
        planned=planned,
        failure=failure,
    )
