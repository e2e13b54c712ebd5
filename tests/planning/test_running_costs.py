"""The whole bill, what a cold start costs, and from when on running all the time is cheaper."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma_serving.planning.cost.running_costs import observability_usd_per_month
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.prices import LIST_PRICES, PriceBook
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import BillPart
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.observability import AlertSettings, MetricsSettings
from gemma_serving.planning.settings.paths import with_changes
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


def test_each_part_of_the_bill_is_its_amount_times_its_price():
    for deployment in (TPU, RUN, replace(TPU, weights_mode="disk")):
        for part in plan(deployment).running.bill:
            if part.price is not None:
                assert part.usd == pytest.approx(part.amount * part.price.usd)
                assert part.usd >= 0.01
                assert part.price.url


MODES: tuple[Literal["hub", "disk"], ...] = ("hub", "disk")
PLACES = ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b")


@given(st.sampled_from(MODES), st.booleans(), st.integers(1, 4), st.sampled_from([None, "europe-west4"]))
def test_the_bill_has_weights_images_and_traffic_where_they_are_kept_and_fetched(
    mode: Literal["hub", "disk"], is_service: bool, count: int, bucket: str | None
):
    """Of the hub: through Cloud NAT at each start of a machine. Of a bucket: in its region, and from there to the dearest other one."""
    deployment = replace(
        RUN if is_service else replace(TPU, tpu=replace(TPU.tpu, zones=PLACES[:count])), weights_mode=mode
    )
    planned = plan(
        replace(deployment, bucket=BucketSettings(existing="b", region=bucket) if bucket else BucketSettings())
    )
    speed, gib = planned.throughput, planned.memory.checkpoint_gib
    assert speed is not None
    regions = ["us-east4"] if is_service else [*dict.fromkeys(zone[:-2] for zone in PLACES[:count])]
    home, pulls = bucket or regions[0], mode == "hub" and not is_service
    copies = 1 if pulls else len(regions)
    parts = {("image repository" if copies == 1 else f"image repository, {copies} regions", "month"): 8.4 * copies}
    parts["responses", "busy hour"] = speed.saturated_tok_per_s * 3600 * 256 / 2**30
    if mode == "hub":
        parts["secret", "month"] = 1
    else:
        parts[f"bucket in {home}", "month"] = gib
        away = [region for region in regions if region != home]
        usd = {region: LIST_PRICES.between_regions(home, region).usd for region in away}
        if away:
            parts[f"weights from {home} to {max(away, key=lambda region: usd[region])}", "start"] = gib
    if pulls:
        parts["Cloud NAT, weights from the hub", "start"] = gib
        parts |= {(f"Cloud NAT, image outside {regions[0]}", "start"): 8.4} if len(regions) > 1 else {}
    words = ("image", "responses", "secret", "bucket", "weights", "Cloud NAT")
    found = {(part.name, part.basis): part.amount for part in planned.running.bill if part.name.startswith(words)}
    assert found == {name: pytest.approx(amount) for name, amount in parts.items()}
    others = [part.name for part in planned.running.bill if part.name.startswith("other")]
    assert others == (["other (Cloud NAT, gateway; Cloud NAT, address)"] if pulls else [])


def test_a_larger_boot_disk_costs_more():
    large = replace(TPU, tpu=replace(TPU.tpu, boot_disk_size_gb=1_000))
    assert bill(large)["boot disk, 1000 GiB"].usd == pytest.approx(10 * bill(TPU)["boot disk, 100 GiB"].usd)


def test_a_commitment_is_shown_where_its_price_is_known():
    v5e = Deployment(model="google/gemma-4-E2B-it", accelerator="v5e-4", tpu=tpu_block(zones=("us-west4-a",)))
    assert plan(v5e).running.commitments == (
        ("v5e-4, commitment of 1 y", pytest.approx(4 * 0.84 * 730)),
        ("v5e-4, commitment of 3 y", pytest.approx(4 * 0.54 * 730)),
    )
    assert plan(replace(v5e, tpu=tpu_block(zones=("us-central1-a",)))).running.commitments == ()
    assert plan(TPU).running.commitments == ()


def test_a_commitment_has_the_price_of_the_dearest_region():
    keys = ("v5e_flex_start_usd_per_chip_hour", "v5e_commitment_1y_usd_per_chip_hour")
    regions = {
        "us-west4": dict(zip(keys, (1, 0.5), strict=True)),
        "us-central1": dict(zip(keys, (2, 0.75), strict=True)),
    }
    zones = tpu_block(zones=("us-west4-a", "us-central1-a"), provisioning=("flex-start",))
    v5e = Deployment(
        model="google/gemma-4-E2B-it",
        accelerator="v5e-4",
        tpu=zones,
        price_book=PriceBook.from_mapping({"regions": regions}),
    )
    assert plan(v5e).running.commitments[0] == ("v5e-4, commitment of 1 y", pytest.approx(4 * 0.75 * 730))


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
