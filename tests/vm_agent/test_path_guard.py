"""The path guard: what it passes on, what it refuses, and that it serves nothing without a key."""

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import pytest

from gemma_serving.vm_agent.path_guard import PathGuard

KEY = "sk-of-the-stack"
PATHS = (
    "/", "/v1/models", "/v1/chat/completions", "/invocations", "/tokenize", "/metrics", "/metrics/", "/ping", "/docs", "/openapi.json",
    "/version", "/load", "/pause", "/health/", "//health", "/health/../invocations", "/health?x", "/healthz", "/HEALTH",
)  # fmt: skip


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)


def _answer(guard_key: str | None, path: str, *, kind: str = "http", **scope: Any) -> Sequence[Mapping[str, Any]]:
    """Return what the guard sends for one connection; the server behind it answers 200."""
    sent: list[Mapping[str, Any]] = []

    async def app(_: object, __: object, send: Any) -> None:
        await send({"type": "reached"})

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the guard reads no body")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    headers = [] if guard_key is None else [(b"authorization", guard_key.encode())]
    whole = {"type": kind, "path": path, "method": "GET", "headers": headers, **scope}
    asyncio.run(PathGuard(app)(whole, receive, send))
    return sent


def _is_reached(answer: Sequence[Mapping[str, Any]]) -> bool:
    return [message["type"] for message in answer] == ["reached"]


def test_every_path_but_health_needs_the_key(subtests: pytest.Subtests) -> None:
    for path in PATHS:
        with subtests.test(path):
            start, body = _answer(None, path)
            assert (start["type"], start["status"]) == ("http.response.start", 401)
            assert body["body"] == b'{"error":"Unauthorized"}'
            assert (b"content-length", b"24") in start["headers"]
            assert _is_reached(_answer(f"Bearer {KEY}", path))
    assert _is_reached(_answer(None, "/health"))


def test_one_more_path_can_be_open(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setenv("GEMMA_SERVING_OPEN_PATH", "/metrics")
    for path in PATHS:
        with subtests.test(path):
            assert _is_reached(_answer(None, path)) is (path == "/metrics")
    assert _is_reached(_answer(None, "/health"))


def test_only_the_key_itself_is_taken(subtests: pytest.Subtests) -> None:
    near = (f"Bearer  {KEY}", f"Bearer {KEY} ", f"Bearer {KEY[:-1]}", f"Bearer {KEY.upper()}", "Bearer kéy")
    wrong = ("", KEY, f"Basic {KEY}", "Bearer", "Bearer ", *near)
    for given in wrong:
        with subtests.test(given):
            assert not _is_reached(_answer(given, "/metrics"))
    for given in (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER {KEY}"):  # vLLM's own check ignores the case of the scheme
        with subtests.test(given):
            assert _is_reached(_answer(given, "/metrics"))


def test_the_first_of_two_headers_counts_as_in_vllm() -> None:
    two = [(b"Authorization", b"Bearer wrong"), (b"authorization", f"Bearer {KEY}".encode())]
    assert not _is_reached(_answer(None, "/metrics", headers=two))
    assert _is_reached(_answer(None, "/metrics", headers=two[::-1]))


def test_a_preflight_is_refused() -> None:
    preflight = [(b"origin", b"https://app.example"), (b"access-control-request-method", b"POST")]
    assert _answer(None, "/v1/chat/completions", method="OPTIONS", headers=preflight)[0]["status"] == 401


def test_a_websocket_is_refused_before_it_is_accepted() -> None:
    assert _answer(None, "/v1/realtime", kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert _answer(None, "/health", kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    start, _ = _answer(None, "/v1/realtime", kind="websocket", extensions={"websocket.http.response": {}})
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert _is_reached(_answer(f"Bearer {KEY}", "/v1/realtime", kind="websocket"))


def test_the_start_of_the_server_is_passed_on_and_an_unknown_kind_is_not() -> None:
    assert _is_reached(_answer(None, "", kind="lifespan"))
    assert not _is_reached(_answer(None, "/health", kind="webtransport"))


def test_a_root_path_moves_the_health_check_only() -> None:
    assert _is_reached(_answer(None, "/prefix/health", root_path="/prefix"))
    assert not _is_reached(_answer(None, "/health/prefix", root_path="/prefix"))
    assert not _is_reached(_answer(None, "/prefix/invocations", root_path="/prefix"))


@pytest.mark.parametrize("value", ["", None])
def test_without_a_key_nothing_is_served(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("VLLM_API_KEY")
    else:
        monkeypatch.setenv("VLLM_API_KEY", value)
    with pytest.raises(RuntimeError, match="VLLM_API_KEY is missing or empty"):
        _answer("Bearer ", "/metrics")
