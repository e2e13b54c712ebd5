"""Cost and bill of drawn deployments: the dearest place counts, what is not requested does not, and what ends a run ends its cost."""

import math
from functools import partial
from typing import Any, Literal, cast

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.contracts.alerts import alerts_of
from gemma_serving.contracts.collector import MOST_SAMPLES, SCRAPE_INTERVAL_S
from gemma_serving.planning.cost.capacity_order import (
    capacity_order,
    ceiling_problem,
    known_usd_per_hour,
    order_lines,
    waits_s_of,
)
from gemma_serving.planning.cost.costs import per_million
from gemma_serving.planning.cost.running_costs import (
    _window,
    bill_text,
    daily_limit_usd,
    observability_usd_per_month,
    running_costs,
)
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.prices import LIST_PRICES, PriceBook
from gemma_serving.planning.machine.hardware import FLEX_START_MAX_RUN_S
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import BillPart, CostPlan
from gemma_serving.planning.settings.bucket import BucketSettings
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.settings.observability import AlertSettings, MetricsSettings
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD, Workload
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.scripts.plan.question import CommandWording
from tests.laws import examples
from tests.planning.blocks import service_block, tpu_block
from tests.records import replace

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b")
REGIONS = ("us-east5", "europe-west4", "asia-northeast1")
FORMS: tuple[ProvisioningModel, ...] = ("flex-start", "spot", "standard")
MONTH_H = 730
Rates = dict[tuple[str, str], int]
RATES = st.fixed_dictionaries({(region, form): st.integers(1, 9) for region in REGIONS for form in FORMS})
"""US dollars per hour of the chip."""
TPU = Question().changed(model="google/gemma-4-E2B-it", accelerator="v6e-1", tpu=tpu_block(accelerator_type="v6e-1"))
LARGE = Question().changed(
    model="google/gemma-4-26B-A4B-it",
    accelerator="v6e-4",
    tpu=tpu_block(zones=("us-east5-a", "europe-west4-a"), max_run_duration_s=14_400),
)
RUN = Question().changed(
    model="google/gemma-4-12B-it-qat-w4a16-ct", accelerator="L4", cloud_run=service_block(region="us-east4")
)


def book_of(rates: Rates) -> PriceBook:
    regions: dict[str, dict[str, float]] = {region: {} for region in REGIONS}
    for (region, form), usd in rates.items():
        regions[region][f"v6e_{form.replace('-', '_')}_usd_per_chip_hour"] = usd
    return PriceBook.from_mapping({"as_of": "2026-11-20", "regions": regions})


def cost_of(question: Question, **tpu: object) -> CostPlan:
    return plan(question.changed(tpu=replace(question.tpu, **tpu)) if tpu else question).cost


