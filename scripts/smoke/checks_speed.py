"""Speed checks: time to first token and output rate, for one stream and for a short burst."""

import asyncio
import secrets
import statistics
from typing import Final

from loadtest.client.openai import ServerError, Streamed, UnreachableError, chat_body
from scripts.smoke.context import CheckContext, percent_over
from scripts.smoke.results import Outcome, failed, judged
from scripts.smoke.target import SmokeTarget

OUTPUT_TOKENS: Final = 128
RUNS: Final = 3
STREAM_LIMIT_S: Final = 240.0
"""Time for one stream of 128 tokens at 0.5 tokens/s."""


def stream_limit_s(target: SmokeTarget) -> float:
    """Return the time limit of one stream: five times the thresholds' total, between 60 s and STREAM_LIMIT_S."""
    thresholds = target.thresholds
    if thresholds.min_decode_tok_per_s is None:
        return STREAM_LIMIT_S
    wanted_s = (thresholds.max_ttft_s or 1.0) + OUTPUT_TOKENS / thresholds.min_decode_tok_per_s
    return min(STREAM_LIMIT_S, max(60.0, 5 * wanted_s))


def single_limit_s(target: SmokeTarget) -> float:
    """Return the time limit of all runs of the single stream."""
    return (RUNS + 1) * stream_limit_s(target)


def _output_tokens(context: CheckContext) -> int:
    length = context.max_model_len or context.target.thresholds.max_model_len
    return OUTPUT_TOKENS if length is None else max(8, min(OUTPUT_TOKENS, length // 4))


async def _one(context: CheckContext) -> Streamed:
    """Run one full-length stream with a prompt that is not in any cache."""
    prompt = f"{secrets.token_hex(8)}: write a long story about a lighthouse keeper."
    length = {"ignore_eos": True} if context.ignore_eos else {}
    body = chat_body(context.target.model, prompt, max_tokens=_output_tokens(context), stream=True, extra=length)
    streamed = await context.client.stream(body, limit_s=stream_limit_s(context.target))
    context.count(streamed.usage)
    return streamed


async def _warm_up(context: CheckContext) -> None:
    """Run one uncounted stream, and detect whether the server supports ignore_eos."""
    try:
        await _one(context)
    except UnreachableError:
        raise
    except ServerError:
        if not context.ignore_eos:
            raise
        context.ignore_eos = False
        await _one(context)


async def single_stream(context: CheckContext) -> Outcome:
    """Run several streams in sequence and check the median."""
    await _warm_up(context)
    runs = [await _one(context) for _ in range(RUNS)]
    ttfts = [run.ttft_s for run in runs if run.ttft_s is not None]
    speeds = [speed for run in runs if (speed := run.decode_tok_per_s) is not None]
    if not ttfts or not speeds:
        return failed("no timed tokens", detail="the streams have too few events or no usage.")
    ttft_s, speed = statistics.median(ttfts), statistics.median(speeds)
    thresholds = context.target.thresholds
    faults: list[str] = []
    if thresholds.max_ttft_s is not None and ttft_s > thresholds.max_ttft_s:
        faults.append(
            f"TTFT {ttft_s - thresholds.max_ttft_s:.3f} s ({percent_over(ttft_s, thresholds.max_ttft_s)}) over"
        )
    if thresholds.min_decode_tok_per_s is not None and speed < thresholds.min_decode_tok_per_s:
        faults.append(
            f"{thresholds.min_decode_tok_per_s - speed:.1f} tok/s ({percent_over(speed, thresholds.min_decode_tok_per_s)}) short"
        )
    return judged(
        f"TTFT {ttft_s:.3f} s, {speed:.1f} tok/s",
        "; ".join(faults),
        wanted=_wanted(thresholds.max_ttft_s, thresholds.min_decode_tok_per_s),
        detail=_no_threshold(thresholds.max_ttft_s, thresholds.min_decode_tok_per_s),
        values={"ttft_s": round(ttft_s, 6), "decode_tok_per_s": round(speed, 3), "runs": RUNS},
    )


def _wanted(ttft_s: float | None, speed: float | None) -> str:
    parts = [f"TTFT <= {ttft_s:g} s"] if ttft_s is not None else []
    return ", ".join([*parts, f">= {speed:g} tok/s"] if speed is not None else parts)


def _no_threshold(*limits: float | None) -> str:
    return "" if any(limit is not None for limit in limits) else "no threshold, not checked"


async def burst(context: CheckContext) -> Outcome:
    """Check that all concurrent streams complete, and that their total rate is high enough."""
    count = context.target.thresholds.burst_requests
    wanted_speed = context.target.thresholds.min_burst_tok_per_s
    results = await asyncio.gather(*(_one(context) for _ in range(count)), return_exceptions=True)
    done = [result for result in results if isinstance(result, Streamed)]
    errors = [str(result) for result in results if isinstance(result, ServerError)]
    others = [result for result in results if isinstance(result, BaseException) and not isinstance(result, ServerError)]
    if others:
        raise others[0]
    wanted = f"{count} of {count} completed" + (
        f", >= {wanted_speed:g} tok/s in total" if wanted_speed is not None else ""
    )
    if errors:
        return failed(f"{len(done)} of {count} completed", wanted=wanted, detail=errors[0])
    tokens = sum(run.usage.completion_tokens for run in done if run.usage is not None)
    span_s = max(run.started_at_s + run.end_s for run in done) - min(run.started_at_s for run in done)
    speed = tokens / span_s if span_s > 0 else 0.0
    ttft_s = statistics.median([run.ttft_s for run in done if run.ttft_s is not None] or [0.0])
    fault = ""
    if wanted_speed is not None and speed < wanted_speed:
        fault = f"{wanted_speed - speed:.1f} tok/s ({percent_over(speed, wanted_speed)}) short"
    return judged(
        f"{count} concurrent: {speed:.1f} tok/s in total, TTFT {ttft_s:.3f} s",
        fault,
        wanted=wanted,
        detail=_no_threshold(wanted_speed),
        values={"burst_tok_per_s": round(speed, 3), "median_ttft_s": round(ttft_s, 6), "requests": count},
    )
