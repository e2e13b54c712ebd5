"""Answers of a server without a key, to web pages, and its reads for a caller: with vLLM's defaults, and with restricting flags."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localcloud.tests.running.running_server import Answer, ask, run_to_end, server

MODEL = "simulated/tiny"
BEARER = {"Authorization": "Bearer key"}
ORIGIN = {"Origin": "https://evil.example"}
GUARD = """
class Guard:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if (b"authorization", b"Bearer key") in scope["headers"] or scope["path"] == "/health":
            return await self.app(scope, receive, send)
        if scope["path"] == "/fails":
            raise RuntimeError("planted")
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"refused"})
"""
"""Middleware as vLLM loads it: a class that is given the application."""
CLOSED = ("--allowed-origins=[]", "--allowed-media-domains=none.invalid")


class Listener(ThreadingHTTPServer):
    """Counts its readers. /moved redirects to /image."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.read: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_GET(self) -> None:
        self.server.read.append(self.path)
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/image")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def see(url: str, media: str) -> Answer:
    content = [{"type": "image_url", "image_url": {"url": media}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    return ask(f"{url}/v1/chat/completions", body, headers=BEARER)


@contextlib.contextmanager
def guarded(folder: Path, *words: str, key: str = "key") -> Iterator[str]:
    (folder / "guard_of_the_test.py").write_text(GUARD)
    words = ("vllm", "serve", MODEL, "--middleware=guard_of_the_test.Guard", *words)
    with server(words, VLLM_API_KEY=key, VLLM_SIM_PYTHONPATH=str(folder)) as url:
        yield url


def test_vllm_without_more_flags_is_open_to_pages_and_reads_what_a_caller_names(listener: Listener) -> None:
    with server(["vllm", "serve", MODEL], VLLM_API_KEY="key") as url:
        assert ask(f"{url}/invocations", {"prompt": "x", "max_tokens": 1}).status == 200
        assert ask(f"{url}/health", headers=ORIGIN).headers["access-control-allow-origin"] == "*"
        assert see(url, f"{listener.url}/moved").status == 200
        assert listener.read == ["/moved", "/image"]
        assert see(url, "http://none.invalid/x").status == 500
        assert see(url, "file:///etc/passwd").status == see(url, "http://[").status == see(url, "ftp://a").status == 400
        assert ask(f"{url}/server_info").status == ask(f"{url}/v1/load_lora_adapter", {}, headers=BEARER).status == 404


def test_the_flags_close_it(listener: Listener) -> None:
    with server(["vllm", "serve", MODEL, *CLOSED], VLLM_API_KEY="key") as url:
        assert "access-control-allow-origin" not in ask(f"{url}/health", headers=ORIGIN).headers
        refused = see(url, f"{listener.url}/image")
        assert (refused.status, listener.read) == (400, [])
        assert "must be from one of the allowed domains: ['none.invalid']" in refused.text
        assert see(url, f"data:image/png;base64,{PIXEL}").status == 200
        assert ask(f"{url}/invocations", {"prompt": "x", "max_tokens": 1}).status == 200  # no flag of vLLM closes this


@pytest.mark.parametrize(("given", "most"), [({}, 16_384), ({"VLLM_MAX_N_SEQUENCES": "64"}, 64)])
def test_one_request_asks_for_as_many_answers_as_the_variable_says(given: dict[str, str], most: int) -> None:
    with server(["vllm", "serve", MODEL], **given) as url:
        refused = ask(f"{url}/v1/completions", {"prompt": "x", "max_tokens": 1, "n": most + 1})
        below = ask(f"{url}/v1/completions", {"prompt": "x", "max_tokens": 1, "n": most})
    assert (refused.status, f"n must be at most {most}, got {most + 1}." in refused.text) == (400, True)
    assert (below.status, "only returns one choice" in below.text) == (400, True)


def test_redirects_are_followed_unless_the_variable_says_otherwise(listener: Listener) -> None:
    words = ["vllm", "serve", MODEL, "--allowed-media-domains", "127.0.0.1", "other.example"]
    with server(words, VLLM_API_KEY="key", VLLM_MEDIA_URL_ALLOW_REDIRECTS="0", VLLM_SERVER_DEV_MODE="1") as url:
        see(url, f"{listener.url}/moved")
        assert listener.read == ["/moved"]
        assert ask(f"{url}/server_info").status == 200


def test_the_middleware_is_asked_first(tmp_path: Path) -> None:
    with guarded(tmp_path) as url:
        for path in ("/metrics", "/v1/models", "/nowhere"):
            refused = ask(url + path, headers=ORIGIN)
            assert (path, refused.status, refused.text) == (path, 401, "refused")
            assert "access-control-allow-origin" not in refused.headers
            assert ask(url + path, headers=BEARER).status == (404 if path == "/nowhere" else 200)
        assert ask(f"{url}/health").status == 200
        assert ask(f"{url}/fails").status == 500


def test_middleware_that_is_not_there_ends_the_server() -> None:
    code, said = run_to_end(["vllm", "serve", MODEL, "--middleware=not_there.PathGuard"])
    assert (code, "ModuleNotFoundError: No module named 'not_there'" in said) == (1, True)
