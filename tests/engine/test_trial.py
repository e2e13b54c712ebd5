"""A trial on the local cloud beside a real deployment, in a checkout as `make setup` leaves it: neither breaks the other."""

import pytest
import yaml

from gemma_serving.engine.trial import STATE_VARIABLE

STACK = "tpu-v6e1"
KEY, REAL_KEY = "key-of-the-trial-0123456789", "key-of-the-real-stack-0123"

pytestmark = [pytest.mark.engine, pytest.mark.long]


@pytest.fixture
def checkout(workspace):
    """A copy of the project has a link `.venv`; a checkout has the folder."""
    link = workspace.folder / "project" / ".venv"
    target = link.readlink()
    link.unlink()
    link.mkdir()
    for path in target.iterdir():
        (link / path.name).symlink_to(path)
    return workspace


def test_a_trial_leaves_the_settings_and_the_real_deployment_has_its_own_passphrase(checkout, tmp_path):
    path = checkout.settings(STACK)
    text = path.read_text()
    real = {"PULUMI_BACKEND_URL": f"file://{tmp_path}", "PULUMI_CONFIG_PASSPHRASE": "real", STATE_VARIABLE: ""}
    up = ("gemma", "up", STACK, "--yes")
    checkout.script(*up)
    checkout.script("save_token", "apiKey", "--stack", STACK, stdin=KEY)
    assert checkout.pulumi("config", "get", "apiKey", "--stack", STACK).out == f"{KEY}\n"
    assert path.read_text() == text

    checkout.pulumi("stack", "init", STACK, environment=real)
    checkout.pulumi("config", "set", "--secret", "apiKey", REAL_KEY, "--stack", STACK, environment=real)
    text = path.read_text()
    assert "encryptionsalt" in text
    checkout.script(*up)
    checkout.pulumi("config", "rm", "apiKey", "--stack", STACK)
    assert path.read_text() == text

    checkout.pulumi("config", "set", "--path", "gemma-serving:vllm.maxModelLen", "8192", "--stack", STACK)
    changed = yaml.safe_load(text)
    changed["config"]["gemma-serving:vllm"]["maxModelLen"] = 8192
    assert yaml.safe_load(path.read_text()) == changed
    checkout.script(*up)
    assert checkout.served_length(STACK) == 8192
    checkout.teardown(STACK)
    assert yaml.safe_load(path.read_text()) == changed
    assert checkout.pulumi("config", "get", "apiKey", "--stack", STACK, environment=real).out == f"{REAL_KEY}\n"


@pytest.mark.parametrize("stack", ["l4-e2b-lora", "tpu-v6e4-turbo"])
def test_pulumi_config_set_changes_only_its_line_of_a_shipped_file(workspace, stack):
    """The engine writes the whole file again: it moves a comment behind the last block, and writes `{a: 1}`."""
    path = workspace.settings(stack)
    text = path.read_text()
    length = next(line for line in text.splitlines() if "maxModelLen" in line)
    workspace.pulumi("stack", "init", stack)
    workspace.pulumi("config", "set", "--path", "gemma-serving:vllm.maxModelLen", "4096", "--stack", stack)
    assert path.read_text().startswith(text.replace(length, "    maxModelLen: 4096"))
