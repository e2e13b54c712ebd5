"""`scripts.connect`: a plain OpenAI endpoint on loopback, in front of a server with tokens, tunnels and failures."""

import io
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import from_json
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import ServesNow
from gemma_serving.engine import children as child
from gemma_serving.engine.exported_state import deployment_of
from gemma_serving.scripts.connect.__main__ import main
from gemma_serving.scripts.connect.chat import Chat, ChatError
from gemma_serving.scripts.connect.proxy import ConnectProxy
from gemma_serving.scripts.connect.ready import NotReadyError, OtherModelError, wait_until_ready
from gemma_serving.scripts.connect.snippets import LocalEndpoint
from gemma_serving.scripts.connect.upstream import Upstream
from gemma_serving.scripts.stack.access import IdTokenSource, ServerAccess
from loadtest.client.events import parse_event
from loadtest.client.openai import OpenAIClient
from tests.polling import until
from tests.scripts.sample_outputs import sample_outputs

ROOT = Path(__file__).parents[3]


class Private(BaseHTTPRequestHandler):
    """A server that admits the identity tokens in `valid` and answers with what it was sent."""

    name = "gemma"
    valid: ClassVar[set[str]] = set()
    seen: ClassVar[list[dict[str, str]]] = []
    events: ClassVar[list[object]] = []
    rounds: ClassVar[list[list[object]]] = []
    """Events of the next responses, before those in `events`."""
    bodies: ClassVar[list[dict[str, object]]] = []
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer({"data": [{"id": self.name}]})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append(json.loads(body))
        events = self.rounds.pop(0) if self.rounds else self.events
        if events:
            self._stream(events)
        else:
            self._answer({"path": self.path, "body": json.loads(body)})

    def _answer(self, value):
        self.seen.append({name.lower(): text for name, text in self.headers.items()})
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.valid and token not in self.valid:
            value, status = {"error": {"message": "The request was not authenticated."}}, 401
        else:
            status = 200
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Access-Control-Allow-Origin", "*")  # vLLM's default, --allowed-origins '["*"]'
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, events):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            payload = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {payload}\n\n".encode())
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def private():
    Private.valid, Private.seen, Private.events, Private.rounds, Private.bodies = set(), [], [], [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Private)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@contextmanager
def opened(access):
    yield access


@contextmanager
def proxied(opener, *, key=None, said=None):
    upstream = Upstream(opener, (said if said is not None else []).append)
    with upstream.running(), ConnectProxy(upstream, key=key).running(0) as port:
        yield f"http://127.0.0.1:{port}"


