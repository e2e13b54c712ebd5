"""The objects behind a Gateway and the chart of their pool, against published definitions."""

import copy
import json
import shlex

import jsonschema
import pytest

from dev.judges.planted import refuse_planted
from dev.judges.real.kubernetes.chart import HELM, copied_chart, ensure_helm, rendered
from dev.judges.real.kubernetes.shipped import names, shipped
from dev.judges.real.kubernetes.world import EXTENSION, definitions
from gemma_serving.gke.objects import picker_commands

OF_THE_CHART = ("GCPBackendPolicy", "HealthCheckPolicy")


def closed(schema):
    """Return a schema that rejects the fields that it does not have, as the API server does."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(one) for name, one in schema.items()}
    return (
        {"additionalProperties": False, **found} if schema.get("type") == "object" and "properties" in schema else found
    )


def planted_lie():
    validator = jsonschema.Draft202012Validator(closed({"type": "object", "properties": {"hostnames": {}}}))
    refuse_planted("a definition has each field", lambda: validator.iter_errors({"timeout": "30s"}))


@pytest.fixture(scope="module")
def schemas(judge):
    """The published schema of each kind and version."""
    judge(f"Helm {HELM}, {EXTENSION}, gateway-api v1.6.1, gke-gateway-api v1.3.0")
    return {
        (one["spec"]["names"]["kind"], f"{one['spec']['group']}/{version['name']}"): closed(
            version["schema"]["openAPIV3Schema"]
        )
        for one in definitions()
        for version in one["spec"]["versions"]
    }


@pytest.fixture(scope="module")
def chart(home, tmp_path_factory):
    """Helm, and the chart's sources."""
    helm = ensure_helm(home)
    return helm, copied_chart(helm, tmp_path_factory.mktemp("chart"))


@pytest.fixture(params=names())
def behind(request):
    """The server of a shipped stack and its objects behind a Gateway, by kind."""
    server, found = shipped(request.param, replicas=(2, 2), gateway="inference")
    return server, {one["kind"]: one for one in found}


def test_definitions(behind, schemas):
    """The published definition accepts the route, and no field that it does not have."""
    item = behind[1]["HTTPRoute"]
    schema = schemas["HTTPRoute", item["apiVersion"]]
    jsonschema.validate(item, schema)
    planted = copy.deepcopy(item)
    planted["spec"]["timeout"] = "30s"
    with pytest.raises(jsonschema.ValidationError, match="'timeout' was unexpected"):
        jsonschema.validate(planted, schema)


def test_policies(behind, chart, schemas):
    """The rendered chart has both policies of the pool, and takes the printed change of one of them."""
    server, _ = behind
    created = {one["kind"]: one for one in rendered(*chart, server)}
    for kind in OF_THE_CHART:
        assert created[kind]["metadata"]["name"] == created[kind]["spec"]["targetRef"]["name"] == server.name
    policy = created["GCPBackendPolicy"]
    patch = shlex.split(picker_commands(server)[1])[-1].removeprefix("--patch=")
    policy["spec"]["default"] |= json.loads(patch)["spec"]["default"]
    jsonschema.validate(policy, schemas["GCPBackendPolicy", policy["apiVersion"]])
    assert policy["spec"]["default"]["timeoutSec"] == server.longest_request_s


def test_chart(behind, chart, schemas):
    """The rendered chart creates the pool that the route names, of the stack's Pods and port, and nothing that the objects contain."""
    server, found = behind
    created = rendered(*chart, server)
    (pool,) = [one for one in created if one["kind"] == "InferencePool"]
    jsonschema.validate(pool, schemas["InferencePool", pool["apiVersion"]])
    named = {"group": pool["apiVersion"].partition("/")[0], "kind": pool["kind"], "name": pool["metadata"]["name"]}
    assert found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"] == [named]
    pod = found["Deployment"]["spec"]["template"]
    assert pool["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = [one["containerPort"] for one in pod["spec"]["containers"][0]["ports"]]
    assert [one["number"] for one in pool["spec"]["targetPorts"]] == ports
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"

    (picker,) = [one for one in created if one["kind"] == "Deployment"]
    reference = pool["spec"]["endpointPickerRef"]
    (service,) = [one for one in created if one["kind"] == "Service"]
    assert reference["name"] == service["metadata"]["name"]
    assert reference["port"]["number"] in [one["port"] for one in service["spec"]["ports"]]
    selected = found["Service"]["spec"]["selector"].items()
    assert not selected <= picker["spec"]["template"]["metadata"]["labels"].items(), (
        "the Service would reach the picker"
    )
    ours = {(kind, one["metadata"]["name"]) for kind, one in found.items()}
    assert not ours & {(one["kind"], one["metadata"]["name"]) for one in created}
