"""The stack's outputs: the contract with every script (docs/contracts.md, section 7)."""

from collections.abc import Mapping

import pulumi

from planning.types import Plan
from stacks.base import Context
from stacks.settings import Settings

_TTFT_MARGIN = 4.0
"""How much slower than the planner's estimate a first token may come: queueing, tunnels and cold caches are not in the estimate."""
_TTFT_FLOOR_S = 2.0
_RATE_MARGIN = 0.5
"""Share of the planner's decode rate that a server has to reach; the estimate is a roofline, good to 30 %."""
_STARTUP_MARGIN = 1.5


def smoke_thresholds(settings: Settings, plan: Plan) -> Mapping[str, object]:
    """Return the thresholds of the smoke checks: the settings' where they are given, else the planner's figures with a margin."""
    smoke = settings.smoke
    startup_s = max(plan.startup.total_s * _STARTUP_MARGIN, plan.startup.probe_budget_s)
    return {
        "startupBudgetS": smoke.startup_budget_s or round(startup_s),
        "maxTtftS": smoke.max_ttft_s or max(_TTFT_FLOOR_S, round(_TTFT_MARGIN / plan.throughput.decode_tok_per_s, 3)),
        "minDecodeTokPerS": smoke.min_decode_tok_per_s or round(plan.throughput.decode_tok_per_s * _RATE_MARGIN, 1),
        "minBurstTokPerS": smoke.min_burst_tok_per_s,
        "burstRequests": smoke.burst_requests,
        "maxModelLen": plan.vllm.max_model_len,
        "expectReasoning": plan.vllm.reasoning_parser is not None,
        "expectToolCalls": bool(plan.vllm.enable_auto_tool_choice),
    }


def engine_options(plan: Plan) -> Mapping[str, object]:
    """Return the options that the running server can be asked about, where they are set."""
    options = {
        "block_size": plan.vllm.block_size,
        "gpu_memory_utilization": plan.vllm.gpu_memory_utilization,
        "kv_cache_dtype": plan.vllm.kv_cache_dtype,
    }
    return {key: value for key, value in options.items() if value is not None}


def export(
    context: Context,
    *,
    endpoint: pulumi.Input[str],
    auth: str,
    tunnel: pulumi.Input[Mapping[str, object] | None],
    image: pulumi.Input[str],
    location: pulumi.Input[str],
) -> None:
    """Export everything that scripts rely on."""
    settings, plan = context.settings, context.plan
    outputs: Mapping[str, object] = {
        "target": settings.target,
        "model": settings.model,
        "servedModel": served_model(settings),
        "endpoint": settings.endpoint_url or endpoint,
        "auth": auth,
        "tunnel": tunnel,
        "image": image,
        "plan": {**plan.to_json(), "vllm": engine_options(plan)},
        "smoke": smoke_thresholds(settings, plan),
        "labels": {**settings.labels, **context.ownership.labels},
        "project": settings.project,
        "location": location,
    }
    for name, value in outputs.items():
        pulumi.export(name, value)


def served_model(settings: Settings) -> str:
    """The name that clients send: the Hugging Face id, wherever the weights lie, unless the settings say otherwise."""
    return settings.vllm.served_model_name or settings.model
