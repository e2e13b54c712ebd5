"""Alert policies of the local cloud: scraped by a deployed collector, evaluated on time stamps, heard by a webhook."""

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest

from localcloud.tests.conftest import PROJECT, SCENARIO, Client
from localcloud.tests.idle_cloud import start
from localcloud.tests.rules.alert_cases import IDLE
from localcloud.tests.services.watched import COLLECTOR, CONFIG, QUERY, V3, promql, sidecar, watched
from localcloud.world.collector import is_collector

WAITING = "vllm:num_requests_waiting 3\n"
RINGS = 'vllm:num_requests_waiting{namespace="gemma"} > 0'


@pytest.fixture
def world():
    with watched() as found:
        yield found


class TestCollecting:
    @pytest.mark.parametrize("image", [None, "docker.io/y"])
    def test_a_service_without_a_collector_has_no_data(self, world, image):
        world.server.text = WAITING
        world.deploy(*([sidecar(image=image)] if image else []))
        world.policy(RINGS)
        world.advance(5)
        assert world.value('{__name__=~"vllm.*|up"}') == []
        assert world.alerts() == []
        assert world.server.reads == 0

    def test_the_labels_are_those_of_googles_exporter(self, world):
        world.server.text = WAITING + "not_kept 1\n"
        world.deploy(sidecar())
        world.advance(1)
        (found,) = world.value("vllm:num_requests_waiting")
        revision = world.revisions.serving[0].revision.name.rpartition("/")[2]
        assert found["metric"] == {
            "__name__": "vllm:num_requests_waiting",
            "project_id": PROJECT,
            "location": "us-east4",
            "cluster": "__run__",
            "namespace": "gemma",
            "job": "vllm",
            "instance": "0a1b",
            "instanceId": "0a1b",
            "service_name": "gemma",
            "revision_name": revision,
        }
        assert found["value"][1] == "3"
        assert world.value("not_kept") == []
        assert [each["value"][1] for each in world.value('up{namespace="gemma"}')] == ["1"]

    def test_a_collector_that_waits_for_the_server_writes_nothing_before_it_answers(self, world):
        world.server.status = 503
        world.deploy(sidecar())
        world.advance(2)
        assert world.value("up") == []
        world.server.status = 200
        world.advance(1)
        world.server.status = 503
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["0"]
        world.replace_instance("2c3d")
        world.advance(6)
        assert world.value("up") == [], "the collector of the replaced instance is gone, the new one still waits"

    def test_a_server_with_an_api_key_is_scraped_with_the_key_that_the_collectors_account_may_read(self, world):
        world.server.text, world.server.token = WAITING, "canary"
        job = 'job_name: vllm\n          authorization: {credentials: "${env:KEY}"}'
        variable = {"name": "KEY", "valueSource": {"secretKeyRef": {"secret": "key", "version": "1"}}}
        given = sidecar(CONFIG.replace("job_name: vllm", job))
        world.client.ok(
            "POST", f"/secretmanager/v1/projects/{PROJECT}/secrets", {"replication": {"automatic": {}}}, secretId="key"
        )
        payload = {"payload": {"data": base64.b64encode(b"canary").decode()}}
        world.client.ok("POST", f"/secretmanager/v1/projects/{PROJECT}/secrets/key:addVersion", payload)
        world.deploy({**given, "env": [*given["env"], variable]})
        world.readable = {("key", "1"): "canary"}
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["1"]
        world.server.token = "another"
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["0"]

    def test_a_collector_that_does_not_wait_reports_a_server_that_is_down(self, world):
        world.server.status = 503
        world.deploy(sidecar(dependsOn=[]))
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["0"]

    @pytest.mark.parametrize("wrong", ['"127.0.0.1:8001"', '"10.0.0.1:8000"'])
    def test_a_target_where_nothing_listens_is_down(self, world, wrong):
        world.server.text = WAITING
        world.deploy(sidecar(CONFIG.replace('"127.0.0.1:8000"', wrong)))
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["0"]

    def test_a_path_that_does_not_exist_is_down(self, world):
        path = "job_name: vllm\n          metrics_path: /other"
        world.deploy(sidecar(CONFIG.replace("job_name: vllm", path)))
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["0"]

    @pytest.mark.parametrize(
        ("config", "problem"),
        [
            (CONFIG.replace("[googlemanagedprometheus]", "[debug]"), "No pipeline of metrics"),
            (CONFIG.replace("receivers: [prometheus]", "receivers: [otlp]"), "No pipeline of metrics"),
            (
                CONFIG.replace("batch: {}", "filter: {}").replace("batch]", "filter]"),
                "does not model the processor filter",
            ),
            (
                CONFIG.replace("batch: {}", "").replace("exporters:\n", "exporters:\n", 1),
                "names batch, which is not in processors",
            ),
            ("receivers: [", "is not YAML"),
        ],
    )
    def test_a_collector_that_exports_nothing_says_why(self, world, config, problem):
        world.server.text = WAITING
        world.deploy(sidecar(config))
        world.advance(2)
        (found,) = world.client.ok("GET", "/admin/collectors")["problems"].values()
        assert problem in found
        assert world.value('{__name__=~"vllm.*|up"}') == []

    def test_an_account_that_may_not_write_metrics_stores_nothing(self, world):
        world.server.text = WAITING
        account = world.client.ok("POST", f"/iam/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "server-sa"})[
            "email"
        ]
        world.deploy(sidecar())
        name, document = world.cloud.cloud.store.under("run.revisions")[0]
        world.run(name, {**document, "serviceAccount": account}, "0a1b")
        world.advance(2)
        (problem,) = world.client.ok("GET", "/admin/collectors")["problems"].values()
        assert "roles/monitoring.metricWriter" in problem
        assert world.value("up") == []

    def test_a_machine_is_scraped_by_the_collector_on_it(self, world):
        world.server.text = WAITING
        machines, node = world.cloud.cloud.runtimes.machines, f"projects/{PROJECT}/locations/us-east5-a/nodes/n1"
        world.cloud.cloud.store.put("tpu.nodes", node, {"name": node, "id": "7"})
        world.advance(1)
        assert world.value("up") == []
        machines.collecting[node] = [CONFIG.replace("cluster: __run__, ", "")]
        world.advance(1)
        assert [each["value"][1] for each in world.value("up")] == ["0"], "nothing listens yet"
        machines.listening[8000] = ("127.0.0.1", world.server.port)
        world.advance(1)
        (found,) = world.value("vllm:num_requests_waiting")
        assert (found["metric"]["location"], found["metric"]["namespace"]) == ("us-east5-a", "gemma")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (COLLECTOR, True),
        (f"{COLLECTOR}@sha256:{'0' * 64}", True),
        (f"docker.io/o/otelcol-google@sha256:{'0' * 64}", True),
        ("localhost:5000/otelcol-google", True),
        ("docker.io/otel/opentelemetry-collector:0.135.0", False),
        ("docker.io/otelcol-google/other", False),
        ("docker.io/o/not-otelcol-google", False),
    ],
)
def test_a_collector_is_recognized_by_the_last_part_of_its_image(image, expected):
    assert is_collector(image) is expected


