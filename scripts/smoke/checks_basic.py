"""Basic checks: readiness, latency, model, responses, streaming and token counts."""

import asyncio
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.scripts.smoke.chat_request import content_of, shorten, succeeded
from gemma_serving.scripts.smoke.context import CheckContext
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, unknown
from gemma_serving.scripts.stack.connection_errors import explain_refusal, explain_unreachable
from loadtest.client.events import parse_usage, served_models
from loadtest.client.openai import NoAddressError, NotConnectedError, ServerAnswer, UnreachableError, chat_body

PROBE_LIMIT_S: Final = 10.0
ACCESS_GRACE_S: Final = 90.0
"""IAM changes usually take effect within two minutes."""
FORBIDDEN_GRACE_S: Final = 420.0
"""The same for 403. A deployment does not wait for a new roles/run.invoker grant, which can need seven minutes according to Google
(cloud.google.com/iam/docs/access-change-propagation, 2026-11)."""
FAILURE_PERIOD_S: Final = 10.0
"""Interval between checks for a permanent server failure."""
HEALTH_PROBES: Final = 8
MAX_HEALTH_S: Final = 2.0
"""A slower health endpoint indicates an overloaded server."""
CALL_LIMIT_S: Final = 60.0

QUESTION: Final = "What is the capital of France? Answer with one word."
KNOWN_ANSWER: Final = "paris"
USAGE_TOKENS: Final = 8
MIN_EVENTS: Final = 2


async def ready(context: CheckContext) -> Outcome:
    """Wait until /health returns 200, within the start-up budget. Stop early if the server has failed permanently.

    The result is unknown if the server is still unreachable at the end, or stayed unreachable for ACCESS_GRACE_S (FORBIDDEN_GRACE_S
    for 403), because that is not a server failure.
    """
    budget_s = context.target.thresholds.startup_budget_s
    context.wanted = f"<= {budget_s:.0f} s"
    start_s = time.monotonic()
    checked_s = start_s - FAILURE_PERIOD_S
    next_line_s = start_s + 2
    pause_s = 0.25
    unreached_since_s = None
    last, unreached, answer = "no response yet", "", None
    while (left_s := budget_s - (time.monotonic() - start_s)) > 0:
        answer = await _probed(context, min(PROBE_LIMIT_S, max(left_s, 0.1)))
        now_s = time.monotonic()
        if isinstance(answer, ServerAnswer) and answer.status == HTTPStatus.OK:
            context.simulated = answer.simulated
            ready_s = now_s - start_s
            return passed(f"{ready_s:.1f} s", {"ready_s": round(ready_s, 3), "budget_s": budget_s})
        last, unreached, grace_s = _probe_result(context, answer)
        unreached_since_s = (unreached_since_s or now_s) if unreached else None
        if unreached_since_s is not None and (now_s - unreached_since_s > grace_s or not context.access.is_open()):
            return unknown(unreached)
        if now_s - checked_s >= FAILURE_PERIOD_S and context.target.failure is not None:
            checked_s = now_s
            failure = await asyncio.to_thread(context.target.failure)
            if failure:
                return failed("failed", failure, {"ready_s": None, "budget_s": budget_s})
        if time.monotonic() >= next_line_s:
            context.report_progress(f"waiting for the server, {now_s - start_s:.0f} of {budget_s:.0f} s ({last})")
            next_line_s = time.monotonic() + 5
        await asyncio.sleep(min(pause_s, max(left_s, 0)))
        pause_s = min(pause_s * 1.5, 3.0)
    if unreached:
        return unknown(unreached)
    stack = context.target.stack
    step = f"Run `gemma status {stack}`" if stack else f"{_check(context, answer)}, or raise --ready-budget-s"
    detail = f"last /health response: {last.rstrip('.')}. {step}."
    return failed(f"not ready after {budget_s:.0f} s", detail, {"ready_s": None, "budget_s": budget_s})


def _check(context: CheckContext, answer: ServerAnswer | UnreachableError | None) -> str:
    """Return what to check of the server at --url: whether it runs there, or why it is not ready."""
    is_there = not isinstance(answer, NotConnectedError)
    return "Check the server log" if is_there else f"Check that a server runs at {context.access.base_url}"


async def _probed(context: CheckContext, limit_s: float) -> ServerAnswer | UnreachableError:
    try:
        return await context.client.get("/health", limit_s=limit_s)
    except UnreachableError as error:
        return error


def _probe_result(context: CheckContext, answer: ServerAnswer | UnreachableError) -> tuple[str, str, float]:
    """Return the response as text, why it is not the server's own (or empty), and how long that may last."""
    if isinstance(answer, NoAddressError) and context.target.stack is None:
        return str(answer), f"{answer} Pass --url with the address of a server, such as http://127.0.0.1:8000.", 0.0
    if isinstance(answer, UnreachableError):
        return str(answer), explain_unreachable(context.access, answer), ACCESS_GRACE_S
    reply = f"{answer.status} {answer.message}"
    if answer.status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return reply, "", 0.0
    grace_s = FORBIDDEN_GRACE_S if answer.status == HTTPStatus.FORBIDDEN else ACCESS_GRACE_S
    return reply, explain_refusal(answer), grace_s


