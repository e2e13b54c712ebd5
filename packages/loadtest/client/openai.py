"""Asynchronous client for OpenAI-compatible servers, for checks of single requests.

Every call has a timeout. The benchmark's load generator has a separate reader (`loadtest.client.wire`). Both read events with
`loadtest.client.events`, so they agree on the first token.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeAlias
from urllib.parse import urlsplit

import aiohttp

from loadtest.client.events import (
    DONE,
    SIMULATED_HEADER,
    ChatMessage,
    Delta,
    EventSplitter,
    ServerError,
    Usage,
    decode_rate,
    decoded,
    error_message,
    joined,
    oversized,
    parse_event,
    parse_usage,
)
from loadtest.client.json_values import as_mapping
from loadtest.client.metrics import METRICS_PATH, Scrape, parse_metrics
from loadtest.client.proxy import LOOPBACK
from loadtest.client.urls import plain_url, socket_path

BODY_LIMIT_BYTES: Final = 2**27
"""Maximum size of a response, decompressed. A stream has about 250 bytes per token, so half a million tokens."""

Headers: TypeAlias = Callable[[], Mapping[str, str]]
"""Returns the headers of the next request, which allows timely token renewal."""


class UnreachableError(ServerError):
    """No HTTP response arrived: the connection was refused or reset, or timed out."""


class NotConnectedError(UnreachableError):
    """No connection was made because the name has no address or the connection was refused. The request was not sent."""


class NoAddressError(NotConnectedError):
    """DNS says that the name of the server does not exist. A failed lookup (EAI_AGAIN) says nothing about the name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """A complete HTTP response."""

    status: int
    body: object
    """Decoded JSON, or the text if it is not JSON."""
    headers: Mapping[str, str]
    """Header names in lower case."""
    elapsed_s: float

    @property
    def simulated(self) -> str | None:
        """Name of the simulator, or None for a real server."""
        return self.headers.get(SIMULATED_HEADER)

    @property
    def usage(self) -> Usage | None:
        """Token counts stated by the server."""
        return parse_usage(as_mapping(self.body).get("usage"))

    @property
    def message(self) -> str:
        """Server's error message, shortened."""
        return error_message(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(ChatMessage):
    """One streamed completion. Times are seconds since the request was sent, on a monotonic clock."""

    events: int
    """Events with output."""
    usage: Usage | None
    done: bool
    """True if the stream ended with [DONE]."""
    content_type: str
    simulated: str | None
    ttft_s: float | None
    last_s: float | None
    """Arrival of the last event of the choice, with or without output. Special tokens have events without output."""
    end_s: float
    started_at_s: float
    """Monotonic time at which the request was sent, for spans over several requests."""

    @property
    def decode_tok_per_s(self) -> float | None:
        """Output tokens after the first, divided by their time; None with fewer than two or without usage."""
        tokens = self.usage.completion_tokens if self.usage is not None else None
        return decode_rate(tokens, self.ttft_s, self.last_s)


def chat_body(
    model: str, prompt: str, *, max_tokens: int, stream: bool = False, extra: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a greedy chat completion request with one user message."""
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body | dict(extra or {})


def connector_of(socket: str | None) -> aiohttp.BaseConnector:
    """Return a connector without a limit on concurrent requests, over TCP or over the socket at a path."""
    return aiohttp.TCPConnector(limit=0) if socket is None else aiohttp.UnixConnector(socket, limit=0)


def call_once(
    base_url: str, headers: Headers, method: str, path: str, *, body: object = None, limit_s: float
) -> ServerAnswer:
    """Send one request from code without an event loop, and return the whole response. Raises ServerError."""

    async def call() -> ServerAnswer:
        async with OpenAIClient(base_url, headers) as client:
            return await client.request(method, path, body=body, limit_s=limit_s)

    return asyncio.run(call())


class OpenAIClient:
    """Client of one server, used as an asynchronous context manager."""

    def __init__(self, base_url: str, headers: Headers | None = None) -> None:
        self.base_url = plain_url(base_url).rstrip("/")
        """Address for HTTP and for messages. A server behind a socket is `http://localhost`."""
        self._socket = socket_path(base_url)
        self._headers: Headers = headers or dict
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # A proxy of the environment must not be used between us and a tunnel's local end.
        trust_env = urlsplit(self.base_url).hostname not in LOOPBACK
        connector = connector_of(self._socket)
        self._session = aiohttp.ClientSession(trust_env=trust_env, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("OpenAIClient is not open. Use `async with OpenAIClient(url) as client`.")
        return self._session

    async def _prepared(
        self,
        method: str,
        path: str,
        body: object,
        limit_s: float,
        *,
        silence_s: float | None = None,
        anonymous: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Return a context manager that sends the request when entered."""
        # Renewing an identity token may call the metadata server or start gcloud, which must not block the event loop.
        headers = {} if anonymous else dict(await asyncio.to_thread(self._headers))
        return self._open.request(
            method,
            self.base_url + path,
            json=body,
            headers={**headers, **(extra or {})},
            timeout=aiohttp.ClientTimeout(total=limit_s, sock_read=silence_s),
            allow_redirects=False,
        )

    async def _pieces(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Yield the decompressed bytes of a body. Raises ServerError above BODY_LIMIT_BYTES."""
        size = 0
        async for piece in response.content.iter_any():
            size += len(piece)
            if size > BODY_LIMIT_BYTES:
                raise oversized(f"The response of {self.base_url}{response.url.path}", BODY_LIMIT_BYTES)
            yield piece

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        limit_s: float,
        anonymous: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> ServerAnswer:
        """Send one request, with `extra` headers, and read the whole response, regardless of its status.

        Raises UnreachableError if no complete response arrived within `limit_s` seconds, and ServerError if it is too large.
        """
        sending = await self._prepared(method, path, body, limit_s, anonymous=anonymous, extra=extra)
        start_s = time.monotonic()
        try:
            async with sending as response:
                raw = b"".join([piece async for piece in self._pieces(response)])
                return ServerAnswer(
                    status=response.status,
                    body=decoded(raw),
                    headers={k.lower(): v for k, v in response.headers.items()},
                    elapsed_s=time.monotonic() - start_s,
                )
        except TimeoutError as error:
            raise UnreachableError(f"{method} {path} got no response within {limit_s:.0f} s.") from error
        except aiohttp.ClientConnectorError as error:
            raise _not_connected(f"{method} {path}", error) from error
        except aiohttp.ClientError as error:
            raise UnreachableError(f"{method} {path} failed: {_reason(error)}.") from error

    async def get(self, path: str, *, limit_s: float, anonymous: bool = False) -> ServerAnswer:
        """Send a GET request."""
        return await self.request("GET", path, limit_s=limit_s, anonymous=anonymous)

    async def post(self, path: str, body: object, *, limit_s: float) -> ServerAnswer:
        """Send a POST request with a JSON body."""
        return await self.request("POST", path, body=body, limit_s=limit_s)

    async def metrics(self, *, limit_s: float) -> Scrape:
        """Return the server's metrics. Raises ServerError if they cannot be read."""
        answer = await self.get(METRICS_PATH, limit_s=limit_s)
        if answer.status != HTTPStatus.OK:
            raise ServerError(f"{METRICS_PATH} returned {answer.status}")
        return parse_metrics(str(answer.body))

    async def scrape(self, *, limit_s: float) -> Scrape | None:
        """Return the server's metrics, or None if they cannot be read."""
        try:
            return await self.metrics(limit_s=limit_s)
        except ServerError:
            return None

    async def chat(self, body: Mapping[str, object], *, limit_s: float) -> ServerAnswer:
        """Return a chat completion that is not streamed. Raises ServerError if the status is not 200."""
        answer = await self.post("/v1/chat/completions", body, limit_s=limit_s)
        if answer.status != HTTPStatus.OK:
            raise ServerError(f"POST /v1/chat/completions returned {answer.status}: {answer.message}")
        return answer

    async def stream(
        self,
        body: Mapping[str, object],
        *,
        limit_s: float,
        silence_s: float | None = None,
        path: str = "/v1/chat/completions",
        on_delta: Callable[[Delta], None] = lambda _: None,
    ) -> Streamed:
        """Return a streamed completion with its times. `on_delta` gets each event as it arrives.

        Raises ServerError if the status is not 200 or an event is malformed or has an error, and UnreachableError if the stream breaks
        or does not finish within `limit_s` seconds, or sends nothing for `silence_s` seconds.
        """
        sending = await self._prepared("POST", path, body, limit_s, silence_s=silence_s)
        reader = _StreamReader(on_delta)
        try:
            async with sending as response:
                if response.status != HTTPStatus.OK:
                    raw = b"".join([piece async for piece in self._pieces(response)])
                    raise ServerError(f"the stream of {path} returned {response.status}: {error_message(decoded(raw))}")
                async for data in self._pieces(response):
                    reader.feed(data)
                return reader.finish(
                    content_type=response.headers.get("content-type", ""),
                    simulated=response.headers.get(SIMULATED_HEADER),
                )
        except TimeoutError as error:
            raise UnreachableError(
                f"the stream of {path} did not finish within {limit_s:.0f} s ({reader.events} events arrived)."
            ) from error
        except aiohttp.ClientConnectorError as error:
            raise _not_connected(f"POST {path}", error) from error
        except aiohttp.ClientError as error:
            raise UnreachableError(
                f"the stream of {path} broke after {reader.events} events: {_reason(error)}."
            ) from error


class _StreamReader:
    """Event times of one stream."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self.events = 0
        self._on_delta = on_delta
        self._start_s = time.monotonic()
        self._split = EventSplitter()
        self._deltas: list[Delta] = []
        self._usage: Usage | None = None
        self._done = False
        self._first_s: float | None = None
        self._last_s: float | None = None

    def feed(self, data: bytes) -> None:
        now_s = time.monotonic() - self._start_s
        for payload in self._split.feed(data):
            if payload == DONE:
                self._done = True
                continue
            try:
                delta = parse_event(payload)
            except ValueError as error:
                raise ServerError(f"the stream contains a malformed event: {payload[:80]!r}.") from error
            if delta.error is not None:
                raise ServerError(f"the stream ended with an error: {delta.error}")
            if delta.generated:
                self.events += 1
                self._first_s = now_s if self._first_s is None else self._first_s
            if delta.has_choice and not (self._last_s is None and delta.opens):
                self._last_s = now_s
            self._on_delta(delta)
            self._deltas.append(delta)
            self._usage = delta.usage or self._usage

    def finish(self, *, content_type: str, simulated: str | None) -> Streamed:
        message = joined(self._deltas)
        return Streamed(
            role=message.role,
            text=message.text,
            reasoning=message.reasoning,
            tool_calls=message.tool_calls,
            finish_reason=message.finish_reason,
            events=self.events,
            usage=self._usage,
            done=self._done,
            content_type=content_type,
            simulated=simulated,
            ttft_s=self._first_s,
            last_s=self._last_s,
            end_s=time.monotonic() - self._start_s,
            started_at_s=self._start_s,
        )


def _not_connected(call: str, error: aiohttp.ClientConnectorError) -> NotConnectedError:
    """Return the error of a call for which no connection was made."""
    if isinstance(error, aiohttp.ClientConnectorDNSError) and error.os_error.errno == socket.EAI_NONAME:
        return NoAddressError(f"{call} failed: the name {error.host} has no address ({error.os_error.strerror}).")
    return NotConnectedError(f"{call} failed: {_reason(error)}.")


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and (code := error.os_error.errno or 0) > 0:
        return f"cannot connect to {error.host}:{error.port} ({os.strerror(code)})"
    text = " ".join(str(error).split())
    return text or type(error).__name__
