"""Quota, stock or unknown: only what was read decides, and what was not read is unknown."""

from itertools import product

import pytest

from gemma_serving.cloud import offers, shortage
from gemma_serving.cloud.caller import USER, GoogleCaller
from gemma_serving.cloud.capacity import ListedQueuedResource
from gemma_serving.cloud.quotas import limits_in, tpu_quota
from gemma_serving.cloud.shortage import OtherRequest, QuotaRead, read_shortage
from localcloud.tests.google_bodies import google_answer

PROJECT = "p"
A, B = "us-east5-a", "us-east5-b"
PREEMPTIBLE, STANDARD = tpu_quota("v6e-4", "spot"), tpu_quota("v6e-4", "standard")
NO_STOCK = 'There is no more capacity in the zone "Z"; you can try in another zone'
NO_QUOTA = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."
TOO_FAST = "Quota exceeded for quota metric 'Create requests' and limit 'Create requests per minute' of service 'tpu'"


def read(limit=64.0, used=0.0, needed=4):
    return QuotaRead(quota=PREEMPTIBLE, place=A, limit=limit, used=used, needed=needed, why_unknown="denied")


ENOUGH, SHORT, FULL = read(), read(limit=0), read(limit=7, used=4)
UNREAD, UNUSED = read(limit=None, used=None), read(used=None)
SHORT_BUT_UNREAD_USE = read(limit=0, used=None)


@pytest.mark.parametrize(
    ("quota", "cause"),
    [
        (ENOUGH, "stock"),
        (SHORT, "quota"),
        (FULL, "quota"),
        (SHORT_BUT_UNREAD_USE, "quota"),
        (UNREAD, "unknown"),
        (UNUSED, "unknown"),
    ],
)
def test_a_request_that_waits_is_judged_by_its_quota(quota, cause):
    for state in ("ACCEPTED", "WAITING_FOR_RESOURCES"):
        found = shortage.shortage(state, "", [quota], A)
        assert found.cause == cause
        assert f"Google gives no reason for {state}" in found.evidence
        assert quota.quota.quota_id in found.sentence


def test_a_request_that_expired_is_judged_as_one_that_waits():
    words = "The queued resource could not be fulfilled by its valid-until time."
    for quota, cause in ((ENOUGH, "stock"), (SHORT, "quota"), (UNREAD, "unknown")):
        found = shortage.shortage("FAILED", words, [quota], A)
        assert (found.cause, words.rstrip(".") in found.sentence) == (cause, True)
    denied = OtherRequest(zone=B, state="FAILED", words=NO_QUOTA)
    assert shortage.shortage("FAILED", words, [ENOUGH], A, [denied]).cause == "unknown"


def test_without_a_quota_or_in_another_state_a_wait_is_unknown():
    assert shortage.shortage("WAITING_FOR_RESOURCES", "", [], A).cause == "unknown"
    assert shortage.shortage("CREATING", "", [ENOUGH], A).cause == "unknown"
    assert shortage.shortage("FAILED", "", [ENOUGH], A).cause == "unknown"
    assert shortage.shortage("FAILED", "an internal error", [SHORT], A).cause == "unknown"


@pytest.mark.parametrize(
    ("words", "cause"),
    [(NO_STOCK, "stock"), (NO_QUOTA, "quota"), (TOO_FAST, "unknown"), ("there was no capacity in time", "unknown")],
)
def test_googles_words_decide_and_are_part_of_the_evidence(words, cause):
    for quota in (ENOUGH, UNREAD):
        found = shortage.shortage("FAILED", words, [quota], A)
        assert found.cause == cause
        assert words.rstrip(".") in found.sentence


def test_words_about_stock_without_quota_are_a_contradiction():
    found = shortage.shortage("FAILED", NO_STOCK, [SHORT], A)
    assert found.cause == "unknown"
    assert "0 chips" in found.sentence


def test_of_several_quotas_one_that_is_enough_suffices():
    for quotas, cause in (
        ((SHORT, ENOUGH), "stock"),
        ((SHORT, FULL), "quota"),
        ((SHORT, UNREAD), "unknown"),
        ((UNUSED, SHORT), "unknown"),
    ):
        assert shortage.shortage("WAITING_FOR_RESOURCES", "", quotas, A).cause == cause


def test_a_quota_of_the_same_region_that_google_named_elsewhere_forbids_the_verdict_stock():
    same, other = OtherRequest(zone=B, state="FAILED", words=NO_QUOTA), OtherRequest(zone=B, state="ACTIVE")
    assert shortage.shortage("WAITING_FOR_RESOURCES", "", [ENOUGH], A, [same]).cause == "unknown"
    assert shortage.shortage("WAITING_FOR_RESOURCES", "", [ENOUGH], "europe-west4-a", [same]).cause == "stock"
    found = shortage.shortage("WAITING_FOR_RESOURCES", "", [ENOUGH], A, [other])
    assert (found.cause, found.evidence[-1]) == ("stock", f"{B}: ACTIVE")


