"""What a stack costs: the price of the form in use, and a sum whose unknown parts are never zero."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.kinds import ACCOUNT, by_name
from gemma_serving.cloud.prices import prices_of
from gemma_serving.cloud.search import resource_of
from gemma_serving.cloud.spending import StackSpending, spending
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.run_record import RecordedRun, RunRecord
from gemma_serving.contracts.stack_facts import CloudFacts
from gemma_serving.contracts.three_answers import Present
from gemma_serving.planning.data.prices import LIST_PRICES, price_words
from gemma_serving.planning.question.types import CostPlan
from gemma_serving.scripts.stack.costs import (
    ServerCosts,
    at_most,
    changed_rate,
    cost_columns,
    found_costs,
    found_sentence,
    planned_rate,
    recorded_costs,
    reported_costs,
    spent_sentence,
    storage_price,
)
from localcloud.tests.google_bodies import google_body
from tests.cloud.populated import owner
from tests.cloud.test_prices import instance, node, queued, service
from tests.laws import examples
from tests.scripts import planted_states as planted
from tests.scripts.sample_outputs import sample_outputs

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ZONE = "us-east5-a"
ENDS = "2026-11-20T18:00:00+00:00"
TPU = {"target": "tpu", "state": "ACTIVE", "location": ZONE}
COSTS = "gemma_serving.scripts.stack.costs"


# The price of the form of capacity in use.


FORMS = st.sampled_from(["flex-start", "spot", "standard"])
PLACES = st.sampled_from(["z1", "z2", "z3"])
RATE = st.none() | st.integers(0, 3000).map(float)


def plan_of(accelerator, usd):
    plan = sample_outputs()["plan"]
    return {**plan, "accelerator": accelerator, "cost": {**plan["cost"], "usdPerHour": usd}}


@given(
    st.none() | FORMS, st.none() | FORMS, st.booleans(), st.sampled_from([0, 1.78]), RATE, st.sampled_from([None, ENDS])
)
def test_the_price_of_the_form_in_use_in_its_zone_counts_or_else_that_of_the_plan_of_one_form(  # noqa: PLR0917 - drawn
    in_use, stated, has_forms, planned, usd, ends
):
    """`stated`: the form of the outputs, which only an order of forms has. A plan with the price 0 has none."""
    outputs = {
        **TPU,
        "plan": plan_of("v6e-1", planned),
        "deadline": ends,
        **({"provisioning": stated} if stated else {}),
    }
    capacity = planted.queued(provisioningModelInUse=in_use, zone="another")
    capacity["inputs"] |= {"forms": [{"provisioningModel": "spot"}]} if has_forms else {}
    asked, form = [], in_use or stated
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{COSTS}.stack_settings", lambda *_, **__: SimpleNamespace(prices=None))
        patch.setattr(f"{COSTS}.known_usd_per_hour", lambda *given: asked.append(given) or usd)
        (costs,) = recorded_costs(planted.state(planted.stack_resource(**outputs), capacity))
    known = usd if form else None
    price = known if known is not None or has_forms or stated else planned or None
    assert (costs.running, costs.now, costs.most) == (price, price, price)
    assert (costs.ends, costs.form, costs.is_service) == (ends or "", in_use or "", False)
    assert asked == ([("v6e-1", form, ZONE, LIST_PRICES)] if form else [])


def test_a_price_file_of_the_stack_counts_and_one_that_cannot_be_read_leaves_the_price_unknown(monkeypatch, tmp_path):
    path = tmp_path / "own.json"
    monkeypatch.setattr(f"{COSTS}.stack_settings", lambda *_, **__: SimpleNamespace(prices=str(path)))
    stack = planted.stack_resource(**TPU, provisioning="spot", plan=plan_of("v6e-1", 1))
    found = planted.state(stack, planted.queued(zone=ZONE))
    path.write_text(json.dumps({"as_of": "2026-11-01", "v6e_spot_usd_per_chip_hour": 0.5}))
    assert [costs.running for costs in recorded_costs(found)] == [0.5]
    path.write_text("{")
    assert [costs.running for costs in recorded_costs(found)] == [None]


@effort(max_examples=examples(test=100, part=300, night=2000))
@given(
    st.none() | FORMS,
    st.tuples(st.none() | PLACES, st.none() | PLACES),
    st.lists(PLACES, unique=True),
    st.lists(st.tuples(FORMS, st.none() | st.lists(PLACES, unique=True)), max_size=3),
    st.dictionaries(st.tuples(FORMS, PLACES), RATE),
)
def test_without_outputs_the_highest_price_of_its_places_counts_and_is_unknown_if_one_is(
    in_use, place, zones, forms, prices
):
    granted, zone = place
    capacity = planted.queued(provisioningModelInUse=in_use, zone=granted)
    listed = [{"provisioningModel": form, **({} if of is None else {"zones": of})} for form, of in forms]
    capacity["inputs"] |= {"forms": listed, "zone": zone, "zones": zones}
    everywhere = [place for place in (granted or zone, *zones) if place is not None]
    wanted = [(in_use or "standard", None)] if in_use or not forms else forms
    rates = [prices.get((form, place)) for form, of in wanted for place in (everywhere if of is None else of)]
    most = None if None in rates else max(rates, default=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{COSTS}.node_usd_per_hour", lambda _, form, place: prices.get((form, place)))
        (costs,) = recorded_costs(planted.state(capacity))
        (waiting,) = recorded_costs(planted.state(capacity), "waiting")
    assert (costs.running, costs.now, costs.most, costs.is_service) == (most, most, most, False)
    assert (waiting.running, waiting.now, waiting.most) == (most, 0.0, most)


@given(
    st.integers(0, 3),
    st.none() | st.integers(1, 4),
    st.sampled_from([None, 0.0, 1.5]),
    st.sampled_from([("nvidia-l4", False, 0.0001867), ("nvidia-l4", True, 0.0002909), ("nvidia-b999", False, None)]),
    st.booleans(),
)
def test_a_service_costs_its_least_instances_while_idle_and_its_most_at_most(least, most, planned, gpu, has_sidecar):
    """A plan with the price 0 has none. Without outputs the price is the list's, of all containers, None without one."""
    kind, is_redundant, gpu_usd_per_s = gpu
    given_limits = [{"cpu": "8", "memory": "32Gi"}, *([{"cpu": "1", "memory": "1Gi"}] if has_sidecar else [])]
    declared = planted.service(least)
    declared["inputs"]["location"] = "asia-southeast1"
    declared["inputs"]["template"] |= {
        "scaling": {"minInstanceCount": least, "maxInstanceCount": most},
        "containers": [{"resources": {"limits": limits}} for limits in given_limits],
        "nodeSelector": {"accelerator": kind},
        "gpuZonalRedundancyDisabled": not is_redundant,
    }
    stack = [] if planned is None else [planted.stack_resource(plan=plan_of("L4", planned))]
    (costs,) = recorded_costs(planted.state(*stack, declared))
    cpu, gib = (9, 33) if has_sidecar else (8, 32)
    listed = None if gpu_usd_per_s is None else 3600 * (cpu * 0.0000216 + gib * 0.0000024 + gpu_usd_per_s)
    running = (listed if planned is None else planned) or None
    known = None if running is None else pytest.approx(running, rel=1e-3)
    assert (costs.running, costs.is_service) == (known, True)
    assert costs.now == (0.0 if not least else None if running is None else pytest.approx(running * least, rel=1e-3))
    assert costs.most == (None if None in {running, most} else pytest.approx(running * most, rel=1e-3))