class TestEvaluating:
    def test_an_alert_opens_and_closes_and_both_are_heard(self, world):
        hook = world.channel("webhook_tokenauth", url=f"{world.server.url}/hook?token=secret")
        mail = world.channel("email", email_address="ops@example.com")
        world.server.text = WAITING
        world.deploy(sidecar())
        policy = world.policy(RINGS, duration="60s", notificationChannels=[hook, mail])
        world.advance(1)
        assert world.alerts() == []
        world.advance(1.5)
        (alert,) = world.alerts()
        assert alert["state"] == "OPEN"
        assert "closeTime" not in alert
        assert alert["policy"] == {
            "name": policy,
            "displayName": "policy",
            "userLabels": {"stack": "s"},
            "severity": "WARNING",
        }
        assert alert["resource"]["labels"]["namespace"] == "gemma"
        assert world.client.ok("GET", f"/monitoring/v3/{alert['name']}") == alert
        world.server.text = "vllm:num_requests_waiting 0\n"
        world.advance(1)
        (closed,) = world.alerts()
        assert (closed["name"], closed["state"]) == (alert["name"], "CLOSED")
        assert closed["openTime"] < closed["closeTime"]
        bodies = [body["incident"] for body in world.server.posted]
        assert [body["state"] for body in bodies] == ["open", "closed"]
        assert bodies[0]["policy_name"] == "policy"
        assert bodies[0]["documentation"]["content"] == "what to do"
        assert bodies[0]["ended_at"] is None
        assert bodies[1]["ended_at"] > bodies[1]["started_at"] == bodies[0]["started_at"]
        sent = world.client.ok("GET", "/admin/notifications")["notifications"]
        assert [(each["type"], each["outcome"]) for each in sent] == [
            ("webhook_tokenauth", "answered 200"),
            ("email", "recorded"),
        ] * 2
        assert {each["to"] for each in sent} == {f"{world.server.url}/hook", "ops@example.com"}

    def test_thirty_idle_minutes_ring_on_time_stamps(self, world):
        idle = IDLE.replace('"g"', '"gemma"')
        world.server.text = 'vllm:request_success_total{finished_reason="stop"} 4\nvllm:num_requests_running 0\n'
        world.deploy(sidecar())
        world.policy(idle)
        world.advance(0.5)
        world.server.text = world.server.text.replace(" 4", " 5")
        world.advance(29)
        assert world.alerts() == [], "one request came in the last thirty minutes"
        world.advance(4)
        assert world.states() == ["OPEN"]

    def test_a_healthy_stack_is_silent_for_a_day(self, world):
        world.server.text = "vllm:num_requests_waiting 0\nprocess_start_time_seconds 1\n"
        world.deploy(sidecar())
        world.policy(RINGS)
        world.policy('max by (namespace) (up{namespace="gemma"}) == 0', duration="120s")
        world.policy('absent(up{namespace="gemma"})', duration="300s")
        world.advance(1)
        world.cloud.cloud.timeline.advance(24 * 3600 - 60)
        world.advance(1)
        assert world.alerts() == []
        assert world.value("count_over_time(up[1d])")[0]["value"][1] in {"2879", "2880"}

    def test_the_cost_of_a_day_rings_from_the_billed_time_without_a_collector(self, world):
        world.deploy()
        hours = 'increase(run_googleapis_com:container_billable_instance_time{service_name="gemma"}[1d])'
        world.policy(f"sum({hours}) / 3600 * 0.7 > 1", displayName="more than a dollar", disableMetricValidation=False)
        world.advance(80)
        assert world.alerts() == []
        world.advance(10)
        assert world.states() == ["OPEN"]
        assert world.value("run_googleapis_com:container_billable_instance_time")[0]["metric"]["location"] == "us-east4"

    def test_a_missing_instance_rings_once_its_last_sample_is_too_old(self, world):
        world.deploy(sidecar())
        world.policy('absent(up{namespace="gemma"})', duration="300s")
        world.advance(2)
        world.revisions.serving = []
        world.advance(9)
        assert world.alerts() == []
        world.advance(2)
        assert world.states() == ["OPEN"]

    def test_the_interval_of_a_policy_is_kept(self, world):
        world.server.text = WAITING
        world.deploy(sidecar())
        world.policy(RINGS, evaluationInterval="3600s")
        now_s = world.cloud.cloud.timeline.now().timestamp()
        world.advance((3600 - now_s % 3600) / 60 - 1)
        assert world.alerts() == []
        world.advance(1.5)
        assert world.states() == ["OPEN"]

    @pytest.mark.parametrize("change", ["disable", "delete"])
    def test_a_policy_that_is_no_longer_there_closes_its_incident_and_rings_no_more(self, world, change):
        world.server.text = WAITING
        world.deploy(sidecar())
        policy = world.policy(RINGS)
        world.advance(1)
        assert world.states() == ["OPEN"]
        if change == "delete":
            world.client.ok("DELETE", f"/monitoring/v3/{policy}")
        else:
            world.client.ok("PATCH", f"/monitoring/v3/{policy}", {"enabled": False}, updateMask="enabled")
        world.advance(2)
        assert world.states() == ["CLOSED"]

    def test_the_last_policy_takes_its_incident_with_it(self, world):
        policy = world.policy("vector(1)")
        world.advance(1)
        assert world.states() == ["OPEN"]
        world.client.ok("DELETE", f"/monitoring/v3/{policy}")
        world.advance(1)
        assert world.states() == ["CLOSED"]

    def test_policies_that_are_created_together_share_one_evaluator(self, world):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda _: world.policy("vector(1)"), range(8)))
        folder = world.cloud.state / "evaluators"
        assert len(list(folder.iterdir())) == 1

    def test_a_webhook_outside_this_machine_is_never_called(self, world):
        hook = world.channel("webhook_tokenauth", url="https://hooks.example.com/x")
        world.server.text = WAITING
        world.deploy(sidecar())
        world.policy(RINGS, notificationChannels=[hook])
        world.advance(1)
        (sent,) = world.client.ok("GET", "/admin/notifications")["notifications"]
        assert sent["outcome"].startswith("not sent")

    def test_prompts_choose_what_is_notified(self, world):
        hook = world.channel("webhook_tokenauth", url=world.server.url)
        world.server.text = WAITING
        world.deploy(sidecar())
        strategy = {"notificationPrompts": ["CLOSED"]}
        world.policy(RINGS, notificationChannels=[hook], alertStrategy=strategy)
        world.advance(1)
        world.server.text = ""
        world.advance(6)
        assert [body["incident"]["state"] for body in world.server.posted] == ["closed"]

    def test_alerts_are_listed_newest_first_or_in_the_requested_order(self, world):
        world.server.text = WAITING
        world.deploy(sidecar())
        world.policy(RINGS, displayName="first")
        world.advance(1)
        world.policy(RINGS, displayName="second")
        world.advance(1)
        names = [alert["policy"]["displayName"] for alert in world.alerts()]
        assert names == ["second", "first"]
        oldest = world.client.ok("GET", f"{V3}/alerts", orderBy="open_time", pageSize=1)
        assert [alert["policy"]["displayName"] for alert in oldest["alerts"]] == ["first"]
        following = world.alerts(orderBy="open_time", pageToken=oldest["nextPageToken"])
        assert [alert["policy"]["displayName"] for alert in following] == ["second"]
        assert len(world.alerts(filter='state="OPEN"')) == 2
        assert world.alerts(filter='state="CLOSED"') == []
        assert world.client.error("GET", f"{V3}/alerts", orderBy="name")[0] == 400


