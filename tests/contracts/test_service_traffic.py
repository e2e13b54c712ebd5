"""Traffic to declare: what Google has while the template stays, and a tag without requests when it changes."""

from contracts.service_traffic import (
    BY_REVISION,
    FOLLOW_LATEST,
    LATEST,
    NEXT_TAG,
    TEMPLATE_LABEL,
    TrafficTarget,
    declared_targets,
    rollout_of,
    targets_of,
    template_fingerprint,
)


def service(traffic, statuses, fingerprint="old"):
    return {"labels": {TEMPLATE_LABEL: fingerprint}, "traffic": traffic, "trafficStatuses": statuses}


PINNED = [
    {"type": BY_REVISION, "revision": "s-1", "percent": 90},
    {"type": BY_REVISION, "revision": "s-2", "percent": 10},
]
DIVIDED = service([*PINNED[:1], {**PINNED[1], "tag": "next"}], [PINNED[0], {**PINNED[1], "tag": "next", "uri": "u"}])


def test_a_service_that_does_not_exist_or_never_served_follows_its_latest_revision():
    assert declared_targets(None, "new") == FOLLOW_LATEST
    failed = service([{"type": LATEST, "percent": 100}], [])
    assert declared_targets(failed, "new") == FOLLOW_LATEST
    assert declared_targets(failed, "old") == FOLLOW_LATEST


def test_the_same_template_leaves_the_traffic_to_the_letter():
    for traffic in (DIVIDED, service([{"type": LATEST, "percent": 100}], [{"percent": 100, "revision": "s-1"}])):
        declared = declared_targets(traffic, "old")
        assert [target.to_api() for target in declared] == traffic["traffic"]


def test_shares_of_the_settings_are_declared_by_name_and_are_no_change_where_google_has_them():
    assert declared_targets(DIVIDED, "old", {"s-1": 90, "s-2": 10}) == targets_of(DIVIDED)
    back = TrafficTarget(revision="s-1", percent=100)
    assert declared_targets(DIVIDED, "old", {"s-1": 100}) == (back,)
    waiting = service([PINNED[0], {"type": LATEST, "tag": "next"}], [{**PINNED[0], "percent": 100}])
    assert declared_targets(waiting, "new", {"s-1": 100}) == (back, TrafficTarget(tag=NEXT_TAG))
    both = {"s-1": 50, "s-0": 50}
    assert [target.to_api() for target in declared_targets(waiting, "old", both)] == [
        {"type": BY_REVISION, "revision": "s-1", "percent": 50},
        {"type": BY_REVISION, "revision": "s-0", "percent": 50},
        {"type": LATEST, "tag": "next"},
    ]
    assert declared_targets(None, "new", {"s-1": 100}) == FOLLOW_LATEST


def test_a_fingerprint_is_a_labels_value_and_depends_on_content_alone():
    assert template_fingerprint({"a": 1, "b": [2]}) == template_fingerprint({"b": [2], "a": 1})
    assert template_fingerprint({"a": 1}) != template_fingerprint({"a": 2})
    assert len(template_fingerprint({})) <= 63


def rolling(shares, latest="s-2", ready=""):
    return {
        "latestCreatedRevision": f"s/revisions/{latest}",
        "latestReadyRevision": f"s/revisions/{ready or latest}",
        "trafficStatuses": [
            {"type": BY_REVISION, "revision": name, "percent": share} for name, share in shares.items()
        ],
    }


def test_one_sentence_names_the_traffic_and_the_next_command_while_a_revision_waits():
    assert rollout_of(rolling({"s-1": 100}), "x") == (
        "waits",
        "Revision s-2 has no traffic yet. To check it and move all traffic to it, run `gemma rollout x`.",
    )
    assert rollout_of(rolling({"s-1": 90, "s-2": 10}), "x") == (
        "waits",
        "Traffic: 90 % s-1, 10 % s-2. To check s-2 and move all traffic to it, run `gemma rollout x`. To roll back, run `gemma rollout x --to s-1`.",
    )
    assert rollout_of(rolling({"s-1": 50, "s-2": 50}, "s-3", "s-2"), "x") == (
        "waits",
        "Traffic: 50 % s-1, 50 % s-2. To roll back, run `gemma rollout x --to s-1`.",
    )
    assert rollout_of(rolling({"s-2": 100}), "x") == ("none", "")
    assert rollout_of(rolling({"s-1": 100}, "s-2", "s-1"), "x") == ("none", "")
    assert rollout_of(rolling({"s-1": 90}), "x") == ("unknown", "")
    assert rollout_of({}, "x") == ("none", "")
