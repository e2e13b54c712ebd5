"""The engine's output for a stack, and the stacks that a run previews."""

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.engine import runner
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.cli.command import run_command
from gemma_serving.scripts.preview import previews
from gemma_serving.scripts.preview.__main__ import COMMAND
from gemma_serving.scripts.preview.previews import preview_stacks

ROOT = Path(__file__).resolve().parents[3]
URN = "urn:pulumi:x::gemma-serving::gcp:storage/bucket:Bucket::models"
ENGINE = {
    "steps": [
        {
            "op": "create",
            "urn": "urn:pulumi:x::p::pulumi:pulumi:Stack::p-x",
            "newState": {"type": "pulumi:pulumi:Stack"},
        },
        {"op": "update", "urn": URN, "newState": {"type": "gcp:storage/bucket:Bucket"}, "diffReasons": ["labels"]},
        {
            "op": "replace",
            "urn": URN.replace("models", "capacity"),
            "newState": {"type": "gcp-tpu:index:QueuedResource"},
            "diffReasons": ["acceleratorType"],
            "replaceReasons": ["acceleratorType"],
        },
        {"op": "same", "urn": URN, "newState": {"type": "x"}},
    ],
    "diagnostics": [
        {"severity": "warning", "message": "FIT07: fp8 KV buys nothing\n"},
        {"severity": "info", "message": "x"},
    ],
    "changeSummary": {"same": 12, "update": 1, "replace": 1},
}


def missing(stack):
    return StackState(stack=stack, status="missing")


def test_a_stack_that_the_backend_does_not_know_is_previewed_beside_it(monkeypatch, tmp_path):
    """Nothing is written to the backend, and the settings file stays as it was."""
    path = tmp_path / "Pulumi.new.yaml"
    path.write_text("config: {}\n")
    asked = []

    def run(*arguments, **_options):
        asked.append((arguments[:2], os.environ.get("PULUMI_BACKEND_URL")))
        if arguments[:2] == ("stack", "select"):
            return subprocess.CompletedProcess(arguments, 255, "", "error: no stack named 'new' found")
        if arguments[:2] == ("stack", "init"):
            path.write_text("config: {}\nencryptionsalt: v1:salt\n")
            return subprocess.CompletedProcess(arguments, 0, "", "")
        return subprocess.CompletedProcess(arguments, 0, json.dumps(ENGINE), "")

    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://real")
    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "project_folder", lambda: tmp_path)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    monkeypatch.setattr(previews, "read", missing)
    (found,) = preview_stacks(["new"], hide_secrets=False)
    assert (found.unchanged, found.new_stack, found.error) == (12, True, None)
    assert asked[0][1] == "gs://real"
    assert all(backend.startswith("file://") for _, backend in asked[1:])
    assert os.environ["PULUMI_BACKEND_URL"] == "gs://real"
    assert path.read_text() == "config: {}\n"


def test_a_preview_that_google_refuses_has_its_words(monkeypatch):
    said = "googleapi: Error 403: Cloud Run Admin API has not been used in project 1 before or it is disabled."

    def refuse(*arguments, **_options):
        code = 0 if arguments[0] == "stack" else 255
        return subprocess.CompletedProcess(arguments, code, "", f"error: {said}")

    monkeypatch.setattr(runner, "run", refuse)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    (found,) = preview_stacks(["l4-qat"], hide_secrets=False)
    assert found.error == said


@pytest.mark.parametrize(
    "case",
    [("HEAD", set(), ["b"]), ("HEAD", {"a"}, ["a", "b"]), (None, set(), ["a", "b"])],
)
def test_a_stack_that_is_neither_deployed_nor_changed_is_not_previewed(monkeypatch, tmp_path, capsys, case):
    """The second stack's file changes after the commit of the base."""
    base, deployed, previewed = case
    (tmp_path / "Pulumi.yaml").write_text("name: gemma-serving\n")
    for name in ("a", "b"):
        (tmp_path / f"Pulumi.{name}.yaml").write_text((ROOT / "Pulumi.l4-qat.yaml").read_text())
    for words in (["init"], ["add", "--all"], ["commit", "--message", "base"]):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    path = tmp_path / "Pulumi.b.yaml"
    path.write_text(path.read_text().replace("memory: 20Gi", "memory: 24Gi"))
    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "pulumi", lambda: "pulumi")
    monkeypatch.setattr(runner, "listed_stacks", lambda: frozenset(deployed))
    monkeypatch.setattr(previews, "read", missing)
    monkeypatch.setattr(previews, "selected_or_new", lambda stack, **_: contextlib.nullcontext(stack in deployed))
    monkeypatch.setattr(previews, "preview", lambda stack: asked.append(stack) or ENGINE)
    options = ["run", *(["--base", base] if base else []), "--out", "out"]
    assert run_command(COMMAND, options) == ExitCode.DONE
    assert asked == previewed
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.json")) == previewed
    shown = capsys.readouterr().out
    assert (tmp_path / "out" / "comment.md").read_text() == shown
    assert ("`b`: creates a new revision" in shown, shown.startswith("a: ")) == (base is not None, base is None)
