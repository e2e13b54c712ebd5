"""A response without an end is not read to its end: the client reads a limited number of bytes, and says so in one sentence."""

import asyncio
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest.client import events, openai
from loadtest.client.events import EVENT_LIMIT_BYTES, EventSplitter
from loadtest.client.openai import OpenAIClient, ServerError
from loadtest.tests.test_wire import receive

LIMIT = 2**22
PIECE = 2**16
TOKEN = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
BODIES = {
    "/line": (b"data: ", b"x" * PIECE),
    "/lines": (b"", b"data: x\n" * (PIECE // 8)),
    "/empty-lines": (b"", b"data:\n" * (PIECE // 6)),
    "/events": (b"", TOKEN * (PIECE // len(TOKEN))),
    "/bomb": (b"", b"\0" * PIECE),
}
"""Path to the beginning of a body, and what follows without an end."""


class Endless(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        first, rest = BODIES[self.path]
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        if self.path == "/bomb":
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        try:
            self.wfile.write(first)
            while True:
                self.wfile.write(packer.compress(rest) if self.path == "/bomb" else rest)
        except OSError:  # the client closed the connection
            self.close_connection = True

    do_POST = do_GET  # noqa: N815 - the standard library's name

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(openai, "BODY_LIMIT_BYTES", LIMIT)
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_stops_at_its_limit(url: str, path: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch):
    read = list[int]()
    pieces = OpenAIClient._pieces

    async def counted(self: OpenAIClient, response: openai.aiohttp.ClientResponse):
        async for piece in pieces(self, response):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(OpenAIClient, "_pieces", counted)

    async def ask() -> object:
        async with OpenAIClient(url) as client:
            sending = client.stream({}, path=path, limit_s=600) if is_stream else client.get(path, limit_s=600)
            return await sending

    with pytest.raises(ServerError) as caught:
        asyncio.run(ask())
    assert not isinstance(caught.value, openai.UnreachableError), "another attempt ends the same way"
    whole = f"The response of {url}{path} has more than {LIMIT // 2**20} MiB."
    one = f"An event of the stream has more than {EVENT_LIMIT_BYTES // 2**20} MiB."
    is_event = is_stream and path != "/events"
    assert str(caught.value).startswith(one if is_event else whole)
    assert sum(read) <= (2 * EVENT_LIMIT_BYTES if is_event else LIMIT)


def test_an_event_of_the_largest_size_is_read_and_a_larger_one_is_not():
    largest = b"data:" + b"x" * (EVENT_LIMIT_BYTES - 5)
    assert EventSplitter().feed(largest + b"\n\n" + largest + b"\n\n") == [largest[5:]] * 2
    with pytest.raises(ServerError, match="An event of the stream has more than 1 MiB"):
        EventSplitter().feed(largest + b"x")


@pytest.mark.parametrize("body", [b"data: " + b"x" * PIECE, b"0\r\n" + b"x" * PIECE * 2], ids=["event", "trailer"])
def test_the_load_generator_stops_as_well(body: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "EVENT_LIMIT_BYTES", PIECE)

    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    framing = b"transfer-encoding: chunked\r\n\r\n" if body.startswith(b"0") else b"\r\n"
    exchange, _, done = receive([head + framing + body])
    assert (exchange.error, done) == ("malformed", True)