# The texts.


WHILE_IDLE = "$5.40/h for each instance that runs, {} while idle"


@pytest.mark.parametrize(
    ("kind", "now", "more", "text", "rate"),
    [
        ("tpu ACTIVE", 5.4, {}, "$5.40/h until you delete it", "$5.40/h"),
        ("tpu ACTIVE", 5.4, {"form": "spot"}, "$5.40/h until Google reclaims it or you delete it", "$5.40/h"),
        (
            "tpu ACTIVE",
            5.4,
            {"deadline": ENDS},
            "$5.40/h until 2026-11-20 18:00 UTC, when Google deletes the VM",
            "$5.40/h",
        ),
        ("tpu ACTIVE", 5.4, {"has_ended": True}, "$5.40/h, if Google bills it", "$5.40/h"),
        ("tpu SUSPENDED", 0.0, {"has_ended": True}, "nothing now, because no server runs", "$0.00/h"),
        ("tpu WAITING_FOR_RESOURCES", 0.0, {}, "nothing until its capacity is ACTIVE, then $5.40/h", "$0.00/h"),
        ("tpu PROVISIONING", 5.4, {}, "$5.40/h, if Google bills it", "$5.40/h"),
        ("service READY", 0.0, {}, WHILE_IDLE.format("$0.00/h"), "$0.00/h while idle, up to an unknown price"),
        ("service READY", None, {}, WHILE_IDLE.format("an unknown price"), "an unknown price"),
        ("service MISSING", None, {"has_ended": True}, "nothing now, because no server runs", "an unknown price"),
    ],
)
def test_what_google_reports_is_billed_or_not_and_until_when(kind, now, more, text, rate, monkeypatch):  # noqa: PLR0917 - a table
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    server, _, state = kind.partition(" ")
    facts = CloudFacts(state=state, usd_per_hour=now, running_usd_per_hour=5.4, **more)
    costs = reported_costs(facts, is_service=server == "service")
    assert (costs.text, costs.rate) == (text, rate)


