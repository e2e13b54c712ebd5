"""The plan of a stack and the simulated server that it starts: one count of blocks and tokens, and one idea of speed.

Each has its own arithmetic and its own table. Without this law, a smoke check on the local cloud warns about a fresh stack, and no user can
tell whether the plan or the simulation is wrong.
"""

from collections.abc import Iterator

import pytest

from planning.speed.residuals import KV_TOLERANCE, SMOKE_OUTPUT_TOKENS, smoke_figures
from tests.agreement.simulated_stacks import STACKS, Served, served

LENGTHS = (2048, 4096, 8192, 16384, 32768)
TOLERANCE = 0.05
"""Blocks and tokens: the planner's own tolerance against logged servers (docs/authors/accuracy.md), and below the smoke check's, so a simulated
server can never warn. At most 4.2 % (12B on four v6e chips, whose weights in the simulator are a quarter of the checkpoint); on GPUs 1.7 %."""


def differences(one: Served) -> Iterator[str]:
    """Yield what a smoke check would see differ."""
    planned, found = one.subject.memory, one.capacity()
    if found is None or planned.max_concurrency < 1:
        if (found is None) != (planned.max_concurrency < 1):
            yield f"starts: planned {planned.max_concurrency:.2f} requests, simulated {found}"
        return
    if found.block_size != planned.block_size:
        yield f"block size: planned {planned.block_size}, simulated {found.block_size}"
    counts = (("blocks", planned.kv_blocks, found.num_blocks), ("tokens", planned.kv_tokens, found.tokens))
    for name, wanted, actual in counts:
        if abs(actual / wanted - 1) > TOLERANCE:
            yield f"{name}: planned {wanted:,}, simulated {actual:,} ({actual / wanted - 1:+.1%})"
    yield from slower_or_faster(one)


def slower_or_faster(one: Served) -> Iterator[str]:
    """Yield simulated rates outside the plan's band for a healthy server, which is what the smoke check warns about."""
    pace, proposals = one.pace(), one.speculation()
    together = one.burst_requests
    burst_s = pace.ttft_s(0) + SMOKE_OUTPUT_TOKENS * pace.interval_s(together, proposals)
    planned = smoke_figures(one.subject.resolved, one.subject.memory, one.subject.throughput, together)
    assert planned.burst_tok_per_s is not None
    rates = (
        ("one stream", planned.decode_tok_per_s, 1 / pace.interval_s(1, proposals)),
        ("burst", planned.burst_tok_per_s, together * SMOKE_OUTPUT_TOKENS / burst_s),
    )
    for name, band, rate in rates:
        if not band.low <= rate <= band.high:
            yield f"{name}: planned {band.low:.0f} to {band.high:.0f} tok/s, simulated {rate:.0f}"


@pytest.mark.parametrize("stack", STACKS)
def test_the_plan_and_the_simulated_server_of_a_stack_agree_at_every_length(stack: str):
    assert TOLERANCE < KV_TOLERANCE
    found = {length: list(differences(served(stack, length))) for length in LENGTHS}
    assert not {length: said for length, said in found.items() if said}
