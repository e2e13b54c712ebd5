"""Checks of metrics and of the options in effect."""

from collections.abc import Iterator, Mapping
from typing import Final

from loadtest.client.metrics import CACHE_CONFIG, GENERATION_TOKENS, KV_USAGE, RUNNING, WAITING
from planning.speed.residuals import KV_TOLERANCE
from scripts.cli.check_result import Values
from scripts.smoke.context import CheckContext, percent_over
from scripts.smoke.results import Outcome, failed, passed, skipped, warned

CALL_LIMIT_S: Final = 30.0
ROUNDING: Final = 1e-6


async def metrics(context: CheckContext) -> Outcome:
    """Check that KV cache use, queued requests and the token counter are readable."""
    context.wanted = "KV use, waiting and running requests, counted tokens"
    scrape = await context.client.metrics(limit_s=CALL_LIMIT_S)
    kv = scrape.highest(KV_USAGE)
    waiting = scrape.total(WAITING)
    running = scrape.total(RUNNING)
    tokens = scrape.total(GENERATION_TOKENS)
    named = {
        KV_USAGE[0]: kv,
        WAITING[0]: waiting,
        RUNNING[0]: running,
        GENERATION_TOKENS[0]: tokens,
    }
    missing = [name for name, value in named.items() if value is None]
    if missing:
        return failed(f"missing: {', '.join(missing)}", "Check --disable-log-stats and the vLLM version.")
    measured = f"KV {kv or 0:.1%}, waiting {waiting:.0f}, running {running:.0f}, {tokens:.0f} tokens"
    values = {
        "kv_cache_usage": kv,
        "waiting": waiting,
        "running": running,
        "generated_tokens": tokens,
    }
    return passed(measured, values)


async def options(context: CheckContext) -> Outcome:
    """Compare `cache_config_info` with the plan: block size, dtype and utilization exactly, the block count within a tolerance."""
    memory = context.target.memory
    replicas = context.target.replicas
    context.wanted = ", ".join(_wanted(context))
    scrape = await context.client.scrape(limit_s=CALL_LIMIT_S)
    found = scrape.labels(CACHE_CONFIG) if scrape is not None else None
    if scrape is None or found is None:
        return skipped("the server does not export its cache configuration", "no cache_config_info")
    engines = scrape.series(CACHE_CONFIG)
    blocks = _whole(found.get("num_gpu_blocks"))
    block_size = _whole(found.get("block_size"))
    values: dict[str, float | int | str | bool | None] = {
        "num_gpu_blocks": blocks,
        "block_size": block_size,
        "engines": engines,
        **({"planned_blocks": memory.kv_blocks} if memory is not None and blocks is not None else {}),
    }
    used = f"utilization {found.get('gpu_memory_utilization', '?')}"
    each = f"{engines} engines, each " if engines > 1 else ""
    measured = f"{each}{blocks} blocks of {block_size}, {found.get('cache_dtype', '?')}, {used}"
    mismatches = "; ".join(_mismatches(found, context.target.cache_options))
    detail = f"not in effect: {mismatches}." if mismatches else ""
    if engines != replicas:
        count = f"the plan has {replicas} engine(s) (`vllm.dataParallelSize`), but {engines} export metrics."
        return failed(measured, f"{count} {detail}".rstrip(), values)
    if detail:
        return failed(measured, detail, values)
    return _blocks(context, measured, blocks, values)


def _wanted(context: CheckContext) -> Iterator[str]:
    memory = context.target.memory
    replicas = context.target.replicas
    if replicas > 1:
        yield f"{replicas} engines"
    if memory is not None:
        yield f"{memory.kv_blocks} blocks ± {KV_TOLERANCE:.0%}"
    yield from (f"{name} {value}" for name, value in context.target.cache_options.items())


def _blocks(context: CheckContext, measured: str, blocks: float | None, values: Values) -> Outcome:
    """Return the result for options that are in effect, by the number of blocks."""
    memory = context.target.memory
    if memory is None or blocks is None:
        state = "passed" if context.target.cache_options else "skipped"
        return Outcome(state, "no plan to compare the blocks with", values=values, measured=measured)
    if abs(blocks / memory.kv_blocks - 1) <= KV_TOLERANCE:
        return passed(measured, values)
    # Only a warning: on a model with several layer groups (sliding and full attention), a block is a page of one group. How the
    # groups share the pool differs between vLLM versions.
    differs = (
        f"{percent_over(blocks, memory.kv_blocks)} {'more' if blocks > memory.kv_blocks else 'fewer'} than planned."
    )
    why = "On models with sliding windows, a block is a page of one layer group."
    log = f"Compare the log line 'GPU KV cache size' with the planned {memory.kv_tokens:,} tokens."
    return warned(measured, f"{differs} {why} {log}", values)


def _mismatches(found: Mapping[str, str], planned: Mapping[str, str]) -> Iterator[str]:
    for name, wanted in planned.items():
        actual = found.get(name)
        if actual is not None and not _same(actual, wanted):
            yield f"{name} is {actual}, planned {wanted}"


def _same(actual: str, wanted: str) -> bool:
    try:
        return abs(float(actual) - float(wanted)) < ROUNDING
    except ValueError:
        # vLLM reports the type that fp8 resolved to on this hardware, such as fp8_e4m3.
        return actual == wanted or actual.startswith(f"{wanted}_")


def _whole(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdecimal() else None