def cost_plan(usd, lowest, *, is_known):
    unknown = {"usd_per_million_tokens": None, "usd_per_million_tokens_saturated": None, "is_measured": False}
    at_most = {"most_usd": 7000.0, "most_usd_basis": "a month", "idle_usd_per_hour": 0.0, "prices_as_of": ""}
    return CostPlan(
        usd_per_hour=usd,
        parts_usd_per_hour=(),
        lowest_usd_per_hour=lowest,
        places=(),
        **unknown,
        **at_most,
        is_known=is_known,
    )


def usd(rate):
    return "an unknown price" if rate is None else f"${rate:,.2f}/h"


WHOLE = st.integers(0, 2)


@given(WHOLE, WHOLE, st.booleans(), st.none() | st.tuples(WHOLE, WHOLE))
def test_a_planned_rate_is_a_range_where_it_can_differ(rate, lowest, is_known, instances):
    low, high = (rate * instances[0], rate * instances[1]) if instances else (lowest, rate)
    between = f"{usd(low)} while idle, up to {usd(high)}" if instances else f"up to {usd(high)}"
    planned = usd(None) if not is_known else usd(high) if low == high else between
    cost = cost_plan(float(rate), float(lowest), is_known=is_known)
    assert planned_rate(cost, instances) == planned
    assert at_most(cost) == "at most $7,000.00 for a month"


@given(RATE, st.sampled_from(["running", "waiting"]), st.booleans(), st.booleans())
def test_a_changed_rate_stands_beside_todays(now, billing, stays, is_equal):
    planned = usd(now) if is_equal else "$9.00/h"
    is_same = billing == "running" and (stays or is_equal)
    change = f"{usd(now)}, as now" if is_same else f"{usd(now)} now; then {planned}"
    before = ServerCosts(billing=billing, is_service=False, running=now, now=now)
    assert changed_rate(before, planned, stays=stays) == (planned if now is None else change)


SPENT = StackSpending(owner=owner("x"), limits=NO_LIMITS, age_s=0.0, usd=1.0, usd_per_hour=1.0)


KEYS = st.lists(st.sampled_from(["v6e_spot_usd_per_chip_hour", "cloud_run_l4_usd_per_s"]), max_size=2)


@given(st.lists(st.tuples(RATE, st.integers(0, 3000).map(float), st.booleans(), KEYS), min_size=1, max_size=3))
def test_a_sum_with_one_lower_bound_is_a_lower_bound_at_the_prices_of_all(drawn):
    spent = [
        replace(SPENT, usd_per_hour=rate, usd=so_far, is_least=is_least, prices=[*map(LIST_PRICES.price, keys)])
        for rate, so_far, is_least, keys in drawn
    ]
    rates, amounts, bounds, keys = zip(*drawn, strict=True)
    prices = price_words(LIST_PRICES.price(key) for of_one in keys for key in of_one)
    now = f"{'at least ' if None in rates else ''}{usd(sum(rate or 0.0 for rate in rates))} now"
    assert (
        spent_sentence(spent) == f"At {prices}: {now}, {'at least ' if any(bounds) else ''}${sum(amounts):,.2f} so far."
    )
    assert cost_columns(rates[0], 1.25, is_least=bounds[0]) == (
        "unknown" if rates[0] is None else f"{rates[0]:.2f}",
        "1.25+" if bounds[0] else "1.25",
    )


