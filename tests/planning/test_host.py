"""Memory and vCPU of the host: what the platform does not rent is refused, and each remedy is something that it rents."""

import dataclasses
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.planning import NO_SERVICE, Deployment, Finding, VllmOptions, plan
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.settings.paths import with_changes
from tests.records import replace

service_block = partial(dataclasses.replace, NO_SERVICE)

MODELS = {"L4": "google/gemma-4-E2B-it-qat-w4a16-ct", "RTX PRO 6000": "google/gemma-4-12B-it"}


def on(accelerator: str, memory_gib: float | None = None, vcpu: float | None = None, **more: str) -> Deployment:
    model = MODELS.get(accelerator, "google/gemma-4-E2B-it")
    return Deployment(model=model, accelerator=accelerator, host_memory_gib=memory_gib, vcpu=vcpu, **more)


def found(deployment: Deployment) -> Finding | None:
    return next((finding for finding in plan(deployment).findings if finding.id == "HST01"), None)


@pytest.mark.parametrize(
    ("bad", "said", "changes"),
    [
        (on("L4", 12), "12 GiB, but Cloud Run allows 16 to 32 GiB with L4", {"host_memory_gib": 16.0, "vcpu": 8.0}),
        (on("L4", 33), "33 GiB, but", {"host_memory_gib": 32.0, "vcpu": 8.0}),
        (on("L4", 16, 1), "cloudRun.cpu is 1, but Cloud Run allows 4, 6, 8 vCPU with L4", {"vcpu": 4.0}),
        (on("L4", 16, 4.5), "cloudRun.cpu is 4.5", {"vcpu": 6.0}),
        (on("L4", 32, 20), "cloudRun.cpu is 20", {"vcpu": 8.0}),
        (on("L4", 32, 4), "at most 16 GiB with cloudRun.cpu 4 (4 GiB per vCPU)", {"vcpu": 8.0}),
        (on("RTX PRO 6000", 64), "80 to 120 GiB with RTX PRO 6000", {"host_memory_gib": 80.0, "vcpu": 20.0}),
        (on("RTX PRO 6000", 100, 20), "at most 80 GiB with cloudRun.cpu 20", {"vcpu": 26.0}),
        (on("v6e-1", 177), "a machine with v6e-1 has at most 176 GiB", {"host_memory_gib": None}),
        (on("v5e-1", None, 25), "a machine with v5e-1 has at most 24 vCPU", {"vcpu": None}),
        (on("v5e-1", 45, 25), "at most 44 GiB; vcpu", {"host_memory_gib": None, "vcpu": None}),
        (on("L4", 129, platform="gce"), "at most 128 GiB", {"host_memory_gib": None}),
    ],
)
def test_what_the_platform_does_not_rent_is_refused_with_a_way_out(
    bad: Deployment, said: str, changes: dict[str, object]
):
    finding = found(bad)
    assert finding is not None
    assert finding.severity == "block"
    assert said in finding.message
    usual = {"host_memory_gib": bad.host_memory_gib, "vcpu": bad.vcpu}
    assert {**usual, **finding.remedies[0].changes} == {**usual, **changes}
    for remedy in finding.remedies:
        assert found(with_changes(bad, remedy.changes)) is None


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_the_usual_host_of_every_accelerator_is_rented(accelerator: str):
    for platform in ACCELERATORS[accelerator].platforms:
        assert found(on(accelerator, platform=platform)) is None


@given(
    st.sampled_from(["L4", "RTX PRO 6000"]),
    st.none() | st.floats(0.5, 400),
    st.none() | st.sampled_from([1.0, 2.0, 4.0, 5.0, 6.0, 8.0, 9.0, 20.0, 21.0, 22.0, 30.0, 31.0, 64.0]),
)
def test_every_remedy_is_rented(accelerator: str, memory_gib: float | None, vcpu: float | None):
    bad = on(accelerator, memory_gib, vcpu)
    finding = found(bad)
    if finding is None:
        return
    assert finding.remedies
    for remedy in finding.remedies:
        after = with_changes(bad, remedy.changes)
        assert found(after) is None
        assert after.host_memory_gib is not None
        assert after.vcpu is not None
        assert after.host_memory_gib <= 4 * after.vcpu


def test_a_host_that_the_quota_carries_once_comes_with_one_instance():
    """Every size that Cloud Run rents beside the GPU needs more than half of this quota."""
    wrong = Deployment(
        model="google/gemma-4-E2B-it",
        accelerator="RTX PRO 6000",
        vcpu=4.0,
        cloud_run=service_block(max_instances=2, cpu_quota=20),
    )
    (finding,) = [one for one in plan(wrong).findings if one.id == "HST01"]
    assert [remedy.changes["cloud_run.max_instances"] for remedy in finding.remedies] == [1]
    fixed = plan(with_changes(wrong, finding.remedies[0].changes))
    assert not [one.id for one in fixed.findings if one.severity == "block"]


def test_each_replica_on_a_machine_loads_the_weights_by_itself():
    one, two = (
        plan(replace(on("v6e-4"), vllm=VllmOptions(tensor_parallel_size=2, data_parallel_size=replicas))).memory
        for replicas in (1, 2)
    )
    assert two.load_peak_host_gib == 2 * one.load_peak_host_gib


def test_a_file_that_vllm_converts_while_loading_passes_through_the_host_in_its_own_precision():
    stored, converted = (
        plan(Deployment(model="google/gemma-4-12B-it", accelerator="RTX PRO 6000", quantization=one)).memory
        for one in (None, "fp8")
    )
    assert converted.checkpoint_gib == stored.checkpoint_gib
    assert converted.load_peak_host_gib == stored.load_peak_host_gib
    assert converted.weights_gib < 0.6 * stored.weights_gib
