"""A gateway's address while the only server behind it is preempted and comes back in another form and region, with the real CLI and Envoy."""

import pytest

from tests.engine.conftest import KEY_CANARY, PROJECT, until
from tests.engine.test_gateway import NO_ENVOY, SERVER_SETTINGS, has_envoy
from tests.engine.test_gateway_load import Front

GATEWAY, SERVER, ZONES = "gateway", "tpu-a", ("us-east5-b", "europe-west4-a")
GATEWAY_SETTINGS = f"""\
config:
  gemma-serving:target: gateway
  gemma-serving:gateway: {{ region: us-east5, regions: [us-east5, europe-west4], backends: [{{ stack: {SERVER} }}] }}
"""
FORMS = ("FLEX_START", "SPOT")
SERVICE = f"run/v2/projects/{PROJECT}/locations/us-east5/services"

pytestmark = [pytest.mark.engine, pytest.mark.long, pytest.mark.skipif(not has_envoy, reason=NO_ENVOY)]


def stock(workspace, zone, form):
    """Let only one zone have capacity, of one form."""

    def facts(place):
        has = {each: {"chips": 8 if (place, each) == (zone, form) else 0, "dry": "fails"} for each in FORMS}
        return {"accelerator_types": ["v6e-1"], "flex_start": True, "stock": has}

    workspace.change_scenario({"tpu": {"zones": {place: facts(place) for place in ZONES}}})


def node_of(workspace):
    listed = [workspace.get("tpu", f"v2alpha1/projects/{PROJECT}/locations/{zone}/nodes") for zone in ZONES]
    (node,) = [node for found in listed for node in found.get("nodes", ())]
    return node


def service_of(workspace):
    """Return what stays of a gateway while its arguments change: its service, with its identity and its address."""
    (service,) = workspace.call("GET", SERVICE)["services"]
    return {key: service[key] for key in ("name", "uid", "uri", "createTime")}


def chat(workspace, **options):
    """Chat through the gateway as a user does. The command finds the key of the servers by the gateway's outputs."""
    return workspace.script("connect", "chat", "--stack", GATEWAY, "Say hello.", **options)


@pytest.fixture(scope="module")
def front(workspace):
    """A gateway with one server in spot capacity, because flex-start is dry."""
    workspace.settings(GATEWAY).write_text(GATEWAY_SETTINGS)
    order = "    provisioning: [flex-start, spot]\n    maxUsdPerHour: 2\n"
    workspace.settings(SERVER).write_text(SERVER_SETTINGS.format(zone=", ".join(ZONES), run="4h") + order)
    stock(workspace, ZONES[0], "SPOT")
    for stack in (GATEWAY, SERVER):
        workspace.pulumi("stack", "init", stack)
    workspace.pulumi("config", "set", "--secret", "gemma-serving:apiKey", KEY_CANARY, "--stack", SERVER)
    for stack in (GATEWAY, SERVER, GATEWAY):
        workspace.up(stack)
    return Front(workspace, workspace.pulumi("stack", "output", "endpoint", "--stack", GATEWAY).out.strip())


def test_the_address_of_the_gateway_stays_while_its_server_is_preempted_and_comes_back_in_another_form(
    workspace, front
):
    assert chat(workspace).out.strip()
    before, old = service_of(workspace), node_of(workspace)
    assert workspace.outputs(SERVER)["provisioning"] == "spot"
    usd = workspace.outputs(GATEWAY)["plan"]["cost"]["usdPerHour"]
    workspace.post("admin/preempt", {"node": old["name"]})
    until(lambda: front.send("GET", "/v1/models").status_code == 503, "the end of the server")
    assert service_of(workspace) == before
    stock(workspace, ZONES[1], "FLEX_START")
    workspace.script("up", "--stack", SERVER, "--yes")
    new = node_of(workspace)
    addresses = [node["networkEndpoints"][0]["ipAddress"] for node in (old, new)]
    assert addresses[0] != addresses[1]
    assert workspace.outputs(SERVER)["provisioning"] == "flex-start"
    workspace.script("up", "--stack", GATEWAY, "--yes")
    assert service_of(workspace) == before
    assert workspace.outputs(GATEWAY)["endpoint"] == front.url
    until(lambda: chat(workspace, expect=None).code == 0, "an answer of the new server")
    assert chat(workspace).out.strip()
    assert usd - workspace.outputs(GATEWAY)["plan"]["cost"]["usdPerHour"] == pytest.approx(1.4033 - 1.35, abs=1e-3)