GIB_MONTH = google_body("storage.v1", "Bucket", {"name": "b", "location": "US-EAST4"})
NOTHING = "no price"
FOUND = {
    "capacity": (queued("ACTIVE"), 4 * 2.70),
    "waiting": (queued("WAITING_FOR_RESOURCES"), 0.0),
    "unpriced capacity": (queued("ACTIVE", "v5p-8"), None),
    "idle": (service(0), 0.0),
    "warm": (service(2), 2 * 3600 * (8 * 0.000018 + 32 * 0.000002 + 0.0001867)),
    "unpriced service": (service(1, gpu="nvidia-b999"), None),
    "bucket": (resource_of(by_name("bucket"), GIB_MONTH, project="p", owner=owner("x")), NOTHING),
    "node of a request": (node("v6e-4", queuedResource="projects/p/locations/l/queuedResources/gone"), NOTHING),
}


@given(st.lists(st.sampled_from([*FOUND]), min_size=1, max_size=4), st.sampled_from(["", "Could not check it."]))
def test_found_resources_are_counted_with_the_rate_of_each_kind_that_has_a_price(drawn, unread):
    found = [FOUND[name][0] for name in drawn]
    said = []
    for kind in dict.fromkeys(item.kind for item in found):
        rates = [FOUND[name][1] for name in drawn if FOUND[name][0].kind == kind and FOUND[name][1] != NOTHING]
        text = usd(None if None in rates else sum(rates))
        said += [f"{kind}, {text}{' while idle' if kind == 'Cloud Run service' else ''}"] if rates else []
    number = f"{len(found)} resource{'s' if len(found) > 1 else ''}"
    rates = "; ".join(said) or "none has an hourly price"
    if unread:
        expected = f"{number} found: {rates}; more may exist. {unread.rstrip('.')}."
    elif {*drawn} == {"bucket"}:
        expected = f"No server exists, only {' and '.join(['bucket b'] * len(found))}, billed by size."
    else:
        expected = f"{number} in Google Cloud: {rates}."
    assert found_sentence(found, unread) == expected


@given(
    st.lists(
        st.dictionaries(st.sampled_from([FOUND["warm"][0].name, "another"]), st.sampled_from([0.0, 1.23456])),
        max_size=2,
    )
)
def test_the_cost_so_far_of_a_resource_in_json_is_that_of_the_first_stack_that_has_it(amounts):
    item = FOUND["warm"][0]
    so_far = [of[item.name] for of in amounts if item.name in of]
    json_of = found_costs(item, [replace(SPENT, usd_by_name=of) for of in amounts])
    assert json_of == {
        "usd_per_hour": round(FOUND["warm"][1], 4),
        "usd_so_far": {0.0: 0.0, 1.23456: 1.23}[so_far[0]] if so_far else None,
    }
    assert found_costs(FOUND["unpriced service"][0], [])["usd_per_hour"] is None


def test_a_bucket_has_the_price_of_its_location():
    assert storage_price(FOUND["bucket"][0]) == LIST_PRICES.price("bucket_usd_per_gib_month", "us-east4")


# Unknown is never zero.


def billed(*points):
    """Cloud Monitoring, where each service was billed for seconds until some hours ago."""
    shown = [
        {"interval": {"endTime": (NOW - timedelta(hours=ago)).isoformat()}, "value": {"doubleValue": seconds}}
        for ago, seconds in points
    ]
    return SimpleNamespace(pages=lambda *_: [{"timeSeries": [{"points": shown}]}])


