"""A generation is one row: with it alone an accelerator is planned, and what the row lacks is unknown, never another generation's."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gemma_serving.cloud.prices import node_usd_per_hour
from gemma_serving.cloud.quotas import instance_quotas, tpu_quota
from gemma_serving.planning.cost.provisioning import provisioning_support
from gemma_serving.planning.data.prices import PRICES
from gemma_serving.planning.data.tables import data_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine import families, hardware
from gemma_serving.planning.machine.families import FAMILIES, AcceleratorFamily
from gemma_serving.planning.machine.hardware import ACCELERATORS, find_accelerator, image_of, known_places
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.question import NO_TPU, Question
from gemma_serving.planning.settings.workload import parse_workload
from gemma_serving.planning.solve.candidates import checkpoints_of, rentable_accelerators
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.planning.solve.search import ServiceLimits, SolutionSet, solve
from gemma_serving.scripts.plan.question import CommandWording
from tests.records import replace

V9Z: dict[str, Any] = {
    "name": "v9z",
    "kind": "tpu",
    "usable_gib": 63.2,
    "bandwidth_gb_per_s": 4000.0,
    "bf16_tflops": 1800.0,
    "sizes": [
        {"name": "v9z-4", "chips": 4, "hosts": {"tpu-vm": {"vcpu": 160, "memory_gib": 700, "max_memory_gib": 700}}}
    ],
    "tpu": {
        "api_name": "v9zlite",
        "apis": ["cloud-tpu"],
        "provisioning": ["flex-start", "standard"],
        "zones": ["us-east5-c", "us-east5-a"],
        "flex_start_zones": ["us-east5-c"],
        "runtime_version": "v2-alpha-tpuv9z",
        "quota_metric": "tpu-v9z",
        "quota_id": "TPUV9Z",
    },
}
QUESTION = Question().changed(model="google/gemma-4-31B-it", accelerator="v9z-4")
STACK = QUESTION.changed(platform="tpu-vm", tpu=replace(NO_TPU, zones=("us-east5-c",), max_run_duration_s=14_400))
CACHES = (families.measured_constant, hardware.find_accelerator, hardware._spellings)


def use_rows(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    """Let the planner read these rows, as if machines.json had them."""
    found = {one.name: one for one in msgspec.convert(rows, tuple[AcceleratorFamily, ...])}
    monkeypatch.setitem(FAMILIES.__dict__, "_rows", found)
    for table in (ACCELERATORS, hardware._SIZES):
        monkeypatch.setitem(table.__dict__, "_rows", table._make())
    for cached in CACHES:
        cached.cache_clear()


@pytest.fixture
def v9z(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add one row."""
    use_rows(monkeypatch, [*data_file("machines.json"), V9Z])
    yield
    for cached in CACHES:
        cached.cache_clear()


def priced_and_measured(monkeypatch: pytest.MonkeyPatch, *, without: str = "") -> None:
    """Give the row prices and v6e's constants, except one."""
    rows = data_file("machines.json")
    measured = dict(next(row for row in rows if row["name"] == "v6e")["measured"])
    measured.pop(without, None)
    use_rows(monkeypatch, [*rows, {**V9Z, "measured": measured}])
    for kind in ("flex_start", "standard"):
        monkeypatch.setitem(
            PRICES.__dict__["_rows"], f"v9z_{kind}_usd_per_chip_hour", PRICES[f"v6e_{kind}_usd_per_chip_hour"]
        )


def findings(planned: Plan) -> dict[str, str]:
    return {one.id: one.message for one in planned.findings}


def unknown_figures(block: dict[str, Any]) -> bool:
    return all(value is None for value in block.values())


@pytest.mark.usefixtures("v9z")
def test_one_row_gives_names_zones_image_quota_and_memory():
    assert find_accelerator("V9Z4") == find_accelerator("v9zlite-4") == ACCELERATORS["v9z-4"]
    assert known_places(ACCELERATORS["v9z-4"]) == ("us-east5-c",)
    assert image_of("v9zlite-4", "cloud-tpu") == "v2-alpha-tpuv9z"
    quota = tpu_quota("v9z-4", "flex-start")
    assert quota is not None
    assert (quota.metric, quota.quota_id) == ("tpu-v9z-preemptible", "TPUV9ZPreemptiblePerProjectPerZoneForTPUAPI")
    assert list(instance_quotas("v9z-4", "spot")) == []
    assert provisioning_support(ACCELERATORS["v9z-4"], "flex-start", "us-east5-c").answer == "yes"
    assert provisioning_support(ACCELERATORS["v9z-4"], "spot", "us-east5-c").answer == "no"
    planned = plan(QUESTION)
    assert planned.fits
    assert planned.memory.weights_gib == plan(QUESTION.changed(accelerator="v6e-4")).memory.weights_gib


