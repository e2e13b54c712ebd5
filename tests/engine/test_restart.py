"""A restart with the real CLI on a TPU, and by one request on Cloud Run: it serves again, and nothing is drift."""

import sys

import pytest

from tests.engine.conftest import until

CLOUD_RUN, TPU = "l4-12b-qat", "tpu-v6e1-e4b"

pytestmark = [pytest.mark.engine, pytest.mark.long]


def service(workspace):
    return workspace.get("run", f"v2/projects/local-project/locations/us-east4/services/gemma-{CLOUD_RUN}")


def restarted(workspace, stack):
    return workspace.script("up", "--stack", stack, "--restart", "--yes", "--json").json


def assert_nothing_to_change(workspace, stack):
    workspace.assert_no_changes(stack)
    workspace.assert_no_changes(stack, "--refresh")


def drift(workspace, stack):
    (status,) = workspace.script("status", "--stack", stack, "--json").json["stacks"]
    return status["drift"]


def test_a_service_is_restarted_by_the_request_of_the_page(workspace):
    """docs/cloud-run.md has it as two lines of curl and jq."""
    workspace.pulumi("stack", "init", CLOUD_RUN)
    workspace.stage(CLOUD_RUN)
    workspace.up(CLOUD_RUN)
    refused = workspace.script("up", "--stack", CLOUD_RUN, "--restart", "--yes", expect=2)
    assert "docs/cloud-run.md#restart-the-server" in refused.err
    first = service(workspace)
    body = {key: first[key] for key in ("template", "etag")}
    workspace.call("PATCH", f"run/v2/{first['name']}?updateMask=template&forceNewRevision=true", body)
    until(lambda: service(workspace)["latestReadyRevision"] != first["latestReadyRevision"], "another revision")
    (said,) = drift(workspace, CLOUD_RUN)
    assert said in workspace.script("up", "--stack", CLOUD_RUN, "--yes").out
    assert drift(workspace, CLOUD_RUN) == []
    assert_nothing_to_change(workspace, CLOUD_RUN)
    workspace.script("teardown", "--stack", CLOUD_RUN, "--yes")


def test_a_document_that_the_machine_gave_up_is_started_again_by_a_restart_and_by_an_up_without_a_change(workspace):
    """No `up` was complete, and the cause goes away outside the settings."""
    workspace.pulumi("stack", "init", TPU)
    of_model = {"hub": {"repositories": {"google/gemma-4-E4B-it": "absent"}}}
    workspace.change_scenario(of_model)
    plain = (workspace.engine, "up", "--yes", "--skip-preview", "--stack", TPU)
    up = (sys.executable, "-m", "scripts.up", "--stack", TPU, "--yes")
    for words in (plain, (*up, "--restart")):
        assert "Repository Not Found" in workspace.run(*words, expect=1, limit_s=120).text
    assert "The server failed: " in workspace.script("gemma", "chat", TPU, "Say hello.", expect=2, limit_s=60).err
    of_model["hub"]["repositories"] = {"google/gemma-4-E4B-it": "public"}
    workspace.change_scenario(of_model)
    workspace.run(*up)
    workspace.assert_no_changes(TPU, "--refresh")
    workspace.teardown(TPU)
    workspace.pulumi("stack", "rm", "--preserve-config", "--yes", TPU)


def test_a_machine_restarts_its_server_and_keeps_its_capacity(workspace):
    workspace.pulumi("stack", "init", TPU)
    workspace.up(TPU)
    report = restarted(workspace, TPU)
    assert report["outcome"] == "restarted"
    assert drift(workspace, TPU) == []
    assert_nothing_to_change(workspace, TPU)
    assert restarted(workspace, TPU)["server"] == report["server"], "a second one works as the first"
    restore = workspace.edit(TPU, ("maxModelLen: 8192", "maxModelLen: 4096"))
    look = workspace.script("up", "--stack", TPU, "--restart", "--dry-run", "--json").json
    assert look["sentences"][1] == f"Edits of Pulumi.{TPU}.yaml wait for `gemma up {TPU}`: vllm.maxModelLen."
    restarted(workspace, TPU)
    restore()
    assert_nothing_to_change(workspace, TPU)
    workspace.script("teardown", "--stack", TPU, "--yes")
