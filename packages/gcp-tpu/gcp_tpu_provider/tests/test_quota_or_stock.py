"""The table after a wait says for each zone and form whether quota or stock was missing, and unknown if nothing that was read tells."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gcp_tpu_provider.errors import ProjectError
from gcp_tpu_provider.http_transport import google_error
from gcp_tpu_provider.refusals import (
    PERMISSION,
    QUOTA,
    STOCK,
    UNKNOWN,
    QuotaEvidence,
    kind,
    read,
    rows,
)
from gcp_tpu_provider.tests.cloud import FakeTpu
from gcp_tpu_provider.tests.harness import Aborted, FakeEngine, wanted
from gcp_tpu_provider.tests.test_forms import DRY, OUT_OF_STOCK, ordered
from gcp_tpu_provider.transport import Pacing

A, B = "us-east5-a", "us-east5-b"
PREEMPTIBLE, STANDARD = "tpu.googleapis.com/tpu-v6e-preemptible", "tpu.googleapis.com/tpu-v6e"
ID = "Quota TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"


def limits(by_place: Mapping[str, int], dimension: str = "zone") -> dict[str, Any]:
    """Return a limit of a metric with a bucket for each place."""
    buckets = [{"dimensions": {dimension: place}, "effectiveLimit": str(chips)} for place, chips in by_place.items()]
    return {"unit": f"1/{{project}}/{{{dimension}}}", "quotaBuckets": buckets}


def metric(*listed: Mapping[str, Any]) -> dict[str, Any]:
    return {"consumerQuotaLimits": list(listed)}


def table(
    quotas: Mapping[str, dict[str, Any]],
    *,
    scripts: Mapping[str, Sequence[str]] | None = None,
    before: Any = None,
    **changes: Any,
) -> dict[str, str]:
    """Return the line of each place after an `up` in which no zone granted capacity."""
    cloud = FakeTpu(scripts={A: DRY, B: DRY, **{zone: tuple(script) for zone, script in (scripts or {}).items()}})
    cloud.limits = dict(quotas)
    if before:
        before(cloud)
    engine = FakeEngine(cloud, Pacing())
    with pytest.raises(Aborted) as ended:
        engine.up(changes.pop("inputs", None) or wanted(waitPerZoneS=600, **changes))
    lines = ended.value.message.splitlines()
    shown = [line.split(maxsplit=1) for line in lines if line.startswith("  ")]
    return {zone: " ".join(rest.split()) for zone, rest in shown}


@pytest.mark.parametrize("row", [row for _, row in rows()], ids=lambda row: row["words"][:40])
def test_each_row_is_read_from_its_own_words_and_reason(row: Mapping[str, Any]):
    status = max(row["code"], 400)
    for words, reason in ((row["words"], ""), ("-", row.get("reason", ""))):
        if words == "-" and not reason:
            continue
        assert read(words, reason).meaning == row["meaning"]
        error = google_error(
            status, json.dumps({"error": {"message": words, "errors": [{"reason": reason}]}}), None, "p"
        )
        names = "permission" in read(words, reason).names or row["meaning"] != PERMISSION
        assert isinstance(error, ProjectError) == (read(words, reason).stops and names)
        assert words.rstrip(".") in str(error)
        advice = read(words, reason).advice(project="p")
        assert "{" not in advice
        assert "may not exist" not in words or not read(words, reason).stops or "does not exist" in advice
    assert row["source"]


@pytest.mark.parametrize(("enough", "cause"), [(True, STOCK), (False, QUOTA), (None, UNKNOWN)])
def test_a_wait_without_words_is_decided_by_the_quota_alone(enough: bool | None, cause: str):
    assert kind("WAITING_FOR_RESOURCES for 10m: the wait for this zone timed out.", QuotaEvidence(enough, "")) == cause


EXPIRED = ("CREATING", "FAILED:The queued resource could not be fulfilled by its valid-until time")
BOTH = limits({A: 64, B: 64})


@pytest.mark.parametrize("script", [DRY, EXPIRED], ids=["waited", "expired at Google"])
@pytest.mark.parametrize(
    ("quotas", "cause", "evidence"),
    [
        pytest.param(
            [limits({A: 64})], STOCK, f"{ID} allows 64 chips in {A}, others use 0, and 4 are needed.", id="enough"
        ),
        pytest.param([limits({A: 3})], QUOTA, f"{ID} allows 3 chips in {A}, but 4 are needed.", id="too little"),
        pytest.param([limits({B: 64})], UNKNOWN, f"no limit of {PREEMPTIBLE} for {A}", id="of another zone"),
        pytest.param(None, UNKNOWN, "Its quota is unknown: Google returned 403", id="may not be read"),
        # A zone's quota of 64 and a region's of 0: marin-community/marin#1612.
        pytest.param(
            [BOTH, limits({"us-east5": 0}, "region")],
            QUOTA,
            "allows 0 chips in us-east5, but 4 are needed.",
            id="none in the region",
        ),
        pytest.param([BOTH, limits({"us-east5": 64}, "region")], UNKNOWN, "", id="some in the region"),
        pytest.param([BOTH, limits({"us-east5": -1}, "region")], STOCK, "", id="no limit in the region"),
        pytest.param(
            [BOTH, limits({"europe-west4": 64}, "region")],
            UNKNOWN,
            f"no limit of {PREEMPTIBLE} for us-east5",
            id="of another region",
        ),
    ],
)
def test_a_wait_is_for_stock_only_if_the_quotas_of_zone_and_region_allow_it(
    quotas: Sequence[Mapping[str, Any]] | None, cause: str, evidence: str, script: Sequence[str]
):
    line = table({PREEMPTIBLE: metric(*quotas)} if quotas else {}, scripts={A: script})[A]
    words = "WAITING_FOR_RESOURCES for 10m" if script == DRY else f"{EXPIRED[1].replace(':', ': ')}. "
    assert line.startswith(f"{cause}: {words}")
    assert evidence in line


def test_each_form_is_judged_by_its_own_quota():
    quotas = {PREEMPTIBLE: metric(limits({A: 64, B: 64})), STANDARD: metric(limits({A: 0, B: 0}))}
    every = {f"{zone} {model}": DRY for zone in (A, B) for model in ("SPOT", "STANDARD")}
    inputs = ordered({"provisioningModel": "spot", "zones": [A]}, {"provisioningModel": "standard", "zones": [B]})
    lines = table(quotas, scripts=every, inputs=inputs)
    assert lines[A].startswith("spot stock:")
    assert lines[B].startswith("standard quota:")
    assert "Quota TPUV6EPerProjectPerZoneForTPUAPI allows 0 chips" in lines[B]


def other(zone: str, **body: Any):
    """Return what adds another owner's request of 4 chips to a zone."""

    def add(cloud: FakeTpu) -> None:
        cloud.add_stranger(zone, "other", {})
        found = cloud.queued[cloud.name(zone, "other")]
        found.body["tpu"]["nodeSpec"][0]["node"]["acceleratorType"] = "v6e-4"
        found.body.update(body)

    return add


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ({"provisioningModel": "SPOT"}, "quota"),
        ({"provisioningModel": "STANDARD", "spot": {}}, "quota"),
        ({"provisioningModel": "STANDARD"}, "stock"),
        ({"provisioningModel": "RESERVATION_BOUND"}, "stock"),
    ],
)
def test_other_requests_use_the_quota_of_their_own_form(body: Mapping[str, Any], cause: str):
    lines = table({PREEMPTIBLE: metric(limits({A: 7, B: 7}))}, before=other(A, **body))
    assert lines[A].startswith(f"{cause}:")
    assert lines[B].startswith("stock:")


