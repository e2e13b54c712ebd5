"""Basic checks: readiness, latency, model, responses, streaming and token counts."""

import asyncio
import statistics
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from contracts.fields import as_mapping
from loadtest.client.events import first_message, parse_usage, served_models
from loadtest.client.metrics import PROCESS_START, Scrape
from loadtest.client.openai import ServerAnswer, UnreachableError, chat_body
from scripts.cli.access import API_KEY_VARIABLE
from scripts.cli.reach import not_reached
from scripts.smoke.context import CheckContext
from scripts.smoke.results import Outcome, failed, judged, passed, unknown
from scripts.smoke.target import SmokeTarget

PROBE_LIMIT_S: Final = 10.0
ACCESS_GRACE_S: Final = 90.0
"""Grace period for denied access or a network failure. Most IAM changes take effect within two minutes."""
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
SHOWN_CHARACTERS: Final = 40
USAGE_TOKENS: Final = 8
MIN_EVENTS: Final = 2


async def ready(context: CheckContext) -> Outcome:
    """Wait until /health returns 200, within the start-up budget. Stop early if the server has failed permanently.

    The result is unknown if the server is still unreachable at the end, or stayed unreachable for ACCESS_GRACE_S (FORBIDDEN_GRACE_S
    for 403), because that is not a server failure.
    """
    budget_s = context.target.thresholds.startup_budget_s
    wanted = f"ready <= {budget_s:.0f} s"
    start_s = checked_s = time.monotonic()
    checked_s -= FAILURE_PERIOD_S
    last, unreached, pause_s, unreached_since_s, next_line_s = "no response yet", "", 0.25, None, start_s + 2
    while True:
        elapsed_s = time.monotonic() - start_s
        left_s = budget_s - elapsed_s
        if left_s <= 0:
            return unknown(unreached, wanted=wanted) if unreached else _late(context.target, elapsed_s, last)
        answer = await _probed(context, min(PROBE_LIMIT_S, max(left_s, 0.1)))
        if isinstance(answer, ServerAnswer) and answer.status == HTTPStatus.OK:
            return await _is_ready(context, answer, time.monotonic() - start_s)
        now_s = time.monotonic()
        last, unreached = _probe_result(context, answer)
        unreached_since_s = (unreached_since_s or now_s) if unreached else None
        if unreached_since_s is not None and (
            now_s - unreached_since_s > _grace_s(answer) or not context.access.is_open()
        ):
            return unknown(unreached, wanted=wanted)
        if now_s - checked_s >= FAILURE_PERIOD_S:
            checked_s = now_s
            failure = await _failure(context)
            if failure:
                return failed("failed", wanted=wanted, detail=failure, values={"ready_s": None, "budget_s": budget_s})
        if time.monotonic() >= next_line_s:
            context.report_progress(f"waiting for the server, {elapsed_s:.0f} of {budget_s:.0f} s ({last})")
            next_line_s = time.monotonic() + 5
        await asyncio.sleep(min(pause_s, max(left_s, 0)))
        pause_s = min(pause_s * 1.5, 3.0)


def _grace_s(answer: ServerAnswer | UnreachableError) -> float:
    forbidden = isinstance(answer, ServerAnswer) and answer.status == HTTPStatus.FORBIDDEN
    return FORBIDDEN_GRACE_S if forbidden else ACCESS_GRACE_S


async def _probed(context: CheckContext, limit_s: float) -> ServerAnswer | UnreachableError:
    try:
        return await context.client.get("/health", limit_s=limit_s)
    except UnreachableError as error:
        return error


def _probe_result(context: CheckContext, answer: ServerAnswer | UnreachableError) -> tuple[str, str]:
    """Return the probe's result, and why it does not reflect the server's health (empty if it does)."""
    if isinstance(answer, UnreachableError):
        return str(answer), not_reached(context.access, answer)
    reply = f"{answer.status} {answer.message}"
    if answer.status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return reply, ""
    return reply, (
        f"permission denied ({answer.status}). Grant roles/run.invoker to the caller or set {API_KEY_VARIABLE}."
    )


