"""Alerts of a stack, as a local cloud lists them; nothing fires is an answer only if something can."""

import contextlib
import os

import pytest

from gemma_serving.cloud import google_api
from gemma_serving.cloud.alerts import _needs_collector, read_alerts
from gemma_serving.contracts.alerts import AlertValues, every_alert, row_of
from localcloud.environment import API_OVERRIDES
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT, SCENARIO, Client
from tests.cloud.populated import open_world, owner

STACK, NAME = "x", "gemma-x"
VALUES = AlertValues(
    stack=STACK, name=NAME, ttft_s=2.5, ttft_goal=0.99, idle_s=1800, ready_s=3600, usd_per_hour=1.5, daily_usd=3.0
)
HAS_DATA = f'count(last_over_time(up{{namespace="{NAME}"}}[1d]))'


def policy(title, *, stack=STACK, values=VALUES, **changes):
    """An alert policy as components.observability declares it."""
    row = row_of(title)
    if not row.pattern:
        queries = [
            {
                "query": values.replace_in(each.expression),
                "duration": values.replace_in(each.hold),
                "disableMetricValidation": True,
            }
            for each in row.conditions
        ]
        conditions = [{"displayName": title, "conditionPrometheusQueryLanguage": query} for query in queries]
    else:
        conditions = [{"displayName": title, "conditionMatchedLog": {"filter": f'textPayload=~"{row.pattern}"'}}]
    return {
        "displayName": f"{values.name}: {title}",
        "combiner": "OR",
        "severity": "CRITICAL" if not row.pattern and row.severity == "page" else "WARNING",
        "userLabels": dict(owner(stack).labels),
        "documentation": {"content": f"{row.meaning}\n\nmore", "mimeType": "text/markdown"},
        "conditions": conditions,
        **({"alertStrategy": {"notificationRateLimit": {"period": "300s"}}} if row.pattern else {}),
        **changes,
    }


@contextlib.contextmanager
def pointed_at(cloud):
    """Point this process at a local cloud, as an operator."""
    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(("GOOGLE_", "CLOUDSDK_"))]:
        del os.environ[name]
    os.environ |= {
        f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{cloud.base_url}/{path}" for api, path in API_OVERRIDES.items()
    }
    os.environ["GOOGLE_OAUTH_ACCESS_TOKEN"] = cloud.cloud.tokens.issue_access_token(cloud.cloud.operator)
    try:
        yield google_api.connect(PROJECT)
    finally:
        os.environ.clear()
        os.environ.update(before)


class World:
    """A local cloud with policies, and the alerts that are set as theirs."""

    def __init__(self, cloud, api):
        self._client, self._api = Client(cloud.base_url, cloud.token), api

    def read(self, **more):
        return read_alerts(self._api, stack=STACK, project=PROJECT, **more)

    def add(self, *words, **more):
        path = f"/monitoring/v3/projects/{PROJECT}/alertPolicies"
        return self._client.ok("POST", path, policy(*words, **more))["name"]

    def set(self, *alerts, data=1, **queries):
        self._client.ok("POST", "/admin/alerts", {"alerts": alerts, "queries": {HAS_DATA: data, **queries}})


@pytest.fixture
def world():
    with idle_cloud.start(scenario=SCENARIO) as cloud, pointed_at(cloud) as api:
        yield World(cloud, api)


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


def test_what_cannot_be_read_is_unknown_with_the_way_out(monkeypatch):
    with open_world() as world:
        empty = read_alerts(world.api, stack=STACK, project=PROJECT)
        assert (empty.verdict, empty.policies) == ("unknown", 0)
        assert "so nothing watches it. To create them, run `gemma up x`" in empty.unwatched[0]
        world.call("POST", "monitoring", f"v3/projects/{PROJECT}/alertPolicies", policy("Pressure"))
        not_evaluated = read_alerts(world.api, stack=STACK, project=PROJECT)
        assert (not_evaluated.verdict, not_evaluated.policies) == ("unknown", 1)
        assert not_evaluated.unread == ()
        assert "does not evaluate alert policies" in not_evaluated.unwatched[-1]
        email = world.account("gemma-other", "managed-by=hand")
        token = world.cloud.cloud.tokens.issue_access_token(email)
        monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", token)
        denied = read_alerts(google_api.connect(PROJECT), stack=STACK, project=PROJECT)
        assert (denied.verdict, denied.policies) == ("unknown", None)
        assert denied.unread[0].endswith("You need roles/monitoring.viewer.")
        off = f"v1/projects/{PROJECT}/services/monitoring.googleapis.com:disable"
        world.call("POST", "serviceusage", off, {"disableDependentServices": True})
        found = read_alerts(world.api, stack=STACK, project=PROJECT)
        assert (found.verdict, found.policies) == ("unknown", None)
        assert f"gcloud services enable monitoring.googleapis.com --project={PROJECT}" in found.unread[0]


def test_every_alert_on_the_servers_metrics_is_known_to_need_the_collector():
    assert [_needs_collector(policy_of(row)) for row in every_alert()] == [row.needs_collector for row in every_alert()]


def policy_of(row):
    queries = [{"query": VALUES.replace_in(each.expression)} for each in row.conditions]
    return {"conditions": [{"conditionPrometheusQueryLanguage": query} for query in queries]}