@effort(max_examples=examples(test=150, part=300, night=2000))
@given(
    RATES,
    st.lists(st.sampled_from(FORMS), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from(ZONES), min_size=1, max_size=4, unique=True),
    st.none() | st.integers(0, 9).map(float),
    st.sampled_from([("cloud-tpu", None), ("cloud-tpu", 3600), ("compute-engine", 7200), ("compute-engine", None)]),
)
def test_the_dearest_place_of_what_is_requested_is_the_cost_and_a_form_that_nothing_ends_lasts_a_month(
    rates: Rates, forms: list[ProvisioningModel], zones: list[str], ceiling: float | None, run: tuple[str, int | None]
):
    api, run_s = run
    question = TPU.changed(price_book=book_of(rates))
    settings = {"provisioning": tuple(forms), "zones": tuple(zones), "max_usd_per_hour": ceiling, "api": api}
    cost = cost_of(question, **settings, max_run_duration_s=run_s)
    usd = {form: [rates[zone[:-2], form] for zone in zones] for form in forms}
    asked = {form: [rate for rate in usd[form] if ceiling is None or rate <= ceiling] for form in forms}
    requested = [form for form in forms if asked[form]]
    first = requested[0] if requested else forms[0]
    hourly = max(asked[first] or usd[first])
    ends_s = {form: run_s if form == "flex-start" or api == "compute-engine" else None for form in forms}
    assert (cost.usd_per_hour, cost.lowest_usd_per_hour) == (hourly, min(usd[first]))
    assert [place.usd_per_hour for place in cost.places] == usd[first]
    assert [name for name, _ in cost.parts_usd_per_hour] == [f"1 v6e chip, {first}"]
    assert cost.idle_usd_per_hour == hourly
    assert cost.prices_as_of == "2026-11-20"
    assert cost.most_usd_per_hour == max([hourly, *(max(asked[form]) for form in requested if cost.order)])
    has_order = len(forms) > 1 or ceiling is not None
    assert [(step.model, step.run_s) for step in cost.order] == ([*ends_s.items()] if has_order else [])
    assert all(len(step.zones) == len(asked[step.model]) for step in cost.order)
    assert cost.endless_forms == tuple(form for form in requested if ends_s[form] is None)
    if not requested:
        assert (cost.most_usd, cost.most_usd_basis) == (0.0, "no form is requested")
    else:
        longest = {form: ends_s[form] for form in requested}
        if not cost.order and first == "flex-start" and longest[first] is None:
            longest[first] = FLEX_START_MAX_RUN_S
        most = {form: max(asked[form]) * (MONTH_H if end is None else end / 3600) for form, end in longest.items()}
        assert cost.most_usd == pytest.approx(max(most.values()))
        dearest = {form for form, of in most.items() if of == max(most.values())}
        assert cost.most_usd_basis.startswith(("one run of ", *(f"a month of {form}" for form in dearest)))
        assert cost.most_usd_basis.startswith("a month") == any(longest[form] is None for form in dearest)
    problem = ceiling_problem(replace(question.tpu, **settings), question.facts.price_book or PriceBook())
    assert (problem is not None) == (not requested)
    assert problem is None or problem.least_usd_per_hour == min(min(of) for of in usd.values())


@given(st.integers(0, 2), st.integers(0, 2), st.tuples(st.integers(1, 5), st.integers(1, 5)), st.none() | st.just(7.0))
def test_a_service_costs_its_least_instances_idle_and_a_month_of_its_most_at_most(
    least: int, more: int, rates: tuple[int, int], measured: float | None
):
    """Its tokens cost the hours at the measured rate, or else at the planned ones."""
    most, (cpu, gpu) = least + more, rates
    keys = {"cloud_run_vcpu_usd_per_s": cpu, "cloud_run_gib_usd_per_s": 1, "cloud_run_l4_usd_per_s": gpu}
    block = replace(RUN.cloud_run, min_instances=least, max_instances=most, cpu=8, memory_mib=32 * 1024)
    book = PriceBook.from_mapping({**keys, "as_of": "2026-11-20"})
    planned = plan(RUN.changed(cloud_run=block, price_book=book, measured_tok_per_s=measured))
    cost, speed = planned.cost, planned.throughput
    hourly = 3600 * (8 * cpu + 32 + gpu)
    assert (cost.usd_per_hour, cost.lowest_usd_per_hour, cost.most_usd_per_hour) == (hourly,) * 3
    assert cost.idle_usd_per_hour == hourly * least
    assert cost.most_usd == hourly * max(most, 1) * MONTH_H
    assert cost.most_usd_basis == f"a month with {max(most, 1)} instance{'s' if most > 1 else ''} running"
    assert (cost.endless_forms, cost.prices_as_of, cost.is_known) == ((), "2026-11-20", True)
    warm = [finding for finding in planned.findings if finding.id == "CST02"]
    assert len(warm) == (least > 0)
    assert all(f"${hourly * least * 24:,.2f} per day" in finding.message for finding in warm)
    assert all(remedy.changes == {"cloud_run.min_instances": 0} for finding in warm for remedy in finding.remedies)
    assert speed is not None
    assert cost.usd_per_million_tokens == per_million(hourly, measured or speed.decode_tok_per_s)
    assert cost.usd_per_million_tokens_saturated == per_million(hourly, measured or speed.saturated_tok_per_s)
    assert cost.is_measured == (measured is not None)