def _late(target: SmokeTarget, elapsed_s: float, last: str) -> Outcome:
    budget_s = target.thresholds.startup_budget_s
    status = f"Run `gemma status {target.stack}`" if target.stack else "Check the server log"
    return failed(
        f"not ready after {elapsed_s:.0f} s",
        wanted=f"<= {budget_s:.0f} s",
        detail=f"last /health response: {last.rstrip('.')}. {status}, or raise smoke.startupBudget.",
        values={"ready_s": None, "budget_s": budget_s},
    )


async def _failure(context: CheckContext) -> str | None:
    return await asyncio.to_thread(context.target.failure) if context.target.failure is not None else None


async def _is_ready(context: CheckContext, answer: ServerAnswer, ready_s: float) -> Outcome:
    context.simulated = answer.simulated
    context.scrape_before = await context.client.scrape(limit_s=PROBE_LIMIT_S)
    budget_s = context.target.thresholds.startup_budget_s
    start_s = _start_s(context.scrape_before, ready_s)
    return passed(
        f"{ready_s:.1f} s",
        wanted=f"<= {budget_s:.0f} s",
        values={"ready_s": round(ready_s, 3), "budget_s": budget_s, "start_s": start_s},
    )


def _start_s(scrape: Scrape | None, ready_s: float) -> float | None:
    """Return the seconds from the start of the server process until it was ready. None if it started before this run."""
    began_s = scrape.highest(PROCESS_START) if scrape is not None else None
    start_s = time.time() - began_s if began_s is not None else 0.0
    return round(start_s, 1) if 0 < start_s <= ready_s else None


async def health(context: CheckContext) -> Outcome:
    """Measure the median latency of several /health requests."""
    times_s: list[float] = []
    for _ in range(HEALTH_PROBES):
        answer = await context.client.get("/health", limit_s=PROBE_LIMIT_S)
        if answer.status != HTTPStatus.OK:
            return failed(f"status {answer.status}", wanted="200", detail=answer.message)
        times_s.append(answer.elapsed_s)
    median_s = statistics.median(times_s)
    return judged(
        f"{median_s * 1000:.1f} ms (worst {max(times_s) * 1000:.1f} ms of {HEALTH_PROBES})",
        f"{median_s - MAX_HEALTH_S:.1f} s too slow" if median_s > MAX_HEALTH_S else "",
        wanted=f"<= {MAX_HEALTH_S * 1000:.0f} ms",
        values={"median_s": round(median_s, 6), "max_s": round(max(times_s), 6)},
    )


async def served_model(context: CheckContext) -> Outcome:
    """Check that /v1/models lists the stack's model."""
    answer = await context.client.get("/v1/models", limit_s=CALL_LIMIT_S)
    wanted = context.target.model
    if answer.status != HTTPStatus.OK:
        return failed(f"status {answer.status}", wanted=wanted, detail=answer.message)
    models = served_models(answer.body)
    served = next((found for found in models if found.id == wanted), None)
    if served is None:
        return failed(
            ", ".join(found.id for found in models) or "no model",
            wanted=wanted,
            detail="the server serves another model. Check `vllm.servedModelName` and `model` in the settings.",
        )
    context.max_model_len = served.max_model_len
    context.simulated = context.simulated or served.simulator
    return passed(wanted, wanted=wanted, values={"max_model_len": context.max_model_len})


