"""The blocks of docs/clients.md and docs/agents.md run against the simulated server, as `gemma connect NAME -- CMD` starts a program.

What Google's ADK and the proxy of docs/tasks.md send is recorded by dev/judges/real/tests/test_agents.py, which installs them.
"""

import ast
import asyncio
import contextlib
import hashlib
import json
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
import yaml

from gemma_serving.scripts.connect.__main__ import DEFAULT_PORT
from gemma_serving.scripts.smoke.checks import AGENT_CHECKS, CHECKS
from gemma_serving.scripts.smoke.media import picture as one_color
from loadtest.client.events import DONE, EventSplitter, delta_of, joined
from tests.answers import served
from tests.polling import until

ROOT = Path(__file__).parents[3]
AGENTS = (ROOT / "docs/agents.md").read_text()
PAGE = (ROOT / "docs/clients.md").read_text() + AGENTS
BLOCKS = dict(
    re.findall(
        r"^## ([^\n]+)\n(?:(?!^## ).)*?```(?:python|sh)\n(.*?)```",
        PAGE,
        re.MULTILINE | re.DOTALL,
    )
)
OWN_ENVIRONMENT = {"LangChain", "LiteLLM", "LlamaIndex"}
"""Clients with requirements of their own (clients.in), which contradict this project's. uv installs them once per lock file."""
ADK = [json.loads(line) for line in Path(__file__).with_name("adk.jsonl").read_text().splitlines()]
"""What the agent of examples/agents sends: its question, then its tool's result, whole and streamed."""
TEAM = ROOT / "examples" / "team"
AGENT = """
import os, sys, requests
base, own = os.environ["VLLM_BASE_URL"] + "/v1", {"Authorization": "Bearer a-token-of-its-own"}
model = requests.get(base + "/models", headers=own).json()["data"][0]["id"]
body = {"model": model, "messages": [{"role": "user", "content": sys.stdin.read()}], "max_tokens": 8}
print(requests.post(base + "/chat/completions", json=body, headers=own).json())
"""
"""What an agent of gemma4-tips sends."""
MODEL, KEY, LIMIT_S = "google/gemma-4-E2B-it", "key-of-the-test", 300
REASONING = {
    library: cells
    for library, *cells in re.findall(r"^\| ([\w ]+) \| `?([^`|]+)`? \| `?([^`|]+)`? \|$", PAGE, re.MULTILINE)
    if library in {"OpenAI SDK", *OWN_ENVIRONMENT}
}
"""Where each library has the reasoning of a whole and of a streamed response."""
SIMULATED_REASONING = "I work it out"
THINK = 'question, model = [{"role": "user", "content": "Say hello."}], os.environ["OPENAI_MODEL"]'
ASKED = tomllib.loads(Path(__file__).with_name("reasoning.toml").read_text())
"""A whole and a streamed request for a response with reasoning, by library."""
FOUND = """
def value(expression, **names):
    try:
        return eval(expression, names) or ""
    except (AttributeError, IndexError, KeyError):
        return ""
chunks = list(chunks)
whole, streamed = json.loads(sys.argv[1])
print(json.dumps({
    "whole": value(whole, answer=answer),
    "streamed": "".join(value(streamed, chunk=chunk) for chunk in chunks),
    "all": repr(answer) + repr(chunks),
}))
"""
LITERAL = {
    "image_url": "https://upload.wikimedia.org/wikipedia/commons/3/3a/Cat03.jpg",
    "audio_url": "https://upload.wikimedia.org/wikipedia/commons/2/22/Beatbox.ogg",
    "video_url": "https://example.com/sample_video.mp4",
}
"""The addresses that guides of vLLM send."""
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
        "--allowed-media-domains",
        "none.invalid",
        "--reasoning-parser",
        "gemma4",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "gemma4",
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
def service(server):
    """Serve the server as Cloud Run does: only requests with an identity token for this address pass."""

    def front_end(asked):
        if asked.headers["X-Serverless-Authorization"] != f"Bearer token-for-{url}":
            return 403, {}
        headers = {name: asked.headers[name] or "" for name in ("Authorization", "Content-Type")}
        answer = requests.request(asked.method, server + asked.path, data=asked.body, headers=headers, timeout=60)
        return answer.status_code, answer.text

    with served(front_end) as url:
        yield url


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
    assert {"OpenAI SDK", "curl", "LangChain", "LiteLLM", "LlamaIndex", "JSON by a schema"} <= set(BLOCKS)


