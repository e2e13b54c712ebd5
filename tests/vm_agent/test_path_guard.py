"""A law about the path guard: what it passes on, what it refuses, and that it serves nothing without a key."""

import asyncio
import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gemma_serving.vm_agent.path_guard import PathGuard
from tests.laws import examples

KEY = "sk-of-the-stack"
PATHS = (
    "/", "/v1/models", "/invocations", "/tokenize", "/metrics", "/metrics/", "/ping", "/docs", "/pause", "/health", "/health", "/health/",
    "//health", "/health/../invocations", "/health?x", "/healthz", "/HEALTH", "/prefix/health", "/health/prefix", "/prefix/invocations",
)  # fmt: skip
RIGHT = (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER {KEY}")
"""vLLM's own check ignores the case of the scheme."""
NEAR = (f"Bearer  {KEY}", f"Bearer {KEY} ", f"Bearer {KEY[:-1]}", f"Bearer {KEY.upper()}", "Bearer kéy")
GIVEN = st.sampled_from([*RIGHT, *NEAR, "", KEY, f"Basic {KEY}", "Bearer", "Bearer "])
NAMES = st.sampled_from(["authorization", "Authorization", "origin"])


def answer(scope: MutableMapping[str, Any], variables: Mapping[str, str | None]) -> Sequence[Mapping[str, Any]]:
    """Return what the guard sends for one connection; the server behind it sends one message."""
    sent: list[Mapping[str, Any]] = []

    async def app(_: object, __: object, send: Any) -> None:
        await send({"type": "reached"})

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the guard reads no body")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        asyncio.run(PathGuard(app)(scope, receive, send))
    return sent


@settings(max_examples=examples(test=250, part=1000, night=10_000))
@given(
    kind=st.sampled_from(["http", "http", "http", "websocket", "lifespan", "webtransport"]),
    path=st.sampled_from(PATHS),
    root=st.sampled_from([{}, {}, {"root_path": ""}, {"root_path": "/prefix"}]),
    headers=st.lists(st.tuples(NAMES, GIVEN), max_size=2),
    extensions=st.sampled_from([{}, {"extensions": None}, {"extensions": {"websocket.http.response": {}}}]),
    opened=st.sampled_from([None, "", "/metrics"]),
    key=st.sampled_from([KEY] * 8 + ["", None]),
)
@example(kind="http", path="/", root={}, headers=[("authorization", "Bearer ")], extensions={}, opened=None, key="")
@example(kind="http", path="/", root={}, headers=[], extensions={}, opened=None, key=None)
@example(kind="http", path="/metrics", root={}, headers=[], extensions={}, opened="/metrics", key=KEY)
@example(kind="websocket", path="/health", root={}, headers=[], extensions={}, opened=None, key=KEY)
def test_only_health_and_one_more_path_need_no_key_and_nothing_is_served_without_one(
    *,
    kind: str,
    path: str,
    root: dict[str, str],
    headers: Sequence[tuple[str, str]],
    extensions: dict[str, object],
    opened: str | None,
    key: str | None,
) -> None:
    """The first of two headers counts, as in vLLM. A preflight is a request without a key."""
    given_headers = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": kind, "path": path, "method": "OPTIONS", "headers": given_headers, **root, **extensions}
    variables = {"VLLM_API_KEY": key, "GEMMA_SERVING_OPEN_PATH": opened}
    if not key:
        with pytest.raises(RuntimeError, match="VLLM_API_KEY is missing or empty"):
            answer(scope, variables)
        return
    sent = answer(scope, variables)
    first = next((value for name, value in headers if name.lower() == "authorization"), "")
    place = path.removeprefix(root.get("root_path", ""))
    is_open = kind == "http" and place in {"/health", opened or "/health"}
    if kind == "lifespan" or is_open or re.fullmatch(f"(?i:bearer) {KEY}", first):
        assert sent == [{"type": "reached"}]
    elif kind == "websocket" and not extensions.get("extensions"):
        assert sent == [{"type": "websocket.close", "code": 1008}]
    else:
        start, body = sent
        begin = "websocket.http" if kind == "websocket" else kind
        assert (start["type"], start["status"]) == (f"{begin}.response.start", 401)
        assert (body["type"], body["body"]) == (f"{begin}.response.body", b'{"error":"Unauthorized"}')
        assert (b"content-length", b"24") in start["headers"]