async def health(context: CheckContext) -> Outcome:
    """Measure the median latency of several /health requests."""
    context.wanted = f"<= {MAX_HEALTH_S * 1000:.0f} ms"
    times_s: list[float] = []
    for _ in range(HEALTH_PROBES):
        answer = succeeded(await context.client.get("/health", limit_s=PROBE_LIMIT_S))
        times_s.append(answer.elapsed_s)
    median_s = statistics.median(times_s)
    return failed_or_passed(
        f"{median_s * 1000:.1f} ms (worst {max(times_s) * 1000:.1f} ms of {HEALTH_PROBES})",
        f"{median_s - MAX_HEALTH_S:.1f} s too slow" if median_s > MAX_HEALTH_S else "",
        {"median_s": round(median_s, 6), "max_s": round(max(times_s), 6)},
    )


async def served_model(context: CheckContext) -> Outcome:
    """Check that /v1/models lists the model of the target. A target without one gets the first."""
    models = served_models(succeeded(await context.client.get("/v1/models", limit_s=CALL_LIMIT_S)).body)
    if models and not context.target.model:
        context.target = replace(context.target, model=models[0].id)
    context.wanted = wanted = context.target.model
    served = next((found for found in models if found.id == wanted), None)
    if served is None:
        detail = "the server serves another model. Check `vllm.servedModelName` and `model` in the settings."
        return failed(", ".join(found.id for found in models) or "no model", detail)
    context.max_model_len = served.max_model_len
    context.simulated = context.simulated or served.simulator
    return passed(wanted, {"max_model_len": context.max_model_len})


async def chat(context: CheckContext) -> Outcome:
    """Send a greedy request with a known answer."""
    context.wanted = "Paris"
    body = chat_body(context.target.model, QUESTION, max_tokens=32, extra=context.without_thinking)
    answer = await context.client.chat(body, limit_s=CALL_LIMIT_S)
    text = content_of(answer)
    fault = "a wrong answer to a simple question indicates damaged weights, a wrong chat template or a wrong dtype."
    return failed_or_passed(repr(shorten(text, 40)), "" if KNOWN_ANSWER in text.lower() else fault)


def _found(faults: Mapping[str, bool]) -> str:
    """Return the problems that apply, as one text."""
    return "; ".join(fault for fault, is_there in faults.items() if is_there)


async def streaming(context: CheckContext) -> Outcome:
    """Check that a streamed chat arrives in several events and completes."""
    context.wanted = "2 events or more, [DONE]"
    body = chat_body(context.target.model, "Count from 1 to 20 in words.", max_tokens=64, stream=True)
    streamed = await context.client.stream(body, limit_s=CALL_LIMIT_S)
    faults = {
        f"content type {streamed.content_type!r}": not streamed.content_type.startswith("text/event-stream"),
        "the response was not streamed, so a proxy may be buffering it": streamed.events < MIN_EVENTS,
        "no text arrived": not streamed.text and not streamed.reasoning,
        "no [DONE] at the end": not streamed.done,
        "no finish_reason": streamed.finish_reason is None,
    }
    values = {"events": streamed.events, "finish_reason": streamed.finish_reason}
    return failed_or_passed(f"{streamed.events} events, finish {streamed.finish_reason}", _found(faults), values)


async def usage(context: CheckContext) -> Outcome:
    """Check the token counts, with and without streaming."""
    context.wanted = f"usage in both, same prompt tokens, <= {USAGE_TOKENS} output tokens"
    model, extra = context.target.model, context.without_thinking
    body = chat_body(model, QUESTION, max_tokens=USAGE_TOKENS, extra=extra)
    answer = await context.client.chat(body, limit_s=CALL_LIMIT_S)
    body = chat_body(model, QUESTION, max_tokens=USAGE_TOKENS, stream=True, extra=extra)
    streamed = await context.client.stream(body, limit_s=CALL_LIMIT_S)
    stated = as_mapping(as_mapping(answer.body).get("usage"))
    plain, in_stream = parse_usage(stated), streamed.usage
    if plain is None or in_stream is None:
        where = _found({"the response": plain is None, "the stream": in_stream is None})
        return failed(f"no usage in {where}", "tokens cannot be counted without usage.")
    prompt = plain.prompt_tokens
    output = plain.completion_tokens
    total = stated.get("total_tokens")
    faults = {
        f"the stream reports {in_stream.prompt_tokens} prompt tokens": prompt != in_stream.prompt_tokens,
        "no prompt tokens": prompt == 0,
        f"max_tokens {USAGE_TOKENS} returned {output}": not 1 <= output <= USAGE_TOKENS,
        f"total_tokens {total} is not the sum": total != prompt + output,
    }
    return failed_or_passed(
        f"{prompt} + {output} tokens", _found(faults), {"prompt_tokens": prompt, "completion_tokens": output}
    )
