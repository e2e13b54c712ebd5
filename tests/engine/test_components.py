"""Both components in one program of another user: up, no changes, one flag changed in place, destroyed; a refusal declares nothing."""

import json
import re

import pytest

from tests.engine.conftest import HF_CANARY, KEY_CANARY, assert_nowhere_in_clear

PROGRAM = """
import os
import pulumi

OUTPUTS = ("endpoint", "servedModel", "image", "usdPerHour", "plan", "zone", "state", "deadline", "tunnelCommand")


class Server(pulumi.ComponentResource):  # what an SDK declares
    def __init__(self, kind, name, inputs):
        super().__init__(f"gemma-serving:index:{kind}", name, {**dict.fromkeys(OUTPUTS), **inputs}, None, remote=True)


config = pulumi.Config()
chat = Server("TpuServer", "chat", {
    "model": config.get("model") or "google/gemma-4-E4B-it",
    "accelerator": "v6e-1",
    "zones": ["us-east5-a", "us-east5-b"],
    "maxRunDuration": "4h",
    "hfToken": config.require_secret("hfToken"),
    "settings": {"vllm": {"maxModelLen": config.get_int("length") or 16384}},
})
batch = Server("CloudRunServer", "batch", {
    "model": "google/gemma-4-E2B-it",
    "region": "us-east4",
    "gpu": "nvidia-l4",
    "apiKey": config.require_secret("apiKey"),
    "invokers": ["group:ml@example.com"],
})
pulumi.export("chat", {"state": chat.state, "zone": chat.zone, "tunnel": chat.tunnelCommand, "price": chat.usdPerHour})
pulumi.export("batch", {"endpoint": batch.endpoint, "fits": batch.plan["fits"]})
"""


@pytest.fixture(scope="module")
def theirs(workspace):
    """A program outside of this project, with the plugins by path."""
    folder = workspace.folder / "theirs"
    folder.mkdir()
    project = workspace.folder / "project"
    plugins = {"gemma-serving": project / "hosted", "gcp-tpu": project / "packages" / "gcp-tpu"}
    given = {
        "name": "theirs",
        "runtime": {"name": "python", "options": {"virtualenv": str(project / ".venv")}},
        "plugins": {"providers": [{"name": name, "path": str(path)} for name, path in plugins.items()]},
    }
    (folder / "Pulumi.yaml").write_text(json.dumps(given))
    (folder / "__main__.py").write_text(PROGRAM)

    def pulumi(*arguments, **options):
        return workspace.pulumi(*arguments, "--cwd", folder, **options)

    pulumi("stack", "init", "dev")
    for key, value in (("hfToken", HF_CANARY), ("apiKey", KEY_CANARY)):
        pulumi("config", "set", "--secret", key, stdin=value)
    return pulumi


def test_two_servers_of_another_program_live_and_end(workspace, theirs):
    first = theirs("up", "--yes", "--skip-preview")
    assert "chat: google/gemma-4-E4B-it fits on v6e-1." in first.text
    assert "batch: google/gemma-4-E2B-it fits on L4." in first.text
    outputs = json.loads(theirs("stack", "output", "--json").out)
    assert outputs["chat"]["state"] == "ACTIVE"
    assert re.search(r"gemma-dev-chat\S* .*--zone=us-east5-[ab]", outputs["chat"]["tunnel"])
    assert outputs["batch"]["fits"] is True
    assert outputs["batch"]["endpoint"].startswith("http")

    theirs("preview", "--expect-no-changes")

    theirs("config", "set", "length", "8192")
    changed = theirs("up", "--yes", "--skip-preview")
    assert re.search(r"~ 1 updated\s+\d+ unchanged", changed.text), changed.text[-2000:]
    assert "--max-model-len" in theirs("stack", "export").out

    theirs("destroy", "--yes", "--skip-preview")
    left = [each for each in workspace.admin("resources")["resources"] if "gemma-dev-" in json.dumps(each)]
    assert left == []
    assert_nowhere_in_clear(workspace, HF_CANARY, KEY_CANARY)


def test_a_refused_server_declares_nothing(theirs):
    theirs("config", "set", "model", "google/gemma-4-31B-it")
    refused = theirs("up", "--yes", "--skip-preview", expect=None)
    assert refused.code != 0
    assert "TpuServer chat is blocked by FIT01. Nothing was changed." in refused.text
    kept = json.loads(theirs("stack", "export").out)["deployment"].get("resources") or []
    assert not [each["urn"] for each in kept if "gemma-serving:index:TpuServer" in each["urn"]]
