"""The life of the TPU stack, with the real CLI: nothing lost, nothing replaced, nothing left, and the token nowhere in clear."""

import json
import re
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from contracts.fields import from_json
from contracts.outputs import StackOutputs
from contracts.run_record import RunRecord
from contracts.tunnel_role import PERMISSIONS
from localcloud.running.shims import gcloud
from localcloud.running.shims.gcloud import CommandError
from localcloud.running.shims.gcloud_login import Login
from tests.engine.conftest import HF_CANARY, KEY_CANARY, assert_golden_urns, assert_nowhere_in_clear
from tests.vm_agent.packed import unpacked

STACK = "tpu-v6e4"
ROLE = "projects/local-project/roles/gemmaTunnel"
CANARIES = (HF_CANARY, KEY_CANARY)

pytestmark = pytest.mark.engine


class ProcessWatch:
    """Reads every process's arguments and environment as fast as it can, looking for the canary in the arguments."""

    def __init__(self):
        self.seen = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self.ended.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if any(canary.encode() in path.read_bytes() for canary in CANARIES):
                        self.seen.append(str(path))
                except OSError:
                    continue
            time.sleep(0.05)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


def capacity(workspace):
    found = {}
    for zone in ("us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b", "southamerica-west1-a"):
        for kind in ("queuedResources", "nodes"):
            listed = workspace.get("tpu", f"v2alpha1/projects/local-project/locations/{zone}/{kind}")
            found.update({item["name"]: item for item in listed.get(kind, [])})
    return found


@pytest.fixture(scope="module")
def deployed(workspace):
    """The stack, up, with a token; `up` ran under a watch of all processes' arguments."""
    workspace.pulumi("stack", "init", STACK)
    workspace.pulumi("config", "set", "--secret", "hfToken", "--stack", STACK, stdin=HF_CANARY)
    # Something that is not ours, beside it.
    base = workspace.environment["CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"]
    theirs = requests.post(
        f"{base}v1/projects/local-project/secrets?secretId=theirs",
        json={"replication": {"automatic": {}}, "labels": {"managed-by": "somebody"}},
        headers=workspace.identity,
        timeout=60,
    )
    theirs.raise_for_status()
    with ProcessWatch() as watch:
        preview = workspace.cold("preview", "--diff", "--stack", STACK)
        up = workspace.cold("up", "--yes", "--skip-preview", "--stack", STACK)
    return {"preview": preview, "up": up, "watch": watch}


def test_the_preview_of_a_change_from_nothing_names_the_capacity(deployed):
    assert "gcp-tpu:index:QueuedResource" in deployed["preview"].text


def test_the_state_file_holds_the_real_thing(workspace, deployed):
    resources = json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
    (queued,) = [resource for resource in resources if resource["type"] == "gcp-tpu:index:QueuedResource"]
    assert "gemma-tpu-v6e4" in queued["id"]
    assert queued["outputs"]["state"] == "ACTIVE"


def test_the_outputs_say_where_the_capacity_is_and_when_google_deletes_it(workspace, deployed):
    outputs = from_json(StackOutputs, workspace.outputs(STACK))
    assert outputs.zone in {"us-east5-a", "us-east5-b", "europe-west4-a", "asia-northeast1-b", "southamerica-west1-a"}
    assert (outputs.location, outputs.state, outputs.phase) == (outputs.zone, "ACTIVE", "ready")
    assert outputs.deadline.endswith("Z")
    assert datetime.fromisoformat(outputs.deadline) > datetime.now(UTC)
    assert outputs.vllm["maxModelLen"] == 16384


def test_the_urns_are_those_that_earlier_releases_made(workspace, deployed):
    assert_golden_urns(workspace, STACK)


def test_nothing_changes_right_after_up(workspace, deployed):
    account = f"v1/projects/local-project/serviceAccounts/gemma-{STACK}@local-project.iam.gserviceaccount.com"
    record = RunRecord.of(workspace.get("iam", account)["description"])
    assert len(record.runs) == 1, "what the update has started is recorded, and shows nowhere"
    workspace.pulumi("preview", "--expect-no-changes", "--stack", STACK)


def test_the_server_passes_its_smoke_checks(workspace, deployed):
    report = workspace.script("smoke", "--stack", STACK, "--json").json
    assert report["passed"] is True
    assert report["simulated"] == "vllm"


def test_a_refresh_finds_no_drift_and_the_ssh_key_of_a_tunnel_is_none(workspace, deployed):
    node = next(item for name, item in capacity(workspace).items() if "/nodes/" in name)
    assert "ssh-rsa" in node["metadata"]["ssh-keys"]
    workspace.pulumi("preview", "--refresh", "--expect-no-changes", "--stack", STACK)


def running_container(workspace):
    """The id of the server's container on the machine, and the hash of the document that it runs."""
    (container,) = (workspace.folder / "cloud" / "machines").glob("*/containers/gemma-serving.json")
    resources = json.loads(workspace.state(STACK))["checkpoint"]["latest"]["resources"]
    (queued,) = [resource for resource in resources if resource["type"] == "gcp-tpu:index:QueuedResource"]
    return json.loads(container.read_text())["id"], queued["outputs"]["documentHash"]


