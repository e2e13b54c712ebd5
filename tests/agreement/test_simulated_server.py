"""The plan of a stack and the simulated server that it starts: one count of blocks and tokens, and one idea of speed.

The plan computes; the simulator has recorded boots. Without this law, a smoke check on the local cloud warns about a fresh stack, and no user can
tell whether the plan or the simulation is wrong.
"""

from collections.abc import Iterator

import pytest

from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.vllm_args import VllmOptions, vllm_arguments
from gemma_serving.planning.speed.residuals import KV_TOLERANCE, SMOKE_OUTPUT_TOKENS, smoke_figures
from localcloud.vllm.arguments import parse
from localcloud.vllm.memory import capacity
from localcloud.vllm.recorded import find_card, find_model
from tests.agreement.simulated_stacks import STACKS, Served, served

LENGTHS = (2048, 4096, 8192, 16384, 32768)
TOLERANCE = 0.05
"""Blocks and tokens: the planner's own tolerance against logged servers (docs/authors/accuracy.md), and below the smoke check's, so a simulated
server can never warn. At most 2.7 % (a draft model on an L4); on TPUs 1.7 %."""


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


@pytest.mark.parametrize(
    "model", ["E2B-it", "E4B-it", "E2B-it-qat-w4a16-ct", "E4B-it-qat-w4a16-ct", "12B-it-qat-w4a16-ct"]
)
@pytest.mark.parametrize(("accelerator", "name"), [("L4", "nvidia-l4"), ("RTX PRO 6000", "nvidia-rtx-pro-6000")])
def test_the_plan_and_the_simulated_server_agree_on_checkpoints_that_no_stack_has(
    model: str, accelerator: str, name: str
):
    """E4B on an L4 had 28 % more KV cache on the simulated server than planned."""
    options = VllmOptions(max_model_len=8192, gpu_memory_utilization=0.9)
    deployment = Deployment(model=f"google/gemma-4-{model}", accelerator=accelerator, vllm=options)
    subject = examine(deployment)
    arguments = parse(["vllm", "serve", *vllm_arguments(subject.resolved.vllm, model_or_path=deployment.model)])
    checkpoint, card = find_model(arguments.model), find_card(name)
    assert checkpoint is not None
    assert card is not None
    found = capacity(arguments, checkpoint, card)
    assert found.num_blocks == pytest.approx(subject.memory.kv_blocks, rel=TOLERANCE)
    assert found.tokens == pytest.approx(subject.memory.kv_tokens, rel=TOLERANCE)
