"""A deployment is read, written and backed up as a whole; what cannot be read is one sentence that names the way out."""

import json
import stat
from pathlib import Path

import pytest

from gemma_serving.engine import exported_state, runner
from gemma_serving.engine.exported_state import (
    StateUnreadableError,
    back_up,
    is_secret,
    parse_deployment,
    read_deployment,
)

STATES = Path(__file__).parents[1] / "fixtures" / "state"
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "v1:abc"}


def export(**inner):
    resource = {
        "urn": "urn:pulumi:s::p::a:b:C::n",
        "type": "a:b:C",
        "custom": True,
        "inputs": {"token": SECRET},
        "new": 1,
    }
    pending = {"resource": {"urn": "urn:pulumi:s::p::a:b:C::m", "type": "a:b:C", "custom": True}, "type": "creating"}
    content = {"manifest": {"time": "t"}, "resources": [resource], "pending_operations": [pending], **inner}
    return {"version": 4, "features": ["x"], "deployment": content}


@pytest.mark.parametrize("stack", ["tpu-v6e4", "l4-qat"])
def test_what_is_read_is_written_as_it_was(stack):
    text = (STATES / f"{stack}.json").read_text()
    assert json.loads(parse_deployment(stack, text).text()) == json.loads(text)


def test_what_the_program_does_not_know_and_secrets_stay_as_they_are():
    found = parse_deployment("s", json.dumps(export()))
    (resource,) = found.resources
    assert is_secret(resource.inputs["token"])
    assert (found.pending[0].kind, found.pending[0].resource.name) == ("creating", "m")
    assert json.loads(found.text()) == export()
    without = json.loads(found.changed(pending=[]).text())
    assert "pending_operations" not in without["deployment"]
    assert without["features"] == ["x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (json.dumps(export())[:200], "Unterminated string|Expecting|delimiter"),
        ("", "Expecting value"),
        ("[]", "it has no version"),
        (json.dumps(export(resources=[{"urn": ""}])), "no URN or no type"),
    ],
)
def test_a_state_that_cannot_be_read_is_one_sentence_with_the_command(text, problem):
    with pytest.raises(StateUnreadableError, match=problem) as refused:
        parse_deployment("dev", text)
    assert str(refused.value).endswith("Run `gemma up dev`, which repairs it.")
    assert "\n" not in str(refused.value)
    assert refused.value.cut_off


def test_a_newer_format_is_not_taken_for_a_broken_state():
    with pytest.raises(StateUnreadableError, match="version 9, but this program supports up to version 4") as refused:
        parse_deployment("dev", json.dumps({**export(), "version": 9}))
    assert not refused.value.cut_off


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        (
            "failed to load checkpoint: place 1: unexpected end of JSON input",
            StateUnreadableError,
            "may have been truncated by an interrupted write",
        ),
        (
            "could not deserialize deployment: failed to decrypt: incorrect passphrase",
            StateUnreadableError,
            "Set PULUMI_CONFIG_PASSPHRASE",
        ),
        ("connection refused", runner.PulumiFailedError, "connection refused"),
    ],
)
def test_the_engines_own_words_for_a_broken_state_are_told_apart(monkeypatch, said, kind, expected):
    def query(_arguments):
        raise runner.PulumiFailedError(f"`pulumi stack` failed: {said}", f"error: {said}")

    monkeypatch.setattr(runner, "query", query)
    with pytest.raises(kind, match=expected):
        read_deployment("dev")


def test_a_backup_can_be_read_by_its_owner_only_and_never_replaces_another(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMA_SERVING_FOLDER", str(tmp_path))
    first, second = back_up("dev", "one"), back_up("dev", "two")
    assert first != second
    assert (first.read_text(), second.read_text()) == ("one", "two")
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert first.parent == tmp_path / exported_state.BACKUP_FOLDER
