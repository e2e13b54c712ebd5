"""Every price has a location, a date and a source; an unknown price is replaced by the highest known one and marked."""

from datetime import date
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.planning.data.prices import (
    EVERYWHERE,
    LIST_PRICES,
    PRICES,
    SOURCES,
    PriceBook,
    price_words,
    region_of,
)
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.finding import Finding
from gemma_serving.planning.settings.question import Question
from tests.laws import examples
from tests.planning.blocks import service_block, tpu_block
from tests.records import replace

ZONES = ("us-east5-a", "europe-west4-a", "asia-northeast1-b")
TPU = Question().changed(
    model="google/gemma-4-E2B-it",
    accelerator="v6e-4",
    tpu=tpu_block(provisioning=("standard",), zones=ZONES, max_run_duration_s=None),
)
RUN = Question().changed(
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


@pytest.mark.parametrize("key", PRICES)
def test_a_price_without_a_region_is_that_of_the_nearest_row_and_googles_own_or_reported(key: str):
    price, rows = LIST_PRICES.price(key), PRICES[key].regions.values()
    nearest = min(abs(row.usd - price.usd) for row in rows)
    assert price.url in {SOURCES[row.source].url for row in rows if abs(row.usd - price.usd) == nearest}
    assert (price.kind == "list") == (price.url.partition("//")[2].partition("/")[0] == "cloud.google.com")
    assert price.usd == PRICES[key].usual or EVERYWHERE in PRICES[key].regions


KEY = "v6e_spot_usd_per_chip_hour"
USD = st.none() | st.integers(1, 9).map(float)
HIGHEST = max(row.usd for row in PRICES[KEY].regions.values())


@effort(max_examples=examples(test=300, part=500, night=3000))
@given(
    st.tuples(USD, USD),
    st.none() | st.tuples(USD, USD, st.booleans()),
    st.sampled_from([None, "us-east5-a", "southamerica-west1-a"]),
)
def test_a_price_is_the_stacks_own_or_the_refreshed_or_the_shipped_one_and_else_the_highest_and_marked(
    own: tuple[float | None, float | None],
    refresh: tuple[float | None, float | None, bool] | None,
    place: str | None,
):
    """Own: of the region, and of every region. A refresh: of the region, of another one, and whether the region's is unclear."""
    region = place[:-2] if place else "us-east5"
    of_region, everywhere = own
    given = {"regions": {region: {KEY: of_region}} if of_region else {}, **({KEY: everywhere} if everywhere else {})}
    book = PriceBook.from_mapping({"as_of": "2026-11", **given})
    known = (of_region if place else None) or everywhere
    found, highest = None, HIGHEST
    if refresh is not None:
        found, other, is_unclear = refresh
        rows = {name: {KEY: usd} for name, usd in ((region, found), ("europe-west1", other)) if usd}
        catalog = {"url": "https://a", "keys": [KEY], "unclear": {region: [KEY]} if is_unclear else {}}
        book = replace(
            book, refreshed=PriceBook.from_mapping({"as_of": "2026-12-01", "catalog": catalog, "regions": rows})
        )
        found, highest = found if place else None, max(HIGHEST, other or 0.0)
    price = book.price(KEY, place)
    assert book.tpu_chip_hour("v6e", "spot", place) == price
    assert book.tpu_chip_hour("v6e", "reservation", place) == book.tpu_chip_hour("v6e", "standard", place)
    listed = PRICES[KEY].regions.get(region) if place else None
    shipped = PRICES[KEY].usual if not place else highest if listed is None else listed.usd
    assert (price.usd, price.key, price.region) == (known or found or shipped, KEY, region if place else "")
    assert price.is_assumed == (not (known or found) and place is not None and listed is None)
    is_missed = refresh is not None and not (known or found) and place is not None
    assert price.missed_on == ("2026-12-01" if is_missed else "")
    assert price.is_unclear == (is_missed and refresh is not None and refresh[2])
    assert (price.as_of == "2026-11", price.kind == "own") == (bool(known), bool(known))
    age_days = {"2026-11": 60, "2026-12-01": 30}.get(price.as_of)
    if age_days is not None:
        assert (price.age_days("2026-12-31"), price.is_old("2026-12-31"), price.is_old("2027-01-01")) == (
            age_days,
            False,
            age_days == 60,
        )


@given(
    st.lists(
        st.tuples(st.sampled_from(["own", "list", "reported"]), st.sampled_from(["", "2026-01", "2026-11-20"])),
        max_size=3,
    )
)
def test_a_sum_is_named_after_the_least_certain_of_its_prices_and_dated_by_the_oldest(
    drawn: list[tuple[Literal["own", "list", "reported"], str]],
):
    shown = LIST_PRICES.price(KEY)
    kind = next((kind for kind in ("reported", "list", "own") if kind in dict(drawn)), "known")
    date_of = f" ({min(as_of for _, as_of in drawn) or 'date unknown'})" if drawn else ""
    assert price_words(replace(shown, kind=kind, as_of=as_of) for kind, as_of in drawn) == f"{kind} prices{date_of}"


@given(st.integers(1, 200), st.integers(1, 12))
def test_a_cost_limit_below_the_maximum_names_a_run_that_fits_and_a_limit_that_is_enough(limit_usd: int, run_h: int):
    tpu = replace(TPU.tpu, api="compute-engine", zones=("us-east5-a",), max_run_duration_s=run_h * 3600)
    planned = plan(TPU.changed(max_usd=limit_usd, tpu=tpu))
    hourly, found = planned.cost.usd_per_hour, [finding for finding in planned.findings if finding.id == "CST03"]
    assert bool(found) == (hourly * run_h > limit_usd)
    for finding in found:
        changes = {key: value for remedy in finding.remedies for key, value in remedy.changes.items()}
        assert changes["max_usd"] - 1 < hourly * run_h <= changes["max_usd"]
        fitting_s = limit_usd / hourly * 3600
        shorter = plan(TPU.changed(max_usd=limit_usd, tpu=replace(tpu, max_run_duration_s=max(600, int(fitting_s)))))
        is_served = {one.id for one in shorter.findings} <= {one.id for one in planned.findings}
        assert ("tpu.max_run_duration_s" in changes) == (fitting_s >= 600 and is_served)
        assert fitting_s - 60 < changes.get("tpu.max_run_duration_s", fitting_s) <= fitting_s


def test_a_region_that_googles_catalog_does_not_have_is_removed_by_the_remedy():
    spot = replace(TPU.tpu, provisioning=("spot",), zones=("southamerica-west1-a", "us-east5-a"))
    book = refreshed("2026-11-20", ("v6e_spot_usd_per_chip_hour", "us-east5", 1.5))
    finding = the(plan(TPU.changed(tpu=spot, price_book=book)), "CST05")
    assert "catalog of 2026-11-20 has no price for v6e_spot_usd_per_chip_hour in southamerica-west1" in finding.message
    assert finding.message.endswith("highest known price is used ($1.782).")
    (remedy,) = finding.remedies
    assert remedy.changes == {"tpu.zones": ("us-east5-a",)}
    assert "CST05" not in ids(plan(TPU.changed(tpu=replace(spot, zones=("us-east5-a",)), price_book=book)))
    both = replace(spot, zones=("southamerica-west1-a", "europe-west4-a", "us-east5-a"))
    assert the(plan(TPU.changed(tpu=both, price_book=book)), "CST05").message.endswith(" 1 more have the same problem.")
    alone = plan(TPU.changed(tpu=replace(spot, zones=("southamerica-west1-a",)), price_book=book))
    assert the(alone, "CST05").advice.startswith("Write the price that you pay to a price file")
    unknown = plan(TPU.changed(tpu=replace(spot, zones=("southamerica-west1-a",)), today="2027-12-31"))
    assert {"CST04", "CST05"} & ids(unknown) == {"CST05"}


def test_zones_on_both_sides_of_a_border_give_a_range():
    assert " in asia-northeast1-b, the most expensive zone; $10.80/h in us-east5-a; " in plan(TPU).bill


def test_an_old_price_file_is_old_too_and_one_without_a_date_says_that():
    keys = ("cloud_run_vcpu_usd_per_s", "cloud_run_gib_usd_per_s", "cloud_run_l4_usd_per_s")
    given: dict[str, object] = dict.fromkeys(keys, 0.00001)
    for as_of, said in (({"as_of": "2026-01"}, "(322 days old, limit 180)"), ({}, "(date unknown)")):
        book = PriceBook.from_mapping({**given, **as_of})
        finding = the(plan(RUN.changed(price_book=book, today="2026-11-19")), "CST04")
        assert said in finding.message
        assert finding.advice.startswith("Update your price file")
    mixed = plan(RUN.changed(price_book=PriceBook.from_mapping({keys[0]: 0.00001}), today="2027-12-31"))
    assert the(mixed, "CST04").advice.startswith("Update your price file")
    fresh = PriceBook.from_mapping({**given, "as_of": "2026-11"})
    assert "CST04" not in ids(plan(RUN.changed(price_book=fresh, today="2026-11-19")))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"regions": [1]}, '"regions" [1]. Write regions'),
        ({"regions": {"us-east5-a": {}}}, '"us-east5-a" below "regions"'),
        ({"gce_h100_usd_per_hour": 0}, "is 0; it must be a number above 0"),
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