def test_evidence_names_few_other_zones():
    others = [OtherRequest(zone=f"us-west1-{letter}", state="ACTIVE") for letter in "abcde"]
    assert shortage.shortage("ACCEPTED", "", [ENOUGH], A, others).evidence[-1] == "2 more in other zones"


def test_no_wait_is_for_stock_unless_every_fact_was_read():
    """All combinations: a planted fault in any branch that reads unknown as enough is seen here."""
    for limit, used, words in product((None, 0, 3, 4, 64), (None, 0, 60, 61), ("", NO_STOCK, NO_QUOTA, TOO_FAST)):
        found = shortage.shortage("WAITING_FOR_RESOURCES", words, [read(limit=limit, used=used)], A)
        if found.cause == "stock" and not words:
            assert limit is not None
            assert used is not None
            assert limit - used >= 4
        if found.cause == "quota" and not words:
            assert limit is not None
            assert limit < 4 or limit - used < 4


# --- what is read from Google ------------------------------------------------------------------------------------------------------


def limit(dimension="zone", **chips):
    buckets = [
        {"dimensions": {dimension: place.replace("_", "-")}, "effectiveLimit": str(count)}
        for place, count in chips.items()
    ]
    return {"unit": f"1/{{project}}/{{{dimension}}}", "quotaBuckets": buckets}


def request(zone=A, *, model="FLEX_START", state="WAITING_FOR_RESOURCES", name="mine", kind="v6e-4"):
    return {
        "name": f"projects/{PROJECT}/locations/{zone}/queuedResources/{name}",
        "provisioningModel": model,
        "tpu": {"nodeSpec": [{"parent": "x", "nodeId": "n", "node": {"acceleratorType": kind}}]},
        "state": {"state": state},
    }


class Google:
    """Zones with their requests and nodes, and limits by metric. A path in `fails` is refused."""

    def __init__(self, limits, requests=(), nodes=(), zones=(A, B, "europe-west4-a"), fails=""):
        self.limits, self.requests, self.nodes, self.zones, self.fails = limits, requests, nodes, zones, fails
        self.asked = []

    def pages(self, api, path):
        self.asked.append(path)
        if self.fails and self.fails in path:
            raise offers.GoogleListError(403, "denied")
        yield google_answer("GET", f"{api}/{path}", self.answer(path))

    def answer(self, path):
        if "consumerQuotaMetrics" in path:
            metric = next((name for name in self.limits if path.partition("?")[0].endswith(f"%2F{name}")), None)
            return {"consumerQuotaLimits": self.limits[metric]} if metric else {}
        if path.partition("?")[0].endswith("/locations"):
            return {"locations": [{"locationId": zone} for zone in self.zones]}
        zone, kind = path.split("/")[4], path.split("/")[5].partition("?")[0]
        listed = self.requests if kind == "queuedResources" else self.nodes
        return {kind: [item for item in listed if item["name"].split("/")[3] == zone]}


def judged(google, mine=None):
    mine = mine or request()
    google.requests = [*google.requests, mine]
    caller = GoogleCaller(project=PROJECT, google=google, member=USER)
    return read_shortage(caller, ListedQueuedResource(mine))


ALL = {"us_east5_a": 64, "us_east5_b": 64, "europe_west4_a": 64}
NONE = dict.fromkeys(ALL, 0)
PLENTY = {PREEMPTIBLE.metric: [limit(**ALL)], STANDARD.metric: [limit(**NONE)]}


@pytest.mark.parametrize(
    ("model", "cause"),
    [("FLEX_START", "stock"), ("SPOT", "stock"), ("STANDARD", "quota"), ("RESERVATION_BOUND", "unknown")],
)
def test_each_form_is_judged_by_its_own_quota(model, cause):
    assert judged(Google(PLENTY), request(model=model)).cause == cause
    swapped = {PREEMPTIBLE.metric: [limit(**NONE)], STANDARD.metric: [limit(**ALL)]}
    opposite = {"stock": "quota", "quota": "stock"}.get(cause, cause)
    assert judged(Google(swapped), request(model=model)).cause == opposite


def test_a_zone_without_a_limit_is_unknown_not_zero():
    found = judged(Google({PREEMPTIBLE.metric: [limit(us_east5_b=64)]}))
    assert found.cause == "unknown"
    assert "returned no limit" in found.sentence


@pytest.mark.parametrize("fails", ["consumerQuotaMetrics", f"{A}/queuedResources", f"{A}/nodes"])
def test_a_read_that_is_refused_is_unknown(fails):
    found = judged(Google(PLENTY, fails=fails))
    assert found.cause == "unknown"
    assert "denied" in found.sentence


