"""What is checked, and against which figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scripts.client.events import as_mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scripts.pulumi.stack import StackOutputs

DEFAULT_READY_BUDGET_S: Final = 120.0
DEFAULT_BURST_REQUESTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What the server has to reach; None where nothing is known, so that only a measurement is reported."""

    ready_budget_s: float = DEFAULT_READY_BUDGET_S
    max_ttft_s: float | None = None
    min_decode_tok_per_s: float | None = None
    """One stream alone."""
    min_burst_tok_per_s: float | None = None
    """All streams of the burst together."""
    burst_requests: int = DEFAULT_BURST_REQUESTS
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the plan says of the server's own figures; None where it does not."""

    kv_tokens: int | None = None
    kv_blocks: int | None = None
    options: Mapping[str, str] | None = None
    """Options by the names of `cache_config_info`: block_size, gpu_memory_utilization, cache_dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One server and what is expected of it."""

    model: str
    """The name to send as `model`."""
    thresholds: Thresholds
    planned: Planned = Planned()
    expect_reasoning: bool = False
    expect_tool_calls: bool = False
    stack: str | None = None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def target_from_outputs(stack: str, outputs: StackOutputs) -> Target:
    """The target that a stack's outputs describe (docs/contracts.md, section 7)."""
    smoke = outputs.smoke
    memory = as_mapping(outputs.plan.get("memory"))
    return Target(
        stack=stack,
        model=outputs.served_model,
        thresholds=Thresholds(
            ready_budget_s=smoke.startup_budget_s,
            max_ttft_s=smoke.max_ttft_s,
            min_decode_tok_per_s=smoke.min_decode_tok_per_s,
            min_burst_tok_per_s=smoke.min_burst_tok_per_s,
            burst_requests=smoke.burst_requests,
            max_model_len=smoke.max_model_len,
        ),
        planned=Planned(
            kv_tokens=_whole(memory.get("kv_tokens")),
            kv_blocks=_whole(memory.get("kv_blocks")),
            options=_planned_options(outputs.plan),
        ),
        expect_reasoning=smoke.expect_reasoning,
        expect_tool_calls=smoke.expect_tool_calls,
    )


def _planned_options(plan: Mapping[str, object]) -> Mapping[str, str]:
    """Options that the plan names, by the names that vLLM exports them under."""
    vllm = as_mapping(plan.get("vllm"))
    names = {
        "block_size": "block_size",
        "gpu_memory_utilization": "gpu_memory_utilization",
        "kv_cache_dtype": "cache_dtype",
    }
    return {theirs: str(vllm[ours]) for ours, theirs in names.items() if vllm.get(ours) is not None}
