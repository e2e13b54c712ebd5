"""Start-up: what is compiled, what a restart keeps, and how close the planner comes to boots that it was not made from."""

import dataclasses
from pathlib import Path

import pytest

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.data.overheads import CONSTANTS, IMAGE_DOWNLOAD_GB, IMAGE_ON_DISK_GIB, constant
from gemma_serving.planning.machine.devices import parse_device
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import StartupPlan
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.tpu import CompileCache
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.speed.side_by_side import SharedUse, together_s
from gemma_serving.planning.units import from_gib
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_question
from gemma_serving.vm_agent.base import HUB_CACHE, HUB_CACHE_VARIABLE, TMPFS
from tests.planning.blocks import service_block, tpu_block
from tests.planning.corpus.measured import sequential_s

ROOT = Path(__file__).parents[2]
TPU_STACKS = sorted(name for path in shipped_files(ROOT) if (name := path.name.split(".")[1]).startswith("tpu-"))
TPU = Question().changed(model="google/gemma-4-E2B-it", accelerator="v6e-1")
RUN = Question().changed(model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4")
"""Boots whose start-up the planner misses by more than a quarter."""


def limited(**limits: int) -> Question:
    return TPU.changed(vllm=VllmOptions(limit_mm_per_prompt=limits or None))  # pyright: ignore[reportArgumentType]


def started(place: tuple[str, str], mode: str) -> StartupPlan:
    model = "google/gemma-4-31B-it" if place[0] == "v6e-4" else TPU.settings.model
    question = TPU.changed(model=model, accelerator=place[0], platform=place[1], weights_mode=mode)  # pyright: ignore[reportArgumentType]
    return plan(question).startup


def test_text_only_serving_warms_up_no_processor():
    both, text = plan(TPU).startup, plan(limited(image=0, audio=0, video=0)).startup
    assert both.pull_s - text.pull_s == constant("TPU_MULTIMODAL_WARM_UP_S")
    assert text.compile_s == both.compile_s / 2


def test_a_warm_cache_still_takes_minutes_and_no_cache_takes_all():
    warm, cold = (TPU.changed(tpu=tpu_block(compile_cache=cache)) for cache in ("machine", "off"))
    saved = plan(cold).startup.restart_s - plan(warm).startup.restart_s
    assert saved == pytest.approx(plan(TPU).startup.compile_s * (1 - constant("XLA_CACHED_FACTOR")))
    assert plan(warm).startup.restart_s > 300


def test_a_tpu_vm_keeps_its_weights_outside_the_container():
    assert (HUB_CACHE_VARIABLE, HUB_CACHE.startswith(TMPFS)) == ("HF_HOME", False)
    start = plan(TPU.changed(weights_mode="hub", tpu=tpu_block(compile_cache="off"))).startup
    kept_s = start.restart_s - start.compile_s
    fetched_s = sequential_s(start) - constant("VM_IMAGE_PULL_S") - start.compile_s
    assert kept_s < fetched_s


@pytest.mark.parametrize("stack", TPU_STACKS)
def test_no_weights_reach_a_tpu_faster_than_a_file_in_its_hosts_memory(stack: str):
    kept, streamed = (
        plan(to_question(from_file(settings_file(stack, ROOT), project="my-project", changes=changes))).startup
        for changes in ({"weights": "bucket"}, {"weights": "bucket", "vllm.loadFormat": "runai_streamer"})
    )
    assert kept.restart_s <= streamed.restart_s <= streamed.total_s
    assert streamed.total_s == pytest.approx(sum(stage.takes_s for stage in streamed.stages))


@pytest.mark.parametrize("mode", ["hub", "fuse", "fuse-buffered", "fuse-cached", "streamer"])
@pytest.mark.parametrize("direct_vpc", [False, True])
def test_a_restart_on_cloud_run_fetches_its_weights_again(mode: str, direct_vpc: bool):
    run = service_block(direct_vpc=direct_vpc)
    start = plan(RUN.changed(weights_mode=mode, cloud_run=run)).startup  # pyright: ignore[reportArgumentType]
    connects_s = constant("CLOUD_RUN_VPC_CONNECT_S") if direct_vpc else 0.0
    assert start.restart_s == pytest.approx(start.total_s - constant("CLOUD_RUN_CONTAINER_START_S") - connects_s)


@pytest.mark.parametrize("mode", ["fuse", "fuse-buffered"])
def test_prefetching_over_a_mount_reads_the_weights_twice(mode: str):
    once, twice = (
        plan(RUN.changed(weights_mode=mode, vllm=VllmOptions(safetensors_load_strategy=strategy))).startup  # pyright: ignore[reportArgumentType]
        for strategy in ("lazy", "prefetch")
    )
    assert twice.load_s == pytest.approx(once.load_s * constant("FUSE_PREFETCH_READS"))


@pytest.mark.parametrize(
    ("mode", "reads"), [("fuse", 4), ("fuse-buffered", 4), ("streamer", 4), ("fuse-cached", 1), ("hub", 1)]
)
def test_the_process_of_each_gpu_fetches_all_weights_without_a_cache(mode: str, reads: int):
    one, four = (started((machine, "gce"), mode).load_s for machine in ("L4", "L4x4"))
    assert four == pytest.approx(reads * one)


def kept(cache: str) -> StartupPlan:
    return plan(TPU.changed(tpu=tpu_block(compile_cache=cache))).startup  # pyright: ignore[reportArgumentType]


ENDS = {
    "flex-start": ("flex-start", None),
    "an order with spot": (("standard", "spot"), None),
    "a run limit": ("standard", 7_200),
    "on demand": ("standard", None),
    "a reservation": ("reservation", None),
}
"""Provisioning and run limit of a TPU VM that Google ends, and of one that stays."""


@pytest.mark.parametrize("form", ENDS)
@pytest.mark.parametrize("existing", [None, "their-models"])
@pytest.mark.parametrize("written", [None, "machine", "bucket", "off"])
def test_a_tpu_vm_that_google_ends_archives_its_programs_in_the_stacks_own_bucket(
    form: str, existing: str | None, written: CompileCache | None
):
    forms, run_s = ENDS[form]
    block = tpu_block(
        provisioning=(forms,) if isinstance(forms, str) else forms,
        max_run_duration_s=run_s,
        reservation="mine" if form == "a reservation" else None,
        compile_cache=written,
    )
    ends = form not in {"on demand", "a reservation"}
    value = written or ("bucket" if ends and existing is None else "machine")
    assert block.with_defaults(has_own_bucket=existing is None) == dataclasses.replace(block, compile_cache=value)
    start = plan(TPU.changed(tpu=block, bucket=BucketSettings(existing=existing))).startup
    archived, found = kept("bucket"), (start.total_s, start.cached_total_s, start.node_replacement_s, start.restart_s)
    assert found[0] == archived.total_s
    if value == "bucket":
        assert found == (archived.total_s, archived.cached_total_s, archived.node_replacement_s, archived.restart_s)
        saved_s = start.compile_s * (1 - constant("XLA_CACHED_FACTOR"))
        assert start.total_s - (start.cached_total_s or 0) == pytest.approx(saved_s)
        assert start.node_replacement_s == pytest.approx((start.cached_total_s or 0) + constant("VM_BOOT_S"))
    else:
        assert (start.cached_total_s, start.node_replacement_s) == (None, kept(value).node_replacement_s)


def test_each_way_to_start_again_has_its_time_on_a_machine():
    start = kept("machine")
    assert start.recompile_s is not None
    assert start.reboot_s is not None
    assert start.node_replacement_s is not None
    assert start.recompile_s - start.restart_s == pytest.approx(start.compile_s * (1 - constant("XLA_CACHED_FACTOR")))
    assert start.reboot_s == start.restart_s + constant("VM_BOOT_S")
    assert start.node_replacement_s == pytest.approx(start.total_s + constant("VM_BOOT_S"))


@pytest.mark.parametrize("place", [("L4", "gce"), ("H200", "gce"), ("L4", "cloud-run"), ("v6e-1", "tpu-vm")])
def test_the_plan_is_inside_its_own_band(place: tuple[str, str]):
    start = plan(TPU.changed(accelerator=place[0], platform=place[1])).startup  # pyright: ignore[reportArgumentType]
    assert start.compile_low_s < start.compile_s < start.compile_high_s
    assert start.load_low_s < start.load_s < start.load_high_s
    parts_s = start.load_high_s - start.load_low_s + start.compile_high_s - start.compile_low_s
    spread_s = start.total_high_s - start.total_low_s
    assert parts_s - 1e-6 <= spread_s <= parts_s + start.beside_s + 1e-6
    assert start.probe_budget_s >= sequential_s(start) * constant("PROBE_MARGIN")


@pytest.mark.parametrize(
    ("place", "mode", "longest"),
    [
        (("v6e-1", "tpu-vm"), "hub", "image"),
        (("v6e-4", "tpu-vm"), "hub", "image"),
        (("L4", "cloud-run"), "hub", ""),
        (("L4", "gce"), "hub", ""),
    ],
)
def test_the_total_is_the_longest_path_and_only_the_agent_fetches_beside_the_pull(
    place: tuple[str, str], mode: str, longest: str
):
    start = started(place, mode)
    stages = {one.name: one for one in start.stages}
    image, weights = stages["image"], stages["weights from the hub"]
    assert start.total_s == start.stages[-1].ends_s == max(one.ends_s for one in start.stages)
    assert sum(one.takes_s for one in start.stages) == pytest.approx(sequential_s(start))
    assert (weights.begins_s < image.ends_s) is bool(longest) is (start.beside_s > 0)
    if longest:
        assert stages["server process"].begins_s == stages[longest].ends_s
        assert start.beside_s == pytest.approx(min(image.takes_s, weights.takes_s))


@pytest.mark.parametrize(("mode", "shared"), [("disk", "disk"), ("memory", "network")])
def test_stages_that_use_up_the_same_resource_are_not_counted_as_side_by_side(mode: str, shared: str):
    start = started(("v6e-4", "tpu-vm"), mode)
    stages = {one.name: one for one in start.stages}
    image, weights = stages["image"], stages["weights from the bucket"]
    assert (image.shared, weights.shared) == (shared, shared)
    assert image.ends_s == weights.ends_s == stages["server process"].begins_s
    # The slower copy has shown the highest rate of either resource, and the other stage's bytes come after its own at that rate.
    more_bytes = IMAGE_DOWNLOAD_GB * 1e9 if shared == "network" else from_gib(IMAGE_ON_DISK_GIB[1])
    more_s = more_bytes / constant("BUCKET_COPY_BYTES_PER_S")
    assert start.beside_s == pytest.approx(constant("VM_IMAGE_PULL_S") - more_s)
    assert start.total_high_s > start.total_s + start.beside_s


def test_two_stages_of_one_resource_gain_nothing_and_two_of_different_ones_everything():
    pull = SharedUse(alone_s=150, network=15, disk=150)
    same = SharedUse(alone_s=60, network=1, disk=60)
    other = SharedUse(alone_s=60, network=60, disk=0)
    assert together_s([pull, same]) == (210, "disk")
    assert together_s([pull, other]) == (150, "")
    assert together_s([SharedUse(0, 0, 0), other]) == (60, "")


def test_docker_is_installed_before_anything_is_fetched():
    stages = {
        one.name: one
        for one in plan(TPU.changed(tpu=tpu_block(api="compute-engine", accelerator_type="v6e-1"))).startup.stages
    }
    assert stages["image"].begins_s == stages["weights from the hub"].begins_s == stages["docker"].ends_s


def test_each_stage_names_constants_that_exist():
    for place in (("v6e-1", "tpu-vm"), ("L4", "cloud-run"), ("H200", "gce")):
        start = plan(TPU.changed(accelerator=place[0], platform=place[1])).startup  # pyright: ignore[reportArgumentType]
        for stage in start.stages:
            assert all(name in CONSTANTS or name.startswith("XLA_") for name in stage.source.split(", ")), stage


def test_a_fast_core_compiles_in_half_the_time_and_an_unknown_one_widens_the_band():
    l4, h200 = (plan(TPU.changed(accelerator=name, platform="gce")).startup for name in ("L4", "H200"))
    assert h200.compile_s < 0.65 * l4.compile_s
    own = plan(TPU.changed(device=parse_device("memory=24GiB,bandwidth=300GB/s,tflops=121"))).startup
    assert own.compile_s == l4.compile_s
    assert own.compile_low_s < 0.7 * l4.compile_low_s
    large = plan(TPU.changed(device=parse_device("memory=141GiB,bandwidth=4800GB/s,tflops=989"))).startup
    assert large.compile_high_s > 1.5 * h200.compile_high_s
