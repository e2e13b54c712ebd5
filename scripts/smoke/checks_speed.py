"""Speed of one stream and of a short burst, and the comparison with the plan."""

import asyncio
import secrets
import statistics
from typing import Final

from gemma_serving.planning.numbers import as_number
from gemma_serving.planning.question.types import Band
from gemma_serving.planning.speed.residuals import residual, usual_causes
from gemma_serving.scripts.smoke.checks_server import ACCEPTED, DRAFTS, SCRAPE_LIMIT_S, counter_growth
from gemma_serving.scripts.smoke.context import CheckContext, SmokeTarget, percent_over
from gemma_serving.scripts.smoke.results import Outcome, failed, failed_or_passed, passed, skipped, warned
from loadtest.client.metrics import Scrape
from loadtest.client.openai import ServerError, Streamed, chat_body

OUTPUT_TOKENS: Final = 128
RUNS: Final = 3
NO_THRESHOLD: Final = "no threshold, not checked"
STREAM_LIMIT_S: Final = 240.0
"""Time for one stream of 128 tokens at 0.5 tokens/s."""
_NOT_PLANNED: Final = (
    "TTFT and burst were not compared with the plan, because the stack's settings file is missing or newer than the deployment. "
    "Restore the file or deploy it"
)


def single_limit_s(_: SmokeTarget) -> float:
    """Return the time limit of all runs of the single stream."""
    return (RUNS + 1) * STREAM_LIMIT_S


