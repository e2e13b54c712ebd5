"""The life of the Cloud Run stack with the real CLI, for a person: private, changed in place, rolled out, nothing left.

The person has logged in with `gcloud auth application-default login` and set no quota project. Google refuses most calls of such a login without
one, and the local cloud does too, so each call names the project of the stack.
"""

import sys

import pytest
import requests

from dev.authors.commands_page import all_commands
from gemma_serving.contracts.run_record import RunRecord
from localcloud.callers import SHARED_QUOTA_HEADER
from tests.engine.conftest import (
    FAILURE,
    KEY_CANARY,
    PROJECT,
    assert_golden_urns,
    assert_nowhere_in_clear,
    open_workspace,
)
from tests.engine.losses import unsaid_losses
from tests.engine.test_next_commands import CHANGES, OF_BOTH, OF_ONE, QUICK, RUN, World
from tests.scripts.stack.following import drawn

STACK, TPU = "l4-qat", "tpu-v6e1-e4b"
PERSON = "owner@example.com"
DRIVEN = {
    "capacity": ("--stack", TPU),
    "doctor": ("--stack", STACK),
    "status": (),
    "logs": ("--stack", STACK),
    "alerts": ("--stack", STACK),
    "smoke": ("--stack", STACK),
    "save_token": None,
    "stage_model": None,
    "teardown": None,
}
"""Commands that this module runs, in their order; those without arguments are run elsewhere in it."""
WITHOUT_CALLS = {
    "agent": "its tools run the other commands",
    "bench": "asks the server only",
    "connect": "asks the server only, and its key as smoke does",
    "init": "writes settings",
    "plan": "asks Cloud Storage, which counts for the project of the bucket; tests/scripts/test_refreshed_prices.py has its subcommand prices",
    "preview": "runs pulumi and the planner",
    "up": "runs pulumi and the planner",
}
ASK_WITHOUT_KEY = """
import sys, requests
from gemma_serving.scripts.stack.access import open_access
with open_access(endpoint=sys.argv[1], auth="id-token") as access:
    for method, path in (("GET", "/v1/models"), ("POST", "/invocations"), ("GET", "/metrics"), ("GET", "/health")):
        answer = requests.request(method, access.base_url + path, headers=dict(access.headers()), json={"prompt": "x"}, timeout=30)
        print(answer.status_code)
"""

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("person")
    scenario = folder / "person.yaml"
    scenario.write_text("base: prepared\niam: {login_is_person: true}\n")
    with open_workspace(folder, "--scenario", str(scenario)) as opened:
        token = opened.post("admin/tokens", {"email": PERSON})["accessToken"]
        opened.headers.update({"Authorization": f"Bearer {token}", SHARED_QUOTA_HEADER: "gcloud"})
        yield opened


@pytest.fixture(scope="module")
def deployed(workspace):
    workspace.pulumi("stack", "init", STACK)
    workspace.stage(STACK)
    workspace.up(STACK)
    return workspace.outputs(STACK)


def service(workspace):
    return workspace.get("run", f"v2/projects/{PROJECT}/locations/us-east4/services/gemma-{STACK}")


def assert_counted_for_the_project(workspace, least):
    """Look for the person's calls that named no project, or another one."""
    calls = [call for call in workspace.admin("requests")["requests"] if call.get("caller") == PERSON]
    named = {(call["id"], call["quota_project"]) for call in calls}
    number = workspace.get("cloudresourcemanager", f"v1/projects/{PROJECT}")["projectNumber"]  # of a secret's full name
    assert [pair for pair in named if pair[1] not in {PROJECT, number, "gcloud"}] == []
    assert len(calls) > least


def test_every_command_is_driven_here_or_calls_no_google():
    assert {command.name for command in all_commands()} == {*DRIVEN, *WITHOUT_CALLS}


def test_what_is_deployed_is_private_and_is_waited_for_longer_than_the_providers_own_limit(workspace, deployed):
    """packages/localcloud/tests/plugins/test_lifecycles.py: a wait ends at the timeout of the program."""
    assert (deployed["target"], deployed["auth"], deployed.get("tunnel")) == ("cloud-run", "id-token", None)
    assert "@sha256:" in deployed["image"]
    assert deployed["labels"]["gemma-serving-stack"] == STACK
    assert_golden_urns(workspace, STACK)
    (served,) = workspace.resources(STACK, "gcp:cloudrunv2/service:Service")
    assert (served["customTimeouts"]["create"], served["customTimeouts"]["update"]) == (2700, 2700)
    assert requests.get(f"{deployed['endpoint']}/v1/models", timeout=60).status_code in {401, 403}


