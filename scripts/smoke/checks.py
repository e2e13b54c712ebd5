"""Run the checks in order, each with a time limit. An interrupted run keeps its results."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from gemma_serving.engine.children import run_async
from gemma_serving.scripts.smoke import (
    checks_basic,
    checks_exposure,
    checks_features,
    checks_media,
    checks_server,
    checks_speed,
    checks_tools,
)
from gemma_serving.scripts.smoke.chat_request import StatusError
from gemma_serving.scripts.smoke.context import (
    CheckContext,
    NotApplicableError,
    ReportProgress,
    SmokeCheck,
    SmokeTarget,
)
from gemma_serving.scripts.smoke.results import FinishedCheck, Outcome, SmokeReport, failed, skipped, unknown
from gemma_serving.scripts.stack.access import AccessError, ServerAccess
from gemma_serving.scripts.stack.connection_errors import explain_unreachable
from loadtest.client.openai import OpenAIClient, ServerError
from loadtest.client.urls import plain_url

READY_SLACK_S: Final = 20.0
"""Added to the readiness budget, because the last probe may still be running."""

CHECKS: Final[tuple[SmokeCheck, ...]] = (
    SmokeCheck(
        "ready", checks_basic.ready, lambda target: target.thresholds.startup_budget_s + READY_SLACK_S, needed=True
    ),
    SmokeCheck("health latency", checks_basic.health),
    SmokeCheck("served model", checks_basic.served_model, needed=True),
    SmokeCheck("chat", checks_basic.chat),
    SmokeCheck("streaming", checks_basic.streaming),
    SmokeCheck("usage", checks_basic.usage),
    SmokeCheck("reasoning", checks_features.reasoning),
    SmokeCheck("tool call", checks_tools.tool_call),
    SmokeCheck("forced tool call", checks_tools.forced_tool_call),
    SmokeCheck("structured output", checks_features.structured_output),
    SmokeCheck("max-model-len", checks_features.max_model_len),
    SmokeCheck("tool result", checks_tools.tool_result),
    SmokeCheck("tools with thinking", checks_tools.tools_with_thinking),
    SmokeCheck("schema with thinking", checks_features.schema_with_thinking),
    SmokeCheck("schema instructions", checks_features.schema_instructions),
    SmokeCheck("image", checks_media.image),
    SmokeCheck("two images", checks_media.two_images),
    SmokeCheck("sound", checks_media.sound),
    SmokeCheck("video", checks_media.video),
    SmokeCheck("media limits", checks_media.limits),
    SmokeCheck("context length", checks_server.context_length, checks_server.context_limit_s),
    SmokeCheck("adapters", checks_server.adapters),
    SmokeCheck("speculation", checks_server.speculation),
    SmokeCheck("anonymous access", checks_exposure.anonymous),
    SmokeCheck("metrics", checks_server.metrics),
    SmokeCheck("options in effect", checks_server.options),
    SmokeCheck("single stream", checks_speed.single_stream, checks_speed.single_limit_s),
    SmokeCheck("burst", checks_speed.burst, checks_speed.single_limit_s),
)
AGENT_CHECKS: Final[tuple[SmokeCheck, ...]] = (
    SmokeCheck("twenty tools", checks_tools.many_tools),
    SmokeCheck("/v1/responses", partial(checks_tools.other_api, path="/v1/responses")),
    SmokeCheck("/v1/messages", partial(checks_tools.other_api, path="/v1/messages")),
)
"""Run with `--agent`, after CHECKS."""
PLAN_CHECK: Final = SmokeCheck("plan", checks_speed.plan)
"""Runs last, for servers with a plan."""


def run_smoke(
    access: ServerAccess,
    target: SmokeTarget,
    report_progress: ReportProgress,
    *,
    checks: tuple[SmokeCheck, ...] = CHECKS,
) -> SmokeReport:
    """Run all checks and return the report. Server errors are results. Ctrl-C stops the run and keeps the results so far.

    A run takes at most the sum of the checks' limits, most of it the start-up budget.
    """
    if target.planned is not None:
        checks = (*checks, PLAN_CHECK)
    client = OpenAIClient(access.base_url, access.headers)
    context = CheckContext(client=client, access=access, target=target, report_progress=report_progress)
    results: list[FinishedCheck] = []
    start_s = time.monotonic()
    interrupted = False
    try:
        run_async(_run_all(context, checks, results))
    except KeyboardInterrupt:
        interrupted = True
    left = Outcome("not run", "interrupted" if interrupted else "a required check failed")
    results += [FinishedCheck(name=check.name, outcome=left, elapsed_s=0.0) for check in checks[len(results) :]]
    return SmokeReport(
        stack=target.stack,
        url=plain_url(access.base_url),
        model=context.target.model,
        simulated=context.simulated,
        checks=tuple(results),
        interrupted=interrupted,
        elapsed_s=time.monotonic() - start_s,
    )


async def _run_all(context: CheckContext, checks: Sequence[SmokeCheck], results: list[FinishedCheck]) -> None:
    async with context.client:
        for check in checks:
            context.report_progress(f"{check.name} …")
            result = await _run_one(check, context)
            results.append(result)
            context.values[check.name] = result.outcome.values
            if check.needed and result.outcome.state in {"failed", "unknown"}:
                return


async def _run_one(check: SmokeCheck, context: CheckContext) -> FinishedCheck:
    start_s = time.monotonic()
    limit_s = check.limit_s(context.target)
    context.wanted = ""
    try:
        async with asyncio.timeout(limit_s):
            outcome = await check.run(context)
    except TimeoutError:
        outcome = failed(f"timed out after {limit_s:.0f} s", "the check reached its time limit.")
    except NotApplicableError as error:
        outcome = skipped(str(error))
    except StatusError as error:
        outcome = failed(f"status {error.status}", str(error))
    except (ServerError, AccessError) as error:
        reason = explain_unreachable(context.access, error)
        outcome = unknown(reason) if reason else failed("no usable response", str(error))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        # A 200 response without the API's format is a server failure. The run continues.
        outcome = failed("unexpected response format", f"{type(error).__name__}: {error}")
    outcome = replace(outcome, wanted=context.wanted)
    return FinishedCheck(name=check.name, outcome=outcome, elapsed_s=time.monotonic() - start_s)
