"""The life of the TPU stack, with the real CLI: nothing lost, nothing replaced, nothing left, and the token nowhere in clear."""

import contextlib
import json
import re
import threading
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.run_record import RunRecord
from gemma_serving.contracts.tunnel_role import PERMISSIONS
from localcloud.running.shims import gcloud
from localcloud.running.shims.gcloud import CommandError
from localcloud.running.shims.gcloud_login import Login
from tests.engine.conftest import (
    ALICE,
    CAPACITY,
    FAILURE,
    HF_CANARY,
    KEY_CANARY,
    assert_golden_urns,
    assert_nowhere_in_clear,
)
from tests.engine.losses import unsaid_losses
from tests.vm_agent.packed import unpacked

STACK = "tpu-v6e4"
ROLE = "projects/local-project/roles/gemmaTunnel"
CANARIES = (HF_CANARY, KEY_CANARY)
TWICE = 2

pytestmark = pytest.mark.engine


class ProcessWatch:
    """Reads the arguments of each process twice, because a new one first has its parent's, and looks for the canary in them."""

    def __init__(self):
        self.seen, self.reads = [], Counter()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self.ended.is_set():
            for path in Path("/proc").glob("[0-9]*"):
                if self.reads[path] < TWICE:
                    self.reads[path] += 1
                    with contextlib.suppress(OSError):
                        arguments = (path / "cmdline").read_bytes()
                        self.seen += [path for canary in CANARIES if canary.encode() in arguments]
            time.sleep(0.05)  # it leaves the processor to the processes that it watches

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def capacity(workspace):
    names = [*workspace.made("/queuedResources/"), *workspace.made("/nodes/")]
    return {name: workspace.get("tpu", f"v2alpha1/{name}") for name in names}


def node_of(workspace):
    (node,) = (item for name, item in capacity(workspace).items() if "/nodes/" in name)
    return node


@pytest.fixture(scope="module")
def stack(workspace):
    workspace.pulumi("stack", "init", STACK)
    return workspace


@pytest.mark.long
def test_a_finding_of_the_planner_stops_the_engine_and_nothing_is_made(stack):
    """tests/stacks/refusals.golden.txt has the sentences."""
    restore = stack.edit(STACK, ("tensorParallelSize: 4", "tensorParallelSize: 8"))
    assert "TPU01" in stack.up(STACK, expect=FAILURE).text
    restore()
    assert stack.made("gemma-") == []


@pytest.mark.long
def test_a_preview_has_the_capacity_and_asks_nobody_about_limits(stack):
    preview = stack.pulumi("preview", "--diff", "--stack", STACK)
    assert CAPACITY in preview.text
    assert "Limits: " not in preview.text


@pytest.fixture(scope="module")
def deployed(stack):
    """The stack, up, with a token; `up` ran under a watch of all processes' arguments."""
    stack.pulumi("config", "set", "--secret", "hfToken", "--stack", STACK, stdin=HF_CANARY)
    theirs = {"replication": {"automatic": {}}, "labels": {"managed-by": "somebody"}}
    stack.post("secretmanager/v1/projects/local-project/secrets?secretId=theirs", theirs)
    with ProcessWatch() as watch:
        up = stack.up(STACK)
    assert "Limits: no guard is known, so maxAge is not enforced: project local-project has no account" in up.text
    assert watch.seen == []


def test_the_state_and_the_outputs_say_what_runs_and_when_google_deletes_it(workspace, deployed):
    (queued,) = workspace.resources(STACK, CAPACITY)
    assert "gemma-tpu-v6e4" in queued["id"]
    outputs = from_json(StackOutputs, workspace.outputs(STACK))
    assert f"/locations/{outputs.zone}/" in node_of(workspace)["name"]
    assert (outputs.location, outputs.state, outputs.phase) == (outputs.zone, "ACTIVE", "ready")
    assert outputs.deadline.endswith("Z")
    assert datetime.fromisoformat(outputs.deadline) > datetime.now(UTC)
    assert outputs.vllm["maxModelLen"] == 16384
    assert_golden_urns(workspace, STACK)


