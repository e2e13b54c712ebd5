"""The traffic of a service as Google returns it: complete, incomplete, and by a name or by the latest revision."""

from gemma_serving.cloud.service_traffic import known_shares, serving_shares, shares_text

BY_REVISION = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"
LATEST = "TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST"


def service(shares, ready="s-2"):
    statuses = [{"type": BY_REVISION, "revision": name, "percent": share} for name, share in shares.items()]
    return {"latestReadyRevision": f"s/revisions/{ready}", "trafficStatuses": statuses}


def test_shares_are_listed_by_revision_with_the_largest_first():
    shares = known_shares(service({"s-1": 10, "s-2": 90}))
    assert list(shares.items()) == [("s-2", 90), ("s-1", 10)]
    assert shares_text(shares) == "90 % s-2, 10 % s-1"


def test_traffic_without_a_name_is_that_of_the_latest_ready_revision():
    latest = {"latestReadyRevision": "s/revisions/s-2", "trafficStatuses": [{"type": LATEST, "percent": 100}]}
    assert serving_shares(latest) == {"s-2": 100}


def test_an_incomplete_split_is_unknown_and_a_service_that_never_served_has_none():
    assert known_shares(service({"s-1": 90})) is None
    assert known_shares({}) == {}
