"""A secret's bytes have one reader: all who read a version agree, refuse what no header can have, and print a command that stores it again."""

import ast
import base64
import http.client  # noqa: TID251 - judges a value, and sends nothing
import json
import os
import random
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemma_serving.cloud.secret_values import read_secret
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.secret_payload import UnusableSecretError, store_command, usable_secret
from gemma_serving.scripts.stack.access import API_KEY_VARIABLE, AccessError, open_url_access
from gemma_serving.vm_agent import cloud
from gemma_serving.vm_agent.base import ServingError
from tests.laws import examples
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
VERSION = "projects/p/secrets/s/versions/1"
KEY = "gemma-0123456789-swordfish"
ENDS = ("", "\n", "\r\n", "\r", "\n\n", " ", "\t", "\x00", "\ufeff", "ä")
DECODERS = {
    "gemma_serving/contracts/masking.py": "a pair of user and password in a line of a log",
    "gemma_serving/contracts/secret_payload.py": "a secret's payload",
    "scripts/stack/access.py": "the claims of an identity token",
}
"""Who decodes Base64, and what."""
DECODING = {"b64decode", "urlsafe_b64decode", "standard_b64decode", "decodebytes", "a2b_base64"}
PRODUCT = {"gemma_serving", "components", "scripts", "stacks", "__main__.py"}


def drawn():
    chance = random.Random(7)  # noqa: S311 - drawn alike in each run
    for _ in range(examples(test=40, part=200, night=2_000)):
        at = chance.randint(0, len(KEY))
        yield f"{KEY[:at]}{chance.choice(ENDS)}{KEY[at:]}{chance.choice(ENDS)}".encode()
    yield from (b"", b"\xff\xfe", "K\n".encode("utf-16"))


def of_client(answer, _monkeypatch):
    return read_secret(VERSION, project="p", api=SimpleNamespace(get=lambda *_: answer))


def of_agent(answer, monkeypatch):
    monkeypatch.setattr(cloud, "google", lambda *_: json.dumps(answer))
    return cloud.read_secret(cloud.MetadataClient(host="x"), VERSION)


def read_by(reader, answer, monkeypatch):
    """Return the value, or the sentence of the refusal."""
    try:
        return reader(answer, monkeypatch), ""
    except (ScriptError, ServingError) as error:
        return None, str(error)


def test_each_reader_returns_the_bytes_as_they_are_or_refuses_them_and_none_strips(monkeypatch):
    for data in drawn():
        answer = {"payload": {"data": base64.b64encode(data).decode()}}
        value, said = read_by(of_client, answer, monkeypatch)
        again, agent = read_by(of_agent, answer, monkeypatch)
        assert value == again
        if value is None:
            assert f"The value of {VERSION}" in said
            assert f"`{store_command(VERSION)}`" in said
            assert f"`{store_command(VERSION)}`" in agent
            assert KEY not in f"{said} {agent}"
        else:
            assert value.encode() == data
            assert not re.search(r"[\x00-\x1f\x7f]", value)


@pytest.mark.parametrize("character", [chr(code) for code in range(128)], ids=ascii)
def test_what_ends_a_header_is_never_a_value(character):
    for value in (f"{KEY}{character}", f"{KEY}{character}{KEY}"):
        try:
            usable_secret(value, "it")
        except UnusableSecretError as error:
            assert ("ends in a newline" in str(error)) == (value[-1] in "\r\n")
        else:
            connection = http.client.HTTPConnection("x")  # noqa: TID251 - as above
            connection.putrequest("GET", "/")
            connection.putheader("Authorization", f"Bearer {value}")


def test_the_printed_command_stores_what_is_typed_without_its_newline_and_no_argument_list_has_it(tmp_path):
    gcloud = tmp_path / "gcloud"
    gcloud.write_text('#!/bin/sh\nprintf "%s\\n" "$*" > "$HOME/words"; cat > "$HOME/stored"\n', encoding="utf-8")
    gcloud.chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = ["bash", "-c", store_command("projects/p/secrets/key-own/versions/3")]
    subprocess.run(command, input=f"{KEY}\n", env=variables, text=True, check=True)
    assert (tmp_path / "stored").read_text(encoding="utf-8") == KEY
    assert (tmp_path / "words").read_text(
        encoding="utf-8"
    ) == "secrets versions add key-own --project=p --data-file=-\n"


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_key_of_the_environment_with_a_newline_is_refused_before_a_request(monkeypatch, end):
    monkeypatch.setenv(API_KEY_VARIABLE, KEY + end)
    with pytest.raises(AccessError, match=f"The value of {API_KEY_VARIABLE} ends in a newline") as refused:
        open_url_access("http://127.0.0.1:1")
    assert KEY not in str(refused.value)


def test_no_other_code_decodes_a_payload():
    decoders = set()
    for path in tracked(*PRODUCT):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {getattr(node, "attr", getattr(node, "id", "")) for node in nodes}
        decoders |= {path.relative_to(ROOT).as_posix()} if names & DECODING else set()
    assert decoders == set(DECODERS)