class TestRefusals:
    @pytest.mark.parametrize(
        ("expression", "changes", "message"),
        [
            ("sum(rate(x[5m])", {}, "1:16: parse error: unclosed left parenthesis"),
            ("rate(x)", {}, "expected type range vector in call to function"),
            ("", {}, "must not be empty"),
            ("x > 0", {"disableMetricValidation": False}, "no such metric: x"),
            ("x > 0", {"evaluationInterval": "45s"}, "must be a positive multiple of 30 seconds"),
            ("x > 0", {"evaluationInterval": "0s"}, "must be a positive multiple of 30 seconds"),
            ("x > 0", {"duration": "-1s"}, "must not be negative"),
        ],
    )
    def test_a_condition_that_google_rejects(self, world, expression, changes, message):
        status, text = world.client.error("POST", f"{V3}/alertPolicies", promql(expression, **changes))
        assert status == 400
        assert message in text
        policy = world.policy("vector(1)")
        body = {"conditions": promql(expression, **changes)["conditions"]}
        status, text = world.client.error("PATCH", f"/monitoring/v3/{policy}", body, updateMask="conditions")
        assert status == 400
        assert message in text

    def test_a_channel_that_does_not_exist(self, world):
        wrong = f"projects/{PROJECT}/notificationChannels/1"
        status, text = world.client.error("POST", f"{V3}/alertPolicies", promql("x", notificationChannels=[wrong]))
        assert (status, text) == (404, f"Cannot find the notification channel '{wrong}'.")

    def test_a_metric_is_known_once_it_was_written(self, world):
        body = promql(RINGS, disableMetricValidation=False)
        assert world.client.error("POST", f"{V3}/alertPolicies", body)[0] == 400
        world.server.text = WAITING
        world.deploy(sidecar())
        world.advance(1)
        world.client.ok("POST", f"{V3}/alertPolicies", body)

    def test_queries_are_refused_in_prometheus_words(self, world):
        status, answer = world.client.call("POST", QUERY, {"query": "sum("})
        assert (status, answer["status"], answer["errorType"]) == (400, "error", "bad_data")
        assert "parse error" in answer["error"]
        assert world.client.call("POST", QUERY, {"query": "1", "time": "x"})[0] == 400
        assert world.client.call("POST", QUERY.replace("global", "us-east4"), {"query": "1"})[0] == 400
        assert world.client.ok("POST", QUERY, {"query": "1", "time": "12.5"})["data"] == {
            "resultType": "scalar",
            "result": [12.5, "1"],
        }

    def test_a_project_sees_only_its_own_series(self, world):
        world.server.text = WAITING
        world.deploy(sidecar())
        world.advance(1)
        world.client.ok("POST", "/admin/projects", {"projectId": "other", "projectNumber": "77"})
        world.client.ok("POST", "/serviceusage/v1/projects/other/services/monitoring.googleapis.com:enable")
        other = world.client.ok("POST", QUERY.replace(PROJECT, "other"), {"query": "vllm:num_requests_waiting"})
        assert other["data"]["result"] == []


