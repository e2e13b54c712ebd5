"""Lean HTTP/1.1 reader of server-sent event streams, for load generation.

A connection has one open request and stays open for the next. Transport callbacks split bytes into events as they arrive,
without a task, a stream buffer or a queue in between. At a thousand streams, a general HTTP client is the bottleneck because of them
(dev/judges/benchmarks/bench_client.py measures both).

It supports chunked bodies, bodies with a length, keep-alive, TLS, and the proxy of the environment (`loadtest.client.proxy`).
It does not follow redirects or send cookies.
"""

import asyncio
import contextlib
import socket
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, TypeAlias, cast
from urllib.parse import urlsplit

from loadtest.client.events import (
    DONE,
    FAILED_FINISHES,
    EventSplitter,
    ServerError,
    Usage,
    decoded,
    error_message,
    parse_event,
)
from loadtest.client.proxy import HttpProxy
from loadtest.client.urls import plain_url, socket_path

State: TypeAlias = Callable[["Exchange", bytes, float], None]

HEAD_LIMIT: Final = 65_536
READ_SIZE: Final = 65_536
NOT_READ: Final = frozenset({"compressed", "html", "no_stream"})
"""Failure statuses whose body is not read as events."""
ERROR_BODY_LIMIT: Final = 16_384
CRLF: Final = b"\r\n"

now_s = time.perf_counter
"""Clock of all measurements: monotonic, and on Linux and macOS the same in all processes of a machine."""