async def _one(context: CheckContext) -> Streamed:
    """Run one full-length stream with a prompt that is not in any cache."""
    prompt = f"{secrets.token_hex(8)}: write a long story about a lighthouse keeper."
    tokens = OUTPUT_TOKENS if context.length is None else max(8, min(OUTPUT_TOKENS, context.length // 4))
    body = chat_body(context.target.model, prompt, max_tokens=tokens, stream=True, extra={"ignore_eos": True})
    return await context.client.stream(body, limit_s=STREAM_LIMIT_S)


async def single_stream(context: CheckContext) -> Outcome:
    """Run several streams in sequence and check the median."""
    most_s = context.target.thresholds.max_ttft_s
    least = context.target.thresholds.min_decode_tok_per_s
    wanted = {f"TTFT <= {most_s or 0:g} s": most_s, f">= {least or 0:g} tok/s": least}
    context.wanted = ", ".join(text for text, limit in wanted.items() if limit is not None)
    await _one(context)  # warms the server up
    before = await _counters(context)
    runs = [await _one(context) for _ in range(RUNS)]
    after = await _counters(context)
    ttfts = [run.ttft_s for run in runs if run.ttft_s is not None]
    speeds = [speed for run in runs if (speed := run.decode_tok_per_s) is not None]
    if not ttfts or not speeds:
        return failed("no timed tokens", "the streams have too few events or no usage.")
    ttft_s, speed = statistics.median(ttfts), statistics.median(speeds)
    faults = _short(speed, least)
    if most_s is not None and ttft_s > most_s:
        faults.insert(0, f"TTFT {ttft_s - most_s:.3f} s ({percent_over(ttft_s, most_s)}) over")
    values = {"ttft_s": round(ttft_s, 6), "decode_tok_per_s": round(speed, 3), "runs": RUNS}
    drafts = counter_growth(before, after, DRAFTS)
    accepted = counter_growth(before, after, ACCEPTED)
    if drafts and accepted is not None:
        values["tokens_per_step"] = round(1 + accepted / drafts, 3)
    note = "" if context.wanted else NO_THRESHOLD
    return failed_or_passed(f"TTFT {ttft_s:.3f} s, {speed:.1f} tok/s", "; ".join(faults), values, note)


async def _counters(context: CheckContext) -> Scrape | None:
    """Return the server's counters if speculative decoding is on, otherwise None."""
    features = context.target.features
    if features is None or features.speculation == "none":
        return None
    return await context.client.scrape(limit_s=SCRAPE_LIMIT_S)


def _short(speed: float, least: float | None) -> list[str]:
    if least is None or speed >= least:
        return []
    return [f"{least - speed:.1f} tok/s ({percent_over(speed, least)}) short"]


async def burst(context: CheckContext) -> Outcome:
    """Check that all concurrent streams complete, and their total rate."""
    count = context.target.thresholds.burst_requests
    least = context.target.thresholds.min_burst_tok_per_s
    context.wanted = f"{count} of {count} completed" + (f", >= {least:g} tok/s in total" if least is not None else "")
    results = await asyncio.gather(*(_one(context) for _ in range(count)), return_exceptions=True)
    done = [result for result in results if isinstance(result, Streamed)]
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, ServerError):
            raise error
    if errors:
        return failed(f"{len(done)} of {count} completed", str(errors[0]))
    tokens = sum(run.usage.completion_tokens for run in done if run.usage is not None)
    span_s = max(run.started_at_s + run.end_s for run in done) - min(run.started_at_s for run in done)
    speed = tokens / span_s if span_s > 0 else 0.0
    ttft_s = statistics.median([run.ttft_s for run in done if run.ttft_s is not None] or [0.0])
    values = {"burst_tok_per_s": round(speed, 3), "median_ttft_s": round(ttft_s, 6), "requests": count}
    measured = f"{count} concurrent: {speed:.1f} tok/s in total, TTFT {ttft_s:.3f} s"
    return failed_or_passed(measured, "; ".join(_short(speed, least)), values, NO_THRESHOLD if least is None else "")


async def plan(context: CheckContext) -> Outcome:
    """Compare with the planned bands. A slower value fails unless it meets a threshold of the stack."""
    context.wanted = "every metric within its band"
    planned, limits = context.target.planned, context.target.thresholds
    if planned is None:
        return skipped("no plan to compare with")
    tokens_per_step = as_number(context.values.get("single stream", {}).get("tokens_per_step"))
    if tokens_per_step is not None:
        context.wanted += f" at {tokens_per_step:g} tokens per step"
        planned = planned.at(tokens_per_step)
    metrics = (
        ("decode_tok_per_s", "single stream", planned.decode_tok_per_s, limits.min_decode_tok_per_s),
        ("ttft_s", "single stream", planned.ttft_s, limits.max_ttft_s),
        ("burst_tok_per_s", "burst", planned.burst_tok_per_s, limits.min_burst_tok_per_s),
    )
    values: dict[str, str] = {}
    notes: list[str] = []
    is_slow = False
    for key, check, band, limit in metrics:
        if band is None:
            continue
        measured = as_number(context.values.get(check, {}).get(key))
        found = values[key] = residual(band, measured)
        if found == "within":
            continue
        causes = usual_causes(key, found)
        notes.append(f"{_shown(key, band, measured)}{f'; {causes}' if causes else ''}")
        if found == ("above" if key == "ttft_s" else "below") and not _meets(key, measured, limit):
            is_slow = True
    measured_text = f"{list(values.values()).count('within')} of {len(values)} metrics within their bands"
    if planned.ttft_s is None:
        notes.append(_NOT_PLANNED)
    if not notes:
        return passed(measured_text, values)
    return (failed if is_slow else warned)(measured_text, ". ".join(notes), values)


def _meets(key: str, measured: float | None, limit: float | None) -> bool:
    if measured is None or limit is None:
        return False
    return measured <= limit if key == "ttft_s" else measured >= limit


def _shown(key: str, band: Band, measured: float | None) -> str:
    names = {"decode_tok_per_s": "one stream", "ttft_s": "first token", "burst_tok_per_s": "burst"}
    digits, unit = (3, "s") if key == "ttft_s" else (1, "tok/s")
    low = f"{band.low:,.{digits}f}"
    typical = f"{band.typical:,.{digits}f}"
    high = f"{band.high:,.{digits}f}"
    value = "nothing" if measured is None else f"{measured:,.{digits}f}"
    return f"{names[key]}: planned {typical} {unit} ({low} to {high}), measured {value}"