def test_an_evaluator_that_is_killed_is_reported_and_replaced(world, capfd):
    world.server.text = WAITING
    world.deploy(sidecar())
    world.policy(RINGS)
    world.advance(1)
    assert world.states() == ["OPEN"]
    for project in world.monitor._projects.values():
        project.evaluator._process.kill()
    world.advance(0.5)
    assert "the evaluator failed" in capfd.readouterr().err
    world.server.text = "vllm:num_requests_waiting 0\n"
    world.advance(1)
    assert world.states() == ["CLOSED"]
    assert world.client.ok("GET", "/admin/")["alerts"] == "evaluated"


def test_without_an_evaluator_policies_are_stored_and_the_cloud_says_so():
    with start(scenario=SCENARIO) as cloud:
        client = Client(cloud.base_url, cloud.token)
        assert client.ok("GET", "/admin/")["alerts"].startswith("not evaluated: ")
        client.ok("POST", f"{V3}/alertPolicies", promql("sum(", disableMetricValidation=False))
        client.ok("POST", "/admin/advance", {"seconds": 3600})
        for method, path, body in (("GET", f"{V3}/alerts", None), ("POST", QUERY, {"query": "up"})):
            status, message = client.error(method, path, body)
            assert status == 501
            assert "not evaluated" in message


def test_with_an_evaluator_the_cloud_says_that_policies_are_evaluated(world):
    assert world.client.ok("GET", "/admin/")["alerts"] == "evaluated"


def test_the_collectors_tag_has_the_digest_of_googles_attestation(client):
    name, _, tag = COLLECTOR.partition("/")[2].rpartition(":")
    url = f"{client.base_url}/registry/us-docker.pkg.dev/v2/{name}/manifests/{tag}"
    answer = client.session.get(url, headers={"Authorization": f"Bearer {client.token}"}, timeout=30)
    digest = "sha256:90c2bab052e6c9da37efb6e7181b0cbb99562b9b39096dce895c7afe957b3b02"
    assert answer.headers["Docker-Content-Digest"] == digest
