"""The real load generator against a scripted server, on an event loop whose clock only moves when every task waits.

Nothing here takes time, so that every machine measures the same: a figure that differs from the script's is a wrong formula.
The server's log is the truth: when each request came, when each event of its choice left, and when the connection was over.
"""

import asyncio
import json
import selectors
from dataclasses import dataclass, field
from http import HTTPStatus

from loadtest.client.wire import WireConnection
from loadtest.generator.load import LoadGenerator, Share
from loadtest.tests.timed_server import event, raw_event
from loadtest.traffic.makers import SyntheticSource
from loadtest.traffic.prompts import POOL, Calibration, Recipe
from loadtest.traffic.spec import FIXED_LENGTHS

OPENING = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%btransfer-encoding: chunked\r\n\r\n"
LAST = raw_event(b"data: [DONE]\n\n") + b"0\r\n\r\n"
PROMPT_TOKENS = 9
ENDLESS = {"hang", "stall", "slow"}
"""Answers that the client ends."""


class _NoWait(selectors.DefaultSelector):
    """Moves the clock of its loop to the next timer instead of waiting for it."""

    def __init__(self):
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self.now_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._clock = _NoWait()
        super().__init__(self._clock)

    def time(self):
        return self._clock.now_s


@dataclass(kw_only=True)
class Script:
    """What the server does with one request. Tokens leave `ttft_s` after the request and then every `tpot_s`."""

    kind: str = "text"
    tokens: int = 16
    ttft_s: float = 0.2
    tpot_s: float = 0.05
    lead: int = 0
    """Special tokens before the text."""
    tail: int = 0
    """Special tokens after the text."""


@dataclass(kw_only=True)
class Served:
    """The truth about one request."""

    sent_s: float
    script: Script
    events: list[tuple[float, bool]] = field(default_factory=list)
    """Each event of the choice: when it left, and whether it had text."""
    end_s: float = 0.0

    @property
    def first_s(self):
        return next((at_s for at_s, has_text in self.events if has_text), self.events[0][0])


class Server:
    def __init__(self, loop, scripts, slots=None):
        self.loop, self.scripts, self.slots = loop, scripts, slots
        self.log: list[Served] = []
        self.free = [0.0] * (slots or 0)
        self.numbered = 0

    def script(self):
        script = self.scripts(self.numbered)
        self.numbered += 1
        return script

    def begins_in_s(self, script):
        """How long a request waits for a slot."""
        if not self.slots:
            return 0.0
        slot = min(range(self.slots), key=self.free.__getitem__)
        begins_s = max(self.free[slot], self.loop.time())
        self.free[slot] = begins_s + script.ttft_s + (script.tokens - 1) * script.tpot_s
        return begins_s - self.loop.time()


