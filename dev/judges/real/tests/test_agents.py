"""Part `agents`: Google's ADK and a LiteLLM proxy, as docs/agents.md and docs/tasks.md use them, against the simulated server."""

import hashlib
import json
import os
import re
import shutil
import socket
import sys
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
import requests

from dev.judges.planted import refuse_planted
from dev.judges.real.answers import KEY, running, stack_words
from dev.judges.real.home import ROOT, Need, run
from dev.judges.real.service import Service
from dev.judges.real_vllm.environment import last_line
from dev.judges.real_vllm.server import free_port
from tests.answers import served

LOCK = ROOT / "dev" / "judges" / "real" / "agents.txt"
AGENT = ROOT / "examples" / "agents" / "weather"
TEAM = ROOT / "examples" / "team"
RECORDED = ROOT / "tests" / "scripts" / "connect" / "adk.jsonl"
"""The bodies that ADK sends for QUESTION, whole, then streamed: `make test` sends the same."""
QUESTION = "What is the weather in Tokyo today?"
TEMPERATURE = "23.7"
"""The tool's number, which the answer repeats."""
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONDONTWRITEBYTECODE": "1", "no_proxy": "127.0.0.1"}
MASTER = {"LITELLM_MASTER_KEY": "sk-" + "0f" * 24}
TOKEN = "X-Serverless-Authorization"
STAND_IN = "import google.oauth2.id_token as own\nown.fetch_id_token = lambda _, audience: 'token-for-' + audience\n"
"""There is no metadata server here."""
ADK = "import sys\nfrom google.adk.cli import main\nsys.exit(main())"
OPENAI_LLM = """
from google.adk.integrations.openai import OpenAILlm

root_agent.model = OpenAILlm(model=os.environ["OPENAI_MODEL"])
"""
USERS = {
    "ann": "max_budget = 30e-6",
    "abe": "max_budget = 30e-6",
    "ben": "rpm_limit = 2",
    "eve": "tpm_limit = 60",
    "dan": "max_budget = 1.0",
}
"""Limits of two requests: a request of `post` costs 20 dollars per million, and has 34 tokens."""


def planted_lie():
    with served(lambda _: (HTTPStatus.OK, "{}")) as url:
        refuse_planted("a proxy that lets a user make keys opens no route", lambda: test_administration(url))


@pytest.fixture(scope="module")
def programs(home, judge):
    """The folder of the installed programs."""
    folder, lock = home.folder / "agents", LOCK.read_text(encoding="utf-8")
    stamp = folder / "lock"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != lock:
        home.get(Need(what="Google's ADK and LiteLLM's proxy", where=str(folder), disk_gib=0.7, takes_s=30))
        uv = str(Path(sys.executable).with_name("uv"))
        hashed = ["--quiet", "--python", str(folder / "bin" / "python"), "--require-hashes", "-r", str(LOCK)]
        for words in (["venv", "--clear", "--python", sys.executable, str(folder)], ["pip", "install", *hashed]):
            done = run([uv, *words], limit_s=1200)
            if done.returncode:
                pytest.skip(f"ADK and LiteLLM were not installed: {last_line(done.stderr)}")
        stamp.write_text(lock, encoding="utf-8")
    judge(", ".join(re.findall(r"^(?:google-adk|litellm)==[\d.]+", lock, re.MULTILINE)))
    return folder / "bin"


@pytest.fixture(scope="module")
def server(home, programs):
    with running(home, "agents", stack_words()) as found:
        yield found


def address(server):
    return f"http://127.0.0.1:{server.port}"


@contextmanager
def relayed(server, refusal=lambda *_: None):
    """Yield an address in front of the server and the bodies of its requests. `refusal`: an answer instead of the server's."""
    bodies = []

    def answer(asked):
        bodies.extend([json.loads(asked.body)] if asked.body else [])
        if refused := refusal(asked, bodies):
            return refused
        headers = {name: asked.headers[name] or "" for name in ("Authorization", "Content-Type")}
        url = address(server) + asked.path
        found = requests.request(asked.method, url, data=asked.body, headers=headers, timeout=60)
        return found.status_code, found.text

    with served(answer) as url:
        yield url, bodies


