"""Alerts of deployed stacks ring, reach a webhook and fall silent, with the real CLI and Prometheus' rule engine, on simulated time.

Each stack goes through its alerts in sequence, because each deployment takes long.
"""

import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
import yaml

from localcloud.rules import program

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc"),
]
P = "projects/local-project"
KINDS = (
    "monitoring/v3/{}/alertPolicies",
    "monitoring/v3/{}/notificationChannels",
    "monitoring/v1/{}/dashboards",
    "logging/v2/{}/metrics",
)
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
LIMIT_S = 120.0
"""Real seconds for a server to come back."""
TTFT, SLOW_S = "10s", 11
"""The goal of the first token and a delay beyond it, in real seconds: a busy machine does not delay a token by itself for so long."""
SEATS, USERS = 4, 12


class Webhook:
    """A receiver of notifications: the state and title of each, in the order of their arrival."""

    def __init__(self):
        self.received = received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.append(body["incident"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def told(self):
        return [(each["state"], each["condition_name"]) for each in self.received]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Watched:
    """A deployed stack with alerts, and its simulated server."""

    workspace: object
    stack: str
    webhook: Webhook

    def target(self, job="vllm", metric="vllm:num_requests_running"):
        """Wait until a target of the collector answers with a metric, and return its URL."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            known = self.workspace.admin("collectors")
            found = [each["address"] for each in known["targets"] if each["labels"]["job"] == job]
            with suppress(requests.RequestException, IndexError):
                url = f"http://{found[0]}"
                if found[0] and metric in requests.get(f"{url}/metrics", timeout=10).text:
                    return url
            time.sleep(0.2)
        pytest.fail(f"no target has {metric}: {known}")

    def complete(self, tokens=4, timeout=60):
        """Send one request, and return its status; 0 if the connection ended without a response."""
        body = {"prompt": "hello", "max_tokens": tokens}
        with suppress(requests.RequestException):
            return requests.post(f"{self.url}/v1/completions", json=body, timeout=timeout).status_code
        return 0

    @contextmanager
    def stuck(self, requests_sent):
        """Send requests that get no token, and close their connections in the end."""
        self.inject({"kind": "stall", "after_tokens": 0, "seconds": DAY_S})
        body = {"prompt": "hello", "max_tokens": 4, "stream": True}
        with ExitStack() as opened:
            for _ in range(requests_sent):
                answer = requests.post(f"{self.url}/v1/completions", json=body, stream=True, timeout=60)
                opened.enter_context(answer)
                assert answer.ok
            yield
        self.inject()

    def inject(self, *faults):
        self.url = self.target()
        requests.post(f"{self.url}/_sim/faults", json={"faults": faults}, timeout=60).raise_for_status()

    def advance(self, seconds):
        """Let simulated time pass, in steps that are short enough for one request."""
        while seconds > 0:
            self.workspace.advance(min(seconds, HOUR_S))
            seconds -= HOUR_S

    def incidents(self):
        return self.workspace.get("monitoring", f"v3/{P}/alerts?pageSize=1000").get("alerts", [])

    def rang(self):
        """Return the titles of all alerts that ring or rang, with their state."""
        prefix = f"gemma-{self.stack}: "
        return [(one["policy"]["displayName"].removeprefix(prefix), one["state"]) for one in self.incidents()]

    def ringing(self):
        """Return the titles of the alerts that ring."""
        return {title for title, state in self.rang() if state == "OPEN"}

    def assert_told(self, *titles):
        """Each of these alerts has rung and closed once, and the webhook received both."""
        told = Counter(self.webhook.told())
        assert told == {(state, title): 1 for title in titles for state in ("open", "closed")}
        self.webhook.received.clear()

    @contextmanager
    def load(self, users):
        """Keep this many users busy: each sends its next request when the last one is answered."""
        stop = threading.Event()

        def user():
            while not stop.is_set():
                self.complete(tokens=200)

        with ThreadPoolExecutor(users) as pool:
            for _ in range(users):
                pool.submit(user)
            try:
                yield
            finally:
                stop.set()


@pytest.fixture(scope="module")
def webhook():
    if program.found() is None and shutil.which("go") is None:
        pytest.skip(f"alert policies are not evaluated: {program.NO_GO}")
    program.ensure()
    receiver = Webhook()
    yield receiver
    receiver.close()


@pytest.fixture
def watched(workspace, webhook):
    """Deploy a stack with settings, and return it."""

    def deploy(stack, **values):
        alerts = {"enabled": True, "webhook": webhook.url, "ttft": TTFT, "ttftGoal": 0.99}
        given = {"alerts": alerts, "metrics": {"enabled": True, "interval": "30s"}}
        path = workspace.folder / "project" / f"Pulumi.{stack}.yaml"
        document = yaml.safe_load(path.read_text())
        for block in (given, values):
            for name, keys in block.items():
                document["config"].setdefault(f"gemma-serving:{name}", {}).update(keys)
        path.write_text(yaml.safe_dump(document))
        workspace.pulumi("stack", "init", stack)
        if stack.startswith("l4"):
            workspace.stage(stack)
        workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)
        found = Watched(workspace, stack, webhook)
        found.url = found.target()
        return found

    return deploy


def process_of(url):
    """Return the process of the simulated server at a URL."""
    port = url.rpartition(":")[2]
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"VLLM_SIM_BIND_PORT={port}" in path.read_bytes().decode(errors="replace").split("\0"):
                return int(path.parent.name)
    raise AssertionError(f"no process serves {url}")


def assert_nothing_left(server):
    workspace = server.workspace
    receipt = workspace.script("teardown", "--stack", server.stack, "--yes", "--json").json
    assert receipt["clean"] is True
    assert [workspace.get(*path.format(P).split("/", 1)).get(path.rpartition("/")[2], []) for path in KINDS] == [[]] * 4
    server.advance(MINUTE_S)
    assert server.ringing() == set()
    assert workspace.admin("collectors")["targets"] == []


def alerts_command(server, verdict, *, titles=()):
    """The command's answer about a stack: its verdict, its exit code, and what rings."""
    answer = server.workspace.script(
        "alerts", "--stack", server.stack, "--json", expect=0 if verdict == "silent" else 1
    )
    assert answer.json["verdict"] == verdict
    assert {one["title"] for one in answer.json["ringing"]} == set(titles)


def test_a_service_is_silent_for_a_day_and_then_rings_for_each_fault(watched):
    server = watched(
        "l4-12b-qat",
        cloudRun={"cpu": 6, "memory": "17Gi", "minInstances": 1},
        alerts={"idle": "2h", "dailyCost": 1000},
    )
    a_healthy_day(server)
    slow_first_tokens(server)
    a_server_that_is_up_and_does_not_serve(server)
    a_crash_loop(server)
    a_hung_server(server)
    errors(server)
    nobody_asks(server)
    server.workspace.pulumi("preview", "--expect-no-changes", "--stack", server.stack)
    assert_nothing_left(server)


def a_healthy_day(server):
    for _ in range(DAY_S // HOUR_S):
        assert [server.complete() for _ in range(3)] == [200] * 3
        server.advance(HOUR_S)
    assert server.rang() == []
    assert server.webhook.received == []
    alerts_command(server, "silent")


def slow_first_tokens(server):
    server.inject({"kind": "stall", "after_tokens": 0, "seconds": SLOW_S})
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: server.complete(), range(8))) == {200}
    server.inject()
    server.advance(MINUTE_S)
    assert server.ringing() == {"TTFT fast burn", "TTFT slow burn"}
    server.advance(HOUR_S)
    assert server.ringing() == set()
    server.assert_told("TTFT fast burn", "TTFT slow burn")


def a_server_that_is_up_and_does_not_serve(server):
    with server.stuck(1):
        assert requests.get(f"{server.url}/health", timeout=60).ok
        server.advance(7 * MINUTE_S)
        assert server.ringing() == {"Up but not serving"}
    assert server.complete() == 200
    server.advance(10 * MINUTE_S)
    assert server.ringing() == set()
    server.assert_told("Up but not serving")


def a_crash_loop(server):
    for crashes in range(3):
        assert server.ringing() == set(), f"{crashes} crashes"
        server.inject({"kind": "crash"})
        assert server.complete() == 0
        server.url = server.target()
        assert server.complete() == 200
        server.advance(MINUTE_S)
    assert server.ringing() == {"Restart loop"}
    server.advance(40 * MINUTE_S)
    assert server.ringing() == set()
    server.assert_told("Restart loop")


def a_hung_server(server):
    process = process_of(server.url)
    os.kill(process, signal.SIGSTOP)
    try:
        server.advance(4 * MINUTE_S)
        assert server.ringing() == {"Instance down"}
    finally:
        os.kill(process, signal.SIGCONT)
    server.target()
    server.advance(MINUTE_S)
    server.assert_told("Instance down")


def errors(server):
    server.inject({"kind": "status", "status": 500})
    assert server.complete() == 500
    server.advance(MINUTE_S)
    assert server.ringing() == set(), "the counter of 5xx begins with this error, so no rate shows it"
    assert server.complete() == 500
    server.inject()
    server.advance(MINUTE_S)
    assert server.ringing() == {"HTTP errors"}
    server.advance(10 * MINUTE_S)
    assert server.ringing() == set()
    server.assert_told("HTTP errors")


def nobody_asks(server):
    server.advance(2 * HOUR_S + MINUTE_S)
    assert server.ringing() == {"Idle"}
    assert server.complete() == 200
    server.advance(MINUTE_S)
    assert server.ringing() == set()
    server.assert_told("Idle")


def test_a_machine_rings_when_it_is_overloaded_hangs_and_ends(watched):
    server = watched("tpu-v6e1", vllm={"maxNumSeqs": SEATS}, alerts={"idle": "6h", "dailyCost": 4})
    more_requests_than_seats(server)
    a_queue_that_does_not_move(server)
    the_machine_ends(server)
    assert_nothing_left(server)


def more_requests_than_seats(server):
    with server.load(USERS):
        server.advance(2 * MINUTE_S)
        assert server.ringing() == {"Queue waiting"}
        alerts_command(server, "rings", titles=["Queue waiting"])
        assert "Queue waiting" in server.workspace.script("status", "--stack", server.stack).out
        assert server.webhook.told() == [("open", "Queue waiting")]
    server.advance(MINUTE_S)
    alerts_command(server, "silent")
    server.assert_told("Queue waiting")


def a_queue_that_does_not_move(server):
    with server.stuck(SEATS + 1):
        server.advance(7 * MINUTE_S)
        assert server.ringing() == {"Queue waiting", "Queue stuck", "Up but not serving"}
    assert server.complete() == 200
    server.advance(10 * MINUTE_S)
    assert server.ringing() == set()
    server.assert_told("Queue waiting", "Queue stuck", "Up but not serving")


def the_machine_ends(server):
    server.target("agent", "gemma_serving_deadline_timestamp_seconds")
    deadline = datetime.fromisoformat(server.workspace.outputs(server.stack)["deadline"])
    left = deadline - datetime.fromisoformat(server.workspace.admin("clock")["now"])
    server.advance(left.total_seconds() - 40 * MINUTE_S)
    assert server.ringing() == {"Daily cost"}
    server.advance(15 * MINUTE_S)
    assert server.ringing() == {"Daily cost", "TPU deadline"}
    server.advance(40 * MINUTE_S)
    assert server.ringing() == {"Daily cost", "Metrics gone"}
    heard = {("open", "Daily cost"), ("open", "TPU deadline"), ("closed", "TPU deadline"), ("open", "Metrics gone")}
    assert Counter(server.webhook.told()) == dict.fromkeys(heard, 1)