def choice(finish=None, **delta):
    return event({"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]})


class Transport(asyncio.Transport):
    """The server's end of one connection."""

    def __init__(self, server, connection):
        super().__init__()
        self.server, self.connection, self.served, self.closed = server, connection, None, False
        self.due = {}

    def write(self, data):
        assert data.endswith(b"}")
        script = self.server.script()
        self.served = Served(sent_s=self.server.loop.time(), script=script)
        self.server.log.append(self.served)
        self.play(self.served, script)

    def later(self, delay_s, act, *values):
        """Do something later. What is due at the same moment happens in the order of these calls."""
        due_s = self.server.loop.time() + delay_s
        self.due.setdefault(round(due_s, 9), []).append((act, values))
        if len(self.due[round(due_s, 9)]) == 1:
            self.server.loop.call_at(due_s, self.happen, round(due_s, 9))

    def happen(self, due_s):
        for act, values in self.due.pop(due_s):
            if not self.closed:
                act(*values)

    def send(self, data, text=None):
        """Send bytes now; `text` says that they are an event of the choice, with text or without."""
        now_s = self.server.loop.time()
        self.served.end_s = now_s
        if text is not None:
            self.served.events.append((now_s, text))
        self.connection.receive(data, now_s)

    def play(self, served, script):
        kind, at_s = script.kind, self.server.begins_in_s(script)
        if kind == "hang":
            return
        if kind in {"429", "503"}:
            body = json.dumps({"error": {"message": "busy"}}).encode()
            self.later(
                0.1, self.send, b"HTTP/1.1 %b X\r\ncontent-length: %d\r\n\r\n%b" % (kind.encode(), len(body), body)
            )
            return
        if kind in {"html", "json", "gzip"}:
            types = {"html": b"text/html; charset=utf-8", "json": b"application/json", "gzip": b"text/event-stream"}
            more = b"content-encoding: gzip\r\n" if kind == "gzip" else b""
            self.later(0.1, self.send, OPENING % (types[kind], more) + raw_event(b"<html>") + b"0\r\n\r\n")
            return
        self.later(at_s + 0.01, self.send, OPENING % (b"text/event-stream", b"") + choice(role="assistant", content=""))
        if kind == "empty":
            self.later(at_s + 0.1, self.send, self.usage(0) + LAST)
            return
        whole = script.tokens if kind in {"text", "missing_usage", "abort", "slow"} else 3
        for number in range(whole):
            has_text = script.lead <= number < script.tokens - script.tail
            data = choice(content=" word") if has_text else choice(content="")
            if script.tail and number == whole - 1:
                data = choice("length", content="")
            self.later(at_s + script.ttft_s + number * script.tpot_s, self.send, data, has_text)
        self.finish(kind, script, at_s + script.ttft_s + (whole - 1) * script.tpot_s)

    def finish(self, kind, script, last_s):
        """What follows the last token. All of it leaves with that token or a moment later."""
        if kind in {"text", "missing_usage", "abort"}:
            usage = b"" if kind == "missing_usage" else self.usage(script.tokens)
            if not script.tail:
                self.later(last_s, self.send, choice("abort" if kind == "abort" else "length"), False)
            self.later(last_s, self.send, usage + LAST)
        elif kind == "malformed":
            self.later(last_s + 0.1, self.send, raw_event(b"data: {not json\n\n") + self.usage(3) + LAST)
        elif kind == "error_event":
            self.later(last_s + 0.1, self.send, event({"error": {"message": "the engine died"}}) + LAST)
        elif kind == "reset":
            self.later(last_s + 0.1, self.lose, ConnectionResetError("reset"))
        elif kind == "close":
            self.later(last_s + 0.1, self.lose, None)

    @staticmethod
    def usage(tokens):
        return event({"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}})

    def lose(self, error):
        self.closed = True
        self.served.end_s = self.server.loop.time()
        self.connection.connection_lost(error)

    def abort(self):
        """The client ends the connection."""
        if not self.closed:
            self.closed = True
            if self.served is not None and self.served.script.kind in ENDLESS:
                self.served.end_s = self.server.loop.time()
            self.server.loop.call_soon(self.connection.connection_lost, None)

    close = abort

    def is_closing(self):
        return self.closed

    def get_extra_info(self, name, default=None):
        del name
        return default


SOURCE = SyntheticSource(
    recipe=Recipe(words=POOL, count=4, seed=1),
    calibration=Calibration(source="tokenize", words=POOL, overhead_tokens=0, tokens_per_word=1.0),
    correction=0,
    input_tokens=4,
    output_tokens=16,
    most_tokens=None,
    traffic=FIXED_LENGTHS,
)


def share_of(**changes):
    fields = {
        "url": "http://127.0.0.1:1", "path": "/v1/chat/completions", "headers": {}, "body": {"max_tokens": 16, "stream": True},
        "source": SOURCE, "first_index": 0, "worker": 0, "workers": 1, "concurrency": 4, "rate_per_s": None,
        "poisson": False, "requests": 24, "duration_s": None, "request_timeout_s": 60.0, "stall_timeout_s": 10.0,
    }  # fmt: skip
    return Share(**(fields | changes))


def run_load(monkeypatch, share, scripts, *, slots=None, refused=(), stop_at_s=None):
    """Run the load generator, and return its result and the server's log, both in seconds from the start."""
    loop = VirtualLoop()
    server, connects = Server(loop, scripts, slots), iter(range(1 << 30))

    async def connect():
        if next(connects) in refused:
            now_s = loop.time()
            server.log.append(Served(sent_s=now_s, script=Script(kind="connect"), end_s=now_s))
            raise ConnectionRefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "refused")
        connection = WireConnection(loop.time)
        connection.connection_made(Transport(server, connection))
        return connection

    async def run():
        generator = LoadGenerator(share, loop, loop.time)
        monkeypatch.setattr(generator, "_connect", connect)
        await generator.prepare()
        if stop_at_s is not None:
            loop.call_later(stop_at_s, generator.stop)
        start_s = loop.time()
        return await generator.run(start_s), start_s

    try:
        result, start_s = loop.run_until_complete(run())
    finally:
        loop.close()
    for served in server.log:
        served.sent_s, served.end_s = served.sent_s - start_s, served.end_s - start_s
        served.events = [(at_s - start_s, has_text) for at_s, has_text in served.events]
    return result, server.log
