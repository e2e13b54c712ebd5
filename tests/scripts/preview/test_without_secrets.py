"""The copy of a stack without its secrets: nothing of them is left, and everything else is as it was."""

import json
from pathlib import Path

import pytest
import yaml

from gemma_serving.contracts.errors import ScriptError
from gemma_serving.engine import runner
from gemma_serving.engine.exported_state import is_secret, parse_deployment
from gemma_serving.engine.secrets_provider import key_of, provider_options
from gemma_serving.scripts.preview.without_secrets import (
    STAND_IN,
    settings_with_stand_ins,
    with_stand_ins,
    without_secrets,
)
from gemma_serving.stacks.loading import read_yaml

FIXTURES = Path(__file__).parents[2] / "fixtures" / "state"
KEY = "projects/p/locations/us/keyRings/r/cryptoKeys/k"
MADE = {"encryptionsalt": "v1:NEW=:v1:SALT=", "config": {"gemma-serving:standIn": {"secure": "v1:STAND:IN="}}}
SETTINGS = """# A comment with secure: v1:not/a:secret=
encryptionsalt: v1:OLD=:v1:SALT=
config:
  gemma-serving:model: google/gemma-4-E2B-it   # stays
  gemma-serving:hfToken:
    secure: v1:AAAA:secretONE=
  gemma-serving:apiKey: {secure: "v1:BBBB:secretTWO="}
  other:list: [{secure: 'v1:CCCC:secretTHREE='}, {secure: yes, more: 1}]
  gemma-serving:vllm:
    extraArgs: ["--secure", "secure: v1:not/a:secret="]
secretsprovider: gcpkms://projects/p/locations/us/keyRings/r/cryptoKeys/k
encryptedkey: OLDKEY=
"""


def test_settings_keep_everything_but_their_secrets():
    text = settings_with_stand_ins(SETTINGS, MADE)
    before, after = read_yaml(SETTINGS), read_yaml(text)
    assert not any(word in text for word in ("secretONE", "secretTWO", "secretTHREE", "OLD"))
    stand_in = {"secure": "v1:STAND:IN="}
    expected = {
        **before["config"],
        "gemma-serving:hfToken": stand_in,
        "gemma-serving:apiKey": stand_in,
        "other:list": [stand_in, before["config"]["other:list"][1]],
    }
    assert after == {"config": expected, "encryptionsalt": MADE["encryptionsalt"]}


@pytest.mark.parametrize("text", ["", "config: {}\n", "config:\n  gemma-serving:model: m"])
def test_settings_without_secrets_get_a_salt(text):
    after = yaml.safe_load(settings_with_stand_ins(text, MADE))
    assert after == {**(yaml.safe_load(text) or {}), "encryptionsalt": MADE["encryptionsalt"]}


def secrets_in(value, key=""):
    """Yield each secret of a document with its property."""
    if is_secret(value):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from secrets_in(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from secrets_in(item, key)


@pytest.mark.parametrize("stack", ["tpu-v6e4", "l4-qat"])
def test_a_state_keeps_everything_but_its_secrets(stack):
    deployed = parse_deployment(stack, (FIXTURES / f"{stack}.json").read_text())
    provider = {"type": "passphrase", "state": {"salt": "new"}}
    empty = parse_deployment(stack, json.dumps({"version": 3, "deployment": {"secrets_providers": provider}}))
    found = json.loads(with_stand_ins(stack, deployed, empty).text())
    assert "ciphertext" not in json.dumps(found)
    assert found["deployment"]["secrets_providers"] == provider
    seen = dict.fromkeys(key for key, _ in secrets_in(found))
    assert {"effectiveLabels", "pulumiLabels"} <= set(seen)
    for before, after in zip(deployed.resources, found["deployment"]["resources"], strict=True):
        labels = {**before.inputs.get("labels", {}), "goog-pulumi-provisioned": "true"}
        for key, value in secrets_in(after):
            assert json.loads(value["plaintext"]) == (labels if "Labels" in key else STAND_IN)
        kept = [json.dumps(each) for _, each in secrets_in(before.raw)]
        text = json.dumps(dict(before.raw))
        for cipher, (_, value) in zip(kept, secrets_in(after), strict=True):
            text = text.replace(cipher, json.dumps(value))
        assert json.loads(text) == after


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\nruntime: python\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_unreadable_state_is_not_a_missing_stack(folder, monkeypatch):
    """An account that may not read the backend gets an error, and no preview of a new stack."""
    said = "error: could not list bucket: 403 does not have storage.objects.list access"
    answer = type("Answer", (), {"returncode": 255, "stdout": "", "stderr": said})
    monkeypatch.setattr(runner, "run", lambda *_, **__: answer)
    with (
        pytest.raises(ScriptError, match=r"does not have storage\.objects\.list"),
        without_secrets("x"),
    ):
        pass


@pytest.mark.usefixtures("without_collection")
def test_what_makes_a_stack_names_the_provider_of_its_file(folder):
    (folder / "Pulumi.a.yaml").write_text(f"secretsprovider: gcpkms://{KEY}?additional_authenticated_data=eA==\n")
    (folder / "Pulumi.b.yaml").write_text("encryptionsalt: v1:x\n")
    (folder / "Pulumi.c.yaml").write_text("- not: a mapping\n")
    (folder / "Pulumi.d.yaml").write_text("[" * 2_000)
    assert key_of("a") == KEY
    assert provider_options("a") == [f"--secrets-provider=gcpkms://{KEY}?additional_authenticated_data=eA=="]
    for stack in ("b", "c", "d", "missing"):
        assert (key_of(stack), provider_options(stack)) == (None, [])
