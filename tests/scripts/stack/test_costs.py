"""What a stack costs is one answer: the same rate now, rate while it runs, cost so far and end in every command. Unknown is never zero."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from gemma_serving.cloud.clock import GoogleClock
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.kinds import ACCOUNT, QUEUED, SERVICE, by_name
from gemma_serving.cloud.search import resource_of
from gemma_serving.cloud.spending import StackSpending, spending
from gemma_serving.contracts.answers import Present
from gemma_serving.contracts.labels import NO_LIMITS, StackLimits
from gemma_serving.contracts.search_results import Inventory
from gemma_serving.scripts.gemma import first
from gemma_serving.scripts.gemma.arguments import ListedStack
from gemma_serving.scripts.stack import deployed_server
from gemma_serving.scripts.stack import facts as stack_facts
from gemma_serving.scripts.stack.costs import recorded_costs, spent_sentence
from gemma_serving.scripts.stack.deployed_server import cloud_facts, serving
from gemma_serving.scripts.stack.facts import facts_of
from gemma_serving.scripts.stack.serves import serves_now
from gemma_serving.scripts.status.render import _notes, _row
from gemma_serving.scripts.status.report import StackStatus
from gemma_serving.scripts.teardown.output import text_of
from gemma_serving.scripts.teardown.receipt import Receipt
from gemma_serving.scripts.up import starting
from localcloud.tests.google_bodies import google_body
from tests.cloud.populated import PROJECT, owner
from tests.cloud.test_prices import queued, service
from tests.laws import examples
from tests.scripts import planted_states as planted
from tests.scripts.sample_outputs import sample_outputs

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
START = NOW - timedelta(hours=3)
END = (NOW + timedelta(hours=1)).astimezone()
ZONE = "us-east5-a"
MODELS = {"FLEX_START": "flex-start", "SPOT": "spot", "STANDARD": "standard"}
EMAIL = f"gemma-x@{PROJECT}.iam.gserviceaccount.com"
L4 = 3600 * (0.0001867 + 8 * 0.000018 + 32 * 0.000002)
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


AN_HOUR = SimpleNamespace(pages=lambda *_: [{"timeSeries": [{"points": [{"value": {"doubleValue": 3600}}]}]}])
"""Cloud Monitoring, where each service was billed for one hour."""
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


# Every command says the same.


class Google:
    """Google's documents by their full names."""

    def __init__(self, documents):
        self.documents = documents

    def get(self, _api, path):
        name = path.partition("/")[2].partition("?")[0]
        if name not in self.documents:
            raise GoogleListError(HTTPStatus.NOT_FOUND, "not found")
        return self.documents[name]


def slice_case(state, *, form="FLEX_START", kind="v6e-1", has_node=True, run="", **outputs):
    """Return the state and Google's documents of a stack on a TPU."""
    parent = f"projects/{PROJECT}/locations/{ZONE}"
    made = {"createTime": START.isoformat(), "labels": dict(owner("x").labels)}
    node = {"acceleratorType": kind}
    queued = {
        **made,
        "name": f"{parent}/queuedResources/{planted.NAME}",
        "state": {"state": state},
        "provisioningModel": form,
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": "n", "node": node}]},
    }
    ends = outputs.get("deadline")
    running = {**node, **made, "name": f"{parent}/nodes/n", "state": "READY", "queuedResource": queued["name"]}
    running["schedulingConfig"] = {"terminationTimestamp": ends}
    documents = [(QUEUED, queued), *([("TPU node", running)] if has_node else [])]
    plan = plan_of(kind, 0.0 if kind == "v9x-1" else 1.78)
    stack = planted.stack_resource(target="tpu", state=state, location=ZONE, plan=plan, **outputs)
    capacity = planted.queued(name=queued["name"], zone=ZONE, provisioningModelInUse=MODELS[form], deadline=ends)
    return planted.state(stack, capacity), documents, run


def service_case(least):
    """Return the same of a service that was billed for two instance hours."""
    limits = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    document = {
        "name": f"projects/{PROJECT}/locations/us-east4/services/{planted.NAME}",
        "createTime": START.isoformat(),
        "terminalCondition": {"state": "CONDITION_SUCCEEDED"},
        "template": {
            "containers": [{"resources": {"limits": limits}}],
            "nodeSelector": {"accelerator": "nvidia-l4"},
            "gpuZonalRedundancyDisabled": True,
            "scaling": {"minInstanceCount": least},
        },
    }
    kept = planted.state(planted.stack_resource(plan=plan_of("L4", L4)), planted.service(least, uri="https://s"))
    return kept, [(SERVICE, document)], ""