@contextmanager
def connected(log, url, *command, options=(), more=OFFLINE):
    """Run `gemma connect --url URL OPTIONS -- COMMAND --port PORT`, and yield the address of the command's server."""
    port = free_port()
    words = ["--url", url, *options, "--", *map(str, command), "--host", "127.0.0.1", "--port", str(port)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "packages")])
    variables = {**OFFLINE, **more, "GEMMA_API_KEY": KEY, "PYTHONPATH": paths}
    service = Service([sys.executable, "-m", "gemma_serving.scripts.connect", *words], log, variables, folder=ROOT)

    def listens():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True

    try:
        service.start(listens, limit_s=180)
        yield f"http://127.0.0.1:{port}"
    finally:
        service.stop()


def ask(programs, agent, base_url, model, *, key=KEY, before="", **more):
    """Return what `adk run` prints about QUESTION. `before`: code that runs first."""
    variables = {**OFFLINE, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key, "OPENAI_MODEL": model, **more}
    words = ["run", "--no_use_local_storage", str(agent), QUESTION]
    done = run([str(programs / "python"), "-c", before + ADK, *words], environment=variables, limit_s=180)
    return done.stdout + done.stderr


def changed(tmp_path, old="", new=""):
    """Return the folder of the example's agent with other words, or with more of them."""
    text = (AGENT / "agent.py").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "weather").mkdir()
    (tmp_path / "weather" / "agent.py").write_text(text.replace(old, new) if old else text + new, encoding="utf-8")
    return tmp_path / "weather"


def roles(bodies):
    return {message["role"] for body in bodies for message in body["messages"]}


def test_adk_web(home, programs, server):
    """`gemma connect -- adk web`: the answer has the tool's number, whole and streamed, by the requests that `make test` repeats."""
    command = (programs / "adk", "web", "--no_use_local_storage", AGENT.parent)
    with relayed(server) as (url, bodies), connected(home.results / "adk.log", url, *command) as web:
        for name, streaming in (("whole", False), ("streamed", True)):
            requests.post(f"{web}/apps/weather/users/u/sessions/{name}", json={}, timeout=60).raise_for_status()
            message = {"role": "user", "parts": [{"text": QUESTION}]}
            body = {"appName": "weather", "userId": "u", "sessionId": name, "newMessage": message}
            said = requests.post(f"{web}/run_sse", json={**body, "streaming": streaming}, timeout=60).text
            assert TEMPERATURE in said.rpartition("data: ")[2], said
    sent = "".join(f"{json.dumps({**body, 'model': 'MODEL'})}\n" for body in bodies)
    found = home.results / RECORDED.name
    found.write_text(re.sub(r"chatcmpl-tool-\w+", "ID", sent), encoding="utf-8")
    assert found.read_text() == RECORDED.read_text(), f"ADK sends other requests: cp {found} {RECORDED}"


def test_openai_llm(programs, server, tmp_path):
    """ADK's OpenAILlm without LiteLLM: the answer has the tool's number."""
    with relayed(server) as (url, bodies):
        said = ask(programs, changed(tmp_path, new=OPENAI_LLM), f"{url}/v1", server.model)
    assert TEMPERATURE in said, said[-300:]
    assert roles(bodies) == {"system", "user", "assistant", "tool"}


def test_hosted_vllm(programs, server, tmp_path):
    """LiteLlm with `hosted_vllm/`: ADK sends a tool's result in the role `tool_responses`, as docs/agents.md warns."""
    with relayed(server, lambda _, bodies: "tool_responses" in roles(bodies) and (400, {})) as (url, bodies):
        ask(programs, changed(tmp_path, "openai/", "hosted_vllm/"), f"{url}/v1", server.model)
    assert roles(bodies) == {"system", "user", "assistant", "tool_responses"}


