"""The server to check, and the figures that it has to reach."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from contracts.outputs import MemorySummary, SmokeThresholds, StackOutputs
from planning.solve.residuals import SmokeFigures

CACHE_CONFIG_LABELS: Final = {
    "blockSize": "block_size",
    "gpuMemoryUtilization": "gpu_memory_utilization",
    "kvCacheDtype": "cache_dtype",
}
"""vLLM options by their settings keys, and the labels of `cache_config_info` that export them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTarget:
    """One server and what it has to reach. What is None is measured and not judged."""

    model: str
    """The name to send as `model`."""
    thresholds: SmokeThresholds
    memory: MemorySummary | None = None
    """Planned memory and KV cache; None without a stack."""
    cache_options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options in effect, by the labels of `cache_config_info`."""
    stack: str | None = None
    opens_origins: bool = False
    """Whether the stack's own arguments let web pages in."""
    planned: SmokeFigures | None = None
    """Planned speed of the checks' requests; None without a stack."""
    failure: Callable[[], str | None] | None = None
    """Says why the server will not become ready, so that nobody waits for it; None if nobody can be asked."""


def stack_target(
    stack: str,
    outputs: StackOutputs,
    planned: SmokeFigures | None = None,
    failure: Callable[[], str | None] | None = None,
) -> SmokeTarget:
    """Return the target that a stack's outputs and its plan describe."""
    options = {
        CACHE_CONFIG_LABELS[key]: str(value) for key, value in outputs.vllm.items() if key in CACHE_CONFIG_LABELS
    }
    given = outputs.vllm.get("extraArgs")
    extra = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
    return SmokeTarget(
        stack=stack,
        model=outputs.served_model,
        thresholds=outputs.smoke,
        memory=outputs.plan.memory,
        cache_options=options,
        opens_origins=any("allowed-origins" in str(word).replace("_", "-") for word in extra),
        planned=planned,
        failure=failure,
    )
