"""What is checked, and against which figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from scripts.openai_client_events import as_mapping

if TYPE_CHECKING:
    from scripts.access import Auth

DEFAULT_READY_BUDGET_S: Final = 120.0
DEFAULT_BURST_REQUESTS: Final = 4


class Outputs(Protocol):
    """The stack outputs that the checks read (`scripts.stack.StackOutputs`)."""

    @property
    def served_model(self) -> str:
        """The name to send as `model`."""
        ...

    @property
    def endpoint(self) -> str:
        """URL of the server, or of the tunnel's local end."""
        ...

    @property
    def auth(self) -> str:
        """`id-token`, `tunnel` or `none`."""
        ...

    @property
    def plan(self) -> Mapping[str, object]:
        """The plan as `scripts.plan --json` prints it."""
        ...

    @property
    def smoke(self) -> Mapping[str, object]:
        """Thresholds, by the names of docs/contracts.md, section 7."""
        ...


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


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def target_from_outputs(stack: str, outputs: Outputs) -> Target:
    """The target that a stack's outputs describe (docs/contracts.md, section 7)."""
    smoke = outputs.smoke
    memory = as_mapping(outputs.plan.get("memory"))
    return Target(
        stack=stack,
        model=outputs.served_model,
        thresholds=Thresholds(
            ready_budget_s=_number(smoke.get("startupBudgetS")) or DEFAULT_READY_BUDGET_S,
            max_ttft_s=_number(smoke.get("maxTtftS")),
            min_decode_tok_per_s=_number(smoke.get("minDecodeTokPerS")),
            min_burst_tok_per_s=_number(smoke.get("minBurstTokPerS")),
            burst_requests=_whole(smoke.get("burstRequests")) or DEFAULT_BURST_REQUESTS,
            max_model_len=_whole(smoke.get("maxModelLen")),
        ),
        planned=Planned(
            kv_tokens=_whole(memory.get("kv_tokens")),
            kv_blocks=_whole(memory.get("kv_blocks")),
            options=_planned_options(outputs.plan),
        ),
        expect_reasoning=smoke.get("expectReasoning") is True,
        expect_tool_calls=smoke.get("expectToolCalls") is True,
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


def is_auth(value: str) -> Auth:
    """`value` as one of the known ways to authenticate; raises ValueError otherwise."""
    if value == "id-token" or value == "tunnel" or value == "none":  # noqa: PLR1714 - narrows to the literals
        return value
    raise ValueError(f"auth is {value!r}; it must be id-token, tunnel or none.")