@pytest.mark.usefixtures("v9z")
def test_what_was_never_measured_is_unknown_in_every_answer():
    planned = plan(QUESTION.changed(workload=parse_workload("in=100,out=100,users=4")))
    assert planned.unknown == ("decode", "prefill", "start")
    assert (planned.known_startup, planned.known_throughput, planned.workload) == (None, None, None)
    assert findings(planned)["ACC02"].startswith("Decode, prefill and start are unknown on v9z-4")
    document = json.loads(json.dumps(plan_json(planned, CommandWording()), allow_nan=False))
    assert unknown_figures(document["startup"])
    assert unknown_figures(document["throughput"])
    advice = {one.id: one.advice for one in plan(QUESTION.changed(model="google/gemma-4-31B-it-qat-w4a16-ct")).findings}
    assert advice["ACC02"].startswith("Memory is planned without the 4-bit programs")
    with pytest.raises(PlanningError, match="no public vLLM server on it was measured"):
        _ = planned.throughput


@pytest.mark.usefixtures("v9z")
def test_a_row_without_prices_has_an_unknown_price():
    planned = plan(QUESTION)
    assert (planned.cost.is_known, planned.bill, plan_json(planned, CommandWording())["cost"]) == (False, "", None)
    assert node_usd_per_hour({"acceleratorType": "v9zlite-4"}, "standard", "us-east5-c") is None
    assert (
        provisioning_support(ACCELERATORS["v9z-4"], "standard", "us-east5-c").source
        == "no price of standard v9z is known"
    )
    with pytest.raises(PlanningError, match="price is unknown"):
        rentable_accelerators((), accelerator="v9z-4")
    assert all(hosts[0].accelerator.name != "v9z-4" for hosts in rentable_accelerators(()))


@pytest.mark.usefixtures("v9z")
def test_a_stack_on_it_is_refused_with_a_way_out_until_speed_and_price_are_known(monkeypatch: pytest.MonkeyPatch):
    blocked = plan(STACK)
    assert "no check can tell a healthy server" in findings(blocked)["ACC01"]
    assert any(way.changes["accelerator"] == "v6e-4" for one in blocked.stopping for way in one.remedies)
    priced_and_measured(monkeypatch)
    assert "ACC01" not in findings(plan(STACK))
    monkeypatch.delitem(PRICES.__dict__["_rows"], "v9z_flex_start_usd_per_chip_hour")
    assert "its price is unknown" in findings(plan(STACK))["ACC01"]


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("TPU_BANDWIDTH_EFFICIENCY", ("decode",)),
        ("TPU_STEP_S", ("decode",)),
        ("TPU_ALL_REDUCE_S", ("decode",)),
        ("TPU_POSITION_S", ("decode",)),
        ("TPU_PAGE_S", ("decode",)),
        ("TPU_COMPUTE_EFFICIENCY", ("prefill",)),
        ("XLA_PROGRAM_S", ("start",)),
    ],
)
@pytest.mark.usefixtures("v9z")
def test_each_constant_that_is_missing_makes_its_own_figure_unknown(
    monkeypatch: pytest.MonkeyPatch, name: str, unknown: tuple[str, ...]
):
    priced_and_measured(monkeypatch, without=name)
    assert plan(QUESTION).unknown == unknown


@pytest.mark.parametrize(
    ("name", "load", "said"),
    [
        ("TPU_STEP_S", "users=8", "whose speed, start or price is unknown"),
        ("TPU_STEP_S", "rate=1", "its speed is unknown"),
        ("XLA_PROGRAM_S", "users=8", "whose speed, start or price is unknown"),
    ],
)
@pytest.mark.usefixtures("v9z")
def test_a_search_never_ranks_an_unknown_speed_or_start(
    monkeypatch: pytest.MonkeyPatch, name: str, load: str, said: str
):
    monkeypatch.setattr("gemma_serving.planning.solve.search.image_for", lambda _served, _accelerator: "vllm-tpu")

    def searched() -> SolutionSet:
        workload, places = parse_workload(f"in=1500,out=300,{load}"), rentable_accelerators((), accelerator="v9z-4")
        return solve(workload, ServiceLimits(), checkpoints=checkpoints_of("E4B")[:1], places=places)

    priced_and_measured(monkeypatch)
    assert searched().solutions
    priced_and_measured(monkeypatch, without=name)
    missed = searched()
    assert not missed.solutions
    assert said in str(missed.nearest)


@pytest.mark.parametrize("accelerator", ["tpu7x-4", "ironwood-4"])
def test_tpu7x_is_planned_on_two_devices_a_chip_and_never_deployed(accelerator: str):
    planned = plan(QUESTION.changed(accelerator=accelerator))
    found = ACCELERATORS["tpu7x-4"]
    assert (found.chips, found.devices, found.usable_gib) == (4, 8, 94.74)
    assert (planned.fits, planned.unknown, planned.cost.is_known) == (True, ("decode", "prefill", "start"), False)
    stack = STACK.changed(accelerator=accelerator, tpu=replace(STACK.tpu, zones=("us-central1-c",)))
    assert "allow list" in findings(plan(stack))["ACC01"]
    assert "ACC01" in {one.id for one in plan(stack.changed(accept_findings=("ACC02",))).stopping}


def test_a_missing_image_is_one_sentence_with_what_to_do():
    with pytest.raises(PlanningError) as caught:
        image_of("tpu7x-4", "compute-engine")
    said = str(caught.value)
    assert said.startswith("No image is known for tpu7x-4 with api compute-engine; set runtimeVersion to")
    assert said.count(". ") == 0
    with pytest.raises(PlanningError, match="No image is known for v99-4"):
        image_of("v99-4", "cloud-tpu")
