"""Alerts of a stack, as a local cloud lists them; nothing fires is an answer only if something can."""

import pytest

from gemma_serving.cloud import google_api
from gemma_serving.cloud.alerts import read_alerts
from gemma_serving.contracts.alerts import alerts_of, row_of
from localcloud.tests.conftest import PROJECT, SCENARIO, Client
from localcloud.tests.rules.alert_cases import POLICIES
from tests.cloud.populated import open_world, owner

STACK, NAME = "x", "gemma-x"
HAS_DATA = f'count(last_over_time(up{{namespace="{NAME}"}}[1d]))'


class World:
    """A local cloud with policies, and the alerts that are set as theirs."""

    def __init__(self, opened):
        self.opened = opened
        self._client = Client(opened.cloud.base_url, opened.cloud.token)

    def read(self, **more):
        return read_alerts(self.opened.api, stack=STACK, project=PROJECT, **more)

    def add(self, title, *, stack=STACK, **changes):
        """Create a policy as a TPU stack declares it."""
        (policy,) = (each for each in POLICIES["tpu"]["policies"] if each["displayName"] == f"{NAME}: {title}")
        body = {**policy, "userLabels": dict(owner(stack).labels), **changes}
        return self._client.ok("POST", f"/monitoring/v3/projects/{PROJECT}/alertPolicies", body)["name"]

    def set(self, *alerts, data=1, **queries):
        self._client.ok("POST", "/admin/alerts", {"alerts": alerts, "queries": {HAS_DATA: data, **queries}})


@pytest.fixture
def world():
    with open_world(SCENARIO) as opened:
        yield World(opened)


def test_an_overload_fires_with_its_command_until_it_ends_and_another_stacks_alert_does_not(world):
    mine, _ = (world.add(title) for title in ("Pressure", "HTTP errors"))
    theirs = world.add("Pressure", stack="y", notificationChannels=[])
    opened = "2026-11-20T08:00:00.000000Z"
    world.set({"policy": mine, "openTime": opened}, {"policy": theirs})
    found = world.read()
    assert (found.verdict, found.policies, found.unread, found.unwatched) == ("fires", 2, (), ())
    (alert,) = found.firing
    assert (alert.title, alert.severity, alert.opened, alert.closed) == ("Pressure", "ticket", opened, None)
    assert alert.command == "gemma plan x"
    assert alert.runbook == "docs/observability.md#pressure"
    assert alert.meaning == row_of("Pressure").meaning
    world.set({"policy": mine, "openTime": opened, "state": "CLOSED"})
    ended = world.read(has_closed=True)
    assert (ended.verdict, list(ended.firing)) == ("silent", [])
    assert list(world.read().closed) == [], "closed alerts are read only if asked for"
    assert [each.opened for each in ended.closed] == [opened]
    assert ended.closed[0].closed > opened


def test_a_machine_that_no_longer_reports_is_not_silent_although_it_did_an_hour_ago(world):
    for title in ("Not ready", "Restart loop"):
        world.add(title)
    world.set(**{HAS_DATA.replace("[1d]", "[10m]"): None})
    found = world.read()
    assert found.verdict == "unknown"
    assert found.unwatched[0].startswith(
        "No metrics of the server arrived in the last 10 minutes, so alerts that read them (1)"
    )
    world.set(**{HAS_DATA.replace("[1d]", "[10m]"): 1})
    assert world.read().verdict == "silent"


def test_policies_that_are_disabled_or_deleted_cannot_fire(world):
    world.add("Pressure", enabled=False)
    world.set()
    (disabled,) = world.read().unwatched
    assert disabled.startswith("Disabled, so they cannot fire: Pressure.")
    deleted = world.read(declared=3).unwatched[0]
    assert deleted.startswith("2 of the 3 alert policies in the state no longer exist.")


def test_alerts_of_log_lines_need_no_collector_and_the_note_says_what_is_not_watched(world, monkeypatch):
    monkeypatch.setenv("LOCALCLOUD_URL", "http://127.0.0.1")
    world.add("Engine fatal")
    world.set()
    found = world.read()
    assert found.verdict == "silent"
    assert [note.partition(" ")[0] for note in found.notes] == ["Without", "The", "The"]
    assert "does not evaluate alerts" in found.notes[-1]


def test_what_cannot_be_read_is_unknown_with_the_way_out(world, monkeypatch):
    empty = world.read()
    assert (empty.verdict, empty.policies) == ("unknown", 0)
    assert "so nothing watches it. To create them, run `gemma up x`" in empty.unwatched[0]
    world.add("Pressure")
    not_evaluated = world.read()
    assert (not_evaluated.verdict, not_evaluated.policies) == ("unknown", 1)
    assert not_evaluated.unread == ()
    assert "does not evaluate alert policies" in not_evaluated.unwatched[-1]
    assert "Google" not in not_evaluated.unwatched[-1]  # whose words they are not
    opened = world.opened
    email = opened.account("gemma-other", "managed-by=hand")
    token = opened.cloud.cloud.tokens.issue_access_token(email)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", token)
    denied = read_alerts(google_api.connect(PROJECT), stack=STACK, project=PROJECT)
    assert (denied.verdict, denied.policies) == ("unknown", None)
    assert denied.unread[0].endswith(
        f"{PROJECT} --member=user:YOUR_EMAIL --role=roles/serviceusage.serviceUsageConsumer`."
    )
    off = f"v1/projects/{PROJECT}/services/monitoring.googleapis.com:disable"
    opened.call("POST", "serviceusage", off, {"disableDependentServices": True})
    found = world.read()
    assert (found.verdict, found.policies) == ("unknown", None)
    assert f"gcloud services enable monitoring.googleapis.com --project={PROJECT}" in found.unread[0]


def test_every_alert_on_the_servers_metrics_is_known_to_need_the_collector(world):
    every = list(alerts_of("tpu", collects=True, has_budget=True, has_all=True))
    for alert in every:
        world.add(alert.title)
    world.set(**{HAS_DATA.replace("[1d]", "[10m]"): None})
    needing = [alert for alert in every if alert.needs_collector and alert.title != "Not ready"]
    assert f"alerts that read them ({len(needing)}) cannot fire" in world.read().unwatched[0]
