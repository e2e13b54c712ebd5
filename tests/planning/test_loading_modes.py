"""Ways of reading weights on Cloud Run: what each needs of the host, what it costs, and the compile cache's second start."""

import pytest

from gemma_serving.planning.cost.loading_modes import MODES, loading_modes
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.question import Question, WeightsMode
from gemma_serving.planning.units import GIB
from tests.planning.blocks import service_block
from tests.records import replace

L4_26B = Question().changed(
    model="google/gemma-4-26B-A4B-it-qat-w4a16-ct",
    accelerator="L4",
    platform="cloud-run",
    weights_mode="fuse",
    cloud_run=service_block(region="us-east4", cpu=8, memory_mib=32_768),
)


def mode(name: WeightsMode, question: Question = L4_26B, **run: object) -> Question:
    return question.changed(weights_mode=name, cloud_run=replace(question.cloud_run, **run))  # pyright: ignore[reportArgumentType]


def test_one_row_is_the_chosen_one():
    assert [(one.mode, one.direct_vpc) for one in loading_modes(examine(L4_26B)) if one.is_chosen] == [("fuse", False)]
    assert {one.mode for one in loading_modes(examine(L4_26B))} == set(MODES)


@pytest.mark.parametrize("changes", [{"weights_mode": "image"}, {"platform": "gce"}])
def test_only_a_service_with_a_bucket_has_ways_to_choose(changes: dict[str, str]):
    assert loading_modes(examine(L4_26B.changed(**{"weights_mode": None, **changes}))) == ()  # pyright: ignore[reportArgumentType]


def test_kept_graphs_shorten_every_start_but_the_first_and_the_break_even_counts_that():
    kept, plain = (
        plan(mode("streamer", direct_vpc=True, compile_cache="bucket")),
        plan(mode("streamer", direct_vpc=True, compile_cache="off")),
    )
    assert kept.startup.total_s == plain.startup.total_s
    assert plain.startup.cached_total_s is None
    assert kept.startup.cached_total_s is not None
    compiled_s = constant("GPU_COMPILE_BASE_S") + 30 * constant("GPU_COMPILE_S_PER_LAYER")
    download_s = constant("GRAPH_CACHE_GIB") * GIB / constant("BUCKET_COPY_BYTES_PER_S")
    saved_s = compiled_s * (1 - constant("GPU_CACHED_COMPILE_FACTOR")) - download_s
    assert kept.startup.total_s - kept.startup.cached_total_s == pytest.approx(saved_s)
    assert kept.running.cold_start_s == kept.startup.cached_total_s
    assert kept.running.even_requests_per_day is not None
    assert plain.running.even_requests_per_day is not None
    assert kept.running.even_requests_per_day > plain.running.even_requests_per_day
