"""Every price has a location, a date and a source; an unknown price is replaced by the highest known one and marked."""

from datetime import date

import pytest

from gemma_serving.planning.data.prices import EVERYWHERE, LIST_PRICES, PRICES, SOURCES, PriceBook, region_of
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.deployment import Deployment
from gemma_serving.planning.settings.finding import Finding
from tests.planning.blocks import service_block, tpu_block
from tests.records import replace

ZONES = ("us-east5-a", "europe-west4-a", "asia-northeast1-b")
TPU = Deployment(
    model="google/gemma-4-E2B-it",
    accelerator="v6e-4",
    tpu=tpu_block(provisioning=("standard",), zones=ZONES, max_run_duration_s=None),
)
RUN = Deployment(
    model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4", cloud_run=service_block(region="us-east4")
)


def ids(planned: Plan) -> set[str]:
    return {finding.id for finding in planned.findings}


def the(planned: Plan, identifier: str) -> Finding:
    return next(finding for finding in planned.findings if finding.id == identifier)


def refreshed(as_of: str, *prices: tuple[str, str, float]) -> PriceBook:
    """Return what a refresh of that date writes: prices by key and region."""
    regions: dict[str, dict[str, float]] = {}
    for key, region, usd in prices:
        regions.setdefault(region, {})[key] = usd
    keys = sorted({key for key, _, _ in prices})
    catalog = {"url": "https://cloudbilling.googleapis.com/v1/services", "keys": keys, "unclear": {}}
    return PriceBook.from_mapping({"as_of": as_of, "catalog": catalog, "regions": regions})


def test_every_key_has_rows_and_every_row_a_source_with_a_url_and_a_date_or_none():
    assert {row.source for price in PRICES.values() for row in price.regions.values()} == set(SOURCES)
    for source in SOURCES.values():
        assert source.url.startswith("https://")
        assert not source.as_of or date.fromisoformat(source.as_of) <= date(2026, 11, 20)
    for key, price in PRICES.items():
        rows = price.regions
        assert price.usual > 0
        assert rows
        assert all(row.usd > 0 for row in rows.values())
        if key != "between_regions_usd_per_gib":
            assert all(region == EVERYWHERE or region_of(region) == region for region in rows)


@pytest.mark.parametrize(("zone", "usd"), [("us-east5-a", 2.70), ("europe-west4-a", 2.97), ("asia-northeast1-b", 3.24)])
def test_a_zone_has_its_regions_price(zone: str, usd: float):
    price = LIST_PRICES.tpu_chip_hour("v6e", "standard", zone)
    assert (price.usd, price.region, price.is_assumed) == (usd, zone[:-2], False)
    assert price.url
    assert LIST_PRICES.tpu_chip_hour("v6e", "reservation", zone) == price


def test_a_region_that_googles_catalog_does_not_have_is_removed_by_the_remedy():
    spot = replace(TPU.tpu, provisioning=("spot",), zones=("southamerica-west1-a", "us-east5-a"))
    book = refreshed("2026-11-20", ("v6e_spot_usd_per_chip_hour", "us-east5", 1.5))
    finding = the(plan(replace(TPU, tpu=spot, price_book=book)), "CST05")
    assert "catalog of 2026-11-20 has no price for v6e_spot_usd_per_chip_hour in southamerica-west1" in finding.message
    assert "highest known price is used ($1.782)" in finding.message
    (remedy,) = finding.remedies
    assert remedy.changes == {"tpu.zones": ("us-east5-a",)}
    assert "CST05" not in ids(plan(replace(TPU, tpu=replace(spot, zones=("us-east5-a",)), price_book=book)))
    alone = plan(replace(TPU, tpu=replace(spot, zones=("southamerica-west1-a",)), price_book=book))
    assert the(alone, "CST05").advice.startswith("Write the price that you pay to a price file")


