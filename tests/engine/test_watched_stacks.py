"""Stacks with alerts and metrics, with the real CLI: policies and a collector come, change in place, show data, and leave nothing."""

import json

import pytest

from tests.engine.conftest import FAILURE, KEY_CANARY, until

pytestmark = [pytest.mark.engine, pytest.mark.long]
P = "projects/local-project"
KINDS = ("v3/{}/alertPolicies", "v3/{}/notificationChannels", "v1/{}/dashboards")
WATCHED = {"alerts.email": "someone@example.com", "metrics.enabled": True}
OFF = "alerts.enabled"
DENIED = {"method": "monitoring.projects.alertPolicies.create", "status": 403, "count": 999}


def monitored(workspace):
    """Policies, channels and dashboards of the project."""
    return [workspace.get("monitoring", path.format(P)).get(path.rpartition("/")[2], []) for path in KINDS]


def await_collector(workspace):
    """Wait until the machine's collector runs."""
    logs = (workspace.folder / "cloud" / "machines").glob
    ready = "Everything is ready"
    until(lambda: any(ready in path.read_text() for path in logs("*/containers/*collector.log")), "the collector", 120)


def assert_shown(workspace, stack, policies):
    """`alerts` shows what fires, and does not take silence for granted."""
    unknown = workspace.script("alerts", "--stack", stack, "--json", expect=1).json
    assert unknown["verdict"] == "unknown"
    assert "does not evaluate alert policies" in unknown["unwatched"][-1]
    title = policies[0]["displayName"].partition(": ")[2]
    has_data = f'count(last_over_time(up{{namespace="gemma-{stack}"}}[10m]))'
    workspace.post("admin/alerts", {"alerts": [{"policy": policies[0]["name"]}], "queries": {has_data: 1}})
    assert title in workspace.script("alerts", "--stack", stack, expect=1).out


def assert_nothing_left(workspace, stack):
    workspace.teardown(stack)
    assert monitored(workspace) == [[], [], []]


def test_a_machine_is_watched_without_a_restart_of_its_server(workspace):
    stack = "tpu-v6e1"
    workspace.pulumi("stack", "init", stack)
    workspace.pulumi("config", "set", "--secret", "gemma-serving:apiKey", KEY_CANARY, "--stack", stack)
    workspace.configure(stack, **{OFF: False})
    workspace.up(stack)
    assert monitored(workspace) == [[], [], []]
    before = workspace.outputs(stack)
    # Watched by default, the collector included. An account without the roles learns both, and the one setting that does without them.
    workspace.configure(stack, **{OFF: None})
    workspace.configure(stack, **{"alerts.email": "someone@example.com"})
    workspace.change_scenario({"faults": [DENIED]})
    denied = workspace.up(stack, expect=FAILURE)
    assert "you need roles/monitoring.editor and roles/logging.configWriter" in denied.text
    assert f"pulumi config set --path gemma-serving:{OFF} false --stack {stack}" in denied.text
    workspace.change_scenario({"faults": []})
    workspace.up(stack)
    workspace.assert_no_changes(stack)
    policies, channels, dashboards = monitored(workspace)
    assert (len(policies), len(channels), len(dashboards)) == (8, 1, 1)
    assert {len(policy["notificationChannels"]) for policy in policies} == {1}
    await_collector(workspace)
    assert_shown(workspace, stack, policies)
    assert workspace.outputs(stack)["deadline"] == before["deadline"], "the machine is the same"
    workspace.configure(stack, **{"alerts.idle": "2h", "alerts.dailyCost": 20})
    workspace.up(stack)
    changed = json.dumps(monitored(workspace)[0])
    assert ("[2h]" in changed or "[120m]" in changed, "Daily cost" in changed) == (True, True)
    assert_nothing_left(workspace, stack)


def test_a_service_shares_its_instance_with_the_collector(workspace):
    stack = "l4-12b-qat"
    workspace.pulumi("stack", "init", stack)
    workspace.configure(stack, **WATCHED)
    refused = workspace.pulumi("preview", "--stack", stack, expect=None)
    assert "OBS03" in refused.text
    assert "Set cloudRun.cpu: 6, cloudRun.memory: 17Gi" in refused.text
    workspace.pulumi("config", "set", "--secret", "gemma-serving:apiKey", KEY_CANARY, "--stack", stack)
    workspace.configure(stack, **{"cloudRun.cpu": 6, "cloudRun.memory": "17Gi", "cloudRun.minInstances": 1})
    workspace.stage(stack)
    workspace.up(stack)
    workspace.assert_no_changes(stack)
    service = workspace.get("run", f"v2/{P}/locations/{workspace.outputs(stack)['location']}/services/gemma-{stack}")
    server, beside = service["template"]["containers"]
    assert (server["name"], beside["name"]) == ("vllm", "collector")
    assert [each["resources"]["limits"]["cpu"] for each in (server, beside)] == ["4", "2"]
    assert workspace.script("smoke", "--stack", stack, "--json").json["passed"] is True
    workspace.configure(stack, **{"metrics.enabled": False})
    workspace.up(stack)
    policies, _, dashboards = monitored(workspace)
    assert sorted(policy["displayName"].partition(": ")[2] for policy in policies) == [
        "Daily cost",
        "Does not start or engine fatal",
        "Server errors",
    ]
    assert dashboards == []
    assert_nothing_left(workspace, stack)
