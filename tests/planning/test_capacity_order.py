"""The order of forms: waits before a form, prices in its zones, what the ceiling leaves out, and what ends the capacity."""

import dataclasses
from functools import partial
from typing import Any, cast

import pytest

from gemma_serving.planning.cost.capacity_order import (
    capacity_order,
    ceiling_problem,
    known_usd_per_hour,
    order_lines,
    waits_s_of,
)
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
    unlimited = [lines(zones=zones, provisioning=("flex-start", "spot"))[0] for zones in ((UNKNOWN,), (US, UNKNOWN))]
    assert unlimited == [
        "flex-start: price unknown, ends after 4 h",
        "flex-start: $5.40/h (in some zones unknown), ends after 4 h",
    ]


def test_a_ceiling_that_leaves_nothing_names_the_cheapest_form_and_a_remedy_that_is_enough():
    problem = ceiling_problem(tpu_block(provisioning=("standard", "spot"), max_usd_per_hour=1.0))
    assert (
        "tpu.maxUsdPerHour is 1, but the cheapest form costs $5.61 for v6e-4, so no capacity would be"
        in problem.message
    )
    (finding,) = (
        one for one in planned(provisioning=("standard", "spot"), max_usd_per_hour=1.0).findings if one.id == "CST07"
    )
    (enough, _) = (remedy.changes["tpu.max_usd_per_hour"] for remedy in finding.remedies)
    assert enough - 0.01 < problem.least_usd_per_hour <= enough
    assert ceiling_problem(tpu_block(max_usd_per_hour=enough, provisioning=("spot",))) is None
    unknown = ceiling_problem(tpu_block(zones=(UNKNOWN,), provisioning=("spot",), max_usd_per_hour=1.0))
    assert "but no price of its forms in its zones is known for v6e-4" in unknown.message
    assert unknown.least_usd_per_hour is None
    assert ceiling_problem(tpu_block()) is None


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