def test_a_node_without_a_request_uses_the_quota_and_one_of_unknown_size_makes_it_unknown():
    def add(cloud: FakeTpu) -> None:
        for zone, size in ((A, {"acceleratorType": "v6e-4"}), (B, {})):
            name = cloud.node_name(zone, "lone")
            cloud.nodes[name] = {"name": name, "schedulingConfig": {"spot": True}, **size}

    lines = table({PREEMPTIBLE: metric(limits({A: 7, B: 7}))}, before=add)
    assert lines[A].startswith("quota:")
    assert lines[B].startswith("unknown:")


def test_words_need_no_quota_and_a_failed_read_never_fails_the_wait():
    def lose(cloud: FakeTpu) -> None:
        cloud.on_call = lambda call: cloud.faults.append(("GET", "503")) if "consumerQuota" in call else None

    lines = table({PREEMPTIBLE: metric(limits({A: 64, B: 64}))}, scripts={A: OUT_OF_STOCK}, before=lose)
    assert lines[A] == "stock: FAILED: There is no more capacity in the zone."
    assert lines[B].startswith("unknown:")


def test_capacity_that_was_granted_and_never_came_is_unknown_although_the_quota_is_enough():
    lines = table({PREEMPTIBLE: metric(limits({A: 64, B: 64}))}, scripts={A: ("CREATING", "PROVISIONING")})
    assert lines[A].startswith("unknown: PROVISIONING for ")
    assert lines[B].startswith("stock:")