AN_HOUR = billed((0, 3600))
AN_HOUR_POINTS = AN_HOUR.pages()[0]["timeSeries"][0]["points"]
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
    st.lists(st.tuples(st.sampled_from([*PARTS]), LIMIT, LIMIT, LIMIT), min_size=1, unique_by=lambda one: one[0]),
    st.booleans(),
)
def test_an_unknown_part_is_never_free_and_of_two_limits_the_stricter_one_counts(drawn, has_record):
    found = [
        replace(part_of(kind), labels=StackLimits(max_usd=max_usd, max_age_s=max_age_s, idle_after_s=idle_s).labels)
        for kind, max_usd, max_age_s, idle_s in drawn
    ]
    if has_record:
        account = google_body("iam.v1", "ServiceAccount", {"name": "projects/p/serviceAccounts/a@p", "email": "a@p"})
        found.append(resource_of(by_name(ACCOUNT), account, project="p", owner=owner("x")))
    (stack,) = spending(AN_HOUR, found, NOW)
    known = [PARTS[kind] for kind, *_ in drawn if PARTS[kind] is not None]
    is_priced = len(known) == len(drawn)
    assert stack.usd == pytest.approx(sum(known), abs=0.001)
    assert len(stack.usd_by_name) == len(known)
    assert [*stack.prices] == [price for item in found for price in prices_of(item)]
    assert (stack.usd_per_hour is not None, stack.is_least) == (is_priced, not (is_priced and has_record))
    stated = list(zip(*drawn, strict=True))[1:]
    strictest = tuple(min((value for value in values if value is not None), default=None) for values in stated)
    assert (stack.limits.max_usd, stack.limits.max_age_s, stack.limits.idle_after_s) == strictest
    assert bool(stack.unknown) is (not has_record or (not is_priced and stack.limits.max_usd is not None))
    assert not has_record or all("The price list has no entry for " in why for why in stack.unknown)


def test_without_its_account_a_bucket_has_no_record_and_one_beside_a_server_an_unknown_one():
    for found, record, is_least in (([], "absent", False), ([part_of("nvidia-l4")], "unknown", True)):
        (stack,) = spending(AN_HOUR, [*found, FOUND["bucket"][0]], NOW)
        assert (stack.record, stack.is_least, stack.age_s) == (record, is_least, 3 * 3600.0 if found else 0.0)


HOURS_AGO = st.sampled_from([0, 1, 2, 23, 24, 25, 40, 60])


def recorded(since_h, spent_micros, runs):
    """The account of a stack whose record has these runs: hours since the start, millionths of a dollar per hour, longest hours."""
    start_s = int(NOW.timestamp())
    known = [
        RecordedRun(start_s=start_s - ago * 3600, micros_per_hour=rate, longest_s=longest and longest * 3600)
        for ago, rate, longest in runs
    ]
    return recorded_runs(RunRecord(since_s=start_s - since_h * 3600, spent_micros=spent_micros, runs=known))


def recorded_runs(record, limits=NO_LIMITS):
    body = {"name": "projects/p/serviceAccounts/a@p", "email": "a@p", "description": record.written_into("")}
    account = google_body("iam.v1", "ServiceAccount", body)
    return replace(resource_of(by_name(ACCOUNT), account, project="p", owner=owner("x")), labels=limits.labels)


@effort(max_examples=examples(test=150, part=300, night=2000))
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
    ends = [line.rpartition("(")[2] for line in stack.read if "maximum: a past server, " in line]
    assert sorted(ends) == sorted("its run limit)" if longest else "no known run limit)" for _, _, longest in runs)


@effort(max_examples=examples(test=60, part=300, night=2000))
@given(st.lists(st.tuples(HOURS_AGO, st.integers(0, 3600)), max_size=5))
def test_of_a_service_the_last_day_has_the_periods_that_end_in_it(points):
    found = [part_of("nvidia-l4"), recorded(0, 0, [])]
    (stack,) = spending(billed(*points), found, NOW)
    in_day = sum(seconds for ago, seconds in points if ago < 24)
    assert stack.usd_last_day == pytest.approx(in_day * PARTS["nvidia-l4"] / 3600, abs=0.001)


