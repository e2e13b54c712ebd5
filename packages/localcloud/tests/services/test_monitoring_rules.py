"""What Cloud Monitoring rejects about a whole policy, channel or dashboard."""

import pytest

from localcloud.tests.conftest import PROJECT, Client

V3 = f"/monitoring/v3/projects/{PROJECT}"
POLICIES, CHANNELS = f"{V3}/alertPolicies", f"{V3}/notificationChannels"
DASHBOARDS = f"/monitoring/v1/projects/{PROJECT}/dashboards"
PROMQL = {"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "vector(1)"}}
MQL = {"displayName": "m", "conditionMonitoringQueryLanguage": {"query": "fetch x", "duration": "0s"}}
LINES = 'resource.type="cloud_run_revision" AND textPayload=~"out of (memory|quota)"'
LIMIT = {"notificationRateLimit": {"period": "300s"}}
EMAIL = {"type": "email", "labels": {"email_address": "a@example.com"}}


def policy(*conditions, **changes):
    return {"displayName": "p", "combiner": "OR", "conditions": list(conditions or [PROMQL]), **changes}


def log_line(expression=LINES):
    return {"displayName": "l", "conditionMatchedLog": {"filter": expression}}


def channel(kind, **labels):
    return {"type": kind, "labels": labels}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(policy(conditions=[]), "must hold at least one condition", id="no-condition"),
        pytest.param(policy(*[PROMQL] * 7), "has 7 conditions; at most 6", id="seven-conditions"),
        pytest.param(policy(combiner="COMBINE_UNSPECIFIED", conditions=[]), "at least one condition", id="unspecified"),
        pytest.param({"displayName": "p", "conditions": [PROMQL]}, "combiner must be set", id="no-combiner"),
        pytest.param(
            policy(PROMQL, log_line(), alertStrategy=LIMIT),
            "Alert policies with a log matching condition can only have a single condition.",
            id="log-and-another",
        ),
        pytest.param(
            policy(MQL, PROMQL),
            "If condition_monitoring_query_language is present, it must be the only condition.",
            id="mql-and-another",
        ),
        pytest.param(policy(log_line()), "must specify a notification rate limit", id="log-without-limit"),
        pytest.param(
            policy(log_line(), alertStrategy={"notificationRateLimit": {}}),
            "must specify a notification rate limit",
            id="log-with-empty-limit",
        ),
        pytest.param(
            policy(alertStrategy=LIMIT),
            "only log-based alert policies may specify a notification rate limit",
            id="limit-without-log",
        ),
        pytest.param(
            policy(log_line('textPayload="a'), alertStrategy=LIMIT),
            "Unparseable filter: syntax error at line 1",
            id="log-filter",
        ),
        pytest.param(policy(userLabels={"1x": ""}), "Invalid label key '1x'", id="label-key"),
        pytest.param(policy(userLabels={"x": "A"}), "Invalid label value 'A'", id="label-value"),
        pytest.param(policy(userLabels={f"a{i}": "" for i in range(65)}), "at most 64 are allowed", id="labels"),
        pytest.param(
            policy({"displayName": "c", "conditionPrometheusQueryLanguage": {"query": "x", "ruleGroup": "\ud800"}}),
            "not valid Unicode",
            id="rule-group",
        ),
    ],
)  # fmt: skip
def test_a_policy_that_google_rejects(client: Client, body, message):
    status, text = client.error("POST", POLICIES, body)
    assert (status, message in text) == (400, True), text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param({"labels": {}}, "type must be set", id="no-type"),
        pytest.param(channel("emial", email_address="a@example.com"), 'invalid value of "emial"', id="type"),
        pytest.param(channel("email"), "missing field notification_channel.labels[email_address]", id="missing"),
        pytest.param(channel("webhook_tokenauth", url=""), "Value must NOT be empty if provided", id="empty"),
        pytest.param(channel("webhook_tokenauth", url="https://x", token="t"), "has no such label", id="unknown"),
        pytest.param({**EMAIL, "userLabels": {"X": "1"}}, "Invalid label key 'X'", id="label"),
    ],
)  # fmt: skip
def test_a_channel_that_google_rejects(client: Client, body, message):
    status, text = client.error("POST", CHANNELS, body)
    assert (status, message in text) == (400, True), text
    name = client.ok("POST", CHANNELS, EMAIL)["name"]
    assert client.error("PATCH", f"/monitoring/v3/{name}", body)[0] == 400
    client.ok("DELETE", f"/monitoring/v3/{name}")


def test_a_change_is_checked_with_what_stays(client: Client):
    """The body of a masked update has only what changes."""
    name = client.ok("POST", POLICIES, policy(log_line(), alertStrategy=LIMIT))["name"]
    path = f"/monitoring/v3/{name}"
    client.ok("PATCH", path, {"conditions": [log_line()]}, updateMask="conditions")
    message = client.error("PATCH", path, {"conditions": [PROMQL]}, updateMask="conditions")[1]
    assert "only log-based alert policies" in message
    assert "must specify" in client.error("PATCH", path, {}, updateMask="alertStrategy")[1]
    client.ok("DELETE", path)


@pytest.mark.parametrize(("project", "status"), [(PROJECT, 200), ("another", 400)])
def test_a_dashboard_is_named_in_the_project_of_its_request(client: Client, project, status):
    body = {"name": f"projects/{project}/dashboards/named", "displayName": "d"}
    answered, text = client.call("POST", DASHBOARDS, body)
    assert answered == status, text
    if status == 200:
        client.ok("DELETE", f"{DASHBOARDS}/named")


@pytest.mark.parametrize("path", [POLICIES, CHANNELS, DASHBOARDS])
def test_a_page_token_is_one_that_was_returned(client: Client, path):
    assert client.error("GET", path, pageToken="x") == (400, "Invalid page token: 'x'.")
