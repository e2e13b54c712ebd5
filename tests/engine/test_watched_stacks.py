"""Stacks with alerts and metrics, with the real CLI: policies and a collector come, change in place, show data, and leave nothing."""

import json
import time

import pytest

from localcloud.rules import program
from tests.engine.conftest import KEY_CANARY

pytestmark = [pytest.mark.engine, pytest.mark.long]
P = "projects/local-project"
KINDS = ("v3/{}/alertPolicies", "v3/{}/notificationChannels", "v1/{}/dashboards")
WATCHED = {"alerts.email": "someone@example.com", "metrics.enabled": "true"}
OFF = "gemma-serving:alerts.enabled"
DENIED = {"method": "monitoring.projects.alertPolicies.create", "status": 403, "count": 999}
LIMIT_S = 120.0


def configure(workspace, stack, **values):
    words = [f"--plaintext=gemma-serving:{key}={value}" for key, value in values.items()]
    workspace.pulumi("config", "set-all", "--path", *words, "--stack", stack)


def monitored(workspace):
    """Policies, channels and dashboards of the project."""
    return [workspace.get("monitoring", path.format(P)).get(path.rpartition("/")[2], []) for path in KINDS]


def collected(workspace, jobs):
    """Wait until the collector's targets answer, and return them by their job."""
    end = time.monotonic() + LIMIT_S
    while True:
        known = workspace.admin("collectors")
        found = {each["labels"]["job"]: each for each in known["targets"]}
        if set(found) == jobs and all(each["address"] for each in found.values()):
            return found
        assert time.monotonic() < end, known
        time.sleep(0.5)


def assert_up(workspace, name, jobs):
    """Each target of the collector has answered, by the query that an alert makes."""
    if program.found() is None:
        return  # python -m localcloud.rules builds what answers queries
    workspace.advance(60)
    query = {"query": f'up{{namespace="{name}"}}'}
    path = f"monitoring/v1/{P}/location/global/prometheus/api/v1/query"
    answer = workspace.post(path, query)["data"]["result"]
    assert {each["metric"]["job"]: each["value"][1] for each in answer} == dict.fromkeys(jobs, "1")


def assert_nothing_left(workspace, stack):
    receipt = workspace.script("teardown", "--stack", stack, "--yes", "--json").json
    assert receipt["clean"] is True
    assert monitored(workspace) == [[], [], []]


def test_a_machine_is_watched_without_a_restart_of_its_server(workspace):
    stack = "tpu-v6e1"
    workspace.pulumi("stack", "init", stack)
    workspace.pulumi("config", "set", "--secret", "gemma-serving:apiKey", KEY_CANARY, "--stack", stack)
    workspace.pulumi("config", "set", "--path", OFF, "false", "--stack", stack)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    assert monitored(workspace) == [[], [], []]
    before = workspace.outputs(stack)
    # Watched by default, the collector included. An account without the roles learns both, and the one setting that does without them.
    workspace.pulumi("config", "rm", "--path", OFF, "--stack", stack)
    configure(workspace, stack, **{"alerts.email": "someone@example.com"})
    workspace.change_scenario({"faults": [DENIED]})
    denied = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack, expect=None)
    assert denied.code != 0
    assert "you need roles/monitoring.editor and roles/logging.configWriter" in denied.text
    assert f"pulumi config set --path {OFF} false --stack {stack}" in denied.text
    workspace.change_scenario({"faults": []})
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    workspace.pulumi("preview", "--expect-no-changes", "--stack", stack)
    policies, channels, dashboards = monitored(workspace)
    assert (len(policies), len(channels), len(dashboards)) == (8, 1, 1)
    assert {len(policy["notificationChannels"]) for policy in policies} == {1}
    collected(workspace, {"vllm", "agent"})
    assert_up(workspace, f"gemma-{stack}", {"vllm", "agent"})
    assert workspace.outputs(stack)["deadline"] == before["deadline"], "the machine is the same"
    configure(workspace, stack, **{"alerts.idle": "2h", "alerts.dailyCost": "20"})
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    changed = json.dumps(monitored(workspace)[0])
    assert ("[2h]" in changed or "[120m]" in changed, "Daily cost" in changed) == (True, True)
    assert_nothing_left(workspace, stack)


def test_a_service_shares_its_instance_with_the_collector(workspace):
    stack = "l4-12b-qat"
    workspace.pulumi("stack", "init", stack)
    configure(workspace, stack, **WATCHED)
    refused = workspace.pulumi("preview", "--stack", stack, expect=None)
    assert "OBS03" in refused.text
    assert "Set cloudRun.cpu: 6, cloudRun.memory: 17Gi" in refused.text
    workspace.pulumi("config", "set", "--secret", "gemma-serving:apiKey", KEY_CANARY, "--stack", stack)
    configure(workspace, stack, **{"cloudRun.cpu": 6, "cloudRun.memory": "17Gi", "cloudRun.minInstances": 1})
    workspace.stage(stack)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    workspace.pulumi("preview", "--expect-no-changes", "--stack", stack)
    service = workspace.get("run", f"v2/{P}/locations/{workspace.outputs(stack)['location']}/services/gemma-{stack}")
    server, beside = service["template"]["containers"]
    assert (server["name"], beside["name"]) == ("vllm", "collector")
    assert [each["resources"]["limits"]["cpu"] for each in (server, beside)] == ["4", "2"]
    assert workspace.script("smoke", "--stack", stack, "--json").json["passed"] is True
    collected(workspace, {"vllm"})
    assert_up(workspace, f"gemma-{stack}", {"vllm"})
    configure(workspace, stack, **{"metrics.enabled": "false"})
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    policies, _, dashboards = monitored(workspace)
    assert sorted(policy["displayName"].partition(": ")[2] for policy in policies) == [
        "Daily cost",
        "Does not start or engine fatal",
        "Server errors",
    ]
    assert dashboards == []
    assert_nothing_left(workspace, stack)
