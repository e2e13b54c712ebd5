"""Alert policies, incidents and queries of the local cloud: expressions are checked, and nothing is evaluated."""

import pytest

from localcloud.tests.conftest import PROJECT

V3 = f"/monitoring/v3/projects/{PROJECT}"
QUERY = f"/monitoring/v1/projects/{PROJECT}/location/global/prometheus/api/v1/query"
COLLECTOR = "us-docker.pkg.dev/cloud-ops-agents-artifacts/google-cloud-opentelemetry-collector/otelcol-google:0.135.0"
FIRES = 'vllm:num_requests_waiting{namespace="gemma"} > 0'
GOOGLES = 'sum(increase(run_googleapis_com:request_count{monitored_resource="cloud_run_revision"}[1d])) > 1'


def promql(expression, **changes):
    """A policy with one PromQL condition. Values of `changes` whose name is that of a condition's field replace it."""
    condition = {"query": expression, "duration": "0s", "disableMetricValidation": True}
    for key in ("duration", "evaluationInterval", "disableMetricValidation"):
        if key in changes:
            condition[key] = changes.pop(key)
    return {
        "displayName": "policy",
        "combiner": "OR",
        "severity": "WARNING",
        "userLabels": {"stack": "s"},
        "conditions": [{"displayName": "fires", "conditionPrometheusQueryLanguage": condition}],
        **changes,
    }


@pytest.fixture
def policy(own_client):
    def create(expression="vector(1)", **changes):
        return own_client.ok("POST", f"{V3}/alertPolicies", promql(expression, **changes))["name"]

    return create


@pytest.fixture
def alerts(own_client):
    def listed(**query):
        return own_client.ok("GET", f"{V3}/alerts", **query).get("alerts", [])

    return listed


class TestIncidents:
    def test_those_that_are_set_are_listed_with_their_policy_until_they_are_replaced(self, own_client, policy, alerts):
        name = policy()
        own_client.ok("POST", "/admin/alerts", {"alerts": [{"policy": name}]})
        (alert,) = alerts()
        assert (alert["state"], "closeTime" in alert) == ("OPEN", False)
        assert alert["policy"] == {
            "name": name,
            "displayName": "policy",
            "userLabels": {"stack": "s"},
            "severity": "WARNING",
        }
        opened = "2026-11-20T08:00:00.000000Z"
        own_client.ok("POST", "/admin/alerts", {"alerts": [{"policy": name, "state": "CLOSED", "openTime": opened}]})
        (closed,) = alerts()
        assert (closed["state"], closed["openTime"]) == ("CLOSED", opened)
        assert closed["closeTime"] > opened
        own_client.ok("POST", "/admin/alerts", {})
        assert alerts() == []

    @pytest.mark.parametrize(
        ("changes", "status"), [({"policy": "projects/x/alertPolicies/1"}, 404), ({"state": "open"}, 400)]
    )
    def test_an_unknown_policy_or_state_changes_nothing(self, own_client, policy, alerts, changes, status):
        own_client.ok("POST", "/admin/alerts", {"alerts": [{"policy": policy()}]})
        before = alerts()
        assert own_client.error("POST", "/admin/alerts", {"alerts": [{"policy": policy(), **changes}]})[0] == status
        assert alerts() == before

    def test_they_are_listed_newest_first_or_in_the_requested_order(self, own_client, policy, alerts):
        given = [
            {"policy": policy(displayName=name), "openTime": f"2026-11-20T08:0{minute}:00.000000Z"}
            for minute, name in enumerate(("first", "second"))
        ]
        own_client.ok("POST", "/admin/alerts", {"alerts": given})
        assert [alert["policy"]["displayName"] for alert in alerts()] == ["second", "first"]
        oldest = own_client.ok("GET", f"{V3}/alerts", orderBy="open_time", pageSize=1)
        assert [alert["policy"]["displayName"] for alert in oldest["alerts"]] == ["first"]
        following = alerts(orderBy="open_time", pageToken=oldest["nextPageToken"])
        assert [alert["policy"]["displayName"] for alert in following] == ["second"]
        assert len(alerts(filter='state="OPEN"')) == 2
        assert alerts(filter='state="CLOSED"') == []
        assert own_client.error("GET", f"{V3}/alerts", orderBy="name")[0] == 400