def call(url, *, body=None, headers=None):
    """Return status and JSON of a request."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers or {})  # noqa: S310 - our own loopback server
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - the same
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def tokens():
    """Return a source of tokens that the server takes until it forgets them, and that the client would keep for longer."""

    count = itertools.count()

    def fetch(_audience):
        token = f"token-{next(count)}"
        Private.valid.add(token)
        return token

    Private.valid.add("none yet")
    return IdTokenSource("https://audience", fetch)


def test_a_request_gets_the_servers_credentials_and_loses_the_clients(private):
    access = ServerAccess(base_url=private, auth="id-token", id_tokens=tokens())
    with proxied(lambda: opened(access)) as url:
        status, said = call(
            f"{url}/v1/chat/completions?x=a%2Fb",
            body={"n": 1},
            headers={"Authorization": "Bearer mine", "Cookie": "c=1"},
        )
    assert (status, said) == (200, {"path": "/v1/chat/completions?x=a%2Fb", "body": {"n": 1}})
    (headers,) = Private.seen
    assert headers["authorization"].startswith("Bearer token-")
    assert "cookie" not in headers


def test_an_api_key_takes_the_authorization_header_and_the_token_that_of_cloud_run(private):
    access = ServerAccess(base_url=private, auth="id-token", id_tokens=tokens(), api_key="the-key")
    Private.valid = set()
    with proxied(lambda: opened(access)) as url:
        call(f"{url}/v1/models")
    assert Private.seen[0]["authorization"] == "Bearer the-key"
    assert Private.seen[0]["x-serverless-authorization"].startswith("Bearer token-")


def test_clients_work_for_longer_than_a_token_lives(private):
    access = ServerAccess(base_url=private, auth="id-token", id_tokens=tokens())
    answers = []
    with proxied(lambda: opened(access)) as url:
        for _ in range(4):
            answers += [call(f"{url}/v1/models")[0] for _ in range(3)]
            Private.valid.intersection_update({"none yet"})  # the token has run out
    assert answers == [200] * 12
    assert len({headers["authorization"] for headers in Private.seen}) == 4


def test_a_refusal_that_no_new_token_changes_is_passed_on(private):
    access = ServerAccess(base_url=private, auth="id-token", id_tokens=IdTokenSource("a", lambda _: "stale"))
    Private.valid = {"another"}
    with proxied(lambda: opened(access)) as url:
        assert call(f"{url}/v1/models") == (401, {"error": {"message": "The request was not authenticated."}})
    assert len(Private.seen) == 2


BROWSERS = (
    {"Host": "rebound.example@127.0.0.1"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000"},
    {"Sec-Fetch-Site": "same-site"},
)
PROGRAMS = (
    {"Sec-Fetch-Site": "none"},
    {"Host": "host.docker.internal:8000"},
    {"Host": "host.containers.internal:8000"},
)  # a typed address, containers
NO_HOSTS = ({"Host": "[::1"}, {"Host": "[x]y"}, {"Host": "a]"})  # fmt: skip


@pytest.fixture
def plain(private):
    """The endpoint in front of a server that needs no credentials."""
    with proxied(lambda: opened(ServerAccess(base_url=private, auth="none"))) as url:
        yield url


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        *((headers, {403}) for headers in BROWSERS),
        *((headers, {200}) for headers in PROGRAMS),
        *((headers, {400, 403}) for headers in NO_HOSTS),
    ],
)
def test_programs_are_served_and_pages_of_a_browser_and_hosts_that_are_no_address_are_refused(plain, headers, statuses):
    status, said = call(f"{plain}/v1/chat/completions", body={}, headers=headers)
    assert status in statuses
    assert len(Private.seen) == (status == 200)
    if status != 200:
        assert said["error"]["type"] == "connect"
    if statuses == {403}:
        assert "not web pages" in said["error"]["message"]


def test_no_answer_lets_a_page_read_it(plain):
    with urllib.request.urlopen(f"{plain}/v1/models", timeout=60) as answer:  # noqa: S310 - our own loopback server
        assert answer.status == 200
        assert [name for name in answer.headers if name.lower().startswith("access-control")] == []


@pytest.mark.parametrize("target", ["le://evil/v1/models", "*"])
def test_a_request_for_a_whole_address_is_refused_and_goes_nowhere(private, target):
    with proxied(lambda: opened(ServerAccess(base_url=private, auth="none"))) as url:
        host = url.removeprefix("http://")
        with socket.create_connection(tuple(host.split(":"))) as raw:
            verb = "OPTIONS" if target == "*" else "GET"
            raw.sendall(f"{verb} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            said = b"".join(iter(lambda: raw.recv(65_536), b""))
    assert b" 40" in said.partition(b"\r\n")[0], said
    assert Private.seen == []


def test_a_required_key_keeps_other_users_of_the_machine_out(private):
    with proxied(lambda: opened(ServerAccess(base_url=private, auth="none")), key="secret") as url:
        assert call(f"{url}/v1/models")[0] == 401
        assert call(f"{url}/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert Private.seen == []
        assert call(f"{url}/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
    assert "authorization" not in Private.seen[0]


class Tunnels:
    """Ways that can be cut; each is another address of the same server."""

    def __init__(self, base_url, refusals=0):
        self.base_url, self.refusals = base_url, refusals
        self.opened, self.closed = 0, 0
        self.is_cut = threading.Event()

    @contextmanager
    def open(self):
        if self.opened and self.refusals:
            self.refusals -= 1
            raise ScriptError("the tunnel ended with exit code 255 before it opened: no route.")
        self.opened += 1
        self.is_cut = cut = threading.Event()
        try:
            yield ServerAccess(base_url=self.base_url, auth="tunnel", is_open=lambda: not cut.is_set())
        finally:
            self.closed += 1


def test_a_lost_tunnel_is_opened_again_and_a_waiting_request_is_answered(private, monkeypatch):
    monkeypatch.setattr("gemma_serving.scripts.connect.upstream._PAUSES_S", (0.1,))
    tunnels, said = Tunnels(private, refusals=2), []
    with proxied(tunnels.open, said=said) as url:
        assert call(f"{url}/v1/models")[0] == 200
        tunnels.is_cut.set()
        until(lambda: said)  # it has seen that the tunnel ended
        assert call(f"{url}/v1/models")[0] == 200
        until(lambda: said[-1] == "tunnel reopened")
    assert tunnels.opened == tunnels.closed == 2
    assert said[0] == "tunnel closed, reopening it"
    assert sum("Retrying in 0.1 s" in text for text in said) == 2


def test_ending_while_a_tunnel_is_lost_ends_at_once(private, monkeypatch):
    monkeypatch.setattr("gemma_serving.scripts.connect.upstream._PAUSES_S", (6000.0,))
    tunnels, said = Tunnels(private, refusals=1_000), []
    with proxied(tunnels.open, said=said):
        tunnels.is_cut.set()
        until(lambda: len(said) > 1)  # it waits until it tries again
    assert "Retrying in 6000 s" in said[1]
    assert tunnels.closed == tunnels.opened == 1


def test_a_server_that_is_gone_is_named_and_so_is_a_port_that_is_taken():
    with proxied(lambda: opened(ServerAccess(base_url="http://127.0.0.1:9", auth="none"))) as url:
        status, said = call(f"{url}/v1/models")
        assert status == 502
        assert "cannot reach the server" in said["error"]["message"]
        taken = int(url.rpartition(":")[2])
        again = ConnectProxy(Upstream(lambda: opened(ServerAccess(base_url=url, auth="none")), print), key=None)
        with (
            pytest.raises(CommandRefusedError, match=rf"Port {taken} is in use\. Pass another --port"),
            again.running(taken),
        ):
            pass


def test_the_wait_names_what_the_server_answers_and_ends(private):
    said = []
    Private.valid = {"none"}
    with pytest.raises(
        NotReadyError,
        match=r"^The server returned 401: The request was not authenticated\. Set GEMMA_API_KEY to the server's API key\.$",
    ):
        wait_until_ready(f"{private}/v1", "k", 60, said.append, served="gemma")
    with pytest.raises(
        NotReadyError,
        match=r"not ready within 0 s: GET /models failed: cannot connect to 127.0.0.1:9 \(Connection refused\)\. Set a longer --ready-timeout",
    ):
        wait_until_ready("http://127.0.0.1:9/v1", "k", 0, said.append, served="gemma")
    Private.valid = set()
    assert wait_until_ready(f"{private}/v1", "k", 60, said.append, served="gemma").model == "gemma"


HOSTILE = ["x'; touch PWNED; echo '", "x$(touch PWNED)", "x\x1b]0;title\x07", 'x"; import os; "', "x\ny", "x`id`", ""]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("served", [None, "gemma"])
def test_a_servers_words_do_not_become_code_to_paste(private, monkeypatch, name, served):
    monkeypatch.setattr(Private, "name", name)
    with pytest.raises(OtherModelError) as refused:
        wait_until_ready(f"{private}/v1", "k", 60, print, served=served)
    assert str(refused.value).isprintable()


def test_another_model_than_the_states_is_refused(private):
    with pytest.raises(
        OtherModelError, match=r"names its model 'gemma', but the stack's state has 'tuned'\. If you did not change"
    ):
        wait_until_ready(f"{private}/v1", "k", 60, print, served="tuned")
    assert wait_until_ready(f"{private}/v1", "k", 60, print, served=None).model == "gemma"


# --- the command, as it is run -----------------------------------------------------------------------------------------------------


def run(*words, **options):
    command = [sys.executable, "-m", "scripts.connect", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, **options)


def test_a_command_finds_the_endpoint_in_its_environment_and_gives_its_exit_code(url):
    code = (
        "import os, json, sys, urllib.request as u; b = os.environ['OPENAI_BASE_URL'];"
        "print(json.load(u.urlopen(b + '/models'))['data'][0]['id'], os.environ['OPENAI_MODEL'], bool(os.environ['OPENAI_API_KEY'])); sys.exit(7)"
    )
    done = run("--url", url, "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (7, "timed timed True\n"), done.stderr
    assert main(["--url", url, "--", "no-such-command"]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_command_runs_reaches_it_too(monkeypatch, number):
    start = subprocess.Popen

    def interrupted(*words, **options):
        os.kill(os.getpid(), number)
        return start(*words, **options)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    assert child.run_child(["sleep", "60"], {}) == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_one_question_is_answered_on_stdout_alone(url, capsys):
    assert main(["chat", "--url", url, "Say hello.", "--max-tokens", "3"]) == 0
    said = capsys.readouterr()
    assert said.out == " alpha beta gamma\n"
    assert re.search(r"\(first token \d+\.\d\d s, 3 tokens,( \d+\.\d tokens/s,)? \d+\.\d s", said.err)
    assert "connect:" not in said.err


def test_a_conversation_reads_prompts_until_they_end(url, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n/what\n/new\ntwo\n/exit\nthree\n"))
    assert main(["chat", "--url", url, "--max-tokens", "2"]) == 0
    said = capsys.readouterr()
    assert said.out == " alpha beta\n alpha beta\n"
    assert "/what is not a command. /new: new chat" in said.err
    assert said.err.count("/new: new chat") == 1, "a script needs no help"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Pass either STACK or --url URL."),
        (("--stack", "x", "--url", "http://127.0.0.1:1"), "Pass either STACK or --url URL."),
        (("chat", "--url", "http://127.0.0.1:1", "--", "ls"), "chat: A command after -- is for `gemma connect` only."),
        (("--url", "ftp://x"), "--url is 'ftp://x'"),
    ],
)
def test_mistakes_are_one_sentence(words, said, capsys):
    assert main(list(words)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["chat", "Hi."], []])
def test_a_server_that_ended_is_one_sentence_with_the_command(words, capsys, monkeypatch):
    why = "Nothing serves since the planned end of the run at 2026-11-26 02:06 UTC."
    outputs = from_json(StackOutputs, sample_outputs(target="tpu", auth="none"))
    document = deployment_of("x", {"version": 3, "deployment": {"resources": []}})
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.read_deployment", lambda _stack: document)
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.outputs_in", lambda *_: outputs)
    monkeypatch.setattr("gemma_serving.scripts.stack.serves.serves_now", lambda *_: ServesNow(word="ended", why=why))
    assert main([*words[:1], "--stack", "x", *words[1:]]) == 2
    name = "chat" if words else "connect"
    assert capsys.readouterr().err == f"{name}: {why} To serve again, run `gemma up x`.\n"


# --- chat --------------------------------------------------------------------------------------------------------------------------


def delta(**parts):
    return {"choices": [{"delta": parts, "finish_reason": None}]}


def conversation(url, capsys_free, **options):
    out, notes = capsys_free
    endpoint = LocalEndpoint(base_url=f"{url}/v1", key="k", model="gemma")
    return Chat(endpoint=endpoint, out=out, notes=notes, **options)


@pytest.fixture
def streams(tmp_path):
    with (tmp_path / "out").open("w+") as out, (tmp_path / "notes").open("w+") as notes:
        yield out, notes


def text_of(stream):
    stream.seek(0)
    return stream.read()


THOUGHTFUL = [
    delta(role="assistant", content=""),
    delta(reasoning="First one "),
    delta(reasoning_content="thing."),
    delta(content="Hello"),
    delta(content=" there."),
    delta(tool_calls=[{"index": 0, "function": {"name": "look", "arguments": '{"a"'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}]),
    {"choices": [{"delta": {}, "finish_reason": "length"}]},
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}},
    "[DONE]",
]


def test_an_answer_cannot_steer_the_terminal_and_is_kept_as_it_came(private, streams):
    clipboard = "\x1b]52;c;ZXZpbA==\x07"
    tool = [{"index": 0, "function": {"name": clipboard, "arguments": "{}"}}]
    Private.events = [delta(content="hi "), delta(content=clipboard), delta(tool_calls=tool), *THOUGHTFUL[-3:]]
    chat = conversation(private, streams)
    chat.ask("Hi.")
    assert text_of(streams[0]) == "hi \\u001b]52;c;ZXZpbA==\\u0007\n"
    assert "\x1b" not in text_of(streams[1])
    assert chat.messages[-1]["content"] == f"hi {clipboard}"


def test_thinking_can_be_shown(private, streams):
    Private.events = THOUGHTFUL
    conversation(private, streams, shows_thinking=True).ask("Hi.")
    assert text_of(streams[0]) == "Hello there.\n"
    assert text_of(streams[1]).startswith("thinking:\nFirst one thing.\n\n(first token ")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([delta(content="Half")], "The response was incomplete"),
        ([delta(content="Half"), {"error": {"message": "out of memory"}}], "The response failed: .*out of memory"),
    ],
)
def test_an_answer_that_breaks_off_says_so_and_can_be_asked_again(private, streams, events, said):
    Private.events = events
    chat = conversation(private, streams)
    with pytest.raises(ChatError, match=said):
        chat.ask("Hi.")
    assert chat.messages == []


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(private, streams, monkeypatch):
    async def stream(_client, _body, *, on_delta, **_limits):
        on_delta(parse_event(json.dumps(delta(content="Half")).encode()))
        raise KeyboardInterrupt

    monkeypatch.setattr(OpenAIClient, "stream", stream)
    chat = conversation(private, streams)
    with pytest.raises(KeyboardInterrupt):
        chat.ask("Hi.")
    assert chat.messages == [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Half"}]
