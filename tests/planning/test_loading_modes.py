"""Ways of reading weights on Cloud Run: what each needs of the host, what it costs, and the compile cache's second start."""

from dataclasses import replace

import pytest

from planning import Deployment, plan
from planning.cost.loading_modes import MODES, LoadingMode, loading_modes
from planning.cost.subject import examine
from planning.data import overheads
from planning.memory.host_memory import largest_tensor_bytes
from planning.model.catalog import spec_of
from planning.question.types import CloudRunOptions, WeightsMode
from planning.question.vllm_args import VllmOptions
from planning.units import GIB

L4_26B = Deployment(
    model="google/gemma-4-26B-A4B-it-qat-w4a16-ct",
    accelerator="L4",
    platform="cloud-run",
    weights_mode="fuse",
    host_memory_gib=32,
    vcpu=8,
    cloud_run=CloudRunOptions(region="us-east4"),
)


def by_mode(deployment: Deployment, *, direct_vpc: bool = False) -> dict[str, LoadingMode]:
    return {one.mode: one for one in loading_modes(examine(deployment)) if one.direct_vpc == direct_vpc}


def mode(name: WeightsMode, deployment: Deployment = L4_26B, **run: object) -> Deployment:
    return replace(deployment, weights_mode=name, cloud_run=replace(deployment.cloud_run, **run))  # pyright: ignore[reportArgumentType]


def test_without_direct_vpc_every_way_but_a_plain_mount_is_as_fast_as_the_network():
    rows = by_mode(L4_26B)
    checkpoint = examine(L4_26B).memory.checkpoint_gib * GIB
    network_s = checkpoint / overheads.CLOUD_RUN_NETWORK_BYTES_PER_S
    for name in ("fuse-buffered", "fuse-cached", "streamer"):
        assert rows[name].load_s == pytest.approx(network_s)
        assert rows[name].rate_source.endswith("CLOUD_RUN_NETWORK_BYTES_PER_S")
    # A copy is read once more, from memory.
    assert rows["memory"].load_s == pytest.approx(network_s + checkpoint / overheads.PAGE_CACHE_TO_GPU_BYTES_PER_S)
    assert rows["fuse"].rate_source.endswith("FUSE_BYTES_PER_S")
    faster = by_mode(L4_26B, direct_vpc=True)
    assert all(faster[name].load_s < rows[name].load_s / 2 for name in ("fuse-buffered", "streamer", "memory"))
    assert faster["streamer"].rate_source.endswith("STREAMER_BYTES_PER_S")


def test_a_row_is_what_the_plan_of_that_way_says():
    for direct_vpc in (False, True):
        for name, row in by_mode(L4_26B, direct_vpc=direct_vpc).items():
            if name == "fuse-cached":
                continue  # its cache is given by the settings
            whole = plan(mode(row.mode, direct_vpc=direct_vpc))
            assert (row.start_s, row.host_gib) == (whole.startup.total_s, whole.memory.load_peak_host_gib)
            cached = plan(mode(row.mode, direct_vpc=direct_vpc, graph_cache="bucket"))
            assert row.cached_start_s == cached.startup.cached_total_s


def test_one_row_is_the_chosen_one():
    assert [(one.mode, one.direct_vpc) for one in loading_modes(examine(L4_26B)) if one.is_chosen] == [("fuse", False)]
    assert {one.mode for one in loading_modes(examine(L4_26B))} == set(MODES)


@pytest.mark.parametrize("changes", [{"weights_mode": "hub"}, {"platform": "gce"}])
def test_only_a_service_with_a_bucket_has_ways_to_choose(changes: dict[str, str]):
    assert loading_modes(examine(replace(L4_26B, **{"weights_mode": None, **changes}))) == ()  # pyright: ignore[reportArgumentType]


def test_memory_that_a_way_needs_beyond_the_present_is_priced():
    small = replace(L4_26B, model="google/gemma-4-12B-it-qat-w4a16-ct", host_memory_gib=16, vcpu=4)
    rows = by_mode(small)
    assert (rows["memory"].memory_gib, rows["memory"].extra_usd_per_hour) == (16, 0)
    cached = rows["fuse-cached"]
    assert (cached.memory_gib, cached.vcpu) == (24, 6)
    assert cached.extra_usd_per_hour == pytest.approx(3600 * (2 * 0.000018 + 8 * 0.000002), rel=0.01)
    assert by_mode(L4_26B)["fuse-cached"].memory_gib is None  # checkpoint and cache, and an L4 has 32 GiB


@pytest.mark.parametrize(("memory_gib", "fits"), [(20, False), (24, True)])
def test_a_copy_in_memory_that_does_not_fit_is_blocked_with_the_memory_that_does(memory_gib: float, fits: bool):
    found = plan(mode("memory", replace(L4_26B, host_memory_gib=memory_gib, vcpu=8)))
    blocked = [finding for finding in found.findings if finding.id == "FIT03"]
    assert (not blocked) is fits
    assert fits or blocked[0].remedies[0].changes["host_memory_gib"] == 24


def test_the_streamers_buffer_holds_the_largest_tensor_and_no_more_than_it_needs():
    def limit(model: str) -> int:
        asked = replace(L4_26B, model=model, weights_mode="streamer", vllm=VllmOptions(max_model_len=2_048))
        return int(dict(plan(asked).environment)["RUNAI_STREAMER_MEMORY_LIMIT"])

    assert largest_tensor_bytes(spec_of("google/gemma-4-E2B-it")) == 262_144 * 35 * 256 * 2
    assert limit("google/gemma-4-E2B-it") == 5 * GIB
    assert limit("google/gemma-4-26B-A4B-it-qat-w4a16-ct") == overheads.STREAMER_BUFFER_BYTES


def test_kept_graphs_shorten_every_start_but_the_first_and_the_break_even_counts_that():
    kept, plain = plan(mode("streamer", direct_vpc=True, graph_cache="bucket")), plan(mode("streamer", direct_vpc=True))
    assert kept.startup.total_s == plain.startup.total_s
    assert plain.startup.cached_total_s is None
    assert kept.startup.cached_total_s is not None
    compiled_s = overheads.GPU_COMPILE_BASE_S + 30 * overheads.GPU_COMPILE_S_PER_LAYER
    download_s = overheads.GRAPH_CACHE_GIB * GIB / overheads.BUCKET_COPY_BYTES_PER_S
    saved_s = compiled_s * (1 - overheads.GPU_CACHED_COMPILE_FACTOR) - download_s
    assert kept.startup.total_s - kept.startup.cached_total_s == pytest.approx(saved_s)
    assert kept.running.cold_start_s == kept.startup.cached_total_s
    assert kept.running.even_requests_per_day is not None
    assert plain.running.even_requests_per_day is not None
    assert kept.running.even_requests_per_day > plain.running.even_requests_per_day