def test_nothing_changes_right_after_up_and_the_ssh_key_of_a_tunnel_is_no_drift(workspace, deployed):
    account = f"v1/projects/local-project/serviceAccounts/gemma-{STACK}@local-project.iam.gserviceaccount.com"
    record = RunRecord.of(workspace.get("iam", account)["description"])
    assert len(record.runs) == 1, "what the update has started is recorded, and shows nowhere"
    assert workspace.served_length(STACK) == 16384
    assert "ssh-rsa" in node_of(workspace)["metadata"]["ssh-keys"]
    workspace.assert_no_changes(STACK, "--refresh")


def test_each_thing_of_the_stack_that_is_deleted_by_hand_is_named(workspace, deployed, tmp_path):
    """tests/engine/losses.py draws them from the cloud's own store."""
    unsaid, tried, not_looked_at = unsaid_losses(workspace, STACK, tmp_path)
    assert (unsaid, tried > 25, not_looked_at) == ([], True, {CAPACITY})


@pytest.mark.long
def test_the_smoke_test_passes_through_the_tunnel(workspace, deployed):
    report = workspace.script("smoke", "--stack", STACK, "--json").json
    assert (report["passed"], report["simulated"]) == (True, "vllm")


def running_container(workspace):
    """The id of the server's container on the machine, and the hash of the document that it runs."""
    (container,) = (workspace.folder / "cloud" / "machines").glob("*/containers/gemma-serving.json")
    (queued,) = workspace.resources(STACK, CAPACITY)
    return json.loads(container.read_text())["id"], queued["outputs"]["documentHash"]


def resource_changes(up):
    """Return the counts under `Resources:` at the end of an `up`, by their word."""
    summary = up.out.rpartition("\nResources:\n")[2].partition("\n\n")[0]
    return {
        word: int(number) for number, word in re.findall(r"^\s+(?:\S+ )?(\d+) ([a-z]+)$", summary, flags=re.MULTILINE)
    }


def test_a_serving_flag_changes_in_place_and_the_capacity_stays(workspace, deployed):
    before, container = capacity(workspace), running_container(workspace)
    # A new API key makes its secret, and the server requires it; served_length() reads it from Secret Manager.
    with ProcessWatch() as watch:
        workspace.script("save_token", "apiKey", "--stack", STACK, stdin=KEY_CANARY)
    assert watch.seen == []
    # The custom role is one that a person creates once.
    role = {"roleId": "gemmaTunnel", "role": {"includedPermissions": list(PERMISSIONS)}}
    workspace.post("iam/v1/projects/local-project/roles", role)
    tunnel = {"tpu.tunnelMembers": [ALICE], "tpu.tunnelRole": "gemmaTunnel"}
    workspace.configure(STACK, **{"vllm.maxModelLen": 8192}, **tunnel)
    changes = resource_changes(workspace.up(STACK))
    tunnel = ("tunnel", "login", "custom role", "account")
    assert changes.pop("created") == len(("component", "secret", "version", "grant", *tunnel))
    assert set(changes) <= {"unchanged", "updated"}
    after = capacity(workspace)
    assert len(before) == 2
    assert {name: item["createTime"] for name, item in before.items()} == {
        name: item["createTime"] for name, item in after.items()
    }
    assert "--max-model-len=8192" in node_of(workspace)["metadata"]["gemma-serving-document"]
    assert workspace.outputs(STACK)["smoke"]["maxModelLen"] == 8192
    assert workspace.served_length(STACK) == 8192
    assert all(old != new for old, new in zip(container, running_container(workspace), strict=True))


def test_what_would_release_the_capacity_is_refused(workspace, deployed):
    before, (queued,) = capacity(workspace), workspace.resources(STACK, CAPACITY)
    refused = workspace.up(STACK, "--replace", queued["urn"], expect=FAILURE)
    assert "is ACTIVE, and no change of its inputs replaces it. It was not deleted." in refused.text
    assert {*before} == {*capacity(workspace)}


