"""Alert policies, channels and the dashboard as Google gets them."""

import json

import pytest

from components.observability import Observability, ObservabilityArgs
from contracts.alerts import AlertValues, alerts_of

VALUES = AlertValues(
    stack="x", name="gemma-x", ttft_s=5.0, ttft_goal=0.95, idle_s=5400, ready_s=3600, usd_per_hour=1.5, daily_usd=36.0
)


@pytest.fixture
def watched(declare, ownership):
    def run(**changes):
        args = {
            "project": "my-project",
            "ownership": ownership,
            "labels": {"team": "ml"},
            "values": VALUES,
            "alerts": list(alerts_of("tpu", collects=True, has_budget=True)),
            "log_filter": 'resource.type="cloud_run_revision"',
            "has_dashboard": True,
            "email": "a@example.com",
            **changes,
        }
        recorder, _ = declare(lambda: Observability("alerts", ObservabilityArgs(**args)).policies)
        return recorder

    return run


def policies(recorder):
    return {each.inputs["displayName"].partition(": ")[2]: each.inputs for each in recorder.all("alertPolicy")}


def test_severity_and_the_first_command_reach_the_notification(watched):
    found = policies(watched())
    assert (found["Not ready"]["severity"], found["Pressure"]["severity"]) == ("CRITICAL", "WARNING")
    text = found["Idle"]["documentation"]["content"]
    assert "`gemma teardown x --dry-run`" in text
    assert text.endswith("docs/observability.md#idle")
    line = found["Engine fatal"]["conditions"][0]["conditionMatchedLog"]["filter"]
    assert line.startswith('resource.type="cloud_run_revision" AND textPayload=~"OutOfMemoryError|CUDA error|')


def test_everything_carries_the_labels_that_a_teardown_reads(watched, ownership):
    recorder = watched()
    for kind in ("alertPolicy", "notificationChannel"):
        for each in recorder.all(kind):
            assert each.inputs["userLabels"] == {"team": "ml", **ownership.labels}
    dashboard = json.loads(recorder.one("monitoring/dashboard").inputs["dashboardJson"])
    assert dashboard["labels"] == {"team": "ml", **ownership.labels}


def test_the_tiles_of_the_dashboard_do_not_overlap_and_fit(watched):
    layout = json.loads(watched().one("monitoring/dashboard").inputs["dashboardJson"])["mosaicLayout"]
    cells = [
        (x, y)
        for tile in layout["tiles"]
        for x in range(tile.get("xPos", 0), tile.get("xPos", 0) + tile["width"])
        for y in range(tile.get("yPos", 0), tile.get("yPos", 0) + tile["height"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < layout["columns"]