@pytest.mark.parametrize(
    "client",
    [
        "OpenAI SDK",
        "JSON by a schema",
        *(pytest.param(each, marks=pytest.mark.long) for each in sorted(OWN_ENVIRONMENT)),
    ],
)
def test_a_python_block_gets_a_completion(server, client, request):
    python = request.getfixturevalue("python_of_clients") if client in OWN_ENVIRONMENT else sys.executable
    done = ran(server, [python, "-c", BLOCKS[client]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_caller_from_another_service_sends_a_token_for_the_address(service):
    done = ran(service, [sys.executable, "-c", STAND_IN + BLOCKS["Another Cloud Run service"]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_curl_block_gets_a_completion(server):
    done = ran(server, ["sh", "-c", BLOCKS["curl"]])
    assert done.returncode == 0, done.stderr
    assert '"choices"' in done.stdout


@pytest.mark.parametrize(
    "library", ["OpenAI SDK", *(pytest.param(each, marks=pytest.mark.long) for each in sorted(OWN_ENVIRONMENT))]
)
def test_the_reasoning_is_where_the_page_says(server, library, request):
    python = request.getfixturevalue("python_of_clients") if library in OWN_ENVIRONMENT else sys.executable
    start = f'import json, os, sys\nthinking = {{"chat_template_kwargs": {{"enable_thinking": True}}}}\n{THINK}\n'
    cells = REASONING[library]
    expressions = ["''" if cell == "lost" else cell for cell in cells]
    done = ran(server, [python, "-c", start + ASKED[library] + FOUND, json.dumps(expressions)])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if "lost" in cells:
        assert SIMULATED_REASONING not in found["all"]
    else:
        assert SIMULATED_REASONING in found["whole"]
        assert SIMULATED_REASONING in found["streamed"]


def connected(server, line, **options):
    """Run the command that a line of a page gives `gemma connect NAME`."""
    command = [sys.executable, "-m", "scripts.connect", "--url", server, *shlex.split(line)[3:]]
    environment = {**os.environ, "GEMMA_API_KEY": KEY}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False, **options
    )


def test_the_line_for_an_agent_that_reads_a_url_without_v1_gets_a_completion(server, tmp_path):
    (tmp_path / "server.py").write_text(AGENT)
    line = BLOCKS["DevOps agents of gemma4-tips"].replace("/path/to", str(tmp_path))
    done = connected(server, line, input="Say hello.")
    assert done.returncode == 0, done.stderr
    assert "'choices'" in done.stdout


@pytest.mark.parametrize("body", ADK, ids=["call", "result", "call, streamed", "result, streamed"])
def test_what_an_agent_of_adk_sends_gets_its_call_and_the_answer_from_the_result(server, body):
    own = {"Authorization": f"Bearer {KEY}"}
    answer = requests.post(f"{server}/v1/chat/completions", json={**body, "model": MODEL}, headers=own, timeout=60)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        events = [json.loads(payload) for payload in EventSplitter().feed(answer.content) if payload != DONE]
    else:
        events = [{"choices": [{"delta": answer.json()["choices"][0]["message"]}]}]
    found = joined([delta_of(event) for event in events if event["choices"]])
    calls = [(call.name, json.loads(call.arguments)) for call in found.tool_calls]
    if len(body["messages"]) == 4:  # with the call and its result
        assert "23.7" in found.text
        assert calls == []
    else:
        assert calls == [("get_weather", {"location": "Tokyo"})]


def test_the_recorded_requests_are_those_of_the_example():
    text = (ROOT / "examples/agents/weather/agent.py").read_text()
    words = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    for body in ADK:
        (tool,) = body["tools"]
        assert {tool["function"]["description"], body["messages"][0]["content"].partition("\n")[0]} <= words


def test_the_page_s_table_names_checks_of_smoke_and_each_one_for_agents():
    table = AGENTS.partition("depends on | check |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| .+ \| ([\w/ ]+) \|$", table, re.MULTILINE)
    assert len(named) == 8
    assert {check.name for check in AGENT_CHECKS} <= set(named) <= {check.name for check in (*CHECKS, *AGENT_CHECKS)}


class RefusedError(Exception):
    """FastAPI's HTTPException."""


@pytest.fixture
def authenticate(tmp_path, monkeypatch):
    """The function that LiteLLM calls for each request, with `UserAPIKeyAuth` as a dictionary."""
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(HTTPException=RefusedError, Request=None))
    monkeypatch.setitem(sys.modules, "litellm.proxy._types", SimpleNamespace(UserAPIKeyAuth=dict))
    for name in ("keys.py", "keys.toml"):
        shutil.copy(TEAM / name, tmp_path)
    config = yaml.safe_load((TEAM / "config.yaml").read_text())
    module, _, function = config["general_settings"]["custom_auth"].partition(".")
    found = runpy.run_path(str(tmp_path / f"{module}.py"))[function]
    return lambda key: asyncio.run(found(None, key))


def test_a_user_of_the_proxy_has_the_limits_of_the_file_until_the_key_is_removed(authenticate, tmp_path):
    file = tmp_path / "keys.toml"
    for key in (None, "", "none", "sk-ann"):
        with pytest.raises(RefusedError, match=r"not in keys\.toml"):
            authenticate(key)
    shipped = file.read_text()
    file.write_text(shipped.replace('"none"', f'"{hashlib.sha256(b"sk-ann").hexdigest()}"'))
    limits = {"max_budget": 20.0, "rpm_limit": 30, "tpm_limit": 100_000}
    routes = ["llm_api_routes"]
    assert authenticate("sk-ann") == {"api_key": "sk-ann", "key_alias": "ann", "allowed_routes": routes, **limits}
    file.write_text(shipped)
    with pytest.raises(RefusedError):
        authenticate("sk-ann")


def test_the_proxy_of_tasks_reads_what_connect_sets_and_prices_each_token(server):
    config = yaml.safe_load((TEAM / "config.yaml").read_text())
    (model,) = config["model_list"]
    read = {
        value.partition("/")[2] for value in model["litellm_params"].values() if str(value).startswith("os.environ/")
    }
    assert read == {"OPENAI_MODEL", "OPENAI_BASE_URL", "OPENAI_API_KEY"}
    assert model["litellm_params"]["output_cost_per_token"] > 0
    assert config["general_settings"]["custom_auth_run_common_checks"]
    page = (ROOT / "docs" / "tasks.md").read_text()
    assert f"`{model['model_name']}`" in page
    (line,) = re.findall(r"^gemma connect .* -- litellm .*$", page, re.MULTILINE)
    asked = "curl -s -o /dev/null -w '%{http_code} ' $OPENAI_BASE_URL/models"
    both = f'{asked}; {asked} -H "Authorization: Bearer $OPENAI_API_KEY"'
    done = connected(server, f"{line.partition('litellm')[0]} sh -c {shlex.quote(both)}")
    assert done.stdout == "401 200 ", done.stderr  # the port is open to the proxy alone


def test_a_prometheus_at_the_address_of_the_page_gets_the_metrics(server):
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/observability.md").read_text(), re.DOTALL)
    (job,) = yaml.safe_load(block)["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{DEFAULT_PORT}"]}]
    done = connected(server, "gemma connect STACK -- sh -c 'curl -s ${OPENAI_BASE_URL%/v1}/metrics'")
    assert f'vllm:num_requests_running{{engine="0",model_name="{MODEL}"}}' in done.stdout, done.stderr