RUN_END = (NOW - timedelta(hours=1)).isoformat()
STARTED = int(START.timestamp())
RUNNING = f"Costs $1.35/h until {END:%Y-%m-%d %H:%M} {END.tzname()}, when Google deletes the VM."
SPOT = "Costs $1.40/h until Google reclaims it or you delete it."
WAITS = "Costs nothing until its capacity is ACTIVE, then $1.35/h."
CASES = {
    "a request waits": (slice_case("WAITING_FOR_RESOURCES", has_node=False), 0.0, 0.0, WAITS),
    "a TPU is active": (slice_case("ACTIVE", deadline=END.isoformat()), 1.35, 4.05, RUNNING),
    "a second run": (slice_case("ACTIVE", deadline=END.isoformat(), run=f"{STARTED - 9000}/1500000/"), 1.35, 5.55, RUNNING),
    "spot": (slice_case("ACTIVE", form="SPOT"), 1.4034, 4.21, SPOT),
    "a run ended": (
        slice_case("SUSPENDED", has_node=False, deadline=RUN_END, run=f"{STARTED}/0/{STARTED}:1350000:7200"),
        0.0,
        2.70,
        "Costs nothing now, because no server runs.",
    ),
    "a service keeps no instance": (service_case(0), 0.0, 2 * L4, "Costs $1.42/h for each instance that runs, $0.00/h while idle."),
    "a service keeps one": (service_case(1), L4, 2 * L4, "Costs $1.42/h for each instance that runs, $1.42/h while idle."),
    "an unknown price": (slice_case("ACTIVE", form="STANDARD", kind="v9x-1"), None, None, "Costs an unknown price until you delete it."),
}  # fmt: skip


PRICES = {
    "an unknown price": "known prices",
    "a service keeps no instance": "list prices (2026-09-19)",
    "a service keeps one": "list prices (2026-09-19)",
}
"""Words for the prices of a case whose price no public log reports."""


@pytest.mark.parametrize("case", CASES)
def test_status_up_teardown_gemma_and_the_receipt_agree(case, monkeypatch):
    (state, documents, run), rate, usd, sentence = CASES[case]
    record = {
        "name": f"projects/{PROJECT}/serviceAccounts/{EMAIL}",
        "description": f"gemma-serving-runs={run}" if run else "",
    }
    documents = [*documents, (ACCOUNT, {**record, "email": EMAIL})]
    google = Google({document["name"]: document for _, document in documents})
    monkeypatch.setattr(GoogleClock, "now", lambda _: NOW)
    monkeypatch.setattr("gemma_serving.cloud.spending._billed_s", lambda *_: 7200.0)
    monkeypatch.setattr(stack_facts, "connect", lambda _project: google)
    monkeypatch.setattr(deployed_server, "_with_shortage", lambda _api, facts, *_: facts)
    monkeypatch.setattr(deployed_server, "_with_phase", lambda _api, facts, _name: facts)

    facts = cloud_facts(google, serving(state), stack="x")
    status = StackStatus(
        stack="x", deployed=True, serves=serves_now(replace(facts_of(state), server=Present(facts))), cloud=facts
    )
    shown = ("unknown", "0.00+") if rate is None else (f"{rate:.2f}", f"{usd:.2f}")
    assert _row(status, NOW.timestamp())[-2:] == shown
    limits = dict(_notes(status, str, now_s=0.0, alone=True))["limits"]
    assert ("Google may reclaim this TPU VM (spot)." in limits) == (case == "spot")

    monkeypatch.setattr(starting, "read", lambda _stack: state)
    assert sentence in starting.exists_now("x")

    monkeypatch.setattr("gemma_serving.engine.state.read", lambda _stack: state)
    said = first._line(ListedStack(name="x", is_deployed=True, is_selected=False), lambda: NOW)
    assert said.startswith("Nothing serves since the planned end" if case == "a run ended" else sentence[6:-1])

    found = [resource_of(by_name(kind), item, project=PROJECT, owner=owner("x")) for kind, item in documents]
    receipt = receipt_of(found, spending(google, found, NOW))
    least = "at least " if rate is None else ""
    at = PRICES.get(case, "reported prices (2026-08-10)")
    assert f"At {at}: {least}${rate or 0:.2f}/h now, {least}${usd or 0:.2f} so far." in text_of(receipt)
    leaked = receipt.to_json()["leaked"]
    for key, total in (("usd_per_hour", rate), ("usd_so_far", usd)):
        assert sum(item[key] or 0.0 for item in leaked) == pytest.approx(total or 0.0, abs=0.011)
    assert (leaked[0]["usd_per_hour"] is None, leaked[0]["usd_so_far"] is None) == (rate is None, rate is None)


def receipt_of(found, spent):
    return Receipt(
        stack="x",
        projects=[PROJECT],
        destroyed=0,
        state=(),
        leaked=found,
        retained=(),
        deletions=(),
        unknown=(),
        warnings=(),
        searches=[Inventory(found=found, calls=(), unknown=(), elapsed_s=1)],
        started=NOW,
        elapsed_s=1,
        spent=spent,
        dry_run=True,
    )
