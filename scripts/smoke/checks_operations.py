"""Checks of metrics and of the options in effect."""

from collections.abc import Mapping
from typing import Final

from contracts.outputs import MemorySummary
from loadtest.client.metrics import (
    CACHE_CONFIG,
    GENERATION_TOKENS,
    KV_USAGE,
    RUNNING,
    WAITING,
    Scrape,
)
from loadtest.client.openai import ServerError, UnreachableError
from planning.speed.residuals import KV_TOLERANCE
from scripts.smoke.context import CheckContext, percent_over
from scripts.smoke.results import Outcome, Verdict, failed, passed, skipped, warned

CALL_LIMIT_S: Final = 30.0
ROUNDING: Final = 1e-6


async def _scrape(context: CheckContext) -> tuple[Scrape | None, str]:
    try:
        return await context.client.metrics(limit_s=CALL_LIMIT_S), ""
    except UnreachableError:
        raise
    except ServerError as error:
        return None, str(error)


async def metrics(context: CheckContext) -> Outcome:
    """Check that KV cache use and queued requests are readable, and that the token counter covers all tokens received."""
    scrape, fault = await _scrape(context)
    wanted = "KV use, waiting and running requests, counted tokens"
    if scrape is None:
        return failed(fault, wanted=wanted, detail="the server cannot be monitored without /metrics.")
    kv, waiting, running, tokens = (
        scrape.highest(KV_USAGE),
        scrape.total(WAITING),
        scrape.total(RUNNING),
        scrape.total(GENERATION_TOKENS),
    )
    named = {KV_USAGE[0]: kv, WAITING[0]: waiting, RUNNING[0]: running, GENERATION_TOKENS[0]: tokens}
    missing = [name for name, value in named.items() if value is None]
    if missing:
        return failed(
            f"missing: {', '.join(missing)}", wanted=wanted, detail="Check --disable-log-stats and the vLLM version."
        )
    before = context.scrape_before.total(GENERATION_TOKENS) if context.scrape_before else None
    counted = (tokens or 0.0) - (before or 0.0)
    short = context.generated_tokens - counted
    values = {"kv_cache_usage": kv, "waiting": waiting, "running": running, "generated_tokens": counted}
    measured = f"KV {kv or 0:.1%}, waiting {waiting:.0f}, running {running:.0f}, {counted:.0f} tokens"
    if short > 0:
        detail = (
            f"responses report {context.generated_tokens} output tokens, but the counter shows {counted:.0f}. "
            "Several instances serve the requests, or the server restarted."
        )
        return warned(measured, wanted=wanted, detail=detail, values=values)
    return passed(measured, wanted=wanted, values=values)


async def options(context: CheckContext) -> Outcome:
    """Compare `cache_config_info` with the plan: block size, dtype and utilization exactly, the block count within a tolerance."""
    scrape, fault = await _scrape(context)
    found = scrape.labels(CACHE_CONFIG) if scrape is not None else None
    if found is None:
        measured = fault or "no cache_config_info"
        return skipped("the server does not export its cache configuration", measured=measured)
    memory, planned = context.target.memory, context.target.cache_options
    blocks, block_size = _whole(found.get("num_gpu_blocks")), _whole(found.get("block_size"))
    wanted = [f"{memory.kv_blocks} blocks ± {KV_TOLERANCE:.0%}"] if memory is not None else []
    engines, replicas = scrape.series(CACHE_CONFIG) if scrape is not None else 0, context.target.replicas
    verdict, detail = _judged(found, blocks, planned, memory)
    if engines != replicas:
        verdict, detail = (
            "failed",
            f"the plan has {replicas} engine(s) (`vllm.dataParallelSize`), but {engines} export metrics. {detail}".rstrip(),
        )
    values: dict[str, float | int | str | bool | None] = {
        "num_gpu_blocks": blocks,
        "block_size": block_size,
        "gpu_memory_utilization": _fraction(found.get("gpu_memory_utilization")),
        "cache_dtype": found.get("cache_dtype"),
        "engines": engines,
    }
    if memory is not None and blocks is not None:
        values["planned_blocks"] = memory.kv_blocks
    each = f"{engines} engines, each " if engines > 1 else ""
    used = f"utilization {found.get('gpu_memory_utilization', '?')}"
    return Outcome(
        verdict=verdict,
        measured=f"{each}{blocks} blocks of {block_size}, {found.get('cache_dtype', '?')}, {used}",
        wanted=", ".join(
            [
                *([f"{replicas} engines"] if replicas > 1 else ()),
                *wanted,
                *(f"{name} {value}" for name, value in planned.items()),
            ]
        ),
        detail=detail,
        values=values,
    )


def _judged(
    found: Mapping[str, str], blocks: int | None, planned: Mapping[str, str], memory: MemorySummary | None
) -> tuple[Verdict, str]:
    """Return the verdict on the options in effect, with a reason if needed."""
    mismatches = _mismatches(found, planned)
    if mismatches:
        return "failed", f"not in effect: {'; '.join(mismatches)}."
    if memory is None or blocks is None:
        return "passed" if planned else "skipped", "no plan to compare the blocks with"
    if abs(blocks / memory.kv_blocks - 1) <= KV_TOLERANCE:
        return "passed", ""
    more_or_less = "more" if blocks > memory.kv_blocks else "fewer"
    # Only a warning: on a model with several layer groups (sliding and full attention), a block is a page of one group. How the
    # groups share the pool differs between vLLM versions.
    return "warned", (
        f"{percent_over(blocks, memory.kv_blocks)} {more_or_less} than planned. On models with sliding windows, a block is a page of one"
        f" layer group. Compare the log line 'GPU KV cache size' with the planned {memory.kv_tokens:,} tokens."
    )


def _mismatches(found: Mapping[str, str], planned: Mapping[str, str]) -> list[str]:
    faults: list[str] = []
    for name, wanted in planned.items():
        actual = found.get(name)
        if actual is not None and not _same(actual, wanted):
            faults.append(f"{name} is {actual}, planned {wanted}")
    return faults


def _same(actual: str, wanted: str) -> bool:
    try:
        return abs(float(actual) - float(wanted)) < ROUNDING
    except ValueError:
        # vLLM reports the type that fp8 resolved to on this hardware, such as fp8_e4m3.
        return actual == wanted or actual.startswith(f"{wanted}_")


def _fraction(value: str | None) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _whole(value: str | None) -> int | None:
    try:
        return int(float(value)) if value is not None else None
    except ValueError:
        return None