@pytest.mark.long
def test_a_setting_that_would_release_the_capacity_is_refused_with_its_name(workspace, deployed):
    restore = workspace.edit(STACK)
    workspace.configure(STACK, **{"tpu.maxRunDuration": "8h"})
    said = workspace.script("up", "--stack", STACK, "--yes", expect=2).err
    assert "up: `tpu.maxRunDuration` changes from 4h to 8h, which replaces" in said
    restore()
    workspace.assert_no_changes(STACK)


def test_a_member_with_the_custom_role_connects_and_another_person_does_not(workspace, deployed, monkeypatch):
    for name in ("LOCALCLOUD_URL", "GOOGLE_OAUTH_ACCESS_TOKEN"):
        monkeypatch.setenv(name, workspace.environment[name])
    node = node_of(workspace)["name"]
    gcloud.log_in(node, Login(account=ALICE.partition(":")[2]))
    with pytest.raises(CommandError, match=r"tpu\.nodes\.get"):
        gcloud.log_in(node, Login(account="bob@example.com"))


@pytest.mark.long
def test_a_changed_start_up_script_reaches_the_machine_and_leaves_the_server_running(workspace, deployed):
    """An upgrade of this project changes the agent's text; the server restarts for a changed document only."""
    before = running_container(workspace)
    module = workspace.folder / "project" / "gemma_serving" / "vm_agent" / "base.py"
    module.write_text(module.read_text() + "\nNEXT_RELEASE = True\n")
    changes = resource_changes(workspace.up(STACK))
    assert changes["updated"] == 1
    assert set(changes) == {"unchanged", "updated"}
    assert "NEXT_RELEASE = True" in unpacked(node_of(workspace)["metadata"]["startup-script"])
    assert running_container(workspace) == before


def test_the_token_is_found_nowhere_in_clear(workspace, deployed):
    """Incident SEC01: state, metadata, start-up script, logs, previews, exceptions, process arguments."""
    lines = workspace.script("logs", "--stack", STACK, "--lines", "5000", "--since", "1d").out
    assert "Starting vLLM API server" in lines
    for canary in CANARIES:
        assert canary not in workspace.state(STACK)
        assert canary not in json.dumps(capacity(workspace))
    assert_nowhere_in_clear(workspace, *CANARIES)


@pytest.mark.long
def test_up_and_teardown_know_a_renamed_stack(workspace, deployed):
    """`up` refuses to replace it, and the list of the teardown has what the state names."""
    renamed = f"{STACK}-new"
    workspace.pulumi("stack", "rename", renamed, "--stack", STACK)
    refused = workspace.script("up", "--stack", renamed, "--yes", expect=2)
    listed = workspace.script("teardown", "--stack", renamed, "--dry-run", expect=1)
    for text in (refused.err, listed.out):
        assert f"`pulumi stack rename {STACK} --stack {renamed}`" in text
    assert re.search(r"TPU queued resource +us-\S+, \$5\.40/h", listed.out), listed.out
    state = workspace.state_file(renamed)
    whole = state.read_text()
    state.write_text(whole[: len(whole) // 2])
    unknown = workspace.script("teardown", "--stack", renamed, "--dry-run", expect=1)
    assert f"was renamed from {STACK}, `gemma teardown {STACK}` deletes them." in " ".join(unknown.out.split())
    state.write_text(whole)
    workspace.pulumi("stack", "rename", STACK, "--stack", renamed)


def test_teardown_leaves_nothing_of_ours_and_everything_of_others(workspace, deployed):
    workspace.teardown(STACK)
    assert capacity(workspace) == {}
    assert workspace.made("/secrets/theirs")
    assert workspace.made("gemma-tpu-v6e4") == []
    # The custom role is a person's: a later `up` grants it again.
    assert workspace.get("iam", f"v1/{ROLE}")["includedPermissions"] == list(PERMISSIONS)
    assert ALICE not in json.dumps(workspace.policy())
