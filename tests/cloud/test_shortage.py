"""Quota, stock or unknown: only what was read decides, and what was not read is unknown."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.cloud import offers, shortage
from gemma_serving.cloud.caller import USER, GoogleCaller
from gemma_serving.cloud.capacity import ListedQueuedResource
from gemma_serving.cloud.quotas import limits_in, tpu_quota
from gemma_serving.cloud.shortage import OtherRequest, QuotaRead, read_shortage
from gemma_serving.contracts.three_answers import Present, Unknown
from localcloud.tests.google_bodies import google_answer
from tests.laws import examples

PROJECT = "p"
A, B = "us-east5-a", "us-east5-b"
PREEMPTIBLE, STANDARD = tpu_quota("v6e-4", "spot"), tpu_quota("v6e-4", "standard")
NO_STOCK = 'There is no more capacity in the zone "Z"; you can try in another zone'
NO_QUOTA = "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region us-east5."
TOO_FAST = "Quota exceeded for quota metric 'Create requests' and limit 'Create requests per minute' of service 'tpu'"
EXPIRED = "The queued resource could not be fulfilled by its valid-until time."
WORDS = {"": "", NO_STOCK: "stock", NO_QUOTA: "quota", TOO_FAST: "", EXPIRED: "", "there was no capacity in time": ""}
"""What Google says of a request that failed, and the cause that the words name."""
READS = st.lists(st.tuples(st.sampled_from([None, 0, 3, 4, 64]), st.sampled_from([None, 0, 60, 61])), max_size=2)
OTHERS = st.lists(
    st.tuples(st.sampled_from([A, B, "europe-west4-a", "us-west1-c"]), st.sampled_from(["", NO_QUOTA])), max_size=5
)


def answer(value):
    return Unknown("denied") if value is None else Present(value)


def is_enough(limit, used):
    """Return whether a quota allows four chips more; None if what was read does not tell."""
    return None if limit is None or (limit >= 4 and used is None) else limit - (used or 0) >= 4


@settings(max_examples=examples(test=200, part=1000, night=10_000))
@given(
    st.sampled_from(["ACCEPTED", "WAITING_FOR_RESOURCES", "CREATING", "FAILED"]),
    st.sampled_from([*WORDS]),
    READS,
    st.sampled_from([A, "europe-west4-a"]),
    OTHERS,
)
@example("FAILED", NO_STOCK, [(0, 0)], A, [])
@example("ACCEPTED", "", [(64, 0)], A, [(B, NO_QUOTA)])
@example("ACCEPTED", "", [(64, 0)], "europe-west4-a", [(B, NO_QUOTA)])
def test_only_googles_words_or_every_fact_of_a_quota_names_a_cause(state, words, drawn, zone, answers):
    """Google has no words for a wait: one quota that is enough means stock, and quotas that are all too low mean quota."""
    reads = [
        QuotaRead(quota=PREEMPTIBLE, place=zone, limit=answer(limit), used=answer(used), needed=4)
        for limit, used in drawn
    ]
    others = [OtherRequest(zone=at, state="FAILED" if said else "ACTIVE", words=said) for at, said in answers]
    found = shortage.shortage(state, words, reads, zone, others)
    enough = {is_enough(*one) for one in drawn}
    is_allowed = True if True in enough else False if enough == {False} else None
    if words == EXPIRED or (not words and state in {"ACCEPTED", "WAITING_FOR_RESOURCES"}):
        is_contradicted = zone == A and any(said for _, said in answers)
        cause = {True: "unknown" if is_contradicted else "stock", False: "quota", None: "unknown"}[is_allowed]
    else:
        cause = "unknown" if words == NO_STOCK and is_allowed is False else WORDS[words] or "unknown"
    assert found.cause == cause
    assert (words.rstrip(".") or f"Google gives no reason for {state}") in found.evidence[0]
    assert all(f"quota {one.quota.quota_id}" in found.sentence for one in reads)
    shown = [other.sentence for other in others if other.zone != zone]
    more = [f"{len(shown) - 3} more in other zones"] * (len(shown) > 3)
    quotas = max(1, len(reads)) + (words == "there was no capacity in time")
    assert [*found.evidence[1 + quotas :]] == [*shown[:3], *more]


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
