"""The life of the Cloud Run stack, with the real CLI: a real startup probe, private, changed in place, nothing left."""

import json
import sys

import pytest
import requests

from contracts.run_record import RunRecord
from tests.engine.conftest import KEY_CANARY, assert_golden_urns, assert_nowhere_in_clear

STACK = "l4-qat"
ASK_WITHOUT_KEY = """
import sys, requests
from scripts.cli.access import open_access
from engine.state import stack_outputs
outputs = stack_outputs(sys.argv[1])
with open_access(endpoint=outputs.endpoint, auth=outputs.auth) as access:
    for method, path in (("GET", "/v1/models"), ("POST", "/invocations"), ("GET", "/metrics"), ("GET", "/health")):
        answer = requests.request(method, access.base_url + path, headers=dict(access.headers()), json={"prompt": "x"}, timeout=30)
        print(answer.status_code)
"""

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def deployed(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.stage(STACK)
    workspace.cold("up", "--yes", "--skip-preview", "--stack", STACK)
    return workspace.outputs(STACK)


def give_up_early(workspace):
    """Set a startup probe that allows 360 s. The server starts in 13 minutes."""
    probe = {"initialDelay": "240s", "period": "60s", "failureThreshold": 2, "timeout": "50s"}
    words = [f"--plaintext=gemma-serving:cloudRun.startupProbe.{key}={value}" for key, value in probe.items()]
    workspace.pulumi("config", "set-all", "--path", *words, "--stack", STACK)


def service(workspace):
    return workspace.get("run", f"v2/projects/local-project/locations/us-east4/services/gemma-{STACK}")


def test_the_outputs_are_those_that_the_scripts_read(deployed):
    assert (deployed["target"], deployed["auth"], deployed.get("tunnel")) == ("cloud-run", "id-token", None)
    assert "@sha256:" in deployed["image"]
    assert deployed["labels"]["gemma-serving-stack"] == STACK


def test_the_urns_are_those_that_earlier_releases_made(workspace, deployed):
    assert_golden_urns(workspace, STACK)


def test_nothing_changes_right_after_up_and_after_a_refresh(workspace, deployed):
    account = f"v1/projects/local-project/serviceAccounts/gemma-{STACK}@local-project.iam.gserviceaccount.com"
    record = RunRecord.of(workspace.get("iam", account)["description"])
    assert len(record.runs) == 1, "what the update has started is recorded, and shows nowhere"
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)
    workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", STACK)


def test_nobody_gets_in_without_an_identity(deployed):
    assert requests.get(f"{deployed['endpoint']}/v1/models", timeout=60).status_code in {401, 403}


def test_the_server_passes_its_smoke_checks(workspace, deployed):
    assert workspace.script("smoke", "--stack", STACK, "--json").json["passed"] is True


@pytest.mark.long
def test_a_start_longer_than_the_probes_budget_is_stopped_in_the_preview(workspace, deployed):
    """Incident PRB01."""
    original = (workspace.folder / "project" / f"Pulumi.{STACK}.yaml").read_text()
    give_up_early(workspace)
    refused = workspace.pulumi("preview", "--stack", STACK, expect=None)
    (workspace.folder / "project" / f"Pulumi.{STACK}.yaml").write_text(original)
    assert refused.code != 0
    assert "PRB01" in refused.text
    assert "Traceback" not in refused.text


@pytest.mark.long
def test_an_accepted_finding_lets_the_probe_really_fail_and_the_old_revision_goes_on(workspace, deployed):
    path = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
    original = path.read_text()
    before = service(workspace)["latestReadyRevision"]
    give_up_early(workspace)
    workspace.pulumi("config", "set", "--path", "gemma-serving:acceptFindings[0]", "PRB01", "--stack", STACK)
    failed = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=None)
    assert failed.code != 0
    assert "startup probe" in failed.text
    assert service(workspace)["latestReadyRevision"] == before
    path.write_text(original)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    assert workspace.served_length(STACK) == 16384


def test_the_engine_waits_longer_than_the_providers_own_limit(workspace, deployed):
    stored = json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
    (limits,) = [
        resource["customTimeouts"] for resource in stored if resource["urn"].endswith("/service:Service::vllm")
    ]
    assert (limits["create"], limits["update"]) == (2700, 2700)


@pytest.mark.long
def test_a_deployment_longer_than_the_providers_own_limit_is_waited_for(workspace, deployed):
    """The real provider waits 20 minutes unless the program says more; 14 minutes of start and 13 of image pull are longer."""
    slow_pull(workspace, 800)
    workspace.pulumi("config", "set", "--path", "gemma-serving:vllm.maxNumSeqs", "8", "--stack", STACK)
    try:
        workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    finally:
        slow_pull(workspace, 2)
        workspace.pulumi("config", "rm", "--path", "gemma-serving:vllm.maxNumSeqs", "--stack", STACK)


def slow_pull(workspace, simulated_s):
    workspace.change_scenario({"operations": {"run_s": simulated_s}})


def test_a_move_to_another_region_is_refused_by_the_bucket(workspace, deployed):
    """The engine replaces the image repository before it meets the bucket. The next test's `up` goes back: the first repository must not stand in its way."""
    region = ("config", "set", "--path", "gemma-serving:cloudRun.region")
    workspace.pulumi(*region, "europe-west4", "--stack", STACK)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK, expect=1)
    workspace.pulumi(*region, "us-east4", "--stack", STACK)


def test_a_serving_flag_makes_a_new_revision_of_the_same_service(workspace, deployed):
    before = service(workspace)
    workspace.pulumi("config", "set", "--path", "gemma-serving:vllm.maxModelLen", "8192", "--stack", STACK)
    # The same `up` gives the server an API key that never passes through Pulumi.
    workspace.script("save_token", "apiKey", "--stack", STACK, "--secret", "their-key", stdin=KEY_CANARY)
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK)
    after = service(workspace)
    assert before["createTime"] == after["createTime"]
    assert before["latestReadyRevision"] != after["latestReadyRevision"]
    assert "--max-model-len=8192" in after["template"]["containers"][0]["args"]
    assert workspace.served_length(STACK) == 8192
    refused = workspace.run(sys.executable, "-c", ASK_WITHOUT_KEY, STACK)
    assert refused.out.split() == ["401", "401", "401", "200"]
    workspace.script("smoke", "--stack", STACK, "--json")
    assert_nowhere_in_clear(workspace, KEY_CANARY)
    assert "secretmanager/secretVersion" not in workspace.state(STACK)


def test_teardown_leaves_nothing(workspace, deployed):
    assert workspace.script("teardown", "--stack", STACK, "--yes", "--json").json["clean"] is True
    names = [resource["name"] for resource in workspace.admin("resources")["resources"]]
    assert not [name for name in names if f"gemma-{STACK}" in name]
