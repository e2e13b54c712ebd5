"""After a Ctrl-C, a SIGKILL of the engine, and with a state that is lost or cut off, nothing is lost: `up` continues with what is ours and nothing else."""

import json
import os
import signal
import stat
import subprocess

import pytest

from gemma_serving.cloud.kinds import POLICIES
from gemma_serving.contracts.run_record import RUNS_WORD
from gemma_serving.engine.exported_state import UNKNOWN
from tests.engine.conftest import ALICE, FAILURE, HF_CANARY, LIMIT_S, PROJECT, until
from tests.engine.terminal import come_back

TPU, RUN = "tpu-v6e1", "l4-qat"
BUCKET = f"local-project-gemma-{RUN}-models"
REPEATABLE = frozenset({"docker:index/image:Image", "gcp:projects/serviceIdentity:ServiceIdentity", *POLICIES})
"""Types that the next `up` creates again without a conflict, and that leave no resource behind."""
REFUSED = 2
CREATION_S = 3
"""Real seconds that each resource of the network takes."""

pytestmark = [pytest.mark.engine, pytest.mark.long]


def kill_at(workspace, stack, method, is_made):
    """Start `up` and kill the engine and all that it started, when what a method makes is there and the engine does not know it yet."""
    hang = {"method": method, "count": 99, "action": "hang", "when": "after", "hang_s": 600}
    workspace.change_scenario({"faults": [hang]})
    up = workspace.begin_up(stack)
    try:
        until(lambda: is_made() or up.poll() is not None, method)
        assert up.poll() is None, "up ended first"
    finally:
        os.killpg(up.pid, signal.SIGKILL)
        up.wait()
        workspace.change_scenario({"faults": []})


def has_ready_service(workspace):
    services = workspace.get("run", f"v2/projects/{PROJECT}/locations/us-east4/services").get("services", [])
    return any("latestReadyRevision" in service for service in services)


def ids(workspace, stack):
    resources = workspace.resources(stack)
    return {each["urn"]: each["id"] for each in resources if each.get("id") and ":providers:" not in each["type"]}


def assert_answers(workspace, stack):
    """The stack serves, and the state has all of it."""
    workspace.assert_no_changes(stack, "--refresh")
    assert workspace.script("gemma", "chat", stack, "Say hello.").out.strip()


def assert_comes_back_whole(workspace, stack, before):
    """Continue with a damaged state: the same resources are in it."""
    made = {*workspace.made("")}
    come_back(workspace, stack)
    assert {*workspace.made("")} == made, "nothing was made a second time"
    assert_answers(workspace, stack)
    found = ids(workspace, stack)
    different = {urn for urn in before if found.get(urn) != before[urn]}
    assert all(urn.split("::")[2].rpartition("$")[2] in REPEATABLE for urn in different), different


@pytest.fixture(scope="module")
def killed(workspace):
    """A TPU stack whose `up` was interrupted once while it made its network, and whose next engine was killed while it made routers."""
    workspace.pulumi("stack", "init", TPU)
    workspace.pulumi("config", "set", "--secret", "hfToken", "--stack", TPU, stdin=HF_CANARY)
    workspace.configure(TPU, **{"tpu.tunnelMembers": [ALICE]})
    speed = float(workspace.environment["LOCALCLOUD_SPEED"])
    workspace.change_scenario({"operations": {"compute_s": CREATION_S * speed}})
    up = workspace.begin_up(TPU, output=subprocess.PIPE)
    until(lambda: workspace.admin("requests?id=compute.networks.insert")["requests"], "a call for the network")
    up.send_signal(signal.SIGINT)
    said, _ = up.communicate(timeout=LIMIT_S)
    assert up.returncode != 0, said
    workspace.change_scenario({"operations": {"compute_s": None}})
    interrupted = ids(workspace, TPU).values(), workspace.made(f"/networks/gemma-{TPU}")
    # The router of the first region is there, so the engine has noted that it makes it; others may come later.
    kill_at(workspace, TPU, "compute.routers.insert", lambda: workspace.made("/us-east5/routers/"))
    latest = json.loads(workspace.state(TPU))["checkpoint"]["latest"]
    workspace.state_file(TPU).with_suffix(".json.attrs").write_text("")  # what a kill between two writes leaves
    return interrupted, latest


def test_one_interrupt_while_the_network_is_made_loses_nothing(workspace, killed):
    (recorded, made), _ = killed
    assert made
    assert {*made} <= {*recorded}


