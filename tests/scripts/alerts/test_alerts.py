"""`gemma alerts`: what fires within 80 columns, and an exit code that never takes unknown for silent."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from rich.console import Console

from gemma_serving.cloud import alerts as source
from gemma_serving.cloud import google_api
from gemma_serving.cloud.alerts import AlertReport, StackAlert, no_policies
from gemma_serving.engine import state as states
from gemma_serving.scripts.alerts.__main__ import COMMAND
from gemma_serving.scripts.alerts.render import AlertTimes, print_alerts
from gemma_serving.scripts.cli.command import run_command
from tests.scripts.planted_states import resource, service, stack_resource, state

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
IDLE = StackAlert(
    title="HTTP errors",
    severity="page",
    opened="2026-11-22T11:48:00.5Z",
    closed=None,
    meaning="More than 5% of at least 20 responses in the last five minutes were server errors (5xx).",
    command="gemma teardown tpu-v6e4-e4b-turbo --dry-run",
    runbook="docs/observability.md#http-errors",
    incident="projects/p/alerts/1",
)
FIRING = AlertReport(stack="x", project="p", policies=8, firing=(IDLE, replace(IDLE, incident="projects/p/alerts/2")))
SILENT = AlertReport(stack="x", project="p", policies=8)


def printed(report, width=80):
    out = io.StringIO()
    print_alerts(Console(file=out, width=width), report, AlertTimes(now=NOW, zone=UTC), simulated=False)
    return out.getvalue()


def test_times_that_google_did_not_write_are_unknown():
    text = printed(replace(FIRING, firing=(replace(IDLE, opened=""),)))
    assert "page     │ unknown │ unknown" in text


@pytest.fixture
def read(monkeypatch):
    """The command with what Cloud Monitoring answers, and the arguments with which it was asked."""
    asked = {}

    def answer(report):
        def planted(_api, **arguments):
            asked.update(arguments)
            return report

        policies = [resource(source.POLICY_TYPE, name) for name in ("a", "b")]
        monkeypatch.setattr(source, "read_alerts", planted)
        monkeypatch.setattr(google_api, "connect", lambda *_: None)
        monkeypatch.setattr(states, "read", lambda _: state(stack_resource(), service(), *policies))
        return asked

    return answer


@pytest.mark.parametrize(
    ("report", "code", "says"),
    [
        (SILENT, 0, "x: none of 8 alerts fires"),
        (FIRING, 1, "x: 1 of 8 alerts fire"),
        (replace(SILENT, unread=("Cannot read metrics: denied.",)), 1, "unknown  Cannot read metrics"),
        (replace(FIRING, unread=("Cannot read metrics: denied.",)), 1, "x: 1 of 8 alerts fire"),
        (no_policies("x", "p"), 1, "x: unknown whether an alert fires"),
    ],
    ids=["silent", "fires", "unread", "fires and unread", "not watched"],
)
def test_the_exit_code_is_0_only_if_nothing_rings_and_everything_can(read, capsys, report, code, says):
    asked = read(report)
    assert run_command(COMMAND, ["--stack", "x", "--closed"]) == code
    assert says in capsys.readouterr().out
    assert (asked["declared"], asked["has_closed"]) == (2, True)
    assert run_command(COMMAND, ["--stack", "x", "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["policies"]) == (report.verdict, report.policies)