def resource_changes(up):
    """Return the counts under `Resources:` at the end of an `up`, by their word."""
    summary = up.out.rpartition("\nResources:\n")[2].partition("\n\n")[0]
    return {
        word: int(number) for number, word in re.findall(r"^\s+(?:\S+ )?(\d+) ([a-z]+)$", summary, flags=re.MULTILINE)
    }


def admit_alice(workspace):
    """Create the custom role as a person does once, and name it and a member in the settings."""
    base = f"{workspace.environment['LOCALCLOUD_URL']}/iam/v1/projects/local-project/roles"
    body = {"roleId": "gemmaTunnel", "role": {"includedPermissions": list(PERMISSIONS)}}
    requests.post(base, json=body, headers=workspace.identity, timeout=60).raise_for_status()
    settings = workspace.folder / "project" / f"Pulumi.{STACK}.yaml"
    lines = "    tunnelMembers: ['user:alice@example.com']\n    tunnelRole: gemmaTunnel\n"
    before = settings.read_text()
    settings.write_text(before.replace("  gemma-serving:tpu:\n", f"  gemma-serving:tpu:\n{lines}"))
    assert settings.read_text() != before


def test_a_serving_flag_changes_in_place_and_the_capacity_stays(workspace, deployed):
    before, container = capacity(workspace), running_container(workspace)
    workspace.pulumi("config", "set", "--path", "gemma-serving:vllm.maxModelLen", "8192", "--stack", STACK)
    # A new API key makes its secret, and the server requires it; served_length() reads it from Secret Manager.
    with ProcessWatch() as watch:
        workspace.script("save_token", "apiKey", "--stack", STACK, stdin=KEY_CANARY)
    assert watch.seen == []
    admit_alice(workspace)
    changes = resource_changes(workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK))
    tunnel = ("tunnel", "login", "custom role", "account")
    assert changes.pop("created") == len(("component", "secret", "version", "grant", *tunnel))
    assert set(changes) <= {"unchanged", "updated"}
    after = capacity(workspace)
    assert len(before) == 2
    assert {name: item["createTime"] for name, item in before.items()} == {
        name: item["createTime"] for name, item in after.items()
    }
    node = next(item for name, item in after.items() if "/nodes/" in name)
    assert "--max-model-len=8192" in node["metadata"]["gemma-serving-document"]
    outputs = workspace.outputs(STACK)
    assert outputs["smoke"]["maxModelLen"] == 8192
    assert workspace.served_length(STACK) == 8192
    assert all(old != new for old, new in zip(container, running_container(workspace), strict=True))


def test_a_member_with_the_custom_role_connects_and_another_person_does_not(workspace, deployed, monkeypatch):
    for name in ("LOCALCLOUD_URL", "GOOGLE_OAUTH_ACCESS_TOKEN"):
        monkeypatch.setenv(name, workspace.environment[name])
    (node,) = (name for name in capacity(workspace) if "/nodes/" in name)
    gcloud.log_in(node, Login(account="alice@example.com"))
    with pytest.raises(CommandError, match=r"tpu\.nodes\.get"):
        gcloud.log_in(node, Login(account="bob@example.com"))


def test_a_changed_start_up_script_reaches_the_machine_and_leaves_the_server_running(workspace, deployed):
    """An upgrade of this project changes the agent's text; the server restarts for a changed document only."""
    before = running_container(workspace)
    module = workspace.folder / "project" / "vm_agent" / "base.py"
    module.write_text(module.read_text() + "\nNEXT_RELEASE = True\n")
    changes = resource_changes(workspace.pulumi("up", "--yes", "--skip-preview", "--stack", STACK))
    node = next(item for name, item in capacity(workspace).items() if "/nodes/" in name)
    assert changes["updated"] == 1
    assert set(changes) == {"unchanged", "updated"}
    assert "NEXT_RELEASE = True" in unpacked(node["metadata"]["startup-script"])
    assert running_container(workspace) == before


def test_the_token_is_found_nowhere_in_clear(workspace, deployed):
    """Incident SEC01: state, metadata, start-up script, logs, previews, exceptions, process arguments."""
    assert deployed["watch"].seen == []
    lines = workspace.script("logs", "--stack", STACK, "--lines", "5000", "--since", "1d").out
    assert "Starting vLLM API server" in lines
    for canary in CANARIES:
        assert canary not in workspace.state(STACK)
        assert canary not in json.dumps(capacity(workspace))
    assert_nowhere_in_clear(workspace, *CANARIES)


def test_teardown_leaves_nothing_of_ours_and_everything_of_others(workspace, deployed):
    report = workspace.script("teardown", "--stack", STACK, "--yes", "--json").json
    assert report["clean"] is True
    assert report["state"] == []
    assert capacity(workspace) == {}
    names = [resource["name"] for resource in workspace.admin("resources")["resources"]]
    assert any(name.endswith("/secrets/theirs") for name in names)
    assert not [name for name in names if "gemma-tpu-v6e4" in name]
    # The custom role is a person's: a later `up` grants it again.
    assert workspace.get("iam", f"v1/{ROLE}")["includedPermissions"] == list(PERMISSIONS)
    policy = requests.post(
        f"{workspace.environment['LOCALCLOUD_URL']}/cloudresourcemanager/v1/projects/local-project:getIamPolicy",
        json={"options": {"requestedPolicyVersion": 3}},
        headers=workspace.identity,
        timeout=60,
    ).json()
    assert "alice@example.com" not in json.dumps(policy)