def test_cloud_run(programs, server, notes):
    """Cloud Run without `gemma connect`: each request of the agent has an identity token for the service."""

    def front_end(asked, _):
        return asked.headers[TOKEN] != f"Bearer token-for-http://{asked.headers['Host']}" and (403, {})

    with relayed(server, front_end) as (url, bodies):
        said = ask(programs, AGENT, "http://none.invalid", server.model, before=STAND_IN, GEMMA_URL=url)
    assert TEMPERATURE in said, said[-300:]
    notes.append(f"{len(bodies)} requests with a token")


@pytest.fixture(scope="module")
def team(home, programs, server):
    """The address of the proxy of docs/tasks.md, with keys of several users."""
    folder = home.results / "team"
    shutil.copytree(TEAM, folder)
    hashes = {name: hashlib.sha256(f"sk-{name}".encode()).hexdigest() for name in USERS}
    users = [f'[{name}]\nsha256 = "{hashes[name]}"\n{limit}\n' for name, limit in USERS.items()]
    (folder / "keys.toml").write_text("".join(users), encoding="utf-8")
    command = (programs / "litellm", "--config", folder / "config.yaml")
    log, options = home.results / "team.log", ["--require-key"]
    with connected(log, address(server), *command, options=options, more=MASTER) as url:
        yield url


def post(url, key, path="/v1/chat/completions", **more):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"model": "gemma", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 20, **more}
    return requests.post(url + path, json=body, headers=headers, timeout=60)


@pytest.mark.parametrize("key", ["", "sk-eva"], ids=["none", "unknown"])
def test_key(team, key):
    """A request without a user's key gets 401."""
    assert post(team, key).status_code == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize(
    ("user", "stream", "words"),
    [
        ("ann", False, "Budget has been exceeded"),
        ("abe", True, "Budget has been exceeded"),
        ("ben", False, "Limit type: requests. Current limit: 2"),
        ("eve", False, "Limit type: tokens. Current limit: 60"),
    ],
    ids=["a budget", "a budget, streamed", "requests per minute", "tokens per minute"],
)
def test_limit(team, user, stream, words, notes):
    """A user's limit of two requests ends the third, and no other user's."""
    answers = [post(team, f"sk-{user}", stream=stream) for _ in range(3)]
    assert [answer.ok for answer in answers] == [True, True, False]
    assert words in answers[-1].text
    assert post(team, "sk-dan").ok
    notes.append(f"status {answers[-1].status_code}")


def test_administration(team):
    """A user's key opens no route of the administration."""
    routes = ["/key/generate", "/model/new", "/config/update", "/user/new"]
    assert [post(team, "sk-dan", path).status_code for path in routes] == [HTTPStatus.FORBIDDEN] * len(routes)


def test_agent_with_a_users_key(programs, team):
    """ADK through the proxy, with a user's key: the answer has the tool's number."""
    said = ask(programs, AGENT, f"{team}/v1", "gemma", key="sk-dan")
    assert TEMPERATURE in said, said[-300:]


def test_keys_of_litellm(home, programs, server, notes):
    """LiteLLM's own keys need PostgreSQL: without `custom_auth` it makes none."""
    config = home.results / "database.yaml"
    lines = (TEAM / "config.yaml").read_text(encoding="utf-8").splitlines()
    config.write_text("\n".join(line for line in lines if "custom_auth" not in line), encoding="utf-8")
    command = (programs / "litellm", "--config", config)
    with connected(home.results / "database.log", address(server), *command, more=MASTER) as url:
        answer = post(url, MASTER["LITELLM_MASTER_KEY"], "/key/generate")
    assert "set DATABASE_URL to a PostgreSQL connection string" in answer.text, answer.text
    notes.append("DB not connected")
