"""A restart with the real CLI on both targets: it serves again, nothing is drift, and a rollout keeps its traffic."""

import json

import pytest
import yaml

CLOUD_RUN, TPU = "l4-12b-qat", "tpu-v6e1-e4b"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def service(workspace):
    return workspace.get("run", f"v2/projects/local-project/locations/us-east4/services/gemma-{CLOUD_RUN}")


def restarted(workspace, stack):
    return json.loads(workspace.script("restart", "--stack", stack, "--yes", "--json").out)


def assert_nothing_to_change(workspace, stack):
    for more in ((), ("--refresh",)):
        workspace.pulumi("preview", "--expect-no-changes", "--stack", stack, *more)


def drift(workspace, stack):
    (status,) = json.loads(workspace.script("status", "--stack", stack, "--json").out)["stacks"]
    return status["drift"]


def test_a_service_gets_a_new_revision_and_with_a_rollout_its_traffic_stays(workspace):
    workspace.pulumi("stack", "init", CLOUD_RUN)
    workspace.stage(CLOUD_RUN)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", CLOUD_RUN)
    first = service(workspace)["latestReadyRevision"]
    report = restarted(workspace, CLOUD_RUN)
    assert report["outcome"] == "restarted"
    assert service(workspace)["latestReadyRevision"] != first
    assert drift(workspace, CLOUD_RUN) == []
    assert_nothing_to_change(workspace, CLOUD_RUN)

    path = workspace.folder / "project" / f"Pulumi.{CLOUD_RUN}.yaml"
    document = yaml.safe_load(path.read_text())
    document["config"]["gemma-serving:cloudRun"]["rollout"] = {"steps": [100]}
    path.write_text(yaml.safe_dump(document))
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", CLOUD_RUN)
    serving = report["revision"]
    report = restarted(workspace, CLOUD_RUN)
    assert (report["outcome"], report["traffic"]) == ("waits for rollout", {serving: 100})
    assert_nothing_to_change(workspace, CLOUD_RUN)
    refused = workspace.script("restart", "--stack", CLOUD_RUN, "--yes", expect=2)
    assert "does not have all the traffic" in refused.text
    workspace.script("teardown", "--stack", CLOUD_RUN, "--yes")


def test_a_machine_restarts_its_server_and_keeps_its_capacity(workspace):
    workspace.pulumi("stack", "init", TPU)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", TPU)
    report = restarted(workspace, TPU)
    assert report["outcome"] == "restarted"
    assert report["paused_s"] > 0
    assert drift(workspace, TPU) == []
    assert_nothing_to_change(workspace, TPU)
    assert restarted(workspace, TPU)["server"] == report["server"], "a second one works as the first"
    workspace.script("teardown", "--stack", TPU, "--yes")
