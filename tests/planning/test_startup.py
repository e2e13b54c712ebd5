"""Start-up: what is compiled, what a restart keeps, and how close the planner comes to boots that it was not made from."""

from dataclasses import replace

import pytest

from authors.accuracy.corpus.measured import load, subject_of
from planning import CloudRunOptions, Deployment, TpuOptions, VllmOptions, plan
from planning.data import overheads
from planning.machine.devices import parse_device
from planning.memory.resolve import resolve
from planning.question.types import StartupPlan
from planning.speed.startup import compile_s_of, xla_programs
from vm_agent.base import HUB_CACHE, HUB_CACHE_VARIABLE, TMPFS

TPU = Deployment(model="google/gemma-4-E2B-it", accelerator="v6e-1")
RUN = Deployment(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")
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


def test_off_a_tpu_machine_there_is_no_machine_that_keeps_anything():
    start = plan(RUN).startup
    assert (start.recompile_s, start.reboot_s, start.node_replacement_s) == (None, None, None)


MAPPED = "12B, v6e-1, text only, 16 sequences, loading"
"""The PyTorch path maps its files and reads them later (`planning.data.overheads.LOAD_BAND`)."""


def test_every_logged_loading_and_compile_time_is_within_its_band():
    found: dict[str, bool] = {}
    for boot in load().boots:
        start = subject_of(boot).startup
        bands = {
            "compile": (start.compile_low_s, start.compile_high_s),
            "load": (start.load_low_s, start.load_high_s),
        }
        for figure in boot.figures:
            if figure.key in bands and boot.outcome == "runs":
                low, high = bands[figure.key]
                found[f"{boot.title}, {figure.kind.name}"] = low <= figure.measured <= high
    assert [title for title, is_inside in found.items() if not is_inside] == [MAPPED]
    assert len(found) >= 28


@pytest.mark.parametrize("place", [("L4", "gce"), ("H200", "gce"), ("L4", "cloud-run"), ("v6e-1", "tpu-vm")])
def test_the_plan_is_inside_its_own_band(place: tuple[str, str]):
    start = plan(replace(TPU, accelerator=place[0], platform=place[1])).startup  # pyright: ignore[reportArgumentType]
    assert start.compile_low_s < start.compile_s < start.compile_high_s
    assert start.load_low_s < start.load_s < start.load_high_s
    parts_s = start.load_high_s - start.load_low_s + start.compile_high_s - start.compile_low_s
    assert start.total_high_s - start.total_low_s == pytest.approx(parts_s)
    assert start.probe_budget_s >= start.total_s * overheads.PROBE_MARGIN


def test_a_fast_core_compiles_in_half_the_time_and_an_unknown_one_widens_the_band():
    l4, h200 = (plan(replace(TPU, accelerator=name, platform="gce")).startup for name in ("L4", "H200"))
    assert h200.compile_s < 0.65 * l4.compile_s
    own = plan(replace(TPU, device=parse_device("memory=24GiB,bandwidth=300GB/s,tflops=121"))).startup
    assert own.compile_s == l4.compile_s
    assert own.compile_low_s < 0.7 * l4.compile_low_s
    large = plan(replace(TPU, device=parse_device("memory=141GiB,bandwidth=4800GB/s,tflops=989"))).startup
    assert large.compile_high_s > 1.5 * h200.compile_high_s


V5E_PROGRAMS = {
    "google/gemma-4-E4B-it-qat-w4a16-ct": (859.65, 4),
    "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct": (1047.38, 8),
}
"""Seconds and programs of two boots on v5e-1 with a cold cache, from which no constant was fitted (xbill9/gemma4-dev 395bf64,
tpu-vllm-v5e1-4b-w4a16/benchmarks/runs/2026-09-29-e4b-e4b-google-v5e1 and tpu-vllm-v5e1-26b-q4w4a16/benchmarks/runs/2026-09-28-lowmem7-26b-lowmem-v5e1)."""


@pytest.mark.parametrize("model", V5E_PROGRAMS)
def test_a_4_bit_program_on_v5e_takes_what_two_boots_took(model: str):
    vllm = VllmOptions(limit_mm_per_prompt={"image": 0, "audio": 0, "video": 0}, max_num_batched_tokens=512)
    resolved = resolve(Deployment(model=model, accelerator="v5e-1", vllm=vllm))
    assert resolved.unpacks_int4
    logged_s, programs = V5E_PROGRAMS[model]
    planned_s = compile_s_of(resolved, is_cached=False) / xla_programs(resolved)
    assert planned_s == pytest.approx(logged_s / programs, rel=0.15)
    assert compile_s_of(resolved, is_cached=True) < 0.2 * compile_s_of(resolved, is_cached=False)
