"""A server behind a Gateway: which requests reach it, how long an answer may take, and the chart that creates its pool."""

import dataclasses
import json
import shlex

import pytest

from gemma_serving.gke.objects import objects
from gemma_serving.gke.rules import findings
from gemma_serving.gke.server_inputs import GkeOptions
from gemma_serving.planning.cost.subject import examine
from gemma_serving.stacks.planned import to_question
from tests.gke.test_objects import SHIPPED, made, pod_of, server_of, settings_of

OPTIONS = GkeOptions(replicas=(1, 3), gateway="inference")
OF_THE_CHART = {"InferencePool", "GCPBackendPolicy", "HealthCheckPolicy"}


def behind(stack="l4-qat"):
    return made(stack, replicas=OPTIONS.replicas, gateway=OPTIONS.gateway)


def admits(route, path):
    """Return whether a route sends a path on, by Gateway API: a prefix matches whole elements of the path."""
    matches = [match["path"] for rule in route["spec"]["rules"] for match in rule["matches"]]
    prefixes = [one["value"].rstrip("/") for one in matches if one["type"] == "PathPrefix"]
    return any(path == one or path.startswith(f"{one}/") for one in prefixes) or path in [
        one["value"] for one in matches if one["type"] == "Exact"
    ]


def chart_values(stack="l4-qat"):
    """Return the first words and the values of the command that installs the chart, and what the second one changes of the chart's policy."""
    server = server_of(stack, OPTIONS)
    (advice,) = [one.advice for one in findings(server, OPTIONS) if one.id == "GKE13"]
    words, patch = map(shlex.split, advice.split("`")[1::2])
    given = dict(word.split("=", 2)[1:] for word in words if word.startswith("--set-json="))
    assert patch[:5] == ["kubectl", "patch", "gcpbackendpolicy", server.name, "--type=merge"]
    policy = json.loads(patch[5].removeprefix("--patch="))["spec"]["default"]
    return words[:4], {key: json.loads(value) for key, value in given.items()}, policy


@pytest.mark.parametrize(
    ("path", "is_sent"),
    [
        ("/v1/chat/completions", True),
        ("/v1/models", True),
        ("/health", True),
        ("/", False),
        ("/metrics", False),
        ("/metrics/", False),
        ("/v1metrics", False),
        ("/health/metrics", False),
        ("/load", False),
        ("/docs", False),
    ],
)
def test_only_the_api_and_its_health_pass_the_gateway(path, is_sent):
    assert admits(behind()["HTTPRoute"], path) is is_sent


def test_a_key_never_passes_a_listener_without_tls():
    (parent,) = behind()["HTTPRoute"]["spec"]["parentRefs"]
    assert parent == {"name": "inference", "sectionName": "https"}


@pytest.mark.parametrize("stack", SHIPPED)
def test_an_answer_that_fills_the_context_of_a_full_server_is_not_cut(stack):
    settings = settings_of(stack)
    users = server_of(stack).concurrent_requests
    workload = dataclasses.replace(settings.workload, users=users)
    subject = examine(to_question(dataclasses.replace(settings, workload=workload)))
    answer, policy = subject.workload, chart_values(stack)[2]
    tokens = subject.resolved.max_model_len
    assert policy["timeoutSec"] >= answer.ttft_s.high + answer.tpot_s.high * tokens
    assert policy["timeoutSec"] > 30


def test_a_request_whose_speed_is_unknown_may_take_an_hour(monkeypatch):
    monkeypatch.setattr("gemma_serving.planning.cost.subject.workload_plan", lambda *_: None)
    assert chart_values()[2]["timeoutSec"] == 3600


@pytest.mark.parametrize("stack", SHIPPED)
def test_answers_of_a_pod_that_stops_are_not_cut(stack):
    found = behind(stack)
    draining = chart_values(stack)[2]["connectionDraining"]["drainingTimeoutSec"]
    assert server_of(stack).drain_s < draining <= pod_of(found)["terminationGracePeriodSeconds"] <= 3600


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_route_names_the_pool_of_the_chart(stack):
    found, (words, values, _) = behind(stack), chart_values(stack)
    assert words[:3] == ["helm", "upgrade", "--install"]
    assert len(words[3]) <= 53  # Helm's longest name of a release
    (backend,) = found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert backend == {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": words[3]}
    assert values["provider"] == {"name": "gke"}
    selected = values["inferencePool"]["modelServers"]["matchLabels"].items()
    assert selected <= found["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    (container,) = pod_of(found)["containers"]
    assert values["inferencePool"]["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]


def test_the_price_says_what_it_leaves_out():
    (price,) = [one.message for one in findings(server_of("l4-qat"), OPTIONS) if one.id == "GKE14"]
    assert price.endswith("Add the picker's node and the load balancer.")


def test_a_picker_that_does_not_respond_stops_no_request():
    assert chart_values()[1]["inferenceExtension"] == {"failureMode": "FailOpen"}


@pytest.mark.parametrize("gateway", ["", "inference"])
def test_the_pool_and_its_policies_belong_to_the_chart_and_the_route_to_the_gateway(gateway):
    kinds = {one["kind"] for one in objects(server_of("l4-qat"), GkeOptions(gateway=gateway))}
    assert kinds & (OF_THE_CHART | {"HTTPRoute"}) == ({"HTTPRoute"} if gateway else set())
