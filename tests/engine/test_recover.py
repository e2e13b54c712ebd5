"""After a SIGKILL of the engine, and with a state that is lost or cut off, `recover` brings back what is ours and nothing else."""

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
import requests

from cloud.kinds import POLICIES
from contracts.run_record import RUNS_WORD
from tests.engine.conftest import LIMIT_S

TPU, RUN = "tpu-v6e1", "l4-qat"
CANARY = "hf_canaryCanaryCANARY0123456789"
BUCKET = f"local-project-gemma-{RUN}-models"
ALICE = "user:alice@example.com"
REPEATABLE = frozenset({"docker:index/image:Image", "gcp:projects/serviceIdentity:ServiceIdentity", *POLICIES})
"""Types that the next `up` creates again without a conflict, and that leave no resource behind."""

pytestmark = pytest.mark.engine


def kill_at(workspace, stack, method, is_made):
    """Start `up` and kill the engine and all that it started, when what a method makes is there and the engine does not know it yet."""
    hang = {"method": method, "count": 99, "action": "hang", "when": "after", "hang_s": 600}
    workspace.change_scenario({"faults": [hang]})
    up = subprocess.Popen(
        [workspace.engine, "up", "--yes", "--skip-preview", "--non-interactive", "--stack", stack],
        cwd=workspace.folder / "project",
        env=workspace.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    end = time.monotonic() + LIMIT_S
    try:
        while not is_made():
            assert time.monotonic() < end, f"{method} made nothing"
            assert up.poll() is None, "up ended first"
            time.sleep(0.05)
    finally:
        os.killpg(up.pid, signal.SIGKILL)
        up.wait()
        workspace.change_scenario({"faults": []})


def has_router(workspace):
    """The router of the first region is there, so the engine has noted that it makes it; others may come later."""
    return any("/us-east5/routers/" in row["name"] for row in workspace.admin("resources")["resources"])


def has_ready_service(workspace):
    services = workspace.get("run", "v2/projects/local-project/locations/us-east4/services").get("services", [])
    return any("latestReadyRevision" in service for service in services)


def state_file(workspace, stack):
    return workspace.folder / "cloud" / "pulumi" / ".pulumi" / "stacks" / "gemma-serving" / f"{stack}.json"


def lose(workspace, stack, *, cut=False):
    """Delete the state and the engine's own copy of it, or cut it in half."""
    path = state_file(workspace, stack)
    text = path.read_text()
    for each in path.parent.glob(f"{stack}.json*"):
        each.unlink()
    if cut:
        path.write_text(text[: len(text) // 2])


def ids(workspace, stack):
    resources = json.loads(workspace.state(stack))["checkpoint"]["latest"]["resources"]
    return {each["urn"]: each["id"] for each in resources if each.get("id") and ":providers:" not in each["type"]}


def recovered(workspace, stack, *, expect=0):
    answer = workspace.script("recover", "--stack", stack, "--yes", "--json", expect=expect)
    return answer, json.loads(answer.out)


def assert_goes_on(workspace, stack):
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
    workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", stack)


@pytest.fixture(scope="module")
def killed(workspace):
    """A TPU stack whose engine was killed while it made routers."""
    workspace.pulumi("stack", "init", TPU)
    workspace.pulumi("config", "set", "--secret", "hfToken", "--stack", TPU, stdin=CANARY)
    workspace.pulumi("config", "set", "--path", "gemma-serving:tpu.tunnelMembers[0]", ALICE, "--stack", TPU)
    kill_at(workspace, TPU, "compute.routers.insert", lambda: has_router(workspace))
    latest = json.loads(workspace.state(TPU))["checkpoint"]["latest"]
    state_file(workspace, TPU).with_suffix(".json.attrs").write_text("")  # what a kill between two writes leaves
    return latest


def test_what_the_engine_was_making_is_taken_over_and_up_goes_on(workspace, killed):
    begun = {each["resource"]["urn"] for each in killed["pending_operations"]}
    assert any(urn.endswith("::network-us-east5") for urn in begun), begun
    refused = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", TPU, expect=None)
    assert "failed to load checkpoint: EOF" in refused.text
    unread = workspace.script("recover", "--stack", TPU, "--yes", expect=1).err
    assert "removed the stale lock of" in unread
    assert f"Delete stacks/gemma-serving/{TPU}.json.attrs" in unread
    state_file(workspace, TPU).with_suffix(".json.attrs").unlink()
    made = {row["name"] for row in workspace.admin("resources")["resources"]}
    _, report = recovered(workspace, TPU)
    never_asked_for = begun - {each["urn"] for each in report["imported"]}
    assert never_asked_for == {line.partition(" ")[2] for line in report["cleared"]}
    assert {each["interrupted"] for each in report["imported"]} >= {True}
    assert report["clean"] is True
    assert "pending_operations" not in json.loads(workspace.state(TPU))["checkpoint"]["latest"]
    for backup in report["backups"]:
        assert stat.S_IMODE(Path(backup).stat().st_mode) == 0o600
        assert CANARY not in Path(backup).read_text()
    assert_goes_on(workspace, TPU)
    # The engine may have begun a resource and died before it asked Google.
    found = ids(workspace, TPU)
    assert begun <= found.keys()
    assert not {found[urn] for urn in never_asked_for} & made


@pytest.mark.long
def test_a_lost_state_comes_back_whole(workspace, killed):
    before = ids(workspace, TPU)
    assert len(before) > 20
    account = f"v1/projects/local-project/serviceAccounts/gemma-{TPU}@local-project.iam.gserviceaccount.com"
    record = workspace.get("iam", account)["description"]
    assert f"{RUNS_WORD}=" in record
    lose(workspace, TPU)
    _, report = recovered(workspace, TPU)
    assert report["state_was"] == "missing"
    missing = before.keys() - ids(workspace, TPU).keys()
    assert all(urn.split("::")[2].rpartition("$")[2] in REPEATABLE for urn in missing), "made again by the next up"
    assert_goes_on(workspace, TPU)
    assert ids(workspace, TPU) == before
    assert workspace.get("iam", account)["description"] == record, "the first start and the costs stay"
    assert CANARY not in workspace.state(TPU)


def test_the_recovered_stack_can_be_torn_down(workspace, killed):
    assert workspace.script("teardown", "--stack", TPU, "--yes", "--json").json["clean"] is True


def storage(workspace, verb, path, **options):
    base = workspace.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"]
    answer = requests.request(verb, f"{base}{path}", headers=workspace.identity, timeout=60, **options)
    answer.raise_for_status()
    return answer


@pytest.fixture(scope="module")
def foreign(workspace):
    """Somebody else's bucket under the name that the stack would use."""
    workspace.pulumi("stack", "init", RUN)
    body = {"name": BUCKET, "location": "US-EAST4", "labels": {"managed-by": "somebody"}}
    storage(workspace, "POST", "b?project=local-project", json=body)
    return storage(workspace, "GET", f"b/{BUCKET}").json()


@pytest.mark.long
def test_what_belongs_to_others_is_named_and_never_taken(workspace, foreign):
    failed = workspace.pulumi("up", "--yes", "--skip-preview", "--stack", RUN, expect=None)
    assert failed.code != 0
    assert f"Bucket {BUCKET} exists without this stack's labels" in failed.text
    _, report = recovered(workspace, RUN, expect=1)
    assert [each["name"] for each in report["not_owned"]] == [f"gs://{BUCKET}"]
    assert not [urn for urn in ids(workspace, RUN) if urn.endswith("Bucket::models")]
    assert storage(workspace, "GET", f"b/{BUCKET}").json() == foreign
    storage(workspace, "DELETE", f"b/{BUCKET}")


@pytest.mark.long
def test_a_service_that_was_being_made_is_taken_over(workspace, foreign):
    workspace.stage(RUN)
    kill_at(workspace, RUN, "run.projects.locations.services.create", lambda: has_ready_service(workspace))
    _, report = recovered(workspace, RUN)
    assert "Cloud Run service" in {each["kind"] for each in report["imported"]}
    assert_goes_on(workspace, RUN)


@pytest.mark.long
def test_a_state_that_was_cut_in_half_comes_back_whole(workspace, foreign):
    before = ids(workspace, RUN)
    lose(workspace, RUN, cut=True)
    refused = workspace.script("teardown", "--stack", RUN, "--dry-run", expect=None)
    assert "Traceback" not in refused.text
    _, report = recovered(workspace, RUN)
    assert report["state_was"] == "unreadable"
    missing = before.keys() - ids(workspace, RUN).keys()
    assert all(urn.split("::")[2].rpartition("$")[2] in REPEATABLE for urn in missing), "made again by the next up"
    assert_goes_on(workspace, RUN)
    assert ids(workspace, RUN) == before
