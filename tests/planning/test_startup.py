"""Start-up: what is compiled, what a restart keeps, and how close the planner comes to boots that it was not made from."""

from dataclasses import replace

import pytest

from planning import CloudRunOptions, Deployment, TpuOptions, VllmOptions, plan
from planning.data import overheads
from planning.memory.resolve import resolve
from planning.question.types import StartupPlan
from planning.speed.startup import xla_programs
from scripts.plan.corpus.measured import load, subject_of
from vm_agent.base import HUB_CACHE, HUB_CACHE_VARIABLE, TMPFS

TPU = Deployment(model="google/gemma-4-E2B-it", accelerator="v6e-1")
RUN = Deployment(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")
UNEXPLAINED = {
    "E2B, v6e-1, utilization 0.90, 65,536 tokens": "a nightly of 2026-07-21 whose figures its author retracted in part",
    "E2B, v5e-1, 64 sequences, 2,496 tokens a step, blocks of 16": "the source does not know why it took 1,701 s",
    "E2B, v5e-1, text only, 16 sequences": "the start is logged without its parts",
}
"""Boots whose start-up the planner misses by more than a quarter."""


def limited(**limits: int) -> Deployment:
    return replace(TPU, vllm=VllmOptions(limit_mm_per_prompt=limits or None))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("deployment", "programs"),
    [
        (TPU, 18),
        (limited(image=0, audio=0, video=0), 9),
        (limited(image=0), 9),
        (limited(image=0, audio=1), 18),
        (limited(image=0, audio=0, video=2), 18),
        (replace(TPU, model="google/gemma-4-26B-A4B-it", accelerator="v6e-4"), 26),
        (replace(limited(image=0, audio=0), model="google/gemma-4-26B-A4B-it", accelerator="v6e-4"), 13),
    ],
)
def test_text_only_serving_compiles_one_program_per_bucket(deployment: Deployment, programs: int):
    assert xla_programs(resolve(deployment)) == programs


def test_text_only_serving_warms_up_no_processor():
    both, text = plan(TPU).startup, plan(limited(image=0, audio=0, video=0)).startup
    assert both.pull_s - text.pull_s == overheads.TPU_MULTIMODAL_WARM_UP_S
    assert text.compile_s == both.compile_s / 2


def test_a_warm_cache_still_takes_minutes_and_no_cache_takes_all():
    warm, cold = (replace(TPU, tpu=TpuOptions(compile_cache=cache)) for cache in ("machine", "off"))
    saved = plan(cold).startup.restart_s - plan(warm).startup.restart_s
    assert saved == pytest.approx(plan(TPU).startup.compile_s * (1 - overheads.XLA_CACHED_FACTOR))
    assert plan(warm).startup.restart_s > 300


def test_a_tpu_vm_keeps_its_weights_outside_the_container():
    assert (HUB_CACHE_VARIABLE, HUB_CACHE.startswith(TMPFS)) == ("HF_HOME", False)
    start = plan(replace(TPU, weights_mode="hub", tpu=TpuOptions(compile_cache="off"))).startup
    kept_s = start.restart_s - start.compile_s
    fetched_s = start.total_s - overheads.VM_IMAGE_PULL_S - start.compile_s
    assert kept_s < fetched_s


@pytest.mark.parametrize("mode", ["hub", "fuse", "fuse-buffered", "fuse-cached", "streamer"])
@pytest.mark.parametrize("direct_vpc", [False, True])
def test_a_restart_on_cloud_run_fetches_its_weights_again(mode: str, direct_vpc: bool):
    run = CloudRunOptions(direct_vpc=direct_vpc)
    start = plan(replace(RUN, weights_mode=mode, cloud_run=run)).startup  # pyright: ignore[reportArgumentType]
    assert start.restart_s == pytest.approx(start.total_s - overheads.CLOUD_RUN_CONTAINER_START_S)


def test_start_ups_are_within_a_quarter_of_what_was_measured():
    found: dict[str, float] = {}
    for boot in load().boots:
        for figure in boot.figures:
            if "start" in figure.kind.name:
                found[boot.title] = figure.kind.read(subject_of(boot)) / figure.measured - 1
    assert {title for title, error in found.items() if abs(error) > 0.25} == UNEXPLAINED.keys()
    assert len(found) >= 20


def kept(cache: str) -> StartupPlan:
    return plan(replace(TPU, tpu=TpuOptions(compile_cache=cache))).startup  # pyright: ignore[reportArgumentType]


def test_each_way_to_start_again_has_its_time_on_a_machine():
    start = kept("machine")
    assert start.recompile_s is not None
    assert start.reboot_s is not None
    assert start.node_replacement_s is not None
    assert start.recompile_s - start.restart_s == pytest.approx(start.compile_s * (1 - overheads.XLA_CACHED_FACTOR))
    assert start.reboot_s == start.restart_s + overheads.VM_BOOT_S
    assert start.node_replacement_s == start.total_s + overheads.VM_BOOT_S


def test_only_an_archive_makes_a_new_machine_start_warm():
    machine, bucket, off = (kept(cache) for cache in ("machine", "bucket", "off"))
    assert machine.node_replacement_s == off.node_replacement_s
    assert bucket.node_replacement_s == pytest.approx(
        (machine.node_replacement_s or 0) - machine.compile_s * (1 - overheads.XLA_CACHED_FACTOR)
    )
    assert bucket.restart_s == machine.restart_s
    assert off.restart_s == off.recompile_s


def test_weights_in_shared_memory_are_fetched_again_after_a_reboot():
    memory, disk = (plan(replace(TPU, weights_mode=mode)).startup for mode in ("memory", "disk"))  # pyright: ignore[reportArgumentType]
    assert memory.restart_s == disk.restart_s
    assert (memory.reboot_s or 0) > (disk.reboot_s or 0)


def test_off_a_tpu_machine_there_is_no_machine_that_keeps_anything():
    start = plan(RUN).startup
    assert (start.recompile_s, start.reboot_s, start.node_replacement_s) == (None, None, None)