def test_a_machine_of_compute_engine_costs_a_month_of_its_hours():
    for usd in (None, 1.5):
        planned = plan(Question().changed(model="google/gemma-4-E2B-it", accelerator="H100", price_book=gce(usd)))
        cost = planned.cost
        assert planned.running.always_on == "the machine"
        assert [name for name, _ in cost.parts_usd_per_hour] == ["a3-highgpu-1g"]
        assert planned.running.always_on_usd_per_month == pytest.approx(cost.most_usd)
        assert cost.is_known
        assert cost.most_usd_basis == "a month"
        assert cost.most_usd == pytest.approx(cost.usd_per_hour * MONTH_H)
        assert usd is None or cost.usd_per_hour == usd


def test_the_oldest_price_dates_a_sum_and_a_tpu_without_zones_requests_no_form():
    half = PriceBook.from_mapping({"cloud_run_l4_usd_per_s": 0.001, "as_of": "2026-11-20"})
    assert plan(RUN.changed(price_book=half)).cost.prices_as_of == plan(RUN).cost.prices_as_of < "2026-11-20"
    nowhere = plan(TPU.changed(tpu=replace(TPU.tpu, provisioning=("spot",)))).cost
    assert (nowhere.endless_forms, nowhere.order) == ((), ())


def gce(usd: float | None) -> PriceBook:
    return PriceBook() if usd is None else PriceBook.from_mapping({"gce_h100_usd_per_hour": usd})


@given(st.integers(1, 100).map(float), st.none() | st.integers(1, 1000).map(float))
def test_a_million_tokens_cost_the_hours_that_they_take(hourly: float, tok_per_s: float | None):
    usd = per_million(hourly, tok_per_s)
    assert usd == (None if tok_per_s is None else pytest.approx(hourly * 1_000_000 / tok_per_s / 3600))


WATCHED = st.sampled_from([(True, None), (True, 3.5), (False, None)])
"""Alerts on or off, and their own daily cost."""


@given(RATES, st.booleans(), st.integers(0, 1), st.sampled_from([None, Workload(output_tokens=50)]))
def test_a_month_of_runs_costs_their_hours_starts_and_idle_time_and_is_even_where_it_equals_running_always(
    rates: Rates, is_service: bool, least: int, workload: Workload | None
):
    block = replace(RUN.cloud_run, min_instances=least)
    machine = TPU.changed(tpu=replace(TPU.tpu, zones=ZONES, max_run_duration_s=14_400), price_book=book_of(rates))
    planned = plan((RUN.changed(cloud_run=block) if is_service else machine).changed(workload=workload))
    running, start, hourly = planned.running, planned.startup, planned.cost.usd_per_hour
    assert start is not None
    start_s = start.total_s if start.cached_total_s is None else start.cached_total_s
    start_h, linger_h = start_s / 3600, 0.25 if is_service else 0.0
    start_usd = sum(part.usd for part in running.bill if part.basis == "start")
    assert (running.cold_start_s, running.idle_billing_s, running.idle_usd_per_hour) == (
        start_s,
        3600 * linger_h,
        hourly,
    )
    assert running.cold_start_usd == pytest.approx(hourly * start_h + start_usd)
    always = hourly if is_service else max(rates[region, "standard"] for region in REGIONS)
    assert is_service or running.bill[0].usd == hourly
    assert running.always_on_usd_per_month == pytest.approx(always * MONTH_H)
    assert [window.hours_per_day for window in running.windows] == [1, 2, 4, 8, 12, 24]
    for window in running.windows:
        hours = window.hours_per_day
        billed_h = min(hours + start_h + linger_h, 24) if is_service else hours
        usd = hourly * billed_h + start_usd
        assert window.usd_per_month == pytest.approx(usd * MONTH_H / 24)
        assert window.usd_per_served_hour == pytest.approx(usd / (hours if is_service else hours - start_h))
    even_h = 24 - start_h - linger_h if is_service else 24 * always / hourly
    assert running.even_hours_per_day == pytest.approx(even_h)
    shortest_h = None if is_service or always <= hourly else start_h * always / (always - hourly)
    assert running.shortest_window_h == (None if shortest_h is None else pytest.approx(shortest_h))
    speed = planned.throughput
    assert speed is not None
    answer_s = speed.ttft_s + (workload or DEFAULT_WORKLOAD).output_tokens / speed.decode_tok_per_s
    even = pytest.approx(24 * 3600 / (start_s + answer_s + 900)) if is_service else None
    assert running.even_requests_per_day == even


