"""Stacks with alerts and metrics, with the real CLI: policies and a collector come, change in place, show data, and leave nothing."""

import json
import time

import pytest

from tests.engine.conftest import KEY_CANARY

pytestmark = [pytest.mark.engine, pytest.mark.long]
P = "projects/local-project"
KINDS = ("v3/{}/alertPolicies", "v3/{}/notificationChannels", "v1/{}/dashboards")
WATCHED = {"alerts.email": "someone@example.com", "metrics.enabled": "true"}
OFF = "gemma-serving:alerts.enabled"
DENIED = {"method": "monitoring.projects.alertPolicies.create", "status": 403, "count": 999}


def configure(workspace, stack, **values):
    words = [f"--plaintext=gemma-serving:{key}={value}" for key, value in values.items()]
    workspace.pulumi("config", "set-all", "--path", *words, "--stack", stack)


def monitored(workspace):
    """Policies, channels and dashboards of the project."""
    return [workspace.get("monitoring", path.format(P)).get(path.rpartition("/")[2], []) for path in KINDS]


def await_collector(workspace):
    """Wait until the machine's collector runs."""
    end = time.monotonic() + 120
    folder = workspace.folder / "cloud" / "machines"
    while not any("Everything is ready" in path.read_text() for path in folder.glob("*/containers/*collector.log")):
        assert time.monotonic() < end
        time.sleep(0.5)


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
    await_collector(workspace)
    assert_shown(workspace, stack, policies)
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
