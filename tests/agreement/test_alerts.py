"""The alerts that a stack declares are those that fired in the local cloud's tests, and its collector writes the labels that they select."""

import json
from fnmatch import fnmatchcase

import pytest

from gemma_serving.components.observability import Observability, ObservabilityArgs
from gemma_serving.contracts.alerts import AlertValues, alerts_of, every_alert
from gemma_serving.contracts.collector import (
    AGENT_METRICS_PORT,
    COLLECTOR_IMAGE,
    COLLECTOR_REPOSITORY,
    collector_config,
)
from gemma_serving.contracts.machine_log import MACHINE_RESOURCE, machine_log_name
from localcloud.ledger.entries import load
from localcloud.running.shims.collector import is_collector
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT, Client
from localcloud.tests.rules.alert_cases import CASES
from localcloud.tests.rules.collector_config import targets
from localcloud.world.scenario import Images
from tests.discovery_rules import sent_in

VALUES = AlertValues(
    stack="x", name="g", ttft_s=2.5, ttft_goal=0.99, idle_s=1800, ready_s=3600, usd_per_hour=1.5, daily_usd=3.0
)
ON_RUN = {
    "cloud.account.id": "tenant",
    "cloud.region": "us-east4",
    "faas.instance": "0a1b",
}
ON_MACHINE = {"cloud.account.id": "tenant", "cloud.availability_zone": "us-east5-b"}


def test_every_alert_that_a_stack_declares_fired_with_its_expression_and_duration():
    conditions = [condition for alert in every_alert() if not alert.pattern for condition in alert.conditions]
    declared = {(VALUES.replace_in(each.expression), VALUES.replace_in(each.hold)) for each in conditions}
    assert declared == {(case.expression, f"{case.for_s}s") for case in CASES}


@pytest.mark.parametrize(
    ("ports", "detected", "cluster", "location"),
    [((8000,), ON_RUN, "__run__", "us-east4"), ((8000, AGENT_METRICS_PORT), ON_MACHINE, "tpu", "us-east5-b")],
    ids=["Cloud Run", "TPU"],
)
def test_the_collector_writes_to_the_stacks_project_under_the_name_that_alerts_select(
    ports, detected, cluster, location
):
    text = collector_config(project="mine", namespace="g", cluster=cluster, ports=ports, interval_s=60)
    found = targets(text, detected)
    assert [(each.host, each.port, each.interval_s) for each in found] == [("127.0.0.1", port, 60) for port in ports]
    for each in found:
        assert each.resource["project_id"] == "mine", "a TPU machine is in Google's project"
        assert (each.resource["namespace"], each.resource["cluster"]) == ("g", cluster)
        assert each.resource["location"] == location
        assert each.resource["instance"] == detected.get("faas.instance", f"127.0.0.1:{each.port}")
    assert [each.resource["job"] for each in found] == ["vllm", "agent"][: len(ports)]
    assert json.loads(text)["service"]["pipelines"]["metrics"]["exporters"] == ["googlemanagedprometheus"]


def test_the_collectors_image_is_the_one_that_the_local_cloud_knows():
    digest = COLLECTOR_IMAGE.partition("@")[2]
    assert is_collector(COLLECTOR_IMAGE)
    assert f"{COLLECTOR_REPOSITORY}:0.135.0@{digest}" in Images().existing


@pytest.fixture(
    params=[
        ("cloud-run", 'resource.type="cloud_run_revision" AND resource.labels.service_name="g"'),
        ("tpu", f'logName="{machine_log_name(PROJECT)}" AND resource.type="{MACHINE_RESOURCE}"'),
    ],
    ids=["Cloud Run", "TPU"],
)
def bodies(request, declare, ownership):
    """Versions, messages and bodies of what the component declares, without the channels that Google names."""
    target, log_filter = request.param
    args = ObservabilityArgs(
        project=PROJECT,
        ownership=ownership,
        labels={"team": "ml"},
        values=VALUES,
        alerts=[*alerts_of(target, collects=True, has_budget=True), *alerts_of("gateway")],
        log_filter=log_filter,
        has_dashboard=True,
        email="a@example.com",
        webhook="https://alerts.example.com/x?token=y",
    )
    recorder, _ = declare(lambda: Observability("alerts", args).policies)
    api = {"notificationChannel": "NotificationChannel", "alertPolicy": "AlertPolicy"}
    found = [
        ("v3", message, {key: value for key, value in each.inputs.items() if key not in {"project", "notificationChannels"}})
        for kind, message in api.items()
        for each in recorder.all(kind)
    ]  # fmt: skip
    drawn = json.loads(recorder.one("monitoring/dashboard").inputs["dashboardJson"])
    return [*found, ("v1", "Dashboard", drawn)]


COLLECTIONS = {
    "NotificationChannel": "notificationChannels",
    "AlertPolicy": "alertPolicies",
    "Dashboard": "dashboards",
}


def test_the_local_cloud_accepts_every_policy_channel_and_dashboard_of_a_stack(bodies):
    assert {message for _, message, _ in bodies} == set(COLLECTIONS)
    with idle_cloud.start() as cloud:
        client = Client(cloud.base_url, cloud.token)
        for version, message, body in bodies:
            client.ok("POST", f"/monitoring/{version}/projects/{PROJECT}/{COLLECTIONS[message]}", body)


def test_no_policy_channel_or_dashboard_sends_a_field_whose_rules_are_listed_as_unsent(bodies):
    sent = {field for version, message, body in bodies for field in sent_in(f"monitoring.{version}", message, body)}
    assert {"monitoring.v1 Tile.height", "monitoring.v3 LogMatch.filter"} <= sent
    for entry in load().not_modelled:
        assert [field for field in sent for pattern in entry.unsent if fnmatchcase(field, pattern)] == [], entry.id
