"""The age of a chat template, by what it writes. The texts here write as Google's do; the real ones gave the same answers."""

import json
import subprocess
from pathlib import Path

import pytest

from gemma_serving.cloud.staging.sources import FolderSource
from gemma_serving.cloud.staging.template_age import recorded_age, template_age, template_record
from gemma_serving.contracts.staged_weights import MANIFEST
from tests.safetensors_files import safetensors

JULY = (Path(__file__).resolve().parents[2] / "packages/localcloud/hub/data/chat_template.jinja").read_text()
"""The local cloud's own template, which writes what the fixed text of 9 July 2026 writes in each of these conversations."""


def older(text, *changes):
    """Return a template with parts replaced, each of which exists once."""
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


NULL = ("replace(': None', ':null')", "replace(': None', ':None')")
CONTINUED = ("{%- if last.turn != turn -%}", "{%- if last.turn != turn or message.role == last.role == 'assistant' -%}")
ENDS = ("{{- '<turn|>\\n' if last.turn -}}", "{{- '<turn|>\\n' if last.turn and last.role != 'tool' -}}")
NAMES = ("properties | sort ", "properties | reject('eq', 'type') | sort ")
RESULTS = (" in ['assistant', 'tool'] ", " == 'assistant' ")
APRIL = older(JULY, NULL, CONTINUED, ENDS)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        (JULY, "2026-07"),
        (APRIL, "2026-04"),
        (older(APRIL, NAMES), "older"),
        (older(JULY, NULL, RESULTS), "older"),
        (older(JULY, NULL), "2026-04"),
        (older(JULY, CONTINUED), "2026-04"),
        (older(JULY, ENDS), "2026-04"),
        (older(JULY, NAMES), "unknown"),
        (older(JULY, ("replace(': None', ':null')", "replace(': None', ':')")), "unknown"),
        (JULY + "{{ '{unit:None}' }}", "unknown"),
        ("{%- for message in messages %}<|im_start|>{{ message.role }} {{ message.content }}<|im_end|>{% endfor %}", "unknown"),
        ("", "unknown"),
    ],
    ids=[
        "July", "April", "10 April", "release", "null", "one turn", "ends", "a mixture", "no null at all",
        "both texts", "another model", "empty",
    ],
)  # fmt: skip
def test_a_template_has_a_fix_lacks_it_or_is_unknown(text, age):
    assert template_age(text.encode()) == age


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ raise_exception('no tools') }}",
        "{% include '/etc/passwd' %}",
        "{% if %}",
        "\xff",
    ],
)
def test_a_template_that_cannot_be_rendered_is_unknown(text):
    assert template_age(text.encode("latin-1")) == "unknown"


def test_a_template_that_never_ends_is_stopped_and_gets_no_environment(monkeypatch, tmp_path):
    monkeypatch.setattr("gemma_serving.cloud.staging.template_age._LIMIT_S", 0.5)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    seen, run = [], subprocess.run
    monkeypatch.setattr("subprocess.run", lambda *words, **how: seen.append(how) or run(*words, **how))
    assert template_age(b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}") == "unknown"
    assert list(seen[0]["env"]) == ["PYTHONPATH"]


def test_a_manifest_records_the_template_and_keeps_the_hash_of_the_files(staging_world, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors(b"weights"))
    (tmp_path / "chat_template.jinja").write_text(APRIL)
    staged = staging_world.stage(tmp_path)
    manifest = json.loads(staging_world.content(f"m/{MANIFEST}"))
    record = template_record(FolderSource(folder=tmp_path))
    assert (staged.template, manifest["chat_template.jinja"]) == ("2026-04", record)
    [file] = [one for one in manifest["files"] if one["name"] == "chat_template.jinja"]
    assert record == {"sha256": file["sha256"], "age": "2026-04"}
    assert recorded_age({**manifest, "chat_template.jinja": {"age": "2027-01"}}) == "unknown"
    assert recorded_age({}) == "unknown"
