"""Alert policies, channels and the dashboard as Google gets them."""

import json

import pytest

from gemma_serving.components.observability import Observability, ObservabilityArgs
from gemma_serving.contracts.alerts import AlertValues, alerts_of

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


def test_every_alert_is_a_policy_that_notifies_every_channel(watched):
    recorder = watched(webhook="https://alerts.example.com/x?token=y")
    channels = {each.inputs["type"]: each.inputs["labels"] for each in recorder.all("notificationChannel")}
    assert channels == {
        "email": {"email_address": "a@example.com"},
        "webhook_tokenauth": {"url": "https://alerts.example.com/x?token=y"},
    }
    found = policies(recorder)
    assert len(found) == 9
    assert {len(each["notificationChannels"]) for each in found.values()} == {2}
    for each in found.values():
        has_log = "conditionMatchedLog" in each["conditions"][0]
        assert has_log == ("notificationRateLimit" in each["alertStrategy"])


def test_an_expression_has_the_stacks_values_and_needs_no_data_yet(watched):
    found = policies(watched())
    condition = found["Slow first token"]["conditions"][0]["conditionPrometheusQueryLanguage"]
    assert 'le=~"5|5.0"' in condition["query"]
    assert "14.4 * 0.05" in condition["query"]
    assert condition["disableMetricValidation"] is True
    assert (condition["evaluationInterval"], condition["duration"]) == ("30s", "0s")
    assert "[90m]" in found["Idle"]["conditions"][0]["conditionPrometheusQueryLanguage"]["query"]
    assert found["Not ready"]["conditions"][0]["conditionPrometheusQueryLanguage"]["duration"] == "3600s"
    cost = found["Daily cost"]["conditions"][0]["conditionPrometheusQueryLanguage"]["query"]
    assert cost.endswith("/ 60 * 1.5 > 36")


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
