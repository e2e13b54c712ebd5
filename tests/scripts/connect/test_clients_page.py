"""The blocks of docs/clients.md run against the simulated server, as a program gets the environment of `gemma connect NAME -- CMD`."""

import contextlib
import hashlib
import os
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests

from tests.components.test_gateway_requests import gateway
from tests.polling import until

ROOT = Path(__file__).parents[3]
BLOCKS = dict(
    re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?```(?:python|sh)\n(.*?)```",
        (ROOT / "docs/clients.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
OWN_ENVIRONMENT = {"LangChain", "LiteLLM", "LlamaIndex"}
"""Clients with requirements of their own (clients.in), which contradict this project's. uv installs them once per lock file."""
MODEL, KEY, LIMIT_S = "google/gemma-4-E2B-it", "key-of-the-test", 300
STAND_IN = """
import google.oauth2.id_token
google.oauth2.id_token.fetch_id_token = lambda request, audience: "token-for-" + audience
"""
"""There is no metadata server here."""


@pytest.fixture(scope="module")
def server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'packages'}"}
    command = [
        sys.executable,
        "-m",
        "localcloud",
        "model-server",
        MODEL,
        "--port",
        str(port),
        "--max-model-len",
        "4096",
        "--api-key",
        KEY,
    ]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"

        def is_up():
            with contextlib.suppress(requests.ConnectionError):
                return requests.get(f"{url}/health", timeout=LIMIT_S).ok

        until(is_up, "the server is up", process=process)
        yield url
        process.terminate()


@pytest.fixture(scope="module")
def behind_gateway(server, tmp_path_factory):
    """The real Envoy with the gateway's configuration, in front of the server."""
    with gateway(tmp_path_factory.mktemp("envoy"), {"tpu-a": int(server.rpartition(":")[2])}) as running:
        yield running.url


@pytest.fixture(scope="module", params=["server", "behind_gateway"])
def address(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def service(address):
    """Serve the server as Cloud Run does: only requests with an identity token for this address pass."""

    class FrontEnd(BaseHTTPRequestHandler):
        def do_GET(self):
            token = self.headers["X-Serverless-Authorization"]
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            headers = {name: self.headers[name] or "" for name in ("Authorization", "Content-Type")}
            status, content = 403, b"{}"
            if token == f"Bearer token-for-{url}":
                answer = requests.request(self.command, address + self.path, data=body, headers=headers, timeout=60)
                status, content = answer.status_code, answer.content
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), FrontEnd) as front:
        url = f"http://127.0.0.1:{front.server_port}"
        threading.Thread(target=front.serve_forever, daemon=True).start()
        yield url
        front.shutdown()


@pytest.fixture(scope="module")
def python_of_clients():
    """Return the interpreter of an environment with the locked clients."""
    lock = Path(__file__).with_name("clients.txt")
    folder = ROOT / ".work" / f"clients-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        uv = str(Path(sys.executable).with_name("uv"))
        install = [uv, "pip", "install", "--python", str(python), "--require-hashes", "-r", str(lock)]
        for command in ([uv, "venv", "--clear", "--python", sys.executable, str(folder)], install):
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, done.stderr
        (folder / "done").touch()
    return str(python)


def ran(url, command, **options):
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": MODEL,
        "GEMMA_URL": url,
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options
    )


def test_each_client_has_a_block():
    assert {"OpenAI SDK", "curl", "LangChain", "LiteLLM", "LlamaIndex", "Another Cloud Run service"} <= set(BLOCKS)


@pytest.mark.parametrize(
    "client", ["OpenAI SDK", *(pytest.param(each, marks=pytest.mark.long) for each in sorted(OWN_ENVIRONMENT))]
)
def test_a_python_block_gets_a_completion(address, client, request):
    python = request.getfixturevalue("python_of_clients") if client in OWN_ENVIRONMENT else sys.executable
    done = ran(address, [python, "-c", BLOCKS[client]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_caller_from_another_service_sends_a_token_for_the_address(service):
    done = ran(service, [sys.executable, "-c", STAND_IN + BLOCKS["Another Cloud Run service"]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_curl_block_gets_a_completion(address):
    done = ran(address, ["sh", "-c", BLOCKS["curl"]])
    assert done.returncode == 0, done.stderr
    assert '"choices"' in done.stdout