def node_of(request, ago, *, is_up, number):
    of = f"projects/p/locations/l/queuedResources/{request}" if request else ""
    made = (NOW - timedelta(hours=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = f"projects/p/locations/l/nodes/n{number}"
    return node("v6e-4", queuedResource=of, createTime=made, state="READY" if is_up else "PREEMPTED", name=name)


@given(st.lists(st.tuples(st.sampled_from(["q1", "q2", ""]), st.integers(1, 2), st.booleans()), max_size=4))
def test_a_machine_costs_once_from_its_first_node_or_from_its_request_if_that_is_gone(drawn):
    """Three hours ago both requests were made. A node without a request is a machine of its own."""
    requests = [queued("ACTIVE", name=f"projects/p/locations/l/queuedResources/{name}") for name in ("q1", "q2")]
    nodes = [node_of(of, ago, is_up=is_up, number=number) for number, (of, ago, is_up) in enumerate(drawn)]
    hours = {item.name: ago if is_up else 0 for item, (of, ago, is_up) in zip(nodes, drawn, strict=True) if not of}
    for request in requests:
        own = sorted(((-ago, is_up) for of, ago, is_up in drawn if of == request.id), key=lambda one: one[0])
        hours[request.name] = -own[0][0] if own and own[0][1] else 3
    (stack,) = spending(AN_HOUR, [*nodes, *requests], NOW)
    assert stack.usd_by_name == {name: pytest.approx(10.8 * ago) for name, ago in hours.items()}
    known = [name for name, ago in hours.items() if f"from {name}" in " ".join(stack.read)]
    assert {*known} == {name for name, ago in hours.items() if 0 < ago < 3}
    assert len(stack.read) == 1 + sum(ago > 0 for ago in hours.values())


@pytest.mark.parametrize(("ago_s", "idle_s"), [(-5, 0.0), (0, 0.0), (90, 90.0)])
def test_a_machine_is_idle_since_its_last_request_and_never_for_less_than_no_time(ago_s, idle_s, monkeypatch):
    monkeypatch.setattr("gemma_serving.cloud.spending.idle_since", lambda *_: Present(NOW - timedelta(seconds=ago_s)))
    for machine in (node_of("", 1, is_up=True, number=1), instance("RUNNING")):
        (stack,) = spending(AN_HOUR, [replace(machine, labels=StackLimits(idle_after_s=60).labels)], NOW)
        assert (stack.idle, stack.idle_s) == ("idle", idle_s)


SIX_WEEKS_H = 6 * 7 * 24


@given(
    st.sampled_from([-1, 0, 2, 3, 4, SIX_WEEKS_H, SIX_WEEKS_H + 1]),
    st.none() | st.tuples(st.integers(0, 2), st.sampled_from(["nvidia-l4", "nvidia-b999"])),
    st.booleans(),
    st.none() | st.just(9),
)
def test_a_services_use_is_what_monitoring_has_of_it_and_a_lower_bound_where_it_lacks_some(
    ago, now, is_denied, max_usd
):
    """It was created three hours ago, and first some hours ago by its record. `now`: its least instances and GPU; None if it is gone."""
    start = NOW - timedelta(hours=ago)
    run = RecordedRun(start_s=int(start.timestamp()), micros_per_hour=2_000_000, is_service=True)
    found = [recorded_runs(RunRecord(since_s=run.start_s, runs=[run]), StackLimits(max_usd=max_usd))]
    if now is not None:
        found.append(service(now[0], gpu=now[1], name="projects/p/locations/l/services/s"))
    asked = []

    def pages(_api, path):
        asked.append(parse_qs(path.partition("?")[2]))
        if is_denied:
            raise GoogleListError(403, "denied", "")
        return [{"timeSeries": [{"points": [*AN_HOUR_POINTS, {"interval": {"endTime": NOW.isoformat()}}]}]}]

    (stack,) = spending(SimpleNamespace(pages=pages), found, NOW)
    assert stack.age_s == 3600.0 * max(0, ago, 3 if now else 0)
    source = "current resources" if now and ago < 3 else "the description of a@p"
    assert stack.read[0].endswith(f", from {source}")
    lacks = ago > SIX_WEEKS_H or (now is not None and ago > 3)
    is_read = ago <= 0 or not is_denied
    idle = now[0] * (PARTS[now[1]] or 0.0) if now else 0.0
    usd = 0.0 if ago <= 0 else idle * ago if is_denied else 2.0
    assert (stack.usd, stack.is_least) == (pytest.approx(usd), lacks or not is_read)
    assert stack.usd_last_day == ((usd if ago > 0 else 0.0) if is_read else None)
    name = "gemma-x" if now is None else "s"
    why = [text.partition(" ")[2].partition(",")[0] for text in stack.unknown]
    known = ["was recreated or is older than six weeks"] if lacks and max_usd is not None else []
    assert why == [*known, *([] if is_read else [f"of {name} could not be read"])]
    if ago > 0:
        (query,) = asked
        assert query["interval.startTime"] == [max(start, NOW - timedelta(weeks=6)).strftime("%Y-%m-%dT%H:%M:%SZ")]
        assert f'service_name="{name}"' in query["filter"][0]
    else:
        assert asked == []
