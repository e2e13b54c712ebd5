"""The stack's outputs: the contract with every script (`contracts.outputs`)."""

from typing import Final, TypeVar, cast

import pulumi

from contracts.fields import to_json
from contracts.outputs import Auth, SmokeThresholds, StackOutputs
from planning.hardware import CLOUD_RUN_MAX_INITIAL_DELAY_S
from planning.types import Plan
from planning.vllm_args import VllmOptions
from stacks.base import Context
from stacks.settings import Settings

T = TypeVar("T")

_TTFT_MARGIN: Final = 4.0
"""A first token may take this many times the planner's estimate: queueing and cold caches are not in the estimate."""
_TTFT_FLOOR_S: Final = 2.0
"""A constant, no estimate: a first token over a tunnel, or from a client far away, may always take this long.

It decides for every estimate below 0.5 s, so for every stack of this repository (0.01 s to 0.09 s)."""
_RATE_MARGIN: Final = 0.5
"""Share of the planner's decode rate that a server has to reach. The estimate is a roofline, good to 30 %."""
_STARTUP_MARGIN: Final = 1.5
"""A start may take this many times the planner's estimate."""


def smoke_thresholds(settings: Settings, plan: Plan) -> SmokeThresholds:
    """Return the thresholds of the smoke checks: those of the settings, else the planner's figures with a margin."""
    smoke = settings.smoke
    # Cloud Run asks no instance before the first delay of its probe is over.
    first_probe_s = CLOUD_RUN_MAX_INITIAL_DELAY_S if settings.cloud_run else 0
    startup_s = max(max(plan.startup.total_s, first_probe_s) * _STARTUP_MARGIN, plan.startup.probe_budget_s)
    ttft_s = max(plan.throughput.ttft_s * _TTFT_MARGIN, _TTFT_FLOOR_S)
    return SmokeThresholds(
        startup_budget_s=smoke.startup_budget_s or round(startup_s),
        max_ttft_s=smoke.max_ttft_s or round(ttft_s, 3),
        min_decode_tok_per_s=smoke.min_decode_tok_per_s or round(plan.throughput.decode_tok_per_s * _RATE_MARGIN, 1),
        min_burst_tok_per_s=smoke.min_burst_tok_per_s,
        burst_requests=smoke.burst_requests,
        max_model_len=plan.vllm.max_model_len,
        expect_reasoning=plan.vllm.reasoning_parser is not None,
        expect_tool_calls=bool(plan.vllm.enable_auto_tool_choice),
    )


def settings_keys(options: VllmOptions) -> dict[str, object]:
    """Return the options that are given, by their keys in `gemma-serving:vllm`."""
    given: dict[str, object] = to_json(options)
    return {key: value for key, value in given.items() if value not in (None, [], {})}


def stack_outputs(
    context: Context,
    *,
    endpoint: pulumi.Input[str],
    auth: Auth,
    image: pulumi.Input[str],
    location: pulumi.Input[str],
) -> StackOutputs:
    """Return the outputs that every target has."""
    settings, plan = context.settings, context.plan
    return StackOutputs(
        target=settings.target,
        model=settings.model,
        served_model=context.vllm.served_model_name or settings.model,
        endpoint=settings.endpoint_url or known_after_up(endpoint),
        auth=auth,
        image=known_after_up(image),
        plan=plan.summary(),
        vllm=settings_keys(context.vllm),
        smoke=smoke_thresholds(settings, plan),
        labels={**settings.labels, **context.ownership.labels},
        project=settings.project,
        location=known_after_up(location),
    )


def known_after_up(value: pulumi.Input[T]) -> T:
    """Return an input as the value that the engine will put in its place, so that a contract can hold it until then."""
    return cast("T", pulumi.Output.from_input(value).apply(to_json))


def export(outputs: StackOutputs) -> None:
    """Export each output under its JSON key."""
    for name, value in to_json(outputs).items():
        pulumi.export(name, value)