def test_zones_on_both_sides_of_a_border_give_a_range_and_the_dearest_counts():
    for_ten_hours = replace(TPU.tpu, api="compute-engine", accelerator_type="v6e-4", max_run_duration_s=36_000)
    cost = plan(replace(TPU, tpu=for_ten_hours)).cost
    assert [one.usd_per_hour for one in cost.places] == pytest.approx([10.80, 11.88, 12.96])
    assert (cost.lowest_usd_per_hour, cost.usd_per_hour) == (pytest.approx(10.80), pytest.approx(12.96))
    assert cost.most_usd == pytest.approx(129.6)
    assert sum(usd for _, usd in cost.parts_usd_per_hour) == pytest.approx(cost.usd_per_hour)
    whole = plan(TPU).bill
    assert "$12.96/h" in whole
    assert "in asia-northeast1-b, the most expensive zone; $10.80/h in us-east5-a" in whole
    # A limit between the two ends is reached in the most expensive zone, where the guard would act.
    limited = replace(TPU, max_usd=120, tpu=for_ten_hours)
    assert "CST03" in ids(plan(limited))
    assert "CST03" not in ids(plan(replace(limited, tpu=replace(limited.tpu, zones=("us-east5-a",)))))


@pytest.mark.parametrize(("today", "is_old"), [("2026-10-09", False), ("2026-10-10", True)])
def test_a_spot_price_is_old_after_sixty_days(today: str, is_old: bool):
    spot = replace(TPU.tpu, provisioning=("spot",), zones=("us-east5-a",))
    assert ("CST04" in ids(plan(replace(TPU, tpu=spot, today=today)))) is is_old
    assert "CST04" not in ids(plan(replace(TPU, today=today, tpu=replace(TPU.tpu, zones=("us-east5-a",)))))


def test_an_old_price_file_is_old_too_and_one_without_a_date_says_that():
    keys = ("cloud_run_vcpu_usd_per_s", "cloud_run_gib_usd_per_s", "cloud_run_l4_usd_per_s")
    given: dict[str, object] = dict.fromkeys(keys, 0.00001)
    for as_of, said in (({"as_of": "2026-01"}, "(322 days old, limit 180)"), ({}, "(date unknown)")):
        book = PriceBook.from_mapping({**given, **as_of})
        finding = the(plan(replace(RUN, price_book=book, today="2026-11-19")), "CST04")
        assert said in finding.message
        assert finding.advice.startswith("Update your price file")
    fresh = PriceBook.from_mapping({**given, "as_of": "2026-11"})
    assert "CST04" not in ids(plan(replace(RUN, price_book=fresh, today="2026-11-19")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"regions": [1]}, '"regions" [1]. Write regions'),
        ({"regions": {"us-east5-a": {}}}, '"us-east5-a" below "regions"'),
        ({"gce_h100_usd_per_hour": float("nan")}, "is nan; it must be"),
        ({"as_of": "yesterday"}, "\"as_of\" 'yesterday'. Write a date"),
        ({"own": 3}, 'unknown key "own"'),
        ({"catalog": 3}, 'invalid "catalog". Only `gemma plan prices` writes it'),
    ],
)
def test_mistakes_in_price_files_are_one_sentence(given: dict[str, object], said: str):
    with pytest.raises(PlanningError) as caught:
        PriceBook.from_mapping(given)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_traffic_between_regions_has_the_price_of_its_continents():
    book = LIST_PRICES
    assert book.between_regions("us-east5", "us-east5").usd == 0
    assert book.between_regions("us-east5", "us-west1").usd == 0.02
    assert book.between_regions("europe-west4", "us-east5") == replace(
        book.between_regions("us-east5", "europe-west4"), region="europe-west4 to us-east5"
    )
    assert book.between_regions("us-east5", "northamerica-northeast1").usd == 0.02
    unknown = book.between_regions("us-east5", "australia-southeast1")
    assert (unknown.usd, unknown.is_assumed) == (0.14, True)
    own = PriceBook.from_mapping({"between_regions_usd_per_gib": 0.5})
    assert own.between_regions("us-east5", "europe-west4").usd == 0.5
