"""The whole bill, what a cold start costs, and from when on running all the time is cheaper."""

import pytest

from gemma_serving.planning.cost.running_costs import observability_usd_per_month
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import BillPart
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.observability import AlertSettings, MetricsSettings
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD
from tests.planning.blocks import service_block, tpu_block
from tests.records import replace

TPU = Deployment(
    model="google/gemma-4-26B-A4B-it",
    accelerator="v6e-4",
    tpu=tpu_block(zones=("us-east5-a", "europe-west4-a"), max_run_duration_s=14_400),
)
RUN = Deployment(
    model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4", cloud_run=service_block(region="us-east4")
)


def bill(deployment: Deployment) -> dict[str, BillPart]:
    return {part.name: part for part in plan(deployment).running.bill}


def a_day(deployment: Deployment, *, requests: int, answer_s: float) -> float:
    """Return the price of a day with single requests far apart, without minimum instances."""
    planned = plan(deployment)
    billed_s = requests * (planned.running.cold_start_s + answer_s + planned.running.idle_billing_s)
    return planned.cost.usd_per_hour * billed_s / 3600


def test_each_part_of_the_bill_is_its_amount_times_its_price():
    for deployment in (TPU, RUN, replace(TPU, weights_mode="disk")):
        for part in plan(deployment).running.bill:
            if part.price is not None:
                assert part.usd == pytest.approx(part.amount * part.price.usd)
                assert part.usd >= 0.01
                assert part.price.url


def test_weights_from_the_hub_pass_cloud_nat_and_those_of_a_bucket_do_not():
    hub, disk = bill(TPU), bill(replace(TPU, weights_mode="disk"))
    gib = plan(TPU).memory.checkpoint_gib
    assert hub["Cloud NAT, weights from the hub"].usd == pytest.approx(0.045 * gib)
    assert not [name for name in disk if "Cloud NAT" in name]
    assert disk["bucket in us-east5"].usd == pytest.approx(0.020 * gib)
    assert "secret" in hub
    assert "secret" not in disk


def test_a_larger_boot_disk_costs_more():
    large = replace(TPU, tpu=replace(TPU.tpu, boot_disk_size_gb=1_000))
    assert bill(large)["boot disk, 1000 GiB"].usd == pytest.approx(10 * bill(TPU)["boot disk, 100 GiB"].usd)


def test_each_region_has_a_copy_of_the_image_unless_its_machines_pull_it_through_cloud_nat():
    once = bill(RUN)["image repository"].usd
    copied = bill(replace(TPU, weights_mode="disk"))
    assert copied["image repository, 2 regions"].usd == pytest.approx(2 * once)
    assert not [name for name in copied if "image outside" in name]
    pulled = bill(TPU)
    assert pulled["image repository"].usd == pytest.approx(once)
    assert pulled["Cloud NAT, image outside us-east5"].usd == pytest.approx(0.045 * 8.4)


def test_one_minimum_instance_is_cheaper_from_exactly_so_many_requests_on():
    planned = plan(RUN)
    answer_s = planned.throughput.ttft_s + DEFAULT_WORKLOAD.output_tokens / planned.throughput.decode_tok_per_s
    even, warm = planned.running.even_requests_per_day, 24 * planned.cost.usd_per_hour
    assert even is not None
    assert a_day(RUN, requests=int(even), answer_s=answer_s) < warm
    assert a_day(RUN, requests=int(even) + 1, answer_s=answer_s) > warm


def test_runs_that_cost_more_than_on_demand_have_a_break_even_within_the_day():
    dear = replace(TPU, price_book=PriceBook.from_mapping({"v6e_flex_start_usd_per_chip_hour": 5.94}))
    running = plan(dear).running
    assert running.even_hours_per_day == pytest.approx(12)
    assert running.shortest_window_h is None
    assert running.cold_start_usd > plan(TPU).running.cold_start_usd


def test_a_commitment_is_shown_where_its_price_is_known():
    v5e = Deployment(model="google/gemma-4-E2B-it", accelerator="v5e-4", tpu=tpu_block(zones=("us-west4-a",)))
    assert plan(v5e).running.commitments == (
        ("v5e-4, commitment of 1 y", pytest.approx(4 * 0.84 * 730)),
        ("v5e-4, commitment of 3 y", pytest.approx(4 * 0.54 * 730)),
    )
    assert plan(replace(v5e, tpu=tpu_block(zones=("us-central1-a",)))).running.commitments == ()
    assert plan(TPU).running.commitments == ()


MAX_OBSERVABILITY_USD = 4.0
"""Monthly cost up to which a stack is watched by default (docs/decisions/0040-watched-by-default.md)."""


def test_a_collector_on_a_service_costs_less_than_the_limit_too():
    metrics = MetricsSettings(enabled=True)
    deployment = with_changes(
        replace(RUN, alerts=AlertSettings(), metrics=metrics), {"cloud_run.cpu": 8, "cloud_run.memory_mib": 24_576}
    )
    without = replace(deployment, metrics=MetricsSettings())
    usd = observability_usd_per_month(examine(deployment))
    assert usd < MAX_OBSERVABILITY_USD
    for one in (deployment, without):
        assert plan(one).running.metrics_usd_per_month == pytest.approx(
            usd - observability_usd_per_month(examine(without))
        )
    assert plan(RUN).running.metrics_usd_per_month is None


def test_what_is_under_a_cent_is_summed_as_other():
    other = next(part for part in plan(TPU).running.bill if part.name.startswith("other"))
    assert other.name == "other (Cloud NAT, gateway; Cloud NAT, address)"
    assert other.usd == pytest.approx(0.0014 + 0.005)
    # A dearer address leaves the sum and gets a line of its own.
    dear = replace(TPU, price_book=PriceBook.from_mapping({"nat_address_usd_per_hour": 0.02}))
    assert bill(dear)["Cloud NAT, address"].usd == 0.02
    assert bill(dear)["other (Cloud NAT, gateway)"].usd == 0.0014
