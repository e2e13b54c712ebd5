"""The provider's table after a wait, with the cause that the quota shows: only requests that waited or expired are judged, and nothing else changes."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gcp_tpu_provider import capacity, refusals
from gcp_tpu_provider.forms import Form
from gemma_serving.cloud.caller import USER, GoogleCaller
from gemma_serving.cloud.quotas import instance_quotas
from gemma_serving.cloud.zone_answers import with_causes
from gemma_serving.planning.settings.tpu import TpuSettings
from tests.cloud.test_shortage import PREEMPTIBLE, PROJECT, STANDARD, Google, limit
from tests.laws import examples

ZONES = ("us-east5-a", "us-east5-b", "europe-west4-a")
QUEUED = (
    "WAITING_FOR_RESOURCES for 30m: the wait for this zone timed out.",
    "ACCEPTED for 5m10s: the total wait timed out.",
    "FAILED: The queued resource could not be fulfilled by its valid-until time.",
)
OTHERS = (
    "PROVISIONING for 1h: the wait for spot timed out.",
    "Google returned 403 PERMISSION_DENIED: not here.",
    "Quota limit 'TPUV6E' has been exceeded. Limit: 0 in zone us-east5-b.",
    "Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted.\n Limit 20800 in region us-central2",
    "FAILED: There is no more capacity in the zone.",
    "the total wait of 1h expired before this zone was requested.",
    "The instance is gone: Google granted no quota or no capacity within the request's time, or another user deleted it.",
)
STEPS = (
    "Zones not tried: add asia-northeast1-b to gemma-serving:tpu.zones.",
    "To see the quota, run `gemma doctor x`.",
)
MODELS = {"spot": PREEMPTIBLE, "standard": STANDARD}
CHIPS = {None: "unknown", 0: "quota", 3: "quota", 64: "stock"}


def table(answers, forms):
    """Return the provider's error about these answers, by zone and form."""
    listed = [capacity.Refused(zone, answer, form) for (zone, form), answer in answers.items()]
    order = tuple(Form(form, None, ZONES) for form in forms)
    inputs = {"acceleratorType": "v6e-4"}
    return capacity._table(SimpleNamespace(project=PROJECT, inputs=inputs, forms=order, next_steps=STEPS), listed)


def judged(text, forms, google, api="cloud-tpu"):
    tpu = TpuSettings(accelerator_type="v6e-4", zones=ZONES, provisioning=tuple(forms), api=api)
    return with_causes(text, tpu, lambda: GoogleCaller(project=PROJECT, google=google, member=USER))


def unread():
    pytest.fail("nothing was to be read")


@settings(max_examples=examples(test=60, part=300, night=2_000), deadline=None)
@given(
    forms=st.sampled_from([["flex-start"], ["spot", "standard"]]),
    chips=st.fixed_dictionaries({(zone, model): st.sampled_from(list(CHIPS)) for zone in ZONES for model in MODELS}),
    data=st.data(),
)
def test_a_request_that_waited_is_judged_by_its_quota_and_all_else_stays(forms, chips, data):
    places = [(zone, form) for form in forms for zone in ZONES]
    answers = {place: data.draw(st.sampled_from(QUEUED + OTHERS)) for place in places}
    limits = {
        quota.metric: [
            limit(**{zone.replace("-", "_"): chips[zone, model] for zone in ZONES if chips[zone, model] is not None})
        ]
        for model, quota in MODELS.items()
    }
    google, before = Google(limits), table(answers, forms)
    kinds = {
        (zone, form): CHIPS[chips[zone, "standard" if form == "standard" else "spot"]]
        if answer in QUEUED
        else refusals.kind(answer)
        for (zone, form), answer in answers.items()
    }
    after = judged(before, forms, google)
    assert after.splitlines()[0] == before.splitlines()[0]
    for (zone, form), answer in answers.items():
        start = f"{zone} {form}" if len(forms) > 1 else zone
        (line,) = (one for one in after.splitlines() if one.startswith(f"  {start} "))
        kind, _, said = line.removeprefix(f"  {start}").strip().partition(": ")
        first = answer.splitlines()[0]
        assert (kind, said.startswith(first)) == (kinds[zone, form], True)
        if answer in QUEUED:
            assert f" in {zone}" in said.removeprefix(f"{first} Quota TPUV6E")
        else:
            assert said == first
    advised = [why for why in refusals.meanings() if why in {*kinds.values()}]
    rest = after.splitlines()[-len(advised) - len(STEPS) :]
    assert [line.partition(":")[0] for line in rest[: len(advised)]] == advised
    assert tuple(rest[len(advised) :]) == STEPS
    if not any(answer in QUEUED for answer in answers.values()):
        assert (after, google.asked) == (before, [])


def test_a_table_without_a_wait_needs_no_login():
    text = table({("us-east5-a", "spot"): OTHERS[0]}, ["spot"])
    tpu = TpuSettings(accelerator_type="v6e-4", zones=ZONES)
    for other in (text, "The server failed: boom", ""):
        assert with_causes(other, tpu, unread) == other


@pytest.mark.parametrize(("preemptible", "family", "cause"), [(0, 0, "quota"), (64, 0, "unknown"), (0, 64, "unknown")])
def test_an_instance_can_draw_on_two_quotas_of_its_region_and_is_never_for_stock(preemptible, family, cause):
    first, second = instance_quotas("v6e-4", "flex-start")
    limits = {first.metric: preemptible, second.metric: family}
    google = Google({name: [limit("region", us_east5=count)] for name, count in limits.items()})
    text = judged(
        table({("us-east5-b", "flex-start"): QUEUED[0]}, ["flex-start"]), ["flex-start"], google, "compute-engine"
    )
    _, line, *_ = text.splitlines()
    assert line.startswith(
        f"  us-east5-b  {cause}: {QUEUED[0]} Quota {first.quota_id}: {preemptible} chips in us-east5, "
    )
    assert f"; quota {second.quota_id}: {family} chips in us-east5, " in line
    assert not [path for path in google.asked if "/locations/" in path]


def test_a_quota_that_may_not_be_read_stays_unknown_with_the_reason():
    google = Google({PREEMPTIBLE.metric: [limit(us_east5_a=64)]}, fails="consumerQuotaMetrics")
    text = judged(table({("us-east5-a", "flex-start"): QUEUED[0]}, ["flex-start"]), ["flex-start"], google)
    assert f"  us-east5-a  unknown: {QUEUED[0]} Quota {PREEMPTIBLE.quota_id} in us-east5-a is unknown (" in text
    assert "denied" in text


@pytest.mark.parametrize(("region", "cause"), [(0, "quota"), (64, "unknown"), (-1, "stock")])
def test_a_limit_of_the_region_counts_and_its_use_is_not_read(region, cause):
    google = Google({PREEMPTIBLE.metric: [limit(us_east5_a=64), limit("region", us_east5=region)]})
    text = judged(table({("us-east5-a", "flex-start"): QUEUED[0]}, ["flex-start"]), ["flex-start"], google)
    assert text.splitlines()[1].startswith(f"  us-east5-a  {cause}: ")
