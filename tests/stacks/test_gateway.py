"""A gateway against mocks: what it declares for which backends, what the backends declare, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from gemma_serving.components.private_network import GATEWAY_RANGE
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import camel_case
from gemma_serving.contracts.outputs import DETAILS
from gemma_serving.contracts.settings_files import settings_file
from gemma_serving.planning.rules.gateway import GATEWAY_RULES, DeployedBackend
from gemma_serving.planning.settings.gateway_stack import GatewayStack
from gemma_serving.stacks import gateway, loading
from gemma_serving.stacks.gateway_plan import gateway_lines, plan_gateway
from gemma_serving.stacks.program import run
from tests import security_page

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = {
    "gcp:project": "my-project",
    "gemma-serving:target": "gateway",
    "gemma-serving:gateway": {
        "region": "us-east5",
        "regions": ["us-east5", "europe-west4"],
        "backends": [{"stack": "tpu-a"}, {"stack": "tpu-b"}],
        "invokers": ["group:team@example.com"],
    },
}
NETWORK = {
    "network": "projects/my-project/global/networks/gemma-gateway",
    "subnetwork": "gemma-gateway",
    "regions": ["us-east5", "europe-west4"],
    "gatewayRange": GATEWAY_RANGE,
    "internetEgress": True,
}
UP = {"target": "tpu", "address": "10.66.0.2", "state": "ACTIVE", "deadline": "2026-11-23T18:00:00Z"}
LATER = {**UP, "address": "10.97.0.2", "deadline": "2026-11-24T02:00:00Z"}


def shipped(stack):
    return yaml.safe_load(settings_file(stack, ROOT).read_text())["config"]


def server(**tpu):
    config = shipped("tpu-v6e1")
    block = {**config["gemma-serving:tpu"], "zones": ["us-east5-a"], "gateway": "gateway", **tpu}
    return {**config, "gcp:project": "my-project", "gemma-serving:tpu": block}


@pytest.fixture
def project(tmp_path):
    """Write settings files of backends, and return what the planner finds for a gateway to them."""

    def written(files, *, deployed=None, **changes):
        for stack, config in files.items():
            (tmp_path / f"Pulumi.{stack}.yaml").write_text(yaml.safe_dump({"config": config}))
        block = {
            **GATEWAY["gemma-serving:gateway"],
            "backends": [{"stack": stack} for stack in changes.pop("backends", files)],
            **changes,
        }
        (tmp_path / "Pulumi.gateway.yaml").write_text(
            yaml.safe_dump({"config": {**GATEWAY, "gemma-serving:gateway": block}})
        )
        settings = loading.gateway_from_file(tmp_path / "Pulumi.gateway.yaml")
        return settings, plan_gateway(settings, "gateway", deployed, tmp_path)

    return written


@pytest.fixture
def up(project, declare, monkeypatch, tmp_path):
    """Declare a gateway whose backends have the outputs of an `up`."""

    def declared(files, outputs, **changes):
        monkeypatch.setattr("gemma_serving.stacks.gateway.deployed_outputs", outputs.get)
        exported = {}
        monkeypatch.setattr("pulumi.export", exported.__setitem__)
        settings, _ = project(files, **changes)
        recorder, _ = declare(lambda: gateway.deploy(settings, "gateway", tmp_path))
        return recorder, exported

    return declared


def test_a_gateway_without_a_backend_that_is_up_is_a_network_and_an_account(up):
    recorder, exported = up({"tpu-a": server(), "tpu-b": server()}, {})
    assert recorder.all("cloudrunv2") == []
    assert recorder.one("serviceaccount/account:Account").inputs["accountId"] == "gemma-gateway"
    subnets = {each.inputs["name"]: each.inputs for each in recorder.all("Subnetwork")}
    assert len(recorder.all("Subnetwork")) == 3
    assert subnets["gemma-gateway-gateway"]["ipCidrRange"] == GATEWAY_RANGE
    assert exported["target"] == "gateway"
    assert "endpoint" not in exported
    assert "gemma up tpu-a" in exported["next"]


def test_a_gateway_with_a_server_runs_envoy_in_its_own_subnet_for_its_callers_only(up):
    files = {"tpu-a": server(), "tpu-b": server()}
    recorder, exported = up(files, {"tpu-a": UP})
    service = recorder.one("cloudrunv2/service:Service").inputs
    template = service["template"]
    assert template["vpcAccess"]["networkInterfaces"][0]["subnetwork"] == "gemma-gateway-gateway"
    (container,) = template["containers"]
    assert container["resources"]["cpuIdle"] is False
    assert container["image"].endswith("@sha256:eb2c01c13125d1629637cb4e4cce7207009fb7cc2c8027f9742758549d15b6f4")
    assert "10.66.0.2" in container["args"][1]
    listener, *others = json.loads(container["args"][1])["static_resources"]["listeners"]
    address = listener["address"]["socket_address"]
    page = {cause: tuple(cells) for cause, *cells in security_page.rows("Listening ports")}
    assert page["gateway"] == (f"{address['address']}:{address['port_value']}", "none")
    assert (others, recorder.all("Firewall")) == ([], [])
    assert GATEWAY_RANGE in page["`tpu.gateway`"][1]
    (grant,) = recorder.all("ServiceIamMember")
    assert (grant.inputs["member"], grant.inputs["role"]) == ("group:team@example.com", "roles/run.invoker")
    others = [each.inputs["role"] for each in recorder.declared if "member" in each.inputs and each is not grant]
    assert others == ["roles/artifactregistry.reader"]
    assert exported["gatewayNetwork"]["subnetwork"] == "gemma-gateway"
    (policy,) = recorder.all("alertPolicy")
    assert 'response_code="503"' in str(policy.inputs["conditions"])


def test_a_stack_behind_a_gateway_opens_its_port_to_the_gateway_only(declare, monkeypatch):
    machines = {}
    for name, network in {"own": None, "shared": NETWORK}.items():
        config = (
            server()
            if network
            else {**server(), "gemma-serving:tpu": {**server()["gemma-serving:tpu"], "gateway": None}}
        )
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in config.items()}
        monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
        monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", "[]")
        monkeypatch.setattr(
            "gemma_serving.stacks.deployed.other_stacks.deployed_outputs", {"gateway": {"gatewayNetwork": network}}.get
        )
        recorder, _ = declare(run)
        machine = recorder.one("gcp-tpu:index:QueuedResource").inputs
        rules = {rule.inputs["name"]: rule.inputs for rule in recorder.all("Firewall")}
        machines[name] = machine, rules, recorder
    machine, rules, recorder = machines["shared"]
    assert recorder.all("compute/network:Network") == []
    assert (machine["network"], machine["subnetwork"]) == (NETWORK["network"], "gemma-gateway")
    (name,) = [name for name, rule in rules.items() if rule.get("sourceRanges") == [GATEWAY_RANGE]]
    assert rules[name]["allows"] == [{"protocol": "tcp", "ports": ["8000"]}]
    assert {tuple(rule["targetTags"]) for rule in rules.values()} == {("gemma-x",)}
    document = next(value for value in machine["metadata"].values() if "--host=" in value)
    assert "--host=0.0.0.0" in document
    own, own_rules, _ = machines["own"]
    assert any("--host=127.0.0.1" in value for value in own["metadata"].values())
    assert not any("8000" in str(rule.get("allows")) for rule in own_rules.values())


def test_a_stack_refuses_a_gateway_whose_network_its_machines_cannot_use(declare, monkeypatch, subtests):
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in server().items()}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(texts))
    monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", "[]")
    cases = {
        "does not exist": {},
        "has no network yet": {"gateway": {"target": "tpu"}},
        "project other": {"gateway": {"gatewayNetwork": {**NETWORK, "network": "projects/other/global/networks/n"}}},
        "no subnetwork in us-east5": {"gateway": {"gatewayNetwork": {**NETWORK, "regions": ["europe-west4"]}}},
        "no Cloud NAT": {"gateway": {"gatewayNetwork": {**NETWORK, "internetEgress": False}}},
    }
    for words, outputs in cases.items():
        with subtests.test(words):
            monkeypatch.setattr("gemma_serving.stacks.deployed.other_stacks.deployed_outputs", outputs.get)
            with pytest.raises(CommandRefusedError, match=words):
                declare(run)


def test_a_gateway_can_read_each_output_of_a_backend_that_it_needs():
    """`readStackOutputs` has the outputs of the stack, not those of its component with the details."""
    assert not {camel_case(name) for name in gateway.DEPLOYED_OUTPUTS} & DETAILS


def test_each_finding_names_its_backend_and_the_way_out(project, subtests):
    a, b = DeployedBackend(address="10.66.0.2", state="ACTIVE"), DeployedBackend(address="10.97.0.2", state="ACTIVE")
    both = {"tpu-a": a, "tpu-b": b}
    pair = {"tpu-a": server(), "tpu-b": server()}
    many = {**server()["gemma-serving:vllm"], "maxNumSeqs": 512}
    full = {stack: {**server(), "gemma-serving:vllm": many} for stack in pair}
    other_model = {**server(), "gemma-serving:model": "google/gemma-4-E4B-it"}
    cases = [
        ("GTW01", "tpu-b google/gemma-4-E4B-it", {**pair, "tpu-b": other_model}, both, {}),
        ("GTW02", "tpu.gateway is not set", {**pair, "tpu-b": server(gateway=None)}, both, {}),
        (
            "GTW02",
            "Pulumi.tpu-c.yaml not found",
            {"tpu-a": server()},
            both | {"tpu-c": a},
            {"backends": ["tpu-a", "tpu-c"]},
        ),
        ("GTW02", "no subnetwork in us-east5", pair, both, {"regions": ["europe-west4"]}),
        ("GTW02", "internetEgress is false", pair, both, {"internetEgress": False}),
        (
            "GTW02",
            "l4 is a Cloud Run stack",
            {"tpu-a": server(), "l4": {**shipped("l4-12b-qat"), "gcp:project": "my-project"}},
            {"tpu-a": a, "l4": b},
            {},
        ),
        ("GTW03", "Run `gemma up tpu-b`", pair, {"tpu-a": a, "tpu-b": DeployedBackend()}, {}),
        ("GTW03", "network and the account", pair, {"tpu-a": DeployedBackend(), "tpu-b": DeployedBackend()}, {}),
        ("GTW04", "tpu-a is the only backend", {"tpu-a": server()}, {"tpu-a": a}, {}),
        ("GTW07", "run 1,024 concurrent requests", full, both, {"maxInstances": 1}),
        (
            "GTW05",
            "tpu-a ends at 18:00 UTC",
            pair,
            {
                "tpu-a": DeployedBackend(address="10.66.0.2", deadline="2026-11-23T18:00:00Z"),
                "tpu-b": DeployedBackend(address="10.97.0.2", deadline="2026-11-23T18:02:00Z"),
            },
            {},
        ),
    ]
    for identifier, words, files, deployed, changes in cases:
        with subtests.test(words):
            _, plan = project(files, deployed=deployed, **changes)
            texts = [f"{one.message} {one.advice}" for one in plan.findings if one.id == identifier]
            assert any(words in text for text in texts), [one.message for one in plan.findings]
            if identifier in {"GTW01", "GTW02"}:
                with pytest.raises(CommandRefusedError, match=f"blocked by .*{identifier}"):
                    list(gateway_lines(plan))
    with subtests.test("one finding if no backend has an address"):
        _, plan = project(pair, deployed={"tpu-a": DeployedBackend(), "tpu-b": DeployedBackend()})
        assert [one.advice for one in plan.findings if one.id == "GTW03"] == [
            "Run `gemma up tpu-a`, then `gemma up gateway`."
        ]
    with subtests.test("nothing but the price"):
        ends = {
            "tpu-a": DeployedBackend(address="a", deadline=UP["deadline"]),
            "tpu-b": DeployedBackend(address="b", deadline=LATER["deadline"]),
        }
        _, plan = project(pair, deployed=ends, region="us-east4")
        assert [one.id for one in plan.findings] == ["GTW06"]
        assert "$0.0684/h ($1.64 per day)" in plan.findings[0].message
        assert "2 servers cost $2.77/h" in plan.findings[0].message
        _, plan = project(pair, deployed=ends, region="us-east5")
        assert "assumed for us-east5" in plan.findings[0].message
    assert {identifier for identifier, *_ in cases} | {"GTW06"} == set(GATEWAY_RULES)


@pytest.mark.parametrize(
    ("form", "zone", "usd"),
    [
        ("", "us-east5-a", "1.35"),
        ("spot", "us-east5-a", "1.40"),
        ("standard", "us-east5-a", "2.70"),
        ("spot", "southamerica-west1-a", "2.70"),
    ],
)
def test_the_price_is_of_the_form_in_use_or_if_unknown_of_the_most_expensive_form(project, form, zone, usd):
    deployed = {"tpu-a": DeployedBackend(address="a", provisioning=form, location=zone)}
    _, plan = project(
        {"tpu-a": server(provisioning=["flex-start", "spot", "standard"])}, deployed=deployed, minInstances=0
    )
    (text,) = [one.message for one in plan.findings if one.id == "GTW06"]
    assert f"1 server cost ${usd}/h" in text


def test_the_files_on_the_page_are_a_gateway_and_its_backends():
    text = (ROOT / "docs" / "gateway.md").read_text()
    gateway_file, tpu = (yaml.safe_load(block.partition("```")[0]) for block in text.split("```yaml\n")[1:])
    values = {key.partition(":")[2]: value for key, value in gateway_file["config"].items()}
    settings = loading.validate_settings(GatewayStack, values, project="my-project", origin="docs/gateway.md")
    assert [one.stack for one in settings.gateway.backends] == ["tpu-a", "tpu-b"]
    assert tpu == {"gemma-serving:tpu": {"gateway": "gateway"}}