@pytest.mark.parametrize("kind", LITERAL)
def test_a_guide_that_sends_a_site_s_address_gets_the_sentence_of_the_page(server, kind):
    part = {"type": kind, kind: {"url": LITERAL[kind]}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [part, {"type": "text", "text": "Describe it."}]}]}
    answer = requests.post(
        f"{server}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {KEY}"}, timeout=60
    )
    assert answer.status_code == 400
    said = "The URL must be from one of the allowed domains"
    assert said in answer.json()["error"]["message"]
    assert said in PAGE


def test_the_picture_of_the_page_is_described(server, tmp_path, monkeypatch):
    picture = tmp_path / "red.png"
    picture.write_bytes(one_color("red"))
    monkeypatch.setenv("PICTURE", str(picture))
    done = ran(server, [sys.executable, "-c", BLOCKS["Images, audio and video by URL"]])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("stack", "at_least"), [("tpu-v6e4-turbo", 4), ("rtx6000-31b", 4), ("l4-qat", 2)])
def test_a_coding_agent_s_prompts_fit_the_stacks_of_the_page(stack, at_least):
    command = [
        sys.executable,
        "-m",
        "gemma_serving.scripts.plan",
        "--stack",
        stack,
        "--set",
        "vllm.maxModelLen=65536",
        "--json",
    ]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    plan = json.loads(answer.stdout)
    assert plan["fits"]
    assert plan["memory"]["max_concurrency"] >= at_least
