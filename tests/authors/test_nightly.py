"""`python -m authors.nightly`: its exit codes, what it prints, and the workflow that runs it."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from authors import nightly

ROOT = Path(__file__).resolve().parents[2]
SECRET = {
    "id": "secretmanager.projects.secrets.create",
    "operator": True,
    "method": "POST",
    "path": "/secretmanager/v1/projects/project-1/secrets",
    "query": {"secretId": "a"},
    "body": {"labels": {"a": "b"}},
    "status": 200,
}


@pytest.fixture
def lives(monkeypatch, tmp_path):
    """Runs that write a request log without running anything: what each kind of plugin sends."""
    sent = {"standin": [SECRET], "real": [SECRET]}

    def live(stack, kind, requests, log):
        log.write_text("one line\nthe last line")
        if sent[kind] is None:
            return 1
        requests.write_text(json.dumps(sent[kind]))
        return 0

    monkeypatch.setattr(nightly, "_live", live)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return sent


def run(tmp_path, *more):
    return nightly.main(["--stack", "l4-qat", "--out", str(tmp_path / "out"), *more])


def test_the_same_requests_pass(lives, tmp_path, capsys):
    assert run(tmp_path) == 0
    assert "| l4-qat | 1 | the same |" in capsys.readouterr().out


def test_a_difference_fails_and_is_named(lives, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    lives["real"] = [{**SECRET, "body": {"labels": {"a": "c"}}}]
    assert run(tmp_path) == 1
    out = capsys.readouterr().out
    assert "secretmanager.projects.secrets.create: body.labels.a: b | c" in out
    assert (tmp_path / "summary").read_text() == out


def test_a_run_that_fails_fails_with_the_end_of_its_output(lives, tmp_path, capsys):
    lives["real"] = None
    assert run(tmp_path, "--json") == 1
    (outcome,) = json.loads(capsys.readouterr().out)
    assert outcome["differences"] is None
    assert outcome["detail"].endswith("the last line")


def test_an_unknown_stack_is_refused(tmp_path, capsys):
    assert nightly.main(["--stack", "none", "--out", str(tmp_path)]) == 2
    assert "stack 'none' not found" in capsys.readouterr().err


def test_every_stack_is_driven(lives, tmp_path, capsys):
    assert nightly.main(["--out", str(tmp_path), "--json"]) == 0
    driven = {each["stack"] for each in json.loads(capsys.readouterr().out)}
    assert driven == {path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in ROOT.glob("Pulumi.*.yaml")}


def test_the_workflow_runs_targets_of_the_makefile_and_may_only_read():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert not [name for name, job in workflow["jobs"].items() if "permissions" in job]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in workflow["jobs"].items()}
    kills = 'make kills SEED="$(date +%Y%m%d)$SERIES" COUNT=200 HISTORY=.work/kills.jsonl'
    assert workflow["jobs"]["kills"]["strategy"] == {"fail-fast": False, "matrix": {"series": [1, 2, 3, 4, 5]}}
    assert commands == {
        "kills": ["make setup", kills],
        "long": ["make setup", 'make long PART="$PART"'],
        "packages": [
            "make setup",
            'for folder in packages/*/; do (cd "$folder" && ../../.venv/bin/python -m pytest -n 4 --dist loadfile) || failed=1; done; exit "${failed:-0}"',
        ],
        "real-plugin": ["make setup", "make nightly"],
        "images": [
            "sudo rm -rf /usr/local/lib/android /usr/share/dotnet /opt/ghc /opt/hostedtoolcache/CodeQL",
            'images/build.sh "$IMAGE"',
        ],
        "audit": ["make setup", "make audit"],
        "published": ["make setup", ".venv/bin/python -m authors.published"],
        "oracle": ["make setup", "make oracle ROUNDS=9"],
    }
    makefile = (ROOT / "Makefile").read_text()
    targets = [command.split()[1] for each in commands.values() for command in each if command.startswith("make ")]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert "-m authors.nightly\n" in makefile
    assert os.access(ROOT / "authors" / "stack_life.sh", os.X_OK)
