"""The blocks of docs/clients.md run against the simulated server, as a program gets the environment of `gemma connect NAME -- CMD`."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

ROOT = Path(__file__).parents[3]
BLOCKS = dict(
    re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?```(?:python|sh)\n(.*?)```",
        (ROOT / "docs/clients.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
NOT_INSTALLED = {"LangChain": "langchain_openai", "LlamaIndex": "llama_index"}
"""Packages outside the lock file. Their blocks run where they are installed; elsewhere their syntax is checked, and the page says so."""
MODEL, LIMIT_S = "google/gemma-4-E2B-it", 60
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
    ]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        url, end = f"http://127.0.0.1:{port}", time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                if requests.get(f"{url}/health", timeout=5).ok:
                    break
            except requests.ConnectionError:
                time.sleep(0.1)
        yield url
        process.terminate()


def ran(url, command, **options):
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": MODEL,
        "GEMMA_URL": url,
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options
    )


def test_each_client_has_a_block():
    assert {"OpenAI SDK", "curl", "LangChain", "LlamaIndex", "Another Cloud Run service"} <= set(BLOCKS)


@pytest.mark.parametrize("client", ["OpenAI SDK", "LangChain", "LlamaIndex", "Another Cloud Run service"])
def test_a_python_block_gets_a_completion(server, client):
    package = NOT_INSTALLED.get(client)
    compile(BLOCKS[client], client, "exec")
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    done = ran(server, [sys.executable, "-c", (STAND_IN if "id_token" in BLOCKS[client] else "") + BLOCKS[client]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_curl_block_gets_a_completion(server):
    done = ran(server, ["sh", "-c", BLOCKS["curl"]])
    assert done.returncode == 0, done.stderr
    assert '"choices"' in done.stdout
