"""Drift is reported once, in one issue, and never as none if a stack could not be read."""

import json
import re
import subprocess

import pytest

from contracts.exit_codes import ExitCode
from contracts.rollout_record import ROLLOUT_ANNOTATION
from engine import runner
from engine.changes import ResourceChange
from scripts.cli.command import run_command
from scripts.drift import run as drift
from scripts.drift.__main__ import COMMAND
from scripts.drift.run import MARKER, StackDrift, drift_of, issue_body

CAPACITY = "gcp-tpu:index:QueuedResource"
URN = f"urn:pulumi:a::p::{CAPACITY}::capacity"
STEPS = [
    {"op": "refresh", "urn": URN, "newState": {"type": CAPACITY}},
    {"op": "update", "urn": URN, "newState": {"type": CAPACITY}, "diffReasons": ["labels"]},
]


def engine_that(monkeypatch, refresh, code=0, listed=("a",)):
    asked = []

    def run(*arguments, **_):
        asked.append(arguments)
        if arguments[:2] == ("stack", "ls"):
            return subprocess.CompletedProcess(arguments, 0, json.dumps([{"name": name} for name in listed]), "")
        return subprocess.CompletedProcess(arguments, code, refresh, "error: no access")

    monkeypatch.setattr(runner, "run", run)
    return asked


def test_a_difference_is_told_with_its_properties_and_nothing_is_changed(monkeypatch):
    asked = engine_that(monkeypatch, json.dumps({"steps": STEPS}))
    found = drift_of("a")
    assert [(change.op, change.name, change.properties) for change in found.changes] == [
        ("update", "capacity", ("labels",))
    ]
    assert asked[1] == ("refresh", "--preview-only", "--json", "--stack", "a")
    text = issue_body([found, StackDrift(stack="b")], "https://github.com/o/r/actions/runs/1")
    assert text.startswith(MARKER)
    assert "| `a` | 1 |" in text
    assert "- `capacity` (`gcp-tpu:index:QueuedResource`) is changed: `labels`" in text
    assert "`b`" not in text


def service_step(record, shares, *, op="refresh", **labels):
    outputs = {
        "labels": {"gemma-serving-template": "f", **labels},
        "annotations": {ROLLOUT_ANNOTATION: record},
        "latestCreatedRevision": "s/revisions/s-2",
        "latestReadyRevision": "s/revisions/s-2",
        "trafficStatuses": [{"revision": name, "percent": float(percent)} for name, percent in shares.items()],
    }
    kind = "gcp:cloudrunv2/service:Service"
    return {"op": op, "urn": f"urn:pulumi:a::p::{kind}::vllm", "newState": {"type": kind, "outputs": outputs}}


def test_a_roll_out_that_was_interrupted_is_told_although_the_state_agrees(monkeypatch):
    holder = {"id": "1", "user": "ann", "host": "ci", "process": 4, "since": "2026-11-01T00:00:00+00:00"}
    record = {"schema": 1, "holder": holder, "revision": "s-2", "serving": "s-1", "share": 10}
    killed = json.dumps({**record, "renewedAt": "2026-11-01T00:00:00+00:00"})
    split = {"s-1": 90, "s-2": 10}
    engine_that(monkeypatch, json.dumps({"steps": [*STEPS[:1], service_step(killed, split)]}))
    found = drift_of("a")
    assert (found.changes, found.rollout_phase, found.differs) == ((), "interrupted", True)
    text = issue_body([found], "")
    assert "Traffic: 90 % s-1, 10 % s-2." in text
    assert re.search(r"The rollout of s-2 was interrupted \d+ d ago: ann@ci \(process 4, since 2026-11-01", text)
    assert (
        "run `python -m scripts.rollout --stack a`. To roll back, run `python -m scripts.rollout --stack a --to s-1`."
        in text
    )
    assert "pulumi up --refresh" not in text
    assert json.loads(found.model_dump_json())["rollout"].startswith("Traffic: 90 % s-1")


def test_a_record_that_cannot_be_read_is_drift_and_a_revision_that_waits_is_none(monkeypatch):
    for record, shares, phase, differs in (
        ("{", {"s-1": 100}, "unknown", True),
        ('{"schema":1}', {}, "unknown", True),
        ('{"schema":1}', {"s-1": 100}, "waits", False),
        ('{"schema":1}', {"s-2": 100}, "none", False),
    ):
        engine_that(monkeypatch, json.dumps({"steps": [service_step(record, shares)]}))
        found = drift_of("a")
        assert (found.rollout_phase, found.differs) == (phase, differs)
        assert bool(issue_body([found], "")) is differs


def test_no_difference_needs_no_issue(monkeypatch):
    engine_that(monkeypatch, json.dumps({"steps": STEPS[:1]}))
    assert issue_body([drift_of("a")], "") is None


def test_a_stack_that_is_not_deployed_is_not_asked_for(monkeypatch):
    asked = engine_that(monkeypatch, "", listed=("other",))
    assert drift_of("a") == StackDrift(stack="a", deployed=False)
    assert len(asked) == 1


@pytest.mark.parametrize(("answer", "code"), [("not JSON", 0), ("{}", 255)])
def test_what_could_not_be_read_is_an_issue_too(monkeypatch, answer, code):
    engine_that(monkeypatch, answer, code=code)
    found = drift_of("a")
    assert found.error == "no access"
    assert "could not be read" in issue_body([found], "")


def test_the_engines_own_error_is_shown_although_it_is_part_of_its_json(monkeypatch):
    said = {"diagnostics": [{"severity": "error", "message": "error reading the project: denied"}]}
    engine_that(monkeypatch, json.dumps(said, indent=2), code=255)
    assert drift_of("a").error == "error reading the project: denied"


def test_a_long_list_becomes_a_table_that_fits():
    change = ResourceChange(op="update", type=CAPACITY, name="n" * 80, properties=("labels",))
    text = issue_body([StackDrift(stack="a", changes=(change,) * 2000)], "https://run")
    assert len(text.encode()) < 65_536
    assert "| `a` | 2000 |" in text
    assert "too long" in text


def test_the_exit_code_says_whether_something_differs(monkeypatch, capsys):
    change = ResourceChange(op="delete", type="t", name="n")
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    monkeypatch.setattr(drift, "drift_of_all", lambda _: [StackDrift(stack="a", changes=(change,))])
    assert run_command(COMMAND, ["--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out)["stacks"][0]["changes"][0]["op"] == "delete"
    monkeypatch.setattr(drift, "drift_of_all", lambda _: [StackDrift(stack="a")])
    assert run_command(COMMAND, []) == ExitCode.DONE
    assert run_command(COMMAND, ["--issue"]) == ExitCode.REFUSED
