"""The plan of each stack and the simulated server that it starts: near enough that smoke, bench and `up` judge this project's code.

The simulator has one recorded boot for each model and card, and one rule for the rest (localcloud/vllm/data/boots.json).
"""

import json
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.cloud_run import MountMode
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.speed.residuals import BURST_REQUESTS, smoke_figures
from gemma_serving.stacks.planned import to_question
from localcloud.vllm import recorded
from localcloud.vllm.boot import Start
from tests.agreement.simulated_stacks import ROOT, STACKS, Served, served, served_as, settings_of
from tests.planning.corpus.measured import load

KV_RATIO, START_RATIO = 1.3, 1.5
TPU_MODES = ("hub", "disk", "streamer")
BEFORE_THE_SERVER = ("image", "docker", "first connections")
CLOUD_RUN = [stack for stack in STACKS if settings_of(stack).cloud_run is not None]


def is_near(planned: float, simulated: float, ratio: float) -> bool:
    return 1 / ratio <= simulated / planned <= ratio


def planned_s(one: Served) -> float:
    """Return the seconds of the server and its weights. A TPU VM's agent has fetched those of a bucket before."""
    resolved = one.subject.resolved
    fetched = ("weights from the bucket",) if resolved.is_tpu and resolved.weights_mode != "streamer" else ()
    stages = one.subject.startup.stages
    return sum(stage.takes_s for stage in stages if stage.name not in (*BEFORE_THE_SERVER, *fetched))


def slower_or_faster(one: Served, start: Start) -> Iterator[str]:
    """Yield simulated rates outside the plan's band for a healthy server, which is what the smoke check warns about."""
    subject, rates = one.subject, one.rates(start)
    planned = smoke_figures(subject.resolved, subject.memory, subject.throughput, BURST_REQUESTS)
    assert planned.burst_tok_per_s is not None
    for name, band, rate in (
        ("one stream", planned.decode_tok_per_s, rates["single stream"]["decode_tok_per_s"]),
        ("burst", planned.burst_tok_per_s, rates["burst"]["burst_tok_per_s"]),
    ):
        if not band.low <= rate <= band.high:
            yield f"{name}: planned {band.low:.0f} to {band.high:.0f} tok/s, simulated {rate:.0f}"


@pytest.mark.parametrize("stack", STACKS)
def test_memory_start_and_speed_are_near_the_plan_in_each_loading_mode(
    stack: str, tmp_path: Path, subtests: pytest.Subtests
):
    settings = settings_of(stack)
    for mode in TPU_MODES if settings.tpu is not None else typing.get_args(MountMode):
        with subtests.test(mode):
            one = served_as(settings, to_question(settings, ROOT).changed(weights_mode=mode))
            start = one.start(tmp_path)
            assert start.capacity is not None, start.steps[-1].error
            memory = one.subject.memory
            assert start.capacity.block_size == memory.block_size
            assert is_near(memory.kv_tokens, start.capacity.tokens, KV_RATIO)
            assert is_near(memory.kv_blocks, start.capacity.num_blocks, KV_RATIO)
            assert is_near(planned_s(one), start.total_s, START_RATIO)
            assert list(slower_or_faster(one, start)) == []


@pytest.mark.parametrize("stack", CLOUD_RUN)
def test_the_least_memory_that_the_plan_accepts_without_a_finding_starts(stack: str, tmp_path: Path):
    question = to_question(settings_of(stack), ROOT)
    shipped = {finding.id for finding in plan(question).findings}
    accepted = (
        gib
        for gib in range(1, question.cloud_run.memory_mib // 1024 + 1)
        if {one.id for one in plan(with_changes(question, {"cloud_run.memory_mib": gib * 1024})).findings} <= shipped
    )
    start = served(stack).start(tmp_path, VLLM_SIM_MEMORY_LIMIT_MIB=str(1024 * next(accepted)))
    assert [step.error for step in start.steps if step.error is not None] == []


def test_each_figure_of_a_recorded_boot_is_that_of_the_corpus():
    corpus = {(boot.id, figure.key): figure.measured for boot in load().boots for figure in boot.figures}
    rows = json.loads((Path(recorded.__file__).parent / "data" / "boots.json").read_text())["boots"]
    for row in rows:
        figures = {
            "weights_gib": ("weights", row["weights_gib"]),
            "compile_s": ("compile", row["compile_s"]),
            "step_s": ("decode", 1 / row["step_s"]),
            "sequence_s": ("decode_16", 16 / (row["step_s"] + 15 * row["sequence_s"])),
        }
        for name, boot in row["recorded"].items():
            kind, value = figures[name]
            assert value == pytest.approx(corpus[boot, kind], rel=0.001), (row["model"], row["card"], name)