def test_a_run_that_ends_before_its_server_is_ready_has_no_price_of_an_hour_of_serving():
    served = {start_h: _window(1, examine(TPU), 0.0, start_h, 0.0).usd_per_served_hour for start_h in (0.5, 1.0, 2.0)}
    assert (math.isfinite(served[0.5]), served[1.0], served[2.0]) == (True, math.inf, math.inf)


@given(st.booleans(), WATCHED, st.none() | st.booleans(), st.integers(0, 2), st.sampled_from(["main", "all"]))
def test_what_watches_a_stack_costs_its_conditions_and_samples_and_fires_above_a_day_of_what_always_runs(
    is_service: bool,
    watched: tuple[bool, float | None],
    metrics: bool | None,
    least: int,
    policies: Literal["main", "all"],
):
    """A service on which nothing always runs has eight hours. A TPU has an alert only with a limit of its own, and a collector."""
    enabled, daily_usd = watched
    of = {
        "alerts": AlertSettings(enabled=enabled, daily_cost=daily_usd, policies=policies),
        "metrics": MetricsSettings(enabled=metrics),
    }
    block = replace(RUN.cloud_run, min_instances=least, max_instances=2, cpu=8, memory_mib=32 * 1024)
    subject = examine(RUN.changed(cloud_run=block, **of) if is_service else TPU.changed(**of))
    collects = subject.resolved.collects
    assert collects == (metrics if metrics is not None else enabled and not is_service)
    kinds = [False, True] if enabled or collects else [collects]
    usd = {}
    for kind in kinds:
        alerts = alerts_of("cloud-run" if is_service else "tpu", collects=kind, has_all=policies == "all")
        conditions = sum(len(alert.conditions) for alert in alerts) if enabled else 0
        samples = MOST_SAMPLES * 3600 / SCRAPE_INTERVAL_S * MONTH_H / 1e6 if kind else 0
        prices = [
            LIST_PRICES.price(f"{name}").usd
            for name in ("alert_condition_usd_per_month", "metric_usd_per_million_samples")
        ]
        usd[kind] = conditions * prices[0] + samples * prices[1]
        assert observability_usd_per_month(subject, collects=kind) == pytest.approx(usd[kind])
    assert observability_usd_per_month(subject) == pytest.approx(usd[collects])
    of_metrics = pytest.approx(usd[True] - usd[False]) if enabled or collects else None
    assert running_costs(subject).metrics_usd_per_month == of_metrics
    # What is watched by default may cost this much (dev/docs/decisions/0040-watched-by-default.md).
    assert policies == "all" or max(usd.values()) < 4.0
    hourly = subject.cost.usd_per_hour
    fires = (daily_usd or hourly * (24 * least or 8)) if is_service else daily_usd if collects else None
    assert daily_limit_usd(subject) == (pytest.approx(fires) if enabled and fires else None)
    what = "alerts and metrics" if collects else "alerts"
    is_shown = usd[collects] > 0 and not (is_service and not least and not collects)
    text = bill_text(subject)
    assert (f"; {what} up to ${usd[collects]:.2f} per month" in text) == is_shown
    assert (" per day" in text) == (daily_limit_usd(subject) is not None)
    assert ("while idle" in text) == is_service
    assert not (is_service and least) or f"; ${hourly * least:.2f}/h while idle" in text
    if is_service and not least:
        stays = sum(part.usd for part in running_costs(subject).bill if part.basis == "month")
        assert f"; ${stays:.2f} per month while idle (bucket, images, alerts)" in text