@dataclass(slots=True)
class Exchange:
    """One request and its response. Times are readings of `now_s`, or 0.0 for a stage that was not reached."""

    sent_s: float = 0.0
    end_s: float = 0.0
    status: int = 0
    times_s: "array[float]" = field(default_factory=lambda: array("d"))
    """One reading per event of the choice, with or without output. The event with only the role has none."""
    closing_s: float = 0.0
    """Reading at the last event that is not plain text: the finish reason, usage or [DONE]."""
    silent: int = 0
    """Events at the start of `times_s` without output, such as special tokens. The first output is at this index."""
    usage: Usage | None = None
    finished: bool = False
    """True if the stream had a finish reason or [DONE]."""
    error: str | None = None
    """Kind of failure: reset, closed, malformed, error_event, http_429, ...; None without a failure."""
    error_detail: str = ""
    any_bytes: bool = False
    simulated: bool = False
    payloads: list[bytes] | None = None
    """Payloads of all events if the caller wants the response text, otherwise None."""

    @property
    def text(self) -> str:
        """Response text, from the stored payloads."""
        return "".join(_text_of(payload) for payload in self.payloads or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Parts of a server's address."""

    host: str
    port: int
    tls: bool
    authority: str
    """Value of the Host header."""
    prefix: str
    """Path before /v1, without a trailing slash."""
    socket: str | None = None
    """Path of the Unix socket to connect to, or None for host and port."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """Return the parts of a URL. Raises ValueError if it is neither http nor https."""
        parts = urlsplit(plain_url(url))
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"the URL is {url!r}: expected http://HOST[:PORT] or https://HOST.")
        tls = parts.scheme == "https"
        authority = parts.netloc.rsplit("@", 1)[-1]
        return cls(
            host=parts.hostname,
            port=parts.port or (443 if tls else 80),
            tls=tls,
            authority=authority,
            prefix=parts.path.rstrip("/"),
            socket=socket_path(url),
        )


def request_head(origin: Origin, path: str, headers: Mapping[str, str], proxy: HttpProxy | None = None) -> bytes:
    """Return the head of a POST without its length, which `request_bytes` adds. A proxy reads plain HTTP itself, and TLS not at all."""
    asked = None if origin.tls else proxy
    whole = "" if asked is None else f"http://{origin.authority}"
    if asked is not None and asked.authorization is not None:
        headers = {**headers, "Proxy-Authorization": asked.authorization}
    lines = [
        f"POST {whole}{origin.prefix}{path} HTTP/1.1",
        f"Host: {origin.authority}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Accept-Encoding: identity",
        "User-Agent: loadtest-openai",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    for line in lines:
        if "\r" in line or "\n" in line:
            raise ValueError("a header must not contain line breaks.")
    return "\r\n".join(lines).encode("latin-1") + b"\r\nContent-Length: "


def request_bytes(head: bytes, body: bytes) -> bytes:
    """Return the bytes of a request."""
    return b"%b%d\r\n\r\n%b" % (head, len(body), body)


_BUFFER: Final = memoryview(bytearray(READ_SIZE))
"""Read buffer shared by all connections of a process. Each connection copies its bytes before the loop continues.

asyncio's other protocol type allocates 256 KiB for every read, which costs more than the read.
"""


class WireConnection(asyncio.BufferedProtocol):
    """A connection to a server. `exchange` sends a request, and its future is done when the response ends."""

    __slots__ = (
        "_current",
        "_done",
        "_error_body",
        "_keep",
        "_learned",
        "_left",
        "_now_s",
        "_rest",
        "_split",
        "_state",
        "_transport",
        "last_byte_s",
        "reused",
    )

    def __init__(self, clock: Callable[[], float] = now_s) -> None:
        self._now_s = clock
        self._transport: asyncio.Transport | None = None
        self._current: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self.reused = False
        """True if the connection had a response before. The server may have closed it since."""
        self.last_byte_s = 0.0
        self._reset()

    def _reset(self) -> None:
        self._state: State = self._head
        self._rest = b""
        self._left = 0
        """Remaining bytes of the current chunk, or of a body with a length."""
        self._keep = True
        self._split = EventSplitter()
        self._error_body = b""
        self._learned: _TokenForm | None = None
        """Form of this response's token events, from the first one; None before it."""

    @property
    def usable(self) -> bool:
        """True if a request can be sent."""
        return self._transport is not None and self._current is None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection from the event loop. Small requests are sent immediately."""
        self._transport = cast("asyncio.Transport", transport)
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Abort the request in progress."""
        self._transport = None
        current = self._current
        if current is None:
            return
        if exc is not None:
            self.abort("reset", str(exc) or type(exc).__name__)
        elif current.status and self._state == self._until_close:
            self._end()
        else:
            self.abort("closed", "the server closed the connection before the response was complete")

    def exchange(self, request: bytes, *, keep_text: bool = False) -> tuple[Exchange, asyncio.Future[None]]:
        """Send a request. The future is done when the exchange is complete or has failed, and never raises."""
        if self._transport is None or self._current is not None:
            raise RuntimeError("the connection is closed or busy")
        self._reset()
        current = Exchange(payloads=[] if keep_text else None)
        done = asyncio.get_running_loop().create_future()
        self._current, self._done = current, done
        current.sent_s = self.last_byte_s = self._now_s()
        self._transport.write(request)
        return current, done

    def waiting_since(self) -> tuple[float, float, bool] | None:
        """Return when the current request was sent, when its last byte arrived, and whether its output has started; None while idle."""
        current = self._current
        return None if current is None else (current.sent_s, self.last_byte_s, bool(current.times_s))

    def close(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the event loop to read into."""
        del sizehint
        return _BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes read by the event loop."""
        self.receive(bytes(_BUFFER[:nbytes]), self._now_s())

    def receive(self, data: bytes, at_s: float) -> None:
        """Read the next bytes, which arrived at `at_s` and may be cut anywhere."""
        current = self._current
        if current is None:
            self.close()  # bytes without a request: the connection is out of step
            return
        self.last_byte_s = at_s
        current.any_bytes = True
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            self._state(current, data, at_s)
        except ServerError as error:
            self.abort("malformed", str(error))

    def abort(self, kind: str, detail: str) -> None:
        """Abort the current request, because of a failure, a stall or a timeout, and close."""
        current = self._current
        if current is not None and current.error is None:
            current.error, current.error_detail = kind, detail
        self._keep = False
        self._end()

    def _end(self) -> None:
        current, done = self._current, self._done
        self._current = self._done = None
        self.reused = True
        if current is not None:
            current.end_s = self._now_s()
            if current.error is None and current.status != HTTPStatus.OK:
                current.error = f"http_{current.status}"
                current.error_detail = error_message(decoded(self._error_body))
        if not self._keep:
            self.close()
        if done is not None and not done.done():
            done.set_result(None)

    def _head(self, current: Exchange, data: bytes, at_s: float) -> None:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > HEAD_LIMIT:
                raise ServerError("the response head is too long")
            self._rest = data
            return
        first, *lines = data[:end].split(CRLF)
        version, _, tail = first.partition(b" ")
        code = tail[:3]
        if not version.startswith(b"HTTP/1.") or not code.isdigit():
            raise ServerError(f"not an HTTP/1.1 response: {first[:60]!r}")
        rest = data[end + 4 :]
        if int(code) < HTTPStatus.OK:  # 100 Continue and the like: the real head follows
            if rest:
                self._head(current, rest, at_s)
            return
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        current.status = int(code)
        current.simulated = b"x-simulated" in headers
        if current.status == HTTPStatus.OK:
            current.error, current.error_detail = _not_a_stream(headers)
        self._keep = version != b"HTTP/1.0" and headers.get(b"connection", b"").lower() != b"close"
        self._begin_body(current, headers, rest, at_s)

    def _begin_body(self, current: Exchange, headers: Mapping[bytes, bytes], rest: bytes, at_s: float) -> None:
        length = headers.get(b"content-length")
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            self._state = self._chunks
        elif length is not None:
            if not length.isdigit():
                raise ServerError(f"the response length is {length[:40]!r}")
            self._state, self._left = self._counted, int(length)
        else:
            self._state, self._keep = self._until_close, False
        if rest or self._state == self._counted:
            self._state(current, rest, at_s)

    def _counted(self, current: Exchange, data: bytes, at_s: float) -> None:
        self._body(current, data[: self._left], at_s)
        self._left -= min(len(data), self._left)
        if self._left == 0:
            self._complete(current)

    def _until_close(self, current: Exchange, data: bytes, at_s: float) -> None:
        self._body(current, data, at_s)

    def _chunks(self, current: Exchange, data: bytes, at_s: float) -> None:
        position, length = 0, len(data)
        while position < length:
            if self._left == 0:
                if self._learned is not None and self._split.is_idle:
                    position = self._learned.read(current, data, position, at_s)
                    if position == length:
                        return
                line_end = data.find(CRLF, position)
                if line_end < 0:
                    if length - position > HEAD_LIMIT:
                        raise ServerError("a chunk size is too long")
                    self._rest = data[position:]
                    return
                size = _chunk_size(data[position:line_end])
                position = line_end + 2
                if size == 0:
                    self._state = self._trailer
                    self._trailer(current, data[position:], at_s)
                    return
                self._left = size + 2  # with the line end that closes the chunk
            end = min(length, position + self._left)
            taken = end - position
            payload_end = end - max(0, 2 - (self._left - taken))
            if payload_end > position:
                self._body(current, data[position:payload_end], at_s)
            self._left -= taken
            position = end

    def _trailer(self, current: Exchange, data: bytes, at_s: float) -> None:
        del at_s
        while data:
            line, found, data = data.partition(CRLF)
            if not found:
                if len(line) > HEAD_LIMIT:
                    raise ServerError("a line of the trailer is too long")
                self._rest = line
                return
            if not line:
                self._complete(current)
                return

    def _complete(self, current: Exchange) -> None:
        if self._split.pending and current.error is None:
            current.error, current.error_detail = "closed", "the last event of the stream is truncated"
        self._end()

    def _body(self, current: Exchange, data: bytes, at_s: float) -> None:
        """Read bytes of the body, without the framing."""
        if current.status != HTTPStatus.OK:
            self._error_body = (self._error_body + data)[:ERROR_BODY_LIMIT]
            return
        if current.error is not None and current.error in NOT_READ:
            return
        payloads = self._split.feed(data)
        if current.payloads is not None:
            current.payloads += payloads
        for payload in payloads:
            if _plain_token(payload):
                current.times_s.append(at_s)
                if self._learned is None:
                    self._learned = _TokenForm.of(payload)
            else:
                _read_event(current, payload, at_s)


def _not_a_stream(headers: Mapping[bytes, bytes]) -> tuple[str | None, str]:
    """Return the kind and message of the failure if a body with status 200 is not an event stream; otherwise None and an empty string."""
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
    if encoding not in {"", "identity"}:
        return (
            "compressed",
            f"the response has content-encoding {encoding}, which delays events; configure the proxy to send none",
        )
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/html":
        return (
            "html",
            f"the response is an HTML page ({content_type}) from a login page or a proxy, not from the server",
        )
    if kind not in {"", "text/event-stream"}:
        return (
            "no_stream",
            f"the response has content-type {content_type}, not text/event-stream, so the server did not stream",
        )
    return None, ""


class _TokenForm:
    """The bytes around the text of a response's token events, each alone in its chunk.

    Servers write the same bytes around each text of a response, so events with them need no JSON decoder.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after

    @classmethod
    def of(cls, payload: bytes) -> "_TokenForm | None":
        """Return the form of a plain token event, or None if its text has an escape."""
        start = _text_start(payload)
        end = payload.find(b'"', start)
        if b"\\" in payload[start:end]:
            return None
        return cls(b"data: " + payload[:start], payload[end:] + b"\n\n\r\n")

    def read(self, current: Exchange, data: bytes, begin: int, at_s: float) -> int:
        """Add the token events of `data` from `begin`, the start of a chunk and an event, and return the place after the last one.

        Everything but a complete event of this form, alone in its chunk, is left to the parser.
        """
        before = self._before
        after = self._after
        times_s = current.times_s
        payloads = current.payloads
        length = len(data)
        try:
            while begin < length:
                line_end = data.find(CRLF, begin, begin + 10)
                event = line_end + 2
                if line_end < 0 or not data.startswith(before, event):
                    break
                text = event + len(before)
                quote = data.find(b'"', text)
                end = quote + len(after)
                # An escaped quote is not followed by the end of the event. A line end in the text is not JSON.
                if quote < 0 or not data.startswith(after, quote) or data.find(b"\n", text, quote) >= 0:
                    break
                if int(data[begin:line_end], 16) != end - event - 2:
                    break
                times_s.append(at_s)
                if payloads is not None:
                    payloads.append(data[event + 6 : end - 4])
                begin = end
        except ValueError:  # the size has an extension, or is not one
            pass
        return begin


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        return int(digits, 16)
    except ValueError:
        raise ServerError(f"a chunk size is {digits[:40]!r}") from None


def _text_start(payload: bytes) -> int:
    """Return the place after the quote that opens an event's text, or -1."""
    start = payload.find(b'"content":"')
    if start >= 0:
        return start + 11
    start = payload.find(b'"text":"')
    return start + 8 if start >= 0 else -1


def _plain_token(payload: bytes) -> bool:
    """Return whether the event contains only new text, as most do, without decoding its JSON.

    Only the compact form that vLLM writes is recognized; everything else is decoded. Quotes in generated text are escaped, so
    text cannot be mistaken for a key.
    """
    start = _text_start(payload)
    return (
        start >= 0
        and payload[start : start + 1] != b'"'
        and b'"finish_reason":null' in payload
        and b'"usage":{' not in payload
        and b'"error":' not in payload
        and payload[:1] == b"{"
        and payload[-1:] == b"}"
    )


def _text_of(payload: bytes) -> str:
    """Return the text of an event, or an empty string."""
    try:
        return "" if payload == DONE else parse_event(payload).text
    except ValueError:
        return ""


def _read_event(current: Exchange, payload: bytes, at_s: float) -> None:
    current.closing_s = at_s
    if payload == DONE:
        current.finished = True
        return
    try:
        delta = parse_event(payload)
    except ValueError:
        if current.error is None:
            current.error, current.error_detail = "malformed", f"an event is not a JSON object: {payload[:80]!r}"
        return
    if delta.error is not None:
        if current.error is None:
            current.error, current.error_detail = "error_event", delta.error
        return
    if delta.has_choice and (current.times_s or not delta.opens):
        if not delta.generated and current.silent == len(current.times_s):
            current.silent += 1
        current.times_s.append(at_s)
    if delta.finish_reason in FAILED_FINISHES and current.error is None:
        current.error = FAILED_FINISHES[delta.finish_reason]
        current.error_detail = f"the server finished the response with finish_reason {delta.finish_reason}"
    current.usage = delta.usage or current.usage
    current.finished = current.finished or delta.finish_reason is not None
