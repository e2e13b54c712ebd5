"""An OpenAI-compatible server with known timing and faults on demand, on the standard library alone.

Every request's first token leaves `--ttft-s` after its last byte arrived, and each further one `--tpot-s` after the one before, by one
scheduler for all streams. A word is a token. It prints `{"port": N}` on its first line, and counts what it did at GET /control:
its own lateness too, so a measuring client can be distinguished from a slow server.
POST /control sets faults for the requests to come.
GET /truth lists every stream with the readings of the server's own clock: when its request arrived, when its first output and its
last event left, and how it ended.
With `--keep-requests`, GET /received lists the bodies of all streamed requests and when they came.

It is an asyncio protocol and not a web framework, because at 1,024 streams the server must not be what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import heapq
import json
import os
import socket
import sys
from typing import Any

TEMPLATE_TOKENS = 4
SHAPES = {None, "finish", "shape"}
"""Kinds of faults that change a whole response, or none. `shape` has: bunch (events per write), length and usage (factors of the
requested tokens and of the generated ones), late_usage_s and held_open_s (waits at the end)."""
MODEL = "timed"
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


class Scheduler:
    """Calls streams when they are due: one timer for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.due: list[tuple[float, int, Stream]] = []
        self.count = 0
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = float("inf")

    def add(self, at: float, stream: Stream) -> None:
        self.count += 1
        heapq.heappush(self.due, (at, self.count, stream))
        if at < self.timer_at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer_at = at
        self.timer = self.loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self.timer, self.timer_at = None, float("inf")
        while self.due and self.due[0][0] <= self.loop.time():
            at, _, stream = heapq.heappop(self.due)
            stream.step(at)
        if self.due:
            self._arm(self.due[0][0])


def text_part(text: str, *, chat: bool) -> dict[str, Any]:
    return {"delta": {"content": text}} if chat else {"text": text}


def choice(head: dict[str, Any], part: dict[str, Any], finish: str | None = None) -> bytes:
    return event({**head, "choices": [{"index": 0, **part, "logprobs": None, "finish_reason": finish}]})


def usage_of(prompt_tokens: int, tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}


def frames(*, chat: bool) -> tuple[dict[str, Any], bytes, list[bytes]]:
    """What all streams send alike: made once, so that a thousand requests at once cost little."""
    head = {"id": "x", "object": "chat.completion.chunk" if chat else "text_completion", "created": 1, "model": MODEL}
    opening = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-simulated: timed\r\ntransfer-encoding: chunked\r\n\r\n"
    if chat:
        opening += choice(head, {"delta": {"role": "assistant", "content": ""}})
    return head, opening, [choice(head, text_part(f" {word}", chat=chat)) for word in WORDS]