def test_what_the_engine_was_making_is_taken_over_and_up_goes_on(workspace, killed):
    begun = {each["resource"]["urn"] for each in killed[1]["pending_operations"]}
    assert any(urn.endswith("::network-us-east5") for urn in begun), begun
    refused = workspace.up(TPU, expect=FAILURE)
    assert "failed to load checkpoint: EOF" in refused.text
    said = come_back(workspace, TPU)
    assert "router" in said
    assert "pending_operations" not in json.loads(workspace.state(TPU))["checkpoint"]["latest"]
    backups = [*(workspace.folder / "project" / ".work" / "deployments").iterdir()]
    assert backups
    for backup in backups:
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        assert HF_CANARY not in backup.read_text()
    assert_answers(workspace, TPU)
    assert begun <= ids(workspace, TPU).keys()


def test_a_lost_state_comes_back_whole(workspace, killed):
    before = ids(workspace, TPU)
    assert len(before) > 20
    account = f"v1/projects/{PROJECT}/serviceAccounts/gemma-{TPU}@{PROJECT}.iam.gserviceaccount.com"
    record = workspace.get("iam", account)["description"]
    assert f"{RUNS_WORD}=" in record
    workspace.lose_state(TPU)
    refused = workspace.script("status", "--stack", TPU, expect=None)
    assert "Traceback" not in refused.text
    assert_comes_back_whole(workspace, TPU, before)
    assert workspace.get("iam", account)["description"] == record, "the first start and the costs stay"
    assert HF_CANARY not in workspace.state(TPU)


def test_with_another_backend_a_running_stack_is_refused_with_where_it_runs(workspace, killed, tmp_path):
    made, other = workspace.made(""), {"PULUMI_BACKEND_URL": f"file://{tmp_path}"}
    for command in (("up", "--stack", TPU, "--yes"), ("status", "--stack", TPU)):
        refused = " ".join(workspace.script(*command, expect=REFUSED, environment=other).err.split())
        assert f"Stack {TPU} runs in us-east5-a since 20" in refused
        assert (
            f"The backend file://{tmp_path} has no state of it. This folder deployed it with `pulumi login" in refused
        )
    assert workspace.made("") == made
    assert [*tmp_path.glob(".pulumi/stacks/*/*.json")] == []


def test_the_engines_own_destroy_leaves_nothing_and_no_grant(workspace, killed):
    workspace.pulumi("destroy", "--yes", "--skip-preview", "--stack", TPU)
    assert workspace.made(f"gemma-{TPU}") == []
    left = json.dumps(workspace.policy())
    assert (ALICE in left, "deleted:" in left) == (False, False)


@pytest.fixture(scope="module")
def foreign(workspace):
    """Somebody else's bucket under the name that the stack would use."""
    workspace.pulumi("stack", "init", RUN)
    body = {"name": BUCKET, "location": "US-EAST4", "labels": {"managed-by": "somebody"}}
    workspace.post(f"storage/storage/v1/b?project={PROJECT}", body)
    return workspace.get("storage", f"storage/v1/b/{BUCKET}")


def test_what_belongs_to_others_is_named_and_never_taken(workspace, foreign):
    failed = workspace.script("stage_model", "--stack", RUN, expect=REFUSED)
    assert f"gs://{BUCKET} exists but does not have the labels of this stack" in failed.text
    refused = workspace.script("up", "--stack", RUN, "--yes", expect=REFUSED).err
    assert f"gs://{BUCKET}" in refused
    assert not [urn for urn in ids(workspace, RUN) if urn.endswith("Bucket::models")]
    assert workspace.get("storage", f"storage/v1/b/{BUCKET}") == foreign
    workspace.call("DELETE", f"storage/storage/v1/b/{BUCKET}")


def test_a_service_that_was_being_made_is_taken_over(workspace, foreign):
    workspace.stage(RUN)
    kill_at(workspace, RUN, "run.projects.locations.services.create", lambda: has_ready_service(workspace))
    assert "imported Cloud Run service" in come_back(workspace, RUN)
    assert [one["urn"] for one in workspace.resources(RUN) if UNKNOWN in json.dumps(one)] == []
    assert_answers(workspace, RUN)


def test_a_state_that_was_cut_in_half_comes_back_whole(workspace, foreign):
    before = ids(workspace, RUN)
    workspace.lose_state(RUN, keep=0.5)
    refused = workspace.script("teardown", "--stack", RUN, "--dry-run", expect=None)
    assert "Traceback" not in refused.text
    assert_comes_back_whole(workspace, RUN, before)