async def chat(context: CheckContext) -> Outcome:
    """Send a greedy request with a known answer twice."""
    texts: list[str] = []
    for _ in range(2):
        answer = await context.client.chat(
            chat_body(context.target.model, QUESTION, max_tokens=32, extra={"seed": 7, **context.without_thinking}),
            limit_s=CALL_LIMIT_S,
        )
        context.count(answer.usage)
        texts.append(str(first_message(answer.body).get("content") or ""))
    known = all(KNOWN_ANSWER in text.lower() for text in texts)
    same = texts[0] == texts[1]
    measured = _short(texts[0])
    wanted = "Paris, twice the same"
    values = {"known_answer": known, "same_twice": same}
    if not known:
        return failed(
            measured,
            wanted=wanted,
            detail="a wrong answer to a simple question indicates damaged weights, a wrong chat template or a wrong dtype.",
            values=values,
        )
    detail = (
        ""
        if same
        else f"the second answer was {_short(texts[1])}, but greedy answers on an idle server should not differ."
    )
    return Outcome(
        verdict="passed" if same else "warned", measured=measured, wanted=wanted, detail=detail, values=values
    )


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return repr(one_line if len(one_line) <= SHOWN_CHARACTERS else one_line[: SHOWN_CHARACTERS - 1] + "…")


def _found(faults: Mapping[str, bool]) -> str:
    """Return the problems that apply, as one text."""
    return "; ".join(fault for fault, is_there in faults.items() if is_there)


async def streaming(context: CheckContext) -> Outcome:
    """Check that a streamed chat arrives in several events, in the right format, and completes."""
    streamed = await context.client.stream(
        chat_body(context.target.model, "Count from 1 to 20 in words.", max_tokens=64, stream=True),
        limit_s=CALL_LIMIT_S,
    )
    context.count(streamed.usage)
    faults = {
        f"content type {streamed.content_type!r}": not streamed.content_type.startswith("text/event-stream"),
        "the response was not streamed: a proxy may be buffering it": streamed.events < MIN_EVENTS,
        "no text arrived": not streamed.text and not streamed.reasoning,
        "no [DONE] at the end": not streamed.done,
        "no finish_reason": streamed.finish_reason is None,
    }
    return judged(
        f"{streamed.events} events, finish {streamed.finish_reason}",
        _found(faults),
        wanted="2 events or more, [DONE]",
        values={"events": streamed.events, "finish_reason": streamed.finish_reason},
    )


async def usage(context: CheckContext) -> Outcome:
    """Check that token counts exist, add up, and match with and without streaming."""
    model = context.target.model
    answer = await context.client.chat(
        chat_body(model, QUESTION, max_tokens=USAGE_TOKENS, extra=context.without_thinking), limit_s=CALL_LIMIT_S
    )
    streamed = await context.client.stream(
        chat_body(model, QUESTION, max_tokens=USAGE_TOKENS, stream=True, extra=context.without_thinking),
        limit_s=CALL_LIMIT_S,
    )
    stated = as_mapping(as_mapping(answer.body).get("usage"))
    plain, in_stream = parse_usage(stated), streamed.usage
    wanted = f"usage in both, same prompt tokens, <= {USAGE_TOKENS} output tokens"
    if plain is None or in_stream is None:
        where = " and ".join(
            name for name, found in (("the response", plain), ("the stream", in_stream)) if found is None
        )
        return failed(f"no usage in {where}", wanted=wanted, detail="tokens cannot be counted without usage.")
    context.generated_tokens += plain.completion_tokens + in_stream.completion_tokens
    prompt, output, total = plain.prompt_tokens, plain.completion_tokens, stated.get("total_tokens")
    faults = {
        f"the stream reports {in_stream.prompt_tokens} prompt tokens": prompt != in_stream.prompt_tokens,
        "no prompt tokens": prompt == 0,
        f"max_tokens {USAGE_TOKENS} returned {output}": not 1 <= output <= USAGE_TOKENS,
        f"total_tokens {total} is not the sum": total != prompt + output,
    }
    return judged(
        f"{prompt} + {output} tokens",
        _found(faults),
        wanted=wanted,
        values={"prompt_tokens": prompt, "completion_tokens": output},
    )