class State:
    """Configuration, faults and counters of the whole server."""

    def __init__(self, options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
        self.options = options
        self.scheduler = Scheduler(loop)
        self.fault: dict[str, Any] = {}
        self.prompts: set[str] = set()
        self.counters: dict[str, float] = dict.fromkeys(
            (
                "requests", "duplicates", "open", "max_open", "prompt_tokens", "generation_tokens", "late_sum_s", "late_max_s", "late_count",
                "ttft_sum_s", "ttft_count", "cached_hits", "gap_sum_s", "gap_count",
            ),
            0,
        )  # fmt: skip
        self.frames = {chat: frames(chat=chat) for chat in (False, True)}
        self.truth: list[dict[str, Any]] = []
        self.received: list[dict[str, Any]] = []

    def late(self, seconds: float) -> None:
        self.counters["late_sum_s"] += seconds
        self.counters["late_count"] += 1
        self.counters["late_max_s"] = max(self.counters["late_max_s"], seconds)


def event(obj: object) -> bytes:
    return raw_event(b"data: " + json.dumps(obj, separators=(",", ":")).encode() + b"\n\n")


def raw_event(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENTS = {
    "old_error": event({"object": "error", "message": "the engine died", "code": 500}),
    "named_error": raw_event(b'event: error\ndata: {"message":"the engine died"}\n\n'),
}
"""What a fault writes into a stream that then continues."""


class Stream:
    """One streamed answer."""

    def __init__(
        self, connection: Connection, tokens: int, prompt_tokens: int, fault: dict[str, Any], *, chat: bool
    ) -> None:
        self.connection, self.prompt_tokens, self.fault, self.chat = connection, prompt_tokens, fault, chat
        self.state = connection.state
        self.sent = 0
        self.started_at = self.state.scheduler.loop.time()
        self.alive = True
        self.last_at = self.first_at = self.began_at = 0.0
        self.tail = int(self.state.fault.get("tail", 0))
        self.faulty = fault.get("kind") not in {None, "shape"}
        self.held = b""
        self.tokens = round(tokens * float(fault.get("length", 1)))
        self.head, self.opening, self.pieces = self.state.frames[chat]
        counters = self.state.counters
        counters["open"] += 1
        counters["max_open"] = max(counters["max_open"], counters["open"])

    def start(self) -> None:
        self.state.scheduler.add(self.started_at + self.state.options.ttft_s, self)

    def special(self, finish: str | None) -> bytes:
        """The event of a special token: it has no text."""
        return choice(self.head, text_part("", chat=self.chat), finish)

    def step(self, due: float) -> None:
        if not self.alive or self.connection.closed:
            self.end(completed=False)
            return
        now = self.state.scheduler.loop.time()
        self.state.late(now - due)
        if self.fault and self.sent >= max(1, int(self.fault.get("after_tokens", 1))) and self.misbehave():
            return
        has_output = self.sent < self.tokens - self.tail
        if has_output and not self.first_at:
            self.first_at = now
        if self.sent == 0:
            self.began_at = now
            self.state.counters["ttft_sum_s"] += now - self.started_at
            self.state.counters["ttft_count"] += 1
        else:
            self.state.counters["gap_sum_s"] += now - self.last_at
            self.state.counters["gap_count"] += 1
        self.last_at = now
        reason = self.fault["reason"] if self.fault.get("kind") == "finish" else "length"
        closing = reason if self.tail and self.sent == self.tokens - 1 else None
        piece = self.pieces[self.sent % len(self.pieces)] if has_output else self.special(closing)
        self.held += piece if self.sent else self.opening + piece
        self.sent += 1
        if self.sent % int(self.fault.get("bunch", 1)) == 0:
            self.flush()
        self.state.counters["generation_tokens"] += 1
        if self.sent < self.tokens:
            self.state.scheduler.add(due + self.state.options.tpot_s, self)
            return
        if not self.tail:
            self.held += choice(self.head, {"delta": {}} if self.chat else {"text": ""}, reason)
        self.flush()
        usage = usage_of(self.prompt_tokens, round(self.tokens * float(self.fault.get("usage", 1))))
        self.closing(event({**self.head, "choices": [], "usage": usage}) + raw_event(b"data: [DONE]\n\n"))

    def flush(self) -> None:
        self.connection.write(self.held)
        self.held = b""

    def closing(self, closing: bytes) -> None:
        """End the response, late if the fault says so."""
        late_s, open_s = (float(self.fault.get(name, 0)) for name in ("late_usage_s", "held_open_s"))
        if not late_s and not open_s:
            self.close(closing + b"0\r\n\r\n")
            return
        loop = self.state.scheduler.loop
        loop.call_later(late_s, self.connection.write, closing)
        loop.call_later(late_s + open_s, self.close, b"0\r\n\r\n")

    def close(self, data: bytes) -> None:
        self.connection.write(data)
        self.end(completed=True)

    def misbehave(self) -> bool:
        """Act out the fault; True where the stream stalls by it."""
        kind = self.fault.get("kind")
        if kind in SHAPES:
            return False
        if kind in EVENTS:
            self.connection.write(EVENTS[kind])
        elif kind == "exit":
            os._exit(3)
        elif kind == "endless":
            return True  # the stream stays open, and nothing more comes
        self.fault = {}
        return False

    def end(self, *, completed: bool) -> None:
        if self.alive:
            self.alive = False
            self.state.truth.append(
                {
                    "received_s": self.started_at, "first_s": self.first_at or self.began_at, "last_s": self.last_at,
                    "end_s": self.state.scheduler.loop.time(), "tokens": self.sent, "completed": completed and not self.faulty,
                }
            )  # fmt: skip
            self.state.counters["open"] -= 1
            self.connection.stream = None


BUFFER = memoryview(bytearray(1 << 18))


class Connection(asyncio.BufferedProtocol):
    """One HTTP/1.1 connection."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.buffer = bytearray()
        self.closed = False
        self.stream: Stream | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.closed = True
        if self.stream is not None:
            self.stream.end(completed=False)

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.transport.write(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        self.buffer += BUFFER[:nbytes]
        while True:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).decode("latin-1")
            length = 0
            headers = {}
            for line in head.split("\r\n")[1:]:
                name, _, value = line.partition(":")
                headers[name.strip().lower()] = value.strip()
            length = int(headers.get("content-length", "0"))
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
            self.route(method, path, headers, body)

    def answer(self, status: int, body: object, content_type: str = "application/json") -> None:
        raw = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.write(
            b"HTTP/1.1 %d X\r\ncontent-type: %b\r\nx-simulated: timed\r\ncontent-length: %d\r\n\r\n%b"
            % (status, content_type.encode(), len(raw), raw)
        )

    def refuse(self, status: int, message: str) -> None:
        self.answer(status, {"error": {"message": message}})

    def route(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> None:
        options, counters = self.state.options, self.state.counters
        body = json.loads(raw) if raw else {}
        if path == "/control":
            if method == "POST":
                self.state.fault, counters["late_max_s"] = body, 0.0
            self.answer(200, counters)
            return
        if path in {"/received", "/truth"}:
            self.answer(200, self.state.truth if path == "/truth" else self.state.received)
            return
        needed = options.token
        if needed and headers.get("authorization") != f"Bearer {needed}":
            self.refuse(401, "who are you?")
            return
        if path == "/health":
            self.answer(200, "", "text/plain")
        elif path == "/v1/models":
            names = filter(None, (MODEL, *options.adapters.split(",")))
            limits = {MODEL: options.max_model_len}
            rows = [{"id": name, "max_model_len": limits.get(name), "owned_by": "timed-simulated"} for name in names]
            self.answer(200, {"data": rows})
        elif path == "/metrics" and not self.state.fault.get("no_metrics"):
            self.answer(200, self.metrics(), "text/plain")
        elif path == "/tokenize" and not options.no_tokenize:
            self.tokenize(body)
        elif path in {"/v1/chat/completions", "/v1/completions"}:
            self.generate(body, chat="chat" in path)
        else:
            self.refuse(404, f"no route {path}")

    def metrics(self) -> str:
        counters, factor = self.state.counters, float(self.state.fault.get("metrics_factor", 1))
        return (
            f"vllm:time_to_first_token_seconds_sum {counters['ttft_sum_s'] * factor}\n"
            f"vllm:time_to_first_token_seconds_count {counters['ttft_count']}\n"
            f"vllm:inter_token_latency_seconds_sum {counters['gap_sum_s'] * factor}\n"
            f"vllm:inter_token_latency_seconds_count {counters['gap_count']}\n"
            f'vllm:kv_cache_usage_perc{{engine="0"}} {min(1.0, counters["open"] / 100)}\nvllm:num_requests_running {counters["open"]}\n'
            f"vllm:num_requests_waiting 0\nvllm:generation_tokens_total {counters['generation_tokens']}\n"
            f"vllm:prompt_tokens_total {counters['prompt_tokens']}\nvllm:prefix_cache_queries_total {counters['prompt_tokens']}\n"
            f"vllm:prefix_cache_hits_total {counters['cached_hits']}\nvllm:num_preemptions_total 0\n"
            f'vllm:cache_config_info{{block_size="16",cache_dtype="fp8",gpu_memory_utilization="0.4",num_gpu_blocks="1000"}} 1.0\n'
        )

    def tokenize(self, body: dict[str, Any]) -> None:
        words, template = prompt_words(body)
        self.answer(200, {"count": words + template, "max_model_len": self.state.options.max_model_len, "tokens": []})

    def generate(self, body: dict[str, Any], *, chat: bool) -> None:
        options, counters = self.state.options, self.state.counters
        words, template = prompt_words(body)
        prompt_tokens, tokens = words + template, int(body.get("max_completion_tokens") or body.get("max_tokens", 16))
        counters["requests"] += 1
        if options.keep_requests and body.get("stream"):
            self.state.received.append({"at_s": asyncio.get_running_loop().time(), "body": body})
        if prompt_tokens + tokens > options.max_model_len:
            limit = f"maximum context length is {options.max_model_len} tokens"
            self.refuse(400, f"{limit}, asked for {prompt_tokens + tokens}")
            return
        if options.refuse_ignore_eos and "ignore_eos" in body:
            self.refuse(400, "unknown field ignore_eos")
            return
        text = json.dumps(body.get("messages", body.get("prompt")))
        if text in self.state.prompts:
            counters["duplicates"] += 1
            counters["cached_hits"] += prompt_tokens
        self.state.prompts.add(text)
        counters["prompt_tokens"] += prompt_tokens
        fault = self.state.fault if self.is_faulty() else {}
        if self.misanswer(fault):
            return
        known = ("tools", "response_format", "chat_template_kwargs")
        if body.get("stream") and not any(body.get(key) for key in known):
            self.stream = Stream(self, tokens, prompt_tokens, fault, chat=chat)
            self.stream.start()
        else:
            done = asyncio.get_running_loop().call_later(options.ttft_s, self.whole, body, text, prompt_tokens, tokens)
            del done

    def misanswer(self, fault: dict[str, Any]) -> bool:
        """Answer without a stream if the fault requires it. Return True if that finishes the request."""
        kind = fault.get("kind")
        if kind == "status":
            self.refuse(int(fault["status"]), "injected")
        elif kind == "hang":
            pass  # the connection stays open, and nothing comes
        else:
            return False
        return True

    def is_faulty(self) -> bool:
        """Whether the fault strikes this request: every n-th, after some that go well, and not more often than asked for."""
        fault, counters = self.state.fault, self.state.counters
        if not fault:
            return False
        fault["seen"] = seen = int(fault.get("seen", 0)) + 1
        struck = int(fault.get("struck", 0))
        strikes = (
            counters["requests"] % int(fault.get("every", 1)) == 0
            and seen > int(fault.get("spare", 0))
            and struck < int(fault.get("times", 1 << 60))
        )
        fault["struck"] = struck + strikes
        return strikes

    def whole(self, body: dict[str, Any], text: str, prompt_tokens: int, tokens: int) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": "Paris" if "France" in text else " ".join(WORDS)}
        if body.get("response_format"):
            kinds = body["response_format"]["json_schema"]["schema"]["properties"]
            city = {"city": "Paris", "country": "France", "population": 2_102_650}
            message["content"] = json.dumps({key: city[key.partition("_")[0]] for key in kinds})
        completion = min(tokens, 8)
        self.state.counters["generation_tokens"] += completion
        usage = usage_of(prompt_tokens, completion)
        if body.get("stream"):
            chunk = {"choices": [{"index": 0, "delta": message, "finish_reason": "stop"}], "usage": usage}
            self.answer(200, f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n", "text/event-stream")
            return
        self.answer(200, {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


def prompt_words(body: dict[str, Any]) -> tuple[int, int]:
    """Words of the prompt and tokens of the template; a prompt of token ids counts its ids."""
    if "messages" in body:
        return sum(len(str(message.get("content", "")).split()) for message in body["messages"]), TEMPLATE_TOKENS
    prompt = body.get("prompt", "")
    return (len(prompt) if isinstance(prompt, list) else len(prompt.split())), 1


async def serve(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    state = State(options, loop)
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", options.port, backlog=4096)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    # The parent's end is the server's end, however the parent ends.
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-s", type=float, default=0.02)
    parser.add_argument("--tpot-s", type=float, default=0.005)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--token", default="")
    parser.add_argument("--no-tokenize", action="store_true")
    parser.add_argument("--refuse-ignore-eos", action="store_true")
    parser.add_argument("--keep-requests", action="store_true", help="list the streams' requests at GET /received")
    parser.add_argument("--adapters", default="", help="names that are served besides the model, separated by commas")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options))


if __name__ == "__main__":
    main()
