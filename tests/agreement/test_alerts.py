"""The alerts of stacks: the golden file holds each policy as declared, the local cloud accepts it, and its rule tests judge the expressions."""

import json
from fnmatch import fnmatchcase
from types import SimpleNamespace

import pytest
import yaml

from gemma_serving.contracts.alerts import every_alert
from gemma_serving.contracts.collector import AGENT_JOB, AGENT_METRICS_PORT, COLLECTOR_IMAGE, COLLECTOR_REPOSITORY
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.cost.subject import examine
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.observability import collector_text, declare_alerts
from gemma_serving.stacks.planned import to_question
from gemma_serving.stacks.server_command import PORT
from localcloud.ledger.entries import load
from localcloud.running.shims.collector import is_collector
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT, Client
from localcloud.world.scenario import Images
from tests.agreement.simulated_stacks import ROOT
from tests.discovery_rules import sent_in
from tests.golden import golden, if_meant

GOLDEN = ROOT / "packages" / "localcloud" / "tests" / "rules" / "policies.golden.yaml"
TO_BOTH = {"email": "a@example.com", "webhook": "https://alerts.example.com/x?token=y"}
STACKS = {
    "tpu": (
        "tpu-v6e1",
        {
            "alerts": {**TO_BOTH, "policies": "all", "idle": "30m", "dailyCost": 6.48},
            "tpu": {"provisioning": ["flex-start", "spot", "standard"]},
        },
    ),
    "cloud-run": (
        "l4-12b-qat",
        {"alerts": {"policies": "all"}, "metrics": {"enabled": True}, "cloudRun": {"cpu": 6, "memory": "17Gi"}},
    ),
}
"""Stacks with every alert of their target. The price in an alert is the highest of the forms that may be requested."""
COLLECTIONS = {
    "NotificationChannel": "notificationChannels",
    "AlertPolicy": "alertPolicies",
    "Dashboard": "dashboards",
}


@pytest.fixture
def context(ownership, tmp_path):
    """Return what the alerts and the collector of a target's stack are declared from."""

    def of(target):
        stack, changes = STACKS[target]
        config = yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]
        for block, values in changes.items():
            config[f"gemma-serving:{block}"] = {**config.get(f"gemma-serving:{block}", {}), **values}
        path = tmp_path / "Pulumi.x.yaml"
        path.write_text(yaml.safe_dump({"config": config}))
        settings, names = from_file(path, project=PROJECT), Names(project=PROJECT, stack="x")
        subject = examine(to_question(settings))
        return SimpleNamespace(settings=settings, subject=subject, names=names, ownership=ownership)

    return of


@pytest.fixture
def declared(context, declare):
    """Return what a stack of a target declares."""

    def of(target):
        found = context(target)
        return declare(lambda: declare_alerts(found, SimpleNamespace(options=None)))[0]

    return of


def requests(recorder):
    """Return version, message and body of each request, without the channels of a policy, which Google names."""
    found = []
    for message, kind in (("NotificationChannel", "notificationChannel"), ("AlertPolicy", "alertPolicy")):
        for each in recorder.all(kind):
            left_out = {"project", "notificationChannels"}
            found.append(("v3", message, {key: value for key, value in each.inputs.items() if key not in left_out}))
    return found + [("v1", "Dashboard", json.loads(each.inputs["dashboardJson"])) for each in recorder.all("dashboard")]


def test_each_policy_is_the_one_in_the_golden_file(declared, ownership):
    policies = {}
    for target in STACKS:
        recorder = declared(target)
        found = {"NotificationChannel": [], "AlertPolicy": [], "Dashboard": []}
        for _, message, body in requests(recorder):
            labels = body.pop("labels" if message == "Dashboard" else "userLabels")
            assert labels == ownership.labels, "a teardown finds it by its labels"
            found[message].append(body)
        told = {len(each.inputs["notificationChannels"]) for each in recorder.all("alertPolicy")}
        assert told == {len(found["NotificationChannel"])}
        policies[target] = {
            "channels": sorted(found["NotificationChannel"], key=lambda body: body["displayName"]),
            "policies": sorted(found["AlertPolicy"], key=lambda body: body["displayName"]),
        }
    text = yaml.safe_dump(policies, width=10_000)
    assert text == golden(GOLDEN, text), if_meant()
    titles = {(target, each["displayName"]) for target, found in policies.items() for each in found["policies"]}
    assert titles == {(target, f"gemma-x: {alert.title}") for alert in every_alert() for target in alert.targets}


@pytest.mark.parametrize("target", STACKS)
def test_the_local_cloud_accepts_every_policy_channel_and_dashboard_of_a_stack(declared, target):
    with idle_cloud.start() as cloud:
        client = Client(cloud.base_url, cloud.token)
        for version, message, body in requests(declared(target)):
            client.ok("POST", f"/monitoring/{version}/projects/{PROJECT}/{COLLECTIONS[message]}", body)


def test_no_policy_channel_or_dashboard_sends_a_field_whose_rules_are_listed_as_unsent(declared):
    bodies = [body for target in STACKS for body in requests(declared(target))]
    sent = {field for version, message, body in bodies for field in sent_in(f"monitoring.{version}", message, body)}
    assert {"monitoring.v1 Tile.height", "monitoring.v3 LogMatch.filter"} <= sent
    for entry in load().not_modelled:
        assert [field for field in sent for pattern in entry.unsent if fnmatchcase(field, pattern)] == [], entry.id


@pytest.mark.parametrize(
    ("target", "cluster", "jobs"),
    [("cloud-run", "__run__", {"vllm": PORT}), ("tpu", "tpu", {"vllm": PORT, AGENT_JOB: AGENT_METRICS_PORT})],
)
def test_the_collector_writes_to_the_stacks_project_under_the_name_that_alerts_select(context, target, cluster, jobs):
    config = json.loads(collector_text(context(target)))
    labels = {"namespace": "gemma-x", "cluster": cluster}
    scraped = config["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert {job["job_name"]: job["static_configs"] for job in scraped} == {
        job: [{"targets": [f"127.0.0.1:{port}"], "labels": labels}] for job, port in jobs.items()
    }
    processors = config["processors"]
    assert processors["groupbyattrs"]["keys"] == [*labels], "the exporter reads labels of the resource"
    assert processors["resource"]["attributes"] == [
        {"key": "service.instance.id", "from_attribute": "faas.instance", "action": "upsert"},
        {"key": "gcp.project.id", "value": PROJECT, "action": "upsert"},  # a TPU VM is in Google's project
    ]
    assert config["service"]["pipelines"]["metrics"] == {
        "receivers": ["prometheus"],
        "processors": ["resourcedetection", "resource", "groupbyattrs", "batch"],
        "exporters": ["googlemanagedprometheus"],
    }


def test_the_collectors_image_is_the_one_that_the_local_cloud_knows():
    digest = COLLECTOR_IMAGE.partition("@")[2]
    assert is_collector(COLLECTOR_IMAGE)
    assert f"{COLLECTOR_REPOSITORY}:0.135.0@{digest}" in Images().existing