# The bill.


def bill(question: Question) -> dict[str, BillPart]:
    return {part.name: part for part in plan(question).running.bill}


MODES: tuple[Literal["hub", "disk"], ...] = ("hub", "disk")


@given(st.sampled_from(MODES), st.booleans(), st.integers(1, 4), st.sampled_from([None, "europe-west4"]))
def test_the_bill_has_weights_images_and_traffic_where_they_are_kept_and_fetched(
    mode: Literal["hub", "disk"], is_service: bool, count: int, bucket: str | None
):
    """Of the hub: through Cloud NAT at each start of a machine. Of a bucket: in its region, and from there to the dearest other one."""
    place = RUN if is_service else LARGE.changed(tpu=replace(LARGE.tpu, zones=ZONES[:count]))
    question = place.changed(weights_mode=mode)
    planned = plan(question.changed(bucket=BucketSettings(existing="b", region=bucket) if bucket else BucketSettings()))
    speed, gib = planned.throughput, planned.memory.checkpoint_gib
    assert speed is not None
    regions = ["us-east4"] if is_service else [*dict.fromkeys(zone[:-2] for zone in ZONES[:count])]
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
    for part in planned.running.bill:
        if part.price is not None:
            assert part.usd == pytest.approx(part.amount * part.price.usd)
            assert part.usd >= 0.01
            assert part.price.url
    words = ("image", "responses", "secret", "bucket", "weights", "Cloud NAT")
    found = {(part.name, part.basis): part.amount for part in planned.running.bill if part.name.startswith(words)}
    assert found == {name: pytest.approx(amount) for name, amount in parts.items()}
    others = [part.name for part in planned.running.bill if part.name.startswith("other")]
    assert others == (["other (Cloud NAT, gateway; Cloud NAT, address)"] if pulls else [])


def test_a_larger_boot_disk_costs_more():
    large = LARGE.changed(tpu=replace(LARGE.tpu, boot_disk_size_gb=1_000))
    assert bill(large)["boot disk, 1000 GiB"].usd == pytest.approx(10 * bill(LARGE)["boot disk, 100 GiB"].usd)


def test_a_commitment_has_the_price_of_the_dearest_region_where_that_is_known():
    keys = [f"v5e_{name}_usd_per_chip_hour" for name in ("flex_start", "commitment_1y", "commitment_3y")]
    regions = {
        "us-west4": dict(zip(keys, (1, 0.5, 0.3), strict=True)),
        "us-central1": dict(zip(keys, (2, 0.75, 0.6), strict=True)),
    }
    book = PriceBook.from_mapping({"regions": regions})
    zones = tpu_block(zones=("us-west4-a", "us-central1-a"), provisioning=("flex-start",))
    v5e = Question().changed(model="google/gemma-4-E2B-it", accelerator="v5e-4", tpu=zones)
    assert plan(v5e.changed(price_book=book)).running.commitments == (
        ("v5e-4, commitment of 1 y", pytest.approx(4 * 0.75 * 730)),
        ("v5e-4, commitment of 3 y", pytest.approx(4 * 0.60 * 730)),
    )
    elsewhere = v5e.changed(tpu=tpu_block(zones=("us-central1-a",)))
    assert plan(elsewhere).running.commitments == ()


def test_what_is_under_a_cent_is_summed_as_other():
    other = next(part for part in plan(LARGE).running.bill if part.name.startswith("other"))
    assert other.name == "other (Cloud NAT, gateway; Cloud NAT, address)"
    assert other.usd == pytest.approx(0.0014 + 0.005)
    # A dearer address leaves the sum and gets a line of its own.
    dear = LARGE.changed(price_book=PriceBook.from_mapping({"nat_address_usd_per_hour": 0.02}))
    assert bill(dear)["Cloud NAT, address"].usd == 0.02
    assert bill(dear)["other (Cloud NAT, gateway)"].usd == 0.0014


# The order of forms: waits before a form, prices in its zones, what the ceiling leaves out, and what ends the capacity.


