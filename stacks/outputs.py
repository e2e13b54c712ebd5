"""Outputs of the stack: the contract with every script (`contracts.outputs`)."""

from typing import Final, TypeVar, cast

import pulumi

from gemma_serving.components.stack_details import StackDetails
from gemma_serving.contracts.fields import to_json
from gemma_serving.contracts.outputs import DETAILS, Auth, SmokeThresholds, StackOutputs
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.question.features import served_features
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.observability import SmokeSettings
from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.planning.settings.vllm_args import given_options
from gemma_serving.planning.speed.residuals import BURST_REQUESTS, THRESHOLD_MARGIN, smoke_bands
from gemma_serving.stacks.base import Context, Foundation

T = TypeVar("T")

_STARTUP_MARGIN: Final = 1.5
"""Factor by which a start may exceed the planner's estimate."""


def smoke_thresholds(smoke: SmokeSettings, subject: Subject, plan: Plan) -> SmokeThresholds:
    """Return the threshold of the settings and the planner's figures with a margin, as if no proposed token were accepted."""
    startup_s = max(plan.startup.ready_s * _STARTUP_MARGIN, plan.startup.probe_budget_s)
    rate, ttft, burst = smoke_bands(
        subject.resolved, subject.memory, subject.throughput, BURST_REQUESTS, THRESHOLD_MARGIN
    )
    accepted = subject.throughput.tokens_per_step
    return SmokeThresholds(
        startup_budget_s=round(startup_s),
        max_ttft_s=round(ttft.high, 3),
        min_decode_tok_per_s=smoke.min_decode_tok_per_s or round(rate.low / accepted, 1),
        min_burst_tok_per_s=round(burst.low / accepted, 1),
        burst_requests=BURST_REQUESTS,
        max_model_len=plan.vllm.max_model_len,
    )


def stack_outputs(
    context: Context,
    foundation: Foundation,
    *,
    endpoint: pulumi.Input[str],
    auth: Auth,
    location: pulumi.Input[str],
) -> StackOutputs:
    """Return the outputs that both targets have."""
    settings, plan = context.settings, context.plan
    api_key = foundation.secrets.get(API_KEY.variable)
    return StackOutputs(
        target=settings.target,
        model=settings.model,
        served_model=context.vllm.served_model_name or settings.model,
        endpoint=settings.endpoint_url or known_after_up(endpoint),
        auth=auth,
        image=known_after_up(foundation.image),
        plan=plan.summary(),
        vllm=given_options(context.vllm),
        smoke=smoke_thresholds(settings.smoke, context.subject, plan),
        labels={**settings.labels, **context.ownership.labels},
        project=settings.project,
        location=known_after_up(location),
        check=f"gemma smoke {context.ownership.stack}",
        connect=f"gemma connect {context.ownership.stack}",
        api_key_secret=known_after_up(api_key.version_name) if api_key else None,
        features=served_features(context.subject.resolved),
    )


def known_after_up(value: pulumi.Input[T]) -> T:
    """Return an input as the type of the value that the engine fills in."""
    return cast("T", pulumi.Output.from_input(value).apply(to_json))


def export(outputs: StackOutputs) -> None:
    """Export each output under its JSON key: a user's of the stack, others of a component."""
    given = {name: value for name, value in to_json(outputs).items() if value is not None}
    for name, value in given.items():
        if name not in DETAILS:
            pulumi.export(name, value)
    StackDetails(
        "details",
        {name: given[name] for name in given if name in DETAILS},
        after=[given["endpoint"], given["location"]],
    )