class TestRefusals:
    @pytest.mark.parametrize(
        ("expression", "changes", "message"),
        [
            ("sum(rate(x[5m])", {}, "parse error: unclosed left parenthesis"),
            ("rate(x)", {}, "parse error: expected type matrix in call to function"),
            ('x{a=~"("}', {}, "parse error: illegal regex"),
            ("no_such_function(x)", {}, "parse error: unknown function"),
            ("", {}, "must not be empty"),
            ("x > 0", {"disableMetricValidation": False}, "no such metric: x"),
            ('{"x:y"} > 0', {"disableMetricValidation": False}, "no such metric: x:y"),
            ("x > 0", {"evaluationInterval": "45s"}, "must be a positive multiple of 30 seconds"),
            ("x > 0", {"evaluationInterval": "0s"}, "must be a positive multiple of 30 seconds"),
            ("x > 0", {"duration": "-1s"}, "must not be negative"),
        ],
    )
    def test_a_condition_that_google_rejects(self, own_client, policy, expression, changes, message):
        status, text = own_client.error("POST", f"{V3}/alertPolicies", promql(expression, **changes))
        assert status == 400
        assert message in text
        body = {"conditions": promql(expression, **changes)["conditions"]}
        status, text = own_client.error("PATCH", f"/monitoring/v3/{policy()}", body, updateMask="conditions")
        assert status == 400
        assert message in text

    def test_a_channel_that_does_not_exist(self, own_client):
        wrong = f"projects/{PROJECT}/notificationChannels/1"
        status, text = own_client.error("POST", f"{V3}/alertPolicies", promql("x", notificationChannels=[wrong]))
        assert (status, text) == (404, f"Cannot find the notification channel '{wrong}'.")

    def test_googles_own_metrics_are_known_and_others_need_the_validation_to_be_disabled(self, own_client, policy):
        policy(GOOGLES, disableMetricValidation=False)
        policy(FIRES)
        assert own_client.error("POST", f"{V3}/alertPolicies", promql(FIRES, disableMetricValidation=False))[0] == 400

    @pytest.mark.parametrize(
        ("labels", "status"),
        [
            ('service_name="g"', 400),
            ('monitored_resource!="cloud_run_job"', 400),
            ('monitored_resource="cloud_run_revision"', 200),
        ],
    )
    def test_a_platform_metric_of_several_resource_types_needs_one(self, own_client, labels, status):
        query = f"sum(increase(run_googleapis_com:container_billable_instance_time{{{labels}}}[1d])) > 3"
        found, answer = own_client.call("POST", f"{V3}/alertPolicies", promql(query))
        assert found == status
        words = "series selector must specify a label matcher on monitored resource name"
        assert (words in str(answer)) == (status == 400)

    def test_a_query_has_the_result_that_was_set_and_others_are_refused(self, own_client):
        own_client.ok("POST", "/admin/alerts", {"queries": {"count(up)": 1, "count(down)": None}})
        (found,) = own_client.ok("POST", QUERY, {"query": "count(up)"})["data"]["result"]
        assert (found["metric"], found["value"][1]) == ({}, "1")
        assert own_client.ok("POST", QUERY, {"query": "count(down)"})["data"]["result"] == []
        assert own_client.error("POST", QUERY, {"query": "up"})[0] == 501
        status, answer = own_client.call("POST", QUERY, {"query": "sum("})
        assert (status, answer["status"], answer["errorType"]) == (400, "error", "bad_data")
        assert "parse error" in answer["error"]
        assert own_client.call("POST", QUERY.replace("global", "us-east4"), {"query": "1"})[0] == 400


def test_the_collectors_tag_has_the_digest_of_googles_attestation(client):
    name, _, tag = COLLECTOR.partition("/")[2].rpartition(":")
    url = f"{client.base_url}/registry/us-docker.pkg.dev/v2/{name}/manifests/{tag}"
    answer = client.session.get(url, headers={"Authorization": f"Bearer {client.token}"}, timeout=30)
    digest = "sha256:90c2bab052e6c9da37efb6e7181b0cbb99562b9b39096dce895c7afe957b3b02"
    assert answer.headers["Docker-Content-Digest"] == digest
