"""The order of forms: waits before a form, prices in its zones, what the ceiling leaves out, and what ends the capacity."""

import dataclasses
from functools import partial
from typing import Any, cast

import pytest

from gemma_serving.planning.cost.capacity_order import capacity_order, known_usd_per_hour, order_lines, waits_s_of
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.planner import plan
from gemma_serving.planning.settings.deployment import NO_TPU, Deployment
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.scripts.plan.question import CommandWording

US, EUROPE, UNKNOWN = "us-east5-a", "europe-west4-a", "southamerica-west1-a"
OF_THREE = ("flex-start", "spot:5m", "standard")
tpu_block = partial(
    dataclasses.replace,
    NO_TPU,
    accelerator_type="v6e-4",
    zones=(US, EUROPE),
    provisioning=OF_THREE,
    max_run_duration_s=14_400,
    wait_per_zone_s=600,
)


def lines(**changes: object) -> list[str]:
    return list(order_lines(capacity_order(tpu_block(**changes))))


def planned(**changes: object):
    return plan(Deployment(model="google/gemma-4-E2B-it", accelerator="v6e-4", tpu=tpu_block(**changes)))


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
    assert (
        lines(zones=(UNKNOWN,), provisioning=("flex-start", "spot"))[0] == "flex-start: price unknown, ends after 4 h"
    )


def test_a_price_that_equals_the_ceiling_is_requested():
    (step,) = capacity_order(tpu_block(provisioning=("flex-start",), max_usd_per_hour=5.4))
    assert step.zones == (US, EUROPE)
    assert "CST07" not in {one.id for one in planned(max_usd_per_hour=5.4).findings}
    (step,) = capacity_order(tpu_block(provisioning=("flex-start",), max_usd_per_hour=5.39))
    assert step.zones == ()


@pytest.mark.parametrize(
    ("changes", "waits_s"),
    [
        ({}, [1200, 300, 1200]),
        ({"wait_total_s": 900}, [900, 300, 900]),
        ({"provisioning": ("flex-start:2h",), "wait_total_s": None}, [1200]),
    ],
)
def test_a_form_waits_for_the_shortest_of_its_limits(changes: dict[str, object], waits_s: list[int]):
    assert list(waits_s_of(tpu_block(**changes))) == waits_s


def test_compute_engine_ends_every_form_and_cloud_tpu_flex_start_only():
    ends = {api: [step.run_s for step in capacity_order(tpu_block(api=api))] for api in ("cloud-tpu", "compute-engine")}
    assert ends == {"cloud-tpu": [14_400, None, None], "compute-engine": [14_400] * 3}


def test_the_plan_has_the_first_forms_price_and_the_highest_of_all():
    cost = planned().cost
    assert (cost.usd_per_hour, cost.most_usd_per_hour) == (pytest.approx(5.40), pytest.approx(11.88))
    assert cost.most_usd_basis == "a month of standard"
    assert cost.most_usd == pytest.approx(11.88 * 730)
    assert cost.endless_forms == ("spot", "standard")
    limited = planned(max_usd_per_hour=7.2).cost
    assert (limited.most_usd_per_hour, limited.endless_forms) == (pytest.approx(7.128), ("spot",))
    without_first = planned(max_usd_per_hour=12.0, provisioning=("standard", "spot"), zones=(US,)).cost
    assert without_first.usd_per_hour == pytest.approx(10.80)


def test_one_form_that_nothing_ends_has_the_maximum_of_a_month():
    cost = planned(provisioning=("spot",), zones=(US,)).cost
    assert cost.endless_forms == ("spot",)
    assert (cost.most_usd, cost.most_usd_basis) == (pytest.approx(5.61 * 730, rel=1e-3), "a month of spot")
    ended = planned(provisioning=("spot",), zones=(US,), api="compute-engine").cost
    assert (ended.endless_forms, ended.most_usd_basis) == ((), "one run of 4 h")


def test_a_plan_whose_first_form_is_above_the_ceiling_has_the_price_of_the_next():
    cost = planned(max_usd_per_hour=7.2, provisioning=("standard", "spot")).cost
    assert cost.usd_per_hour == pytest.approx(7.128)
    assert [step.zones for step in cost.order] == [(), (US, EUROPE)]


def test_one_form_has_no_order_and_the_same_plan_as_before():
    alone = planned(provisioning=("flex-start",)).cost
    assert (alone.order, alone.endless_forms, alone.most_usd_per_hour) == ((), (), alone.usd_per_hour)


def test_a_price_of_another_region_is_unknown():
    assert known_usd_per_hour("v6e-4", "spot", UNKNOWN) is None
    own = PriceBook.from_mapping({"v6e_spot_usd_per_chip_hour": 1.0})
    assert known_usd_per_hour("v6e-4", "spot", UNKNOWN, own) == pytest.approx(4.0)
    assert known_usd_per_hour("v9-4", "spot", US) is None


def test_the_order_is_in_the_json_plan():
    cost = cast(
        "dict[str, Any]", plan_json(planned(zones=(US, UNKNOWN), max_usd_per_hour=6.0), CommandWording())["cost"]
    )
    first, spot, standard = cost["order"]
    assert (first["form"], first["wait_s"], first["run_s"]) == ("flex-start", 600, 14_400)
    assert spot["zones"] == [
        {"zone": US, "usd_per_hour": pytest.approx(5.6116, abs=0.01), "skipped": None},
        {"zone": UNKNOWN, "usd_per_hour": None, "skipped": "price unknown"},
    ]
    assert {one["skipped"] for one in standard["zones"]} == {"above the price ceiling"}
