"""Run the checks in order, each with a time limit. An interrupted run keeps its results."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from contracts.features import ServedFeatures
from engine.children import run_async
from loadtest.client.openai import OpenAIClient, ServerError
from loadtest.client.unix_url import plain_url
from scripts.cli.access import AccessError, ServerAccess
from scripts.cli.reach import not_reached
from scripts.smoke import (
    checks_basic,
    checks_combined,
    checks_exposure,
    checks_features,
    checks_media,
    checks_operations,
    checks_plan,
    checks_server,
    checks_speed,
)
from scripts.smoke.context import Check, CheckContext, ReportProgress
from scripts.smoke.results import CheckResult, Outcome, SmokeReport, failed, skipped, unknown
from scripts.smoke.target import SmokeTarget

READY_SLACK_S: Final = 20.0
"""Added to the readiness budget, because the last probe may still be running."""


def _fixed(seconds: float) -> Callable[[SmokeTarget], float]:
    return lambda _target: seconds


def _of_features(
    run: Callable[[CheckContext, ServedFeatures], Awaitable[Outcome]],
) -> Callable[[CheckContext], Awaitable[Outcome]]:
    """Return a check that is skipped if the server's features are unknown."""

    async def checked(context: CheckContext) -> Outcome:
        features, stack = context.target.features, context.target.stack
        if features is not None:
            return await run(context, features)
        fix = "pass --features" if stack is None else f"run `gemma up {stack}`"
        return skipped(f"the server's features are unknown: {fix}")

    return checked


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="ready",
        limit_s=lambda t: t.thresholds.startup_budget_s + READY_SLACK_S,
        run=checks_basic.ready,
        needed=True,
    ),
    Check(name="health latency", limit_s=_fixed(60), run=checks_basic.health),
    Check(name="served model", limit_s=_fixed(60), run=checks_basic.served_model, needed=True),
    Check(name="chat", limit_s=_fixed(150), run=checks_basic.chat),
    Check(name="streaming", limit_s=_fixed(90), run=checks_basic.streaming),
    Check(name="usage", limit_s=_fixed(150), run=checks_basic.usage),
    Check(name="reasoning", limit_s=_fixed(200), run=checks_features.reasoning),
    Check(name="tool call", limit_s=_fixed(200), run=checks_features.tool_call),
    Check(name="structured output", limit_s=_fixed(200), run=checks_features.structured_output),
    Check(name="max-model-len", limit_s=_fixed(200), run=checks_features.max_model_len),
    Check(name="tool result", limit_s=_fixed(200), run=_of_features(checks_combined.tool_result)),
    Check(name="tools with thinking", limit_s=_fixed(200), run=_of_features(checks_combined.tools_with_thinking)),
    Check(name="schema with thinking", limit_s=_fixed(200), run=_of_features(checks_combined.schema_with_thinking)),
    Check(name="schema instructions", limit_s=_fixed(200), run=_of_features(checks_combined.schema_instructions)),
    Check(name="image", limit_s=_fixed(200), run=_of_features(checks_media.image)),
    Check(name="two images", limit_s=_fixed(200), run=_of_features(checks_media.two_images)),
    Check(name="sound", limit_s=_fixed(200), run=_of_features(checks_media.sound)),
    Check(name="video", limit_s=_fixed(200), run=_of_features(checks_media.video)),
    Check(name="media limits", limit_s=_fixed(200), run=_of_features(checks_media.limits)),
    Check(name="context length", limit_s=checks_server.context_limit_s, run=_of_features(checks_server.context_length)),
    Check(name="adapters", limit_s=_fixed(200), run=_of_features(checks_server.adapters)),
    Check(name="speculation", limit_s=_fixed(150), run=_of_features(checks_server.speculation)),
    Check(name="anonymous access", limit_s=_fixed(200), run=checks_exposure.anonymous),
    Check(name="metrics", limit_s=_fixed(60), run=checks_operations.metrics),
    Check(name="options in effect", limit_s=_fixed(60), run=checks_operations.options),
    Check(name="single stream", limit_s=checks_speed.single_limit_s, run=checks_speed.single_stream),
    Check(name="burst", limit_s=checks_speed.stream_limit_s, run=checks_speed.burst),
)
PLAN_CHECK: Final = Check(name="plan", limit_s=_fixed(10), run=checks_plan.plan)
"""Compares the other checks' measurements with the plan. Runs last, for servers with a plan."""


@dataclass(slots=True)
class _Known:
    """Results so far. They survive an interruption."""

    results: list[CheckResult] = field(default_factory=list[CheckResult])
    simulated: str | None = None


def run_smoke(
    access: ServerAccess, target: SmokeTarget, report_progress: ReportProgress, *, checks: tuple[Check, ...] = CHECKS
) -> SmokeReport:
    """Run all checks and return the report. Server errors are results. Ctrl-C stops the run and keeps the results so far.

    A run takes at most the sum of the checks' limits, most of it the start-up budget.
    """
    if target.planned is not None:
        checks = (*checks, PLAN_CHECK)
    known = _Known()
    start_s = time.monotonic()
    interrupted = False
    try:
        run_async(_run_all(access, target, report_progress, checks, known))
    except KeyboardInterrupt:
        interrupted = True
    done = {result.name for result in known.results}
    left = [check.name for check in checks if check.name not in done]
    reason = "interrupted" if interrupted else "a required check failed"
    rest = [
        CheckResult(name=name, outcome=Outcome(verdict="not run", measured="", detail=reason), elapsed_s=0.0)
        for name in left
    ]
    return SmokeReport(
        stack=target.stack,
        url=plain_url(access.base_url),
        model=target.model,
        simulated=known.simulated,
        checks=(*known.results, *rest),
        interrupted=interrupted,
        elapsed_s=time.monotonic() - start_s,
    )


async def _run_all(
    access: ServerAccess, target: SmokeTarget, report_progress: ReportProgress, checks: tuple[Check, ...], known: _Known
) -> None:
    async with OpenAIClient(access.base_url, access.headers, access.metrics_paths) as client:
        context = CheckContext(client=client, access=access, target=target, report_progress=report_progress)
        for check in checks:
            report_progress(f"{check.name} …")
            result = await _run_one(check, context)
            known.results.append(result)
            context.values[check.name] = result.outcome.values
            known.simulated = context.simulated
            if check.needed and result.outcome.verdict in {"failed", "unknown"}:
                return


async def _run_one(check: Check, context: CheckContext) -> CheckResult:
    start_s = time.monotonic()
    limit_s = check.limit_s(context.target)
    try:
        async with asyncio.timeout(limit_s):
            outcome = await check.run(context)
    except TimeoutError:
        outcome = failed(
            f"timed out after {limit_s:.0f} s", wanted="completed", detail="the check reached its time limit."
        )
    except (ServerError, AccessError) as error:
        reason = not_reached(context.access, error)
        outcome = unknown(reason) if reason else failed("no usable response", detail=str(error))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        # A 200 response without the API's format is a server failure. The run continues.
        outcome = failed("unexpected response format", detail=f"{type(error).__name__}: {error}")
    return CheckResult(name=check.name, outcome=outcome, elapsed_s=time.monotonic() - start_s)
