"""What a stack costs: the price of the form in use, and a sum whose unknown parts are never zero."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.cloud.kinds import ACCOUNT, by_name
from gemma_serving.cloud.search import resource_of
from gemma_serving.cloud.spending import StackSpending, spending
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.run_record import RecordedRun, RunRecord
from gemma_serving.scripts.stack.costs import recorded_costs, spent_sentence
from localcloud.tests.google_bodies import google_body
from tests.cloud.populated import owner
from tests.cloud.test_prices import queued, service
from tests.laws import examples
from tests.scripts import planted_states as planted
from tests.scripts.sample_outputs import sample_outputs

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ZONE = "us-east5-a"
"""Price of one instance in us-east4."""


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """The settings of the stack, without own prices."""
    found = SimpleNamespace(prices=None)
    monkeypatch.setattr("gemma_serving.scripts.stack.costs.stack_settings", lambda *_, **__: found)
    return found


# The price of the form of capacity in use.


def plan_of(accelerator, usd):
    plan = sample_outputs()["plan"]
    return {**plan, "accelerator": accelerator, "cost": {**plan["cost"], "usdPerHour": usd}}


def deployed(form, zone, *, is_order=True):
    """Return the state of a stack with this form in use, of an order of forms or as its only one. Its plan has $1.78/h."""
    named = {"provisioning": form} if is_order else {}
    stack = planted.stack_resource(target="tpu", state="ACTIVE", location=zone, plan=plan_of("v6e-1", 1.78), **named)
    return planted.state(stack, planted.queued(provisioningModelInUse=form, zone=zone))


@pytest.mark.parametrize(
    ("form", "zone", "is_order", "text"),
    [
        ("flex-start", ZONE, True, "Costs $1.35/h until you delete it."),
        ("spot", ZONE, True, "Costs $1.40/h until Google reclaims it or you delete it."),
        ("spot", ZONE, False, "Costs $1.40/h until Google reclaims it or you delete it."),
        ("spot", "europe-west4-a", False, "Costs $1.78/h until Google reclaims it or you delete it."),
        ("standard", "europe-west4-a", True, "Costs $2.97/h until you delete it."),
        ("spot", "southamerica-west1-a", True, "Costs an unknown price until Google reclaims it or you delete it."),
        ("spot", "southamerica-west1-a", False, "Costs $1.78/h until Google reclaims it or you delete it."),
        ("", ZONE, False, "Costs $1.78/h until you delete it."),
    ],
)
def test_the_price_is_of_the_form_in_use_in_its_zone(form, zone, is_order, text):
    (costs,) = recorded_costs(deployed(form, zone, is_order=is_order))
    assert costs.sentence == text


def test_a_price_file_of_the_stack_counts_and_one_that_cannot_be_read_leaves_the_price_unknown(settings, tmp_path):
    path = tmp_path / "own.json"
    settings.prices = str(path)
    path.write_text(json.dumps({"as_of": "2026-11-01", "v6e_spot_usd_per_chip_hour": 0.5}))
    assert [costs.running for costs in recorded_costs(deployed("spot", ZONE))] == [0.5]
    path.write_text("{")
    assert [costs.running for costs in recorded_costs(deployed("spot", ZONE))] == [None]


def test_the_highest_price_is_unknown_if_one_place_has_none(monkeypatch):
    capacity = planted.queued()
    capacity["inputs"]["forms"] = [{"provisioningModel": "spot"}, {"provisioningModel": "standard"}]
    for standard in (2.7, None):
        prices = {"spot": 1.4, "standard": standard}
        monkeypatch.setattr("gemma_serving.scripts.stack.costs.node_usd_per_hour", lambda _, form, __: prices[form])  # noqa: B023 - used within the same round
        assert [costs.most for costs in recorded_costs(planted.state(capacity))] == [standard]


def test_a_sum_with_one_lower_bound_is_a_lower_bound():
    one = StackSpending(owner=owner("x"), limits=NO_LIMITS, age_s=0.0, usd=1.0, usd_per_hour=1.0)
    assert "$1.00 so far" in spent_sentence([one])
    assert "$2.00/h now, at least $2.00 so far" in spent_sentence([one, replace(one, is_least=True)])


# Unknown is never zero.


def billed(*points):
    """Cloud Monitoring, where each service was billed for seconds until some hours ago."""
    shown = [
        {"interval": {"endTime": (NOW - timedelta(hours=ago)).isoformat()}, "value": {"doubleValue": seconds}}
        for ago, seconds in points
    ]
    return SimpleNamespace(pages=lambda *_: [{"timeSeries": [{"points": shown}]}])


AN_HOUR = billed((0, 3600))
PARTS = {
    "v6e-4": 3 * 4 * 2.70,
    "v5e-4": 3 * 4 * 1.20,
    "v5p-8": None,
    "nvidia-l4": 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867),
    "nvidia-b999": None,
}
"""Cost of a TPU VM that was requested three hours ago, and of an hour of a service; None without a price."""
LIMIT = st.none() | st.integers(1, 99)


def part_of(kind):
    if kind.startswith("nvidia"):
        return service(1, gpu=kind, name=f"projects/p/locations/l/services/{kind}")
    return queued("ACTIVE", kind.replace("v5e", "v5litepod"), name=f"projects/p/locations/l/queuedResources/{kind}")


@effort(max_examples=examples(test=60, part=300, night=2000))
@given(
    st.lists(st.tuples(st.sampled_from([*PARTS]), LIMIT, LIMIT), min_size=1, unique_by=lambda one: one[0]),
    st.booleans(),
)
def test_an_unknown_part_is_never_free_and_of_two_limits_the_stricter_one_counts(drawn, has_record):
    found = [
        replace(part_of(kind), labels=StackLimits(max_usd=max_usd, max_age_s=max_age_s).labels)
        for kind, max_usd, max_age_s in drawn
    ]
    if has_record:
        account = google_body("iam.v1", "ServiceAccount", {"name": "projects/p/serviceAccounts/a@p", "email": "a@p"})
        found.append(resource_of(by_name(ACCOUNT), account, project="p", owner=owner("x")))
    (stack,) = spending(AN_HOUR, found, NOW)
    known = [PARTS[kind] for kind, _, _ in drawn if PARTS[kind] is not None]
    is_priced = len(known) == len(drawn)
    assert stack.usd == pytest.approx(sum(known), abs=0.001)
    assert len(stack.usd_by_name) == len(known)
    assert (stack.usd_per_hour is not None, stack.is_least) == (is_priced, not (is_priced and has_record))
    stated = list(zip(*drawn, strict=True))[1:]
    strictest = tuple(min((value for value in values if value is not None), default=None) for values in stated)
    assert (stack.limits.max_usd, stack.limits.max_age_s) == strictest
    assert bool(stack.unknown) is (not has_record or (not is_priced and stack.limits.max_usd is not None))
    assert not has_record or all("The price list has no entry for " in why for why in stack.unknown)


HOURS_AGO = st.sampled_from([0, 1, 2, 23, 24, 25, 40, 60])


def recorded(since_h, spent_micros, runs):
    """The account of a stack whose record has these runs: hours since the start, millionths of a dollar per hour, longest hours."""
    start_s = int(NOW.timestamp())
    known = [
        RecordedRun(start_s=start_s - ago * 3600, micros_per_hour=rate, longest_s=longest and longest * 3600)
        for ago, rate, longest in runs
    ]
    record = RunRecord(since_s=start_s - since_h * 3600, spent_micros=spent_micros, runs=known)
    body = {"name": "projects/p/serviceAccounts/a@p", "email": "a@p", "description": record.written_into("")}
    return resource_of(by_name(ACCOUNT), google_body("iam.v1", "ServiceAccount", body), project="p", owner=owner("x"))


@effort(max_examples=examples(test=60, part=300, night=2000))
@given(
    HOURS_AGO,
    st.sampled_from([0, 4_000_000]),
    st.lists(st.tuples(HOURS_AGO, st.sampled_from([0, 1, 7_000_000]), st.none() | st.integers(1, 30)), max_size=3),
)
def test_the_cost_of_the_last_day_counts_its_hours_and_no_others(more_h, spent_micros, runs):
    since_h = max((ago for ago, _, _ in runs), default=0) + more_h
    (stack,) = spending(AN_HOUR, [recorded(since_h, spent_micros, runs)], NOW)
    # Each hour of a run that lies in the last day, counted one by one.
    hours = [(ago - hour, rate) for ago, rate, longest in runs for hour in range(min(ago, longest or ago))]
    usd = sum(rate for ago, rate in hours if ago <= 24) / 1e6
    is_known = all(rate for _, rate, _ in runs) and (not spent_micros or since_h <= 24)
    assert stack.usd_last_day == (pytest.approx(usd + spent_micros / 1e6, abs=1e-5) if is_known else None)
    assert not is_known or stack.usd_last_day <= stack.usd + 1e-5


@effort(max_examples=examples(test=60, part=300, night=2000))
@given(st.lists(st.tuples(HOURS_AGO, st.integers(0, 3600)), max_size=5))
def test_of_a_service_the_last_day_has_the_periods_that_end_in_it(points):
    found = [part_of("nvidia-l4"), recorded(0, 0, [])]
    (stack,) = spending(billed(*points), found, NOW)
    in_day = sum(seconds for ago, seconds in points if ago < 24)
    assert stack.usd_last_day == pytest.approx(in_day * PARTS["nvidia-l4"] / 3600, abs=0.001)


@pytest.mark.parametrize(
    ("kinds", "prices"),
    [
        (["nvidia-l4"], "list prices (2026-09-19)"),
        (["nvidia-l4", "v6e-4"], "reported prices (2026-08-07)"),
        (["v5p-8"], "known prices"),
    ],
)
def test_a_sum_names_the_least_certain_of_its_prices(kinds, prices):
    assert spent_sentence(spending(AN_HOUR, [part_of(kind) for kind in kinds], NOW)).startswith(f"At {prices}: ")