def test_nothing_changes_right_after_up(workspace, deployed):
    account = f"v1/projects/{PROJECT}/serviceAccounts/gemma-{STACK}@{PROJECT}.iam.gserviceaccount.com"
    record = RunRecord.of(workspace.get("iam", account)["description"])
    assert len(record.runs) == 1, "what the update has started is recorded, and shows nowhere"
    workspace.assert_no_changes(STACK, "--refresh")


def test_each_thing_of_the_stack_that_is_deleted_by_hand_is_named(workspace, deployed, tmp_path):
    """tests/engine/losses.py draws them from the cloud's own store."""
    unsaid, tried, not_looked_at = unsaid_losses(workspace, STACK, tmp_path)
    assert (unsaid, tried > 25, not_looked_at) == ([], True, {"gcp:cloudrunv2/service:Service"})


@pytest.mark.long
def test_a_start_longer_than_the_probes_budget_is_stopped_and_if_accepted_fails_and_the_old_revision_serves(
    workspace, deployed
):
    """Incident PRB01: the probe allows 20 s, and the server starts in minutes."""
    before = service(workspace)["latestReadyRevision"]
    restore = workspace.edit(STACK)
    probe = {"initialDelay": "10s", "period": "10s", "failureThreshold": 1, "timeout": "9s"}
    workspace.configure(STACK, **{"cloudRun.startupProbe": probe})
    assert "PRB01" in workspace.pulumi("preview", "--stack", STACK, expect=FAILURE).text
    workspace.configure(STACK, acceptFindings=["PRB01"])
    assert "startup probe" in workspace.up(STACK, expect=FAILURE).text
    assert service(workspace)["latestReadyRevision"] == before
    restore()
    workspace.up(STACK)
    assert workspace.served_length(STACK) == 16384


def test_a_serving_flag_makes_a_revision_that_each_command_knows(workspace, deployed):
    before = service(workspace)
    changes = {"vllm.maxModelLen": 8192, "alerts.email": PERSON}
    workspace.configure(STACK, **changes)
    # The same `up` gives the server an API key that never passes through Pulumi.
    workspace.script("save_token", "apiKey", "--stack", STACK, "--secret", "their-key", stdin=KEY_CANARY)
    workspace.up(STACK)
    after = service(workspace)
    assert before["createTime"] == after["createTime"]
    assert before["latestReadyRevision"] != after["latestReadyRevision"]
    assert "--max-model-len=8192" in after["template"]["containers"][0]["args"]
    for name, arguments in DRIVEN.items():
        if arguments is not None:
            # The local cloud does not evaluate alerts, so whether one fires is unknown.
            answer = workspace.script(name, *arguments, expect=1 if name == "alerts" else 0)
            assert "quota project" not in answer.text
    assert workspace.served_length(STACK) == 8192
    refused = workspace.run(sys.executable, "-c", ASK_WITHOUT_KEY, deployed["endpoint"])
    assert refused.out.split() == ["401", "401", "401", "200"]
    assert_nowhere_in_clear(workspace, KEY_CANARY)
    versions = [each["urn"] for each in workspace.resources(STACK) if each["type"].endswith(":SecretVersion")]
    assert [urn.rpartition("::")[2] for urn in versions] == ["archive-key"], "the API key has no version in the state"


def test_the_printed_commands_of_one_deployment_lead_to_a_stack_that_serves(workspace, deployed, subtests):
    """tests/scripts/stack/test_next_commands.py types those of the situations in which only local files are damaged."""
    world = World(stack=STACK, workspace=workspace, settings="")
    table = {**OF_BOTH, **OF_ONE[RUN]}
    for row in drawn(STACK, QUICK, CHANGES):
        with subtests.test(situation=row.name, first=row.first):
            world.play(row, table[row.name], ("serves",))
    assert not world.not_followed


@pytest.mark.long
def test_every_call_of_a_tpu_stack_counts_for_the_project(workspace, deployed):
    """packages/gcp-tpu/gcp_tpu_provider/tests/test_transport.py asserts the header of the provider's own calls."""
    workspace.pulumi("stack", "init", TPU)
    workspace.up(TPU)
    workspace.script("status", "--stack", TPU)
    workspace.script("up", "--stack", TPU, "--restart", "--dry-run")
    workspace.teardown(TPU)
    assert_counted_for_the_project(workspace, least=250)


def test_teardown_leaves_nothing(workspace, deployed):
    workspace.teardown(STACK)
    left = [name for name in workspace.made(f"gemma-{STACK}") if "networks/" not in name]
    assert left == [], "only the network, which Google holds for two hours, is left"
    assert_counted_for_the_project(workspace, least=150)