@pytest.mark.parametrize(
    ("region", "requests", "cause"),
    [
        (limit("region", us_east5=0), (), "quota"),
        (limit("region", us_east5=64), (), "stock"),
        (limit("region", us_east5=7), (request(zone=B, name="theirs"),), "quota"),
        (limit("region", us_east5=8), (request(zone=B, name="theirs"),), "stock"),
        (limit("region", us_east5=7), (request(zone="europe-west4-a", name="theirs"),), "stock"),
        (limit("region", us_east5=7), (request(zone=B, name="theirs", model="STANDARD"),), "stock"),
        (limit("region", europe_west4=64), (), "unknown"),
    ],
)
def test_the_limit_of_the_region_counts_with_the_use_in_all_its_zones(region, requests, cause):
    quotas = {PREEMPTIBLE.metric: [limit(**ALL), region]}
    assert judged(Google(quotas, requests)).cause == cause


def test_the_use_of_a_region_is_unknown_without_the_list_of_its_zones():
    quotas = {PREEMPTIBLE.metric: [limit(**ALL), limit("region", us_east5=64)]}
    assert judged(Google(quotas, fails="/locations?")).cause == "unknown"
    assert judged(Google({PREEMPTIBLE.metric: [limit(**ALL)]}, fails="/locations?")).cause == "stock"


@pytest.mark.parametrize(
    ("node", "cause"),
    [
        ({"acceleratorType": "v6e-4", "schedulingConfig": {"spot": True}}, "quota"),
        ({"acceleratorType": "v6e-4", "schedulingConfig": {"provisioningModel": "SPOT"}}, "quota"),
        (
            {"acceleratorType": "v6e-4", "schedulingConfig": {"preemptible": True}, "queuedResource": "q/theirs"},
            "quota",
        ),
        ({"acceleratorType": "v6e-4"}, "stock"),
        ({"acceleratorType": "v6e-4", "schedulingConfig": {"reserved": True}}, "stock"),
        ({"acceleratorType": "v5litepod-4", "schedulingConfig": {"spot": True}}, "stock"),
        ({"acceleratorType": "v6e-4", "schedulingConfig": {"spot": True}, "queuedResource": "q/mine"}, "stock"),
        ({"schedulingConfig": {"spot": True}}, "unknown"),
    ],
)
def test_nodes_without_a_listed_request_count_too(node, cause):
    quotas = {PREEMPTIBLE.metric: [limit(us_east5_a=7)]}
    named = {"name": f"projects/{PROJECT}/locations/{A}/nodes/lone", **node}
    assert judged(Google(quotas, nodes=[named])).cause == cause


def test_dead_requests_keep_their_quota():
    quotas = {PREEMPTIBLE.metric: [limit(us_east5_a=7)]}
    dead = request(name="dead", state="SUSPENDED", model="SPOT")
    assert judged(Google(quotas, [dead])).cause == "quota"


@pytest.mark.parametrize(("model", "cause"), [("RESERVATION_BOUND", "stock"), ("STANDARD", "quota"), ("SPOT", "stock")])
def test_a_reservation_takes_nothing_from_the_standard_quota(model, cause):
    quotas = {STANDARD.metric: [limit(us_east5_a=7)]}
    others = request(name="theirs", model=model, state="ACTIVE")
    assert judged(Google(quotas, [others]), request(model="STANDARD")).cause == cause


def test_granted_and_running_requests_have_no_cause():
    assert judged(Google(PLENTY), request(state="ACTIVE")) is None
    assert judged(Google(PLENTY), request(state="PROVISIONING")) is None


def test_only_zones_of_the_region_and_of_the_stack_are_read():
    google = Google(PLENTY, zones=(A, B, "europe-west4-a", "us-west1-c"))
    caller = GoogleCaller(project=PROJECT, google=google, member=USER)
    read_shortage(caller, ListedQueuedResource(request()), (A, "europe-west4-a"))
    asked = {path.split("/")[4] for path in google.asked if "/locations/" in path}
    assert asked == {A, B, "europe-west4-a"}
    assert not [path for path in google.asked if "acceleratorTypes" in path]


def test_an_accelerator_that_is_not_known_is_unknown():
    assert judged(Google(PLENTY), request(kind="v9z-4")).cause == "unknown"


def test_a_limit_by_region_of_a_quota_by_zone_is_listed_beside_it():
    listed = [limit(us_east5_a=64), limit("region", us_east5=0)]
    assert limits_in(listed, PREEMPTIBLE, A) == {A: 64, "us-east5": 0}
    assert limits_in(listed, PREEMPTIBLE, "europe-west4-a") == {"europe-west4-a": None, "europe-west4": None}
    assert limits_in([limit(us_east5_a=64)], PREEMPTIBLE, A) == {A: 64}