US, EUROPE, UNKNOWN = "us-east5-a", "europe-west4-a", "southamerica-west1-a"
ordered = partial(
    tpu_block,
    accelerator_type="v6e-4",
    zones=(US, EUROPE),
    provisioning=("flex-start", "spot:5m", "standard"),
    max_run_duration_s=14_400,
    wait_per_zone_s=600,
)


def lines(**changes: object) -> list[str]:
    return list(order_lines(capacity_order(ordered(**changes))))


def test_each_form_has_the_waits_before_it_its_prices_and_its_end():
    assert lines() == [
        "flex-start: $5.40/h, ends after 4 h",
        "spot after 20 min without flex-start: $5.61 to $7.13/h, runs until Google reclaims it or you delete it",
        "standard after 25 min without flex-start and spot: $10.80 to $11.88/h, runs until you delete it",
    ]


def test_a_form_above_the_ceiling_or_without_a_price_is_left_out_and_waits_for_nothing():
    zones = (US, EUROPE, UNKNOWN)
    assert lines(zones=zones, max_usd_per_hour=7.0) == [
        "flex-start: $5.40/h, ends after 4 h; not requested in southamerica-west1-a (price unknown)",
        (
            "spot after 20 min without flex-start: $5.61/h, runs until Google reclaims it or you delete it; not requested in "
            "europe-west4-a (above the price ceiling) and southamerica-west1-a (price unknown)"
        ),
        (
            "standard is not requested in us-east5-a, europe-west4-a, southamerica-west1-a (above the price ceiling): "
            "$10.80 to $11.88/h"
        ),
    ]
    assert lines(provisioning=("standard", "spot"), max_usd_per_hour=6.0)[1].startswith("spot: $5.61/h")
    unlimited = [lines(zones=zones, provisioning=("flex-start", "spot"))[0] for zones in ((UNKNOWN,), (US, UNKNOWN))]
    assert unlimited == [
        "flex-start: price unknown, ends after 4 h",
        "flex-start: $5.40/h (in some zones unknown), ends after 4 h",
    ]


def test_a_ceiling_that_leaves_nothing_names_one_that_is_enough_or_that_no_price_is_known():
    found = plan(LARGE.changed(tpu=ordered(provisioning=("standard", "spot"), max_usd_per_hour=1.0))).findings
    remedies = [remedy for finding in found if finding.id == "CST07" for remedy in finding.remedies]
    assert [remedy.changes["tpu.max_usd_per_hour"] for remedy in remedies] == [5.62, None]
    assert known_usd_per_hour("v9-4", "spot", US) is None
    unknown = ceiling_problem(ordered(zones=(UNKNOWN,), provisioning=("spot",), max_usd_per_hour=1.0))
    assert "but no price of its forms in its zones is known for v6e-4" in unknown.message
    assert unknown.least_usd_per_hour is None


@pytest.mark.parametrize(
    ("changes", "waits_s"),
    [
        ({}, [1200, 300, 1200]),
        ({"wait_total_s": 900}, [900, 300, 900]),
        ({"provisioning": ("flex-start:2h",), "wait_total_s": None}, [1200]),
    ],
)
def test_a_form_waits_for_the_shortest_of_its_limits(changes: dict[str, object], waits_s: list[int]):
    assert list(waits_s_of(ordered(**changes))) == waits_s


def test_the_order_is_in_the_json_plan():
    planned = plan(LARGE.changed(tpu=ordered(zones=(US, UNKNOWN), max_usd_per_hour=6.0)))
    cost = cast("dict[str, Any]", plan_json(planned, CommandWording())["cost"])
    first, spot, standard = cost["order"]
    assert (first["form"], first["wait_s"], first["run_s"]) == ("flex-start", 600, 14_400)
    assert spot["zones"] == [
        {"zone": US, "usd_per_hour": pytest.approx(5.6116, abs=0.01), "skipped": None},
        {"zone": UNKNOWN, "usd_per_hour": None, "skipped": "price unknown"},
    ]
    assert {one["skipped"] for one in standard["zones"]} == {"above the price ceiling"}
