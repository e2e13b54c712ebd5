"""A request that waits or fails says quota, stock or unknown, by the real commands: quota 0, no stock, and a quota that may not be read."""

import signal

import pytest

from tests.engine.conftest import FAILURE, open_workspace, until

STACK = "tpu-v6e1-e4b"
A, B = "us-east5-a", "us-east5-b"
PREEMPTIBLE = "TPUV6EPreemptiblePerProjectPerZoneForTPUAPI"
UNREADABLE = [{"method": "serviceusage.services.consumerQuotaMetrics.*", "status": 403, "count": 100_000}]
DRY = {form: {"chips": 0} for form in ("FLEX_START", "SPOT", "STANDARD")}

pytestmark = [pytest.mark.engine, pytest.mark.long]


def world(workspace, *, preemptible=64, standard=64, without_quota="fails", faults=()):
    """Let both zones have no stock, and these quotas of chips."""
    zone = {
        "accelerator_types": ["v6e-1"],
        "flex_start": True,
        "stock": DRY,
        "preemptible_quota_chips": preemptible,
        "quota_chips": standard,
    }
    workspace.change_scenario(
        {"tpu": {"zones": {A: zone, B: zone}, "without_quota": without_quota}, "faults": list(faults)}
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    with open_workspace(tmp_path_factory.mktemp("quota")) as opened:
        opened.pulumi("stack", "init", STACK)
        opened.configure(STACK, **{"tpu.zones": [A, B], "tpu.provisioning": ["flex-start", "spot", "standard"]})
        yield opened


def shortage(workspace):
    (stack,) = workspace.script("status", "--stack", STACK, "--json", expect=None).json["stacks"]
    return stack["cloud"]["shortage"]


def test_status_and_capacity_name_what_a_waiting_request_lacks(workspace):
    world(workspace)
    workspace.wait_for_capacity(STACK)
    waiting = workspace.begin_up(STACK)

    def is_waiting():
        listed = workspace.get("tpu", f"v2alpha1/projects/local-project/locations/{A}/queuedResources")
        states = [item["state"]["state"] for item in listed.get("queuedResources", ())]
        return states == ["WAITING_FOR_RESOURCES"] and workspace.state_file(STACK).exists()

    try:
        until(is_waiting, "the request waits")
        found = shortage(workspace)
        assert found["cause"] == "stock"
        assert f"quota {PREEMPTIBLE}: 64 chips in {A}, 0 used by others, 1 needed" in found["evidence"]
        printed = workspace.script("status", "--stack", STACK, expect=None).out
        assert "  cause    stock: Google gives no reason for WAITING_FOR_RESOURCES; quota" in printed
        places = workspace.script("capacity", "--stack", STACK, "--json").json["locations"]
        here = next(place for place in places if place["location"] == A)
        answers = {form["form"]: form["last_answer"] for form in here["forms"]}
        assert (answers["flex-start"]["state"], answers["flex-start"]["cause"]) == ("WAITING_FOR_RESOURCES", "stock")
        assert answers["spot"] is None
        # Another owner's quota is 0: the request's own form decides.
        world(workspace, standard=0)
        assert shortage(workspace)["cause"] == "stock"
        world(workspace, preemptible=0)
        assert shortage(workspace)["cause"] == "quota"
        world(workspace, faults=UNREADABLE)
        assert shortage(workspace)["cause"] == "unknown"
    finally:
        waiting.send_signal(signal.SIGINT)
        waiting.wait()


@pytest.mark.parametrize(
    ("changes", "causes"),
    [
        ({}, {"flex-start": "stock", "spot": "stock", "standard": "stock"}),
        ({"preemptible": 0}, {"flex-start": "quota", "spot": "quota", "standard": "stock"}),
        ({"standard": 0}, {"flex-start": "stock", "spot": "stock", "standard": "quota"}),
        (
            {"preemptible": 0, "without_quota": "waits"},
            {"flex-start": "quota", "spot": "quota", "standard": "stock"},
        ),
        ({"faults": UNREADABLE}, dict.fromkeys(("flex-start", "spot", "standard"), "unknown")),
    ],
)
def test_up_ends_with_the_cause_of_each_zone_and_form(workspace, changes, causes):
    world(workspace, **changes)
    workspace.configure(STACK, **{"tpu.waitPerZone": "3s"})
    shown = workspace.script("up", "--stack", STACK, "--yes", expect=FAILURE).text
    for zone in (A, B):
        for form, cause in causes.items():
            assert f"{zone} {form:<10}  {cause}: " in shown, shown
    if causes["flex-start"] == "stock":
        assert f"Quota {PREEMPTIBLE}: 64 chips in {A}, 0 used by others, 1 needed." in shown
    is_short = "quota" in causes.values()
    assert ("A request there can only wait or fail." in shown) == is_short
    assert not workspace.made("queuedResources/")


def test_pulumi_up_names_the_command_that_reads_the_quota(workspace):
    world(workspace, preemptible=0, standard=0, without_quota="waits")
    workspace.configure(STACK, **{"tpu.waitPerZone": "3s"})
    shown = workspace.up(STACK, expect=FAILURE).text
    for zone in (A, B):
        assert f"{zone} flex-start  unknown: WAITING_FOR_RESOURCES for 3s: " in shown, shown
    assert f"To see the quota, run `gemma doctor {STACK}`." in shown
