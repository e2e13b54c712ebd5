"""Memory and vCPU of the host: what the platform does not rent is refused, and each remedy is something that it rents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.memory.host_memory import load_peak_gib, smallest_instance
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.observability import MetricsSettings
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from tests.planning.blocks import service_block

MODELS = {"L4": "google/gemma-4-E2B-it-qat-w4a16-ct", "RTX PRO 6000": "google/gemma-4-12B-it"}


def on(accelerator: str, memory_gib: float = 0, vcpu: int = 0, **more: str) -> Question:
    """Return a small model there; 0 is the usual size of a service."""
    model, run = (
        MODELS.get(accelerator, "google/gemma-4-E2B-it"),
        service_block(cpu=vcpu, memory_mib=round(memory_gib * 1024), compile_cache="off"),
    )
    return Question().changed(model=model, accelerator=accelerator, cloud_run=run, **more)


def size(gib: int, vcpu: int) -> dict[str, object]:
    return {"cloud_run.memory_mib": gib * 1024, "cloud_run.cpu": vcpu}


def found(question: Question) -> Finding | None:
    return next((finding for finding in plan(question).findings if finding.id == "HST01"), None)


@pytest.mark.parametrize(
    ("bad", "said", "changes"),
    [
        (on("L4", 12), "12 GiB, but Cloud Run allows 16 to 32 GiB with L4", size(16, 8)),
        (on("L4", 33), "33 GiB, but", size(32, 8)),
        (on("L4", 32, 20), "cloudRun.cpu is 20, but Cloud Run allows 4, 6, 8 vCPU with L4", size(32, 8)),
        (on("L4", 32, 4), "at most 16 GiB with cloudRun.cpu 4 (4 GiB per vCPU)", size(32, 8)),
        (on("RTX PRO 6000", 64), "80 to 120 GiB with RTX PRO 6000", size(80, 20)),
        (on("RTX PRO 6000", 100, 20), "at most 80 GiB with cloudRun.cpu 20", size(100, 26)),
    ],
)
def test_what_the_platform_does_not_rent_is_refused_with_a_way_out(
    bad: Question, said: str, changes: dict[str, object]
):
    finding = found(bad)
    assert finding is not None
    assert finding.severity == "block"
    assert said in finding.message
    run = bad.cloud_run
    usual = {"cloud_run.memory_mib": run.memory_mib, "cloud_run.cpu": run.cpu}
    assert {**usual, **finding.remedies[0].changes} == changes
    for remedy in finding.remedies:
        assert found(with_changes(bad, remedy.changes)) is None


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_the_usual_host_of_every_accelerator_is_rented(accelerator: str):
    for platform in ACCELERATORS[accelerator].platforms:
        assert found(on(accelerator, platform=platform)) is None


@given(
    st.sampled_from(["L4", "RTX PRO 6000"]),
    st.just(0) | st.floats(0.5, 400),
    st.sampled_from([0, 4, 6, 8, 20, 22, 30]),
)
def test_every_remedy_is_rented(accelerator: str, memory_gib: float, vcpu: int):
    bad = on(accelerator, memory_gib, vcpu)
    finding = found(bad)
    if finding is None:
        return
    assert finding.remedies
    for remedy in finding.remedies:
        after = with_changes(bad, remedy.changes)
        assert found(after) is None
        assert 0 < after.cloud_run.memory_mib <= 4 * 1024 * after.cloud_run.cpu


def test_a_host_that_the_quota_carries_once_comes_with_one_instance():
    """Every size that Cloud Run rents beside the GPU needs more than half of this quota."""
    wrong = Question().changed(
        model="google/gemma-4-E2B-it",
        accelerator="RTX PRO 6000",
        cloud_run=service_block(cpu=4, max_instances=2, cpu_quota=20),
    )
    (finding,) = [one for one in plan(wrong).findings if one.id == "HST01"]
    assert [remedy.changes["cloud_run.max_instances"] for remedy in finding.remedies] == [1]
    fixed = plan(with_changes(wrong, finding.remedies[0].changes))
    assert not [one.id for one in fixed.findings if one.severity == "block"]


def test_each_replica_on_a_machine_loads_the_weights_by_itself():
    one, two = (
        plan(on("v6e-4").changed(vllm=VllmOptions(tensor_parallel_size=2, data_parallel_size=replicas))).memory
        for replicas in (1, 2)
    )
    assert two.load_peak_host_gib == 2 * one.load_peak_host_gib


def test_a_file_that_vllm_converts_while_loading_passes_through_the_host_in_its_own_precision():
    stored, converted = (
        plan(Question().changed(model="google/gemma-4-12B-it", accelerator="RTX PRO 6000", quantization=one)).memory
        for one in (None, "fp8")
    )
    assert converted.checkpoint_gib == stored.checkpoint_gib
    assert converted.load_peak_host_gib == stored.load_peak_host_gib
    assert converted.weights_gib < 0.6 * stored.weights_gib


def test_a_streamed_start_needs_the_server_its_buffer_and_five_quarters_of_the_offloaded_weights():
    streamed = resolve(on("L4", weights_mode="streamer"))
    server_gib = constant("SERVER_HOST_GIB") + 5  # the largest tensor has 4.4 GiB
    assert load_peak_gib(streamed, 0) == pytest.approx(server_gib)
    assert load_peak_gib(streamed, 4 * 2**30) == pytest.approx(server_gib + 1.25 * 4)


def test_a_collector_takes_vcpu_and_memory_of_the_instance():
    alone = on("L4")
    collected = alone.changed(metrics=MetricsSettings(enabled=True))
    assert [smallest_instance(resolve(one), 16) for one in (alone, collected)] == [(16.0, 4.0), (20.0, 8.0)]
