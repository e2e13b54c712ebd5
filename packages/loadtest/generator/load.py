"""Load generation of one worker's share of a point.

Closed loop: a fixed number of slots, each with a separate connection, each sending its next request when the last is answered.
Open loop: requests leave at scheduled times, regardless of the server. Their latency counts from the intended time, so with
a late client the server looks worse, never better.
"""

import asyncio
import gc
import json
import math
import random
import ssl
import time
from array import array
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Any, Final

from loadtest.client.proxy import HttpProxy, open_tunnel
from loadtest.client.wire import Exchange, Origin, WireConnection, now_s, request_bytes, request_head
from loadtest.records import RequestRecord, WorkerResult
from loadtest.traffic.makers import PlannedRequest, RequestMaker, SyntheticSource
from loadtest.traffic.points import ENOUGH_S

LAG_PERIOD_S: Final = 0.01
TIMER_STEP_S: Final = 0.001
"""epoll wakes in whole milliseconds, so a timer of an idle loop is up to 1 ms late. Arriving bytes are not, so this is not counted."""
WATCH_PERIOD_S: Final = 0.25
MOST_READY: Final = 2048
"""Requests prepared before the start. A worker has 512 streams, and long prompts must not fill the memory."""
CONNECT_LIMIT_S: Final = 30.0
CONNECTS_AT_ONCE: Final = 128
"""New connections opened concurrently before the start. A server's backlog is often 128."""
STALE_AFTER_S: Final = 1.0
"""Time within which the close of a reused connection without a byte means that the server had closed it while idle."""
GIVE_UP_AFTER: Final = 20
"""Consecutive failed connections after which the server is treated as gone."""
RAMP_S: Final = 0.0001
"""Delay between the first requests of two closed-loop slots. A thousand simultaneous requests queue in the
server's accept loop, which adds to their time to first token."""
PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses of a slot after consecutive failures, to avoid overloading a server that rejects requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One worker's share of one point. Worker `worker` of `workers` sends the requests whose index has that remainder."""

    url: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, object]
    """Request body without its prompt."""
    source: SyntheticSource
    """Source of the requests."""
    first_index: int
    """Index of the point's first request. Warm-up and measurement use different indexes."""
    worker: int
    workers: int
    concurrency: int
    """Slots of this worker (closed loop), or maximum requests or sessions of this worker in flight (open loop)."""
    rate_per_s: float | None
    """Requests per second of all workers together, or new sessions if they have several turns; None for a closed loop."""
    poisson: bool
    requests: int | None
    """Requests, or sessions if they have several turns."""
    duration_s: float | None
    request_timeout_s: float
    stall_timeout_s: float
    least_requests: int | None = None
    """Requests, or sessions, after which a closed loop ends once ENOUGH_S have passed; None to send all."""
    proxy: HttpProxy | None = None
    """Proxy of the environment, or None for a direct connection."""


def arrivals(rate_per_s: float, count: int, seed: int, *, poisson: bool) -> "array[float]":
    """Return the intended send times of an open loop, in seconds from the start. All workers draw the same times.

    `count` requests take exactly `count / rate_per_s` seconds, as in `vllm bench serve`: drawn gaps are scaled to that time, so a
    draw changes the pattern but never the rate.
    """
    if not poisson:
        return array("d", [number / rate_per_s for number in range(count)])
    rng = random.Random(seed)  # noqa: S311 - filler text and load patterns, no secret
    gaps_s = [rng.expovariate(1.0) for _ in range(count)]
    scale = count / rate_per_s / math.fsum(gaps_s) if count else 0.0
    return array("d", [at_s * scale for at_s in accumulate(gaps_s[:-1], initial=0.0)][:count])


def arrival_count(rate_per_s: float, requests: int | None, duration_s: float | None) -> int:
    """Return the requests of an open loop: rate x duration, at most `requests`."""
    if duration_s is None:
        return requests or 0
    by_time = max(1, round(rate_per_s * duration_s))
    return by_time if requests is None else min(requests, by_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyRequest:
    """A request that is ready to be sent."""

    data: bytes
    asked_tokens: int
    """Output tokens that the server must generate."""


class LagSampler:
    """Sample the loop's lateness evenly over time.

    A blocked loop misses many ticks. Each missed tick counts with the lateness of an event at that moment, so a
    long block has its full weight.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = now_s) -> None:
        self._loop = loop
        self._now_s = clock
        self._next_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.lags_s: array[float] = array("d")

    def start(self) -> None:
        """Start sampling."""
        self._next_s = self._now_s() + LAG_PERIOD_S
        self._timer = self._loop.call_later(LAG_PERIOD_S, self._tick)

    def stop(self) -> None:
        """Stop sampling and keep the samples."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        at_s = self._now_s()
        while self._next_s <= at_s:
            self.lags_s.append(max(0.0, at_s - self._next_s - TIMER_STEP_S))
            self._next_s += LAG_PERIOD_S
        self._timer = self._loop.call_later(self._next_s - at_s, self._tick)


class LoadGenerator:
    """Run one share. `prepare` opens connections and creates the first prompts; `run` starts at a given time."""

    def __init__(self, share: Share, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = now_s) -> None:
        self._share = share
        self._now_s = clock
        self._loop = loop
        self._origin = Origin.of(share.url)
        self._head = request_head(self._origin, share.path, share.headers, share.proxy)
        self._traffic = share.source.traffic
        self._maker = RequestMaker(share.source)
        self._tls = ssl.create_default_context() if self._origin.tls else None
        self._idle: list[WireConnection] = []
        self._active: set[WireConnection] = set()
        self._ready: dict[int, _ReadyRequest] = {}
        self._records: list[RequestRecord] = []
        self._start_s = 0.0
        self._failures_in_a_row = 0
        self._gave_up: str | None = None
        self._stopping = False
        self._sessions = self._sessions_cut = 0
        self._stale_retries = 0
        self._shed = 0
        self._simulated = False

    @property
    def finished(self) -> int:
        """Number of finished requests."""
        return len(self._records)

    @property
    def in_flight(self) -> int:
        """Number of requests in flight."""
        return len(self._active)

    def stop(self) -> None:
        """Send no more requests and abort those in flight."""
        self._stopping = True
        for connection in list(self._active):
            connection.abort("aborted", "the point was ended before the response was complete")

    async def prepare(self) -> None:
        """Open connections and create prompts, so the measurement includes neither."""
        share = self._share
        for index in self._indexes() if self._traffic.turns == 1 else ():
            if len(self._ready) >= min(share.concurrency * 2, MOST_READY):
                break
            self._ready[index] = self._request(index, self._maker.asked(index))
        wanted = share.concurrency if share.rate_per_s is None else 0
        gate, reachable = asyncio.Semaphore(CONNECTS_AT_ONCE), True

        async def open_one() -> None:
            nonlocal reachable
            async with gate:
                if reachable:
                    try:
                        self._idle.append(await self._connect())
                    except (OSError, TimeoutError):
                        reachable = False  # the requests themselves connect again and are counted

        await asyncio.gather(*(open_one() for _ in range(wanted)))

    async def run(self, start_s: float) -> WorkerResult:
        """Generate the load from `start_s` (a reading of `now_s`) until all requests are answered."""
        self._start_s = start_s
        sampler = LagSampler(self._loop, self._now_s)
        frozen_before = gc.get_freeze_count()
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection during a measurement delays all times
        await asyncio.sleep(max(0.0, start_s - self._now_s()))
        cpu_s = time.process_time()
        sampler.start()
        watch = self._loop.create_task(self._watch())
        try:
            if self._share.rate_per_s is None:
                await self._closed_loop()
            else:
                await self._open_loop(self._share.rate_per_s)
        finally:
            watch.cancel()
            sampler.stop()
            wall_s, cpu_s = self._now_s() - start_s, time.process_time() - cpu_s
            gc.enable()
            if not frozen_before:  # otherwise objects frozen by the caller would thaw with ours
                gc.unfreeze()
            for connection in self._idle:
                connection.close()
        return WorkerResult(
            records=tuple(self._records),
            lags_s=sampler.lags_s,
            cpu_s=cpu_s,
            wall_s=wall_s,
            stale_retries=self._stale_retries,
            shed=self._shed,
            gave_up=self._gave_up,
            simulated=self._simulated,
            sessions=self._sessions,
            sessions_cut=self._sessions_cut,
        )

    def _indexes(self) -> Iterator[int]:
        share = self._share
        last = None if share.requests is None else share.first_index + share.requests
        least = None if share.least_requests is None else share.first_index + share.least_requests
        for index in count(share.first_index + share.worker, share.workers):
            if last is not None and index >= last:
                return
            if least is not None and index >= least and self._now_s() - self._start_s >= ENOUGH_S:
                return
            yield index

    def _request(
        self, number: int, asked: PlannedRequest, messages: Sequence[Mapping[str, Any]] = ()
    ) -> "_ReadyRequest":
        """Return a request. `number` is its index, or its session's, whose conversation so far is in `messages`."""
        adapters = self._traffic.adapters
        body: dict[str, Any] = dict(self._share.body)
        if adapters:
            body["model"] = adapters[number % len(adapters)]
        if self._share.path.endswith("/chat/completions"):
            body["messages"] = [*messages, {"role": "user", "content": asked.content}]
        else:
            body["prompt"] = asked.content
        body["max_tokens"] = asked.output_tokens
        data = request_bytes(self._head, json.dumps(body, separators=(",", ":")).encode())
        return _ReadyRequest(data=data, asked_tokens=asked.output_tokens)

    def _connection(self) -> WireConnection:
        return WireConnection(self._now_s)

    async def _connect(self) -> WireConnection:
        origin, proxy = self._origin, self._share.proxy
        name = origin.host if self._tls else None
        async with asyncio.timeout(CONNECT_LIMIT_S):
            if origin.socket is not None:
                _, connection = await self._loop.create_unix_connection(self._connection, origin.socket)
            elif proxy is not None and origin.tls:
                tunnel = await open_tunnel(proxy, origin.host, origin.port)
                _, connection = await self._loop.create_connection(
                    self._connection, sock=tunnel, ssl=self._tls, server_hostname=name
                )
            else:
                host, port = (origin.host, origin.port) if proxy is None else (proxy.host, proxy.port)
                _, connection = await self._loop.create_connection(
                    self._connection, host, port, ssl=self._tls, server_hostname=name
                )
        return connection

    def _time_is_up(self) -> bool:
        share = self._share
        is_over = share.duration_s is not None and self._now_s() - self._start_s >= share.duration_s
        return self._stopping or self._gave_up is not None or is_over

    async def _closed_loop(self) -> None:
        share, indexes = self._share, self._indexes()  # one iterator: the next free slot takes the next index
        slots: list[asyncio.Task[None]] = []
        for number in range(share.concurrency):
            delay_s = self._start_s + (number * share.workers + share.worker) * RAMP_S - self._now_s()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            slots.append(self._loop.create_task(self._slot(indexes)))
        await asyncio.gather(*slots)

    async def _slot(self, indexes: Iterator[int]) -> None:
        failures = 0
        while not self._time_is_up():
            index = next(indexes, None)
            if index is None:
                return
            record = await self._one(index, None)
            failures = 0 if record.error is None else failures + 1
            if failures:
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])

    def _one(self, index: int, intended_s: float | None) -> Coroutine[Any, Any, RequestRecord]:
        """Send the request with an index, or the session with that number."""
        return self._send(index, intended_s) if self._traffic.turns == 1 else self._session(index, intended_s)

    async def _session(self, number: int, intended_s: float | None) -> RequestRecord:
        """Send the turns of a session one after the other, each with the conversation so far. Return the last one's record.

        In an open loop `intended_s` is when the session arrives, and each further turn is intended the think time after the response
        before it.
        """
        traffic, most_tokens = self._traffic, self._share.source.most_tokens
        messages: list[dict[str, Any]] = []
        held_tokens = 0
        self._sessions += 1
        record: RequestRecord | None = None
        for turn, asked in enumerate(self._maker.session(number)):
            if record is not None:
                await asyncio.sleep(traffic.think_time_s)
                if self._time_is_up():
                    break
            if record is not None and most_tokens is not None:
                # The next message is about as long as the previous one; a longer conversation is only rejected.
                grown = held_tokens + asked.output_tokens + max(1, record.prompt_tokens // (turn * 2))
                if grown > most_tokens:
                    self._sessions_cut += 1
                    break
            request = self._request(number, asked, messages)
            texts: list[str] = []
            due_s = intended_s if record is None or intended_s is None else record.end_s + traffic.think_time_s
            record = await self._send(number * traffic.turns + turn, due_s, request, texts)
            if record.error is not None:
                break
            held_tokens = record.prompt_tokens + record.output_tokens
            messages.append({"role": "user", "content": asked.content})
            messages.append({"role": "assistant", "content": "".join(texts)})
        if record is None:
            raise AssertionError("unreachable: a session has at least one turn")
        return record

    async def _open_loop(self, rate_per_s: float) -> None:
        share = self._share
        total = arrival_count(rate_per_s, share.requests, share.duration_s)
        intended_s = arrivals(rate_per_s, total, share.source.recipe.seed, poisson=share.poisson)
        tasks: set[asyncio.Task[RequestRecord]] = set()
        for number, at_s in enumerate(intended_s):
            if number % share.workers != share.worker:
                continue
            delay_s = self._start_s + at_s - self._now_s()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            elif number % 16 == 0:
                await asyncio.sleep(0)  # already late: catch up, but read responses
            if self._stopping or self._gave_up is not None:
                break
            if len(tasks) >= share.concurrency:
                self._shed += 1
                continue
            task = self._loop.create_task(self._one(share.first_index + number, at_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.gather(*tasks)

    async def _send(
        self,
        index: int,
        intended_s: float | None,
        request: "_ReadyRequest | None" = None,
        texts: list[str] | None = None,
    ) -> RequestRecord:
        """Send one request and wait for its end. Every request yields exactly one record. `texts` receives the response text."""
        request = request or self._ready.pop(index, None) or self._request(index, self._maker.asked(index))
        exchange = await self._exchange(request.data, keep_text=texts is not None)
        if texts is not None:
            texts.append(exchange.text)
        return self._keep(index, intended_s, exchange, request.asked_tokens)

    async def _exchange(self, request: bytes, *, keep_text: bool) -> Exchange:
        """Send one request and return its exchange. Retry once if the connection was stale."""
        for attempt in (0, 1):
            began_s = self._now_s()
            connection = self._take()
            if connection is None:
                try:
                    connection = await self._connect()
                except (OSError, TimeoutError) as error:
                    why = str(error) or f"no connection within {CONNECT_LIMIT_S:.0f} s"
                    return Exchange(sent_s=began_s, end_s=self._now_s(), error="connect", error_detail=why)
            reused = connection.reused
            exchange, done = connection.exchange(request, keep_text=keep_text)
            self._active.add(connection)
            await done
            self._active.discard(connection)
            if connection.usable:
                self._idle.append(connection)
            stale = (
                reused
                and attempt == 0
                and exchange.error in {"reset", "closed"}
                and not exchange.any_bytes
                and exchange.end_s - exchange.sent_s < STALE_AFTER_S
            )
            if not stale or self._stopping:
                return exchange
            self._stale_retries += 1
        raise AssertionError("unreachable: the second attempt always returns")

    def _take(self) -> WireConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _keep(self, index: int, intended_s: float | None, exchange: Exchange, asked_tokens: int) -> RequestRecord:
        if exchange.any_bytes:
            self._failures_in_a_row = 0
        elif exchange.error in {"connect", "reset", "closed"}:
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= GIVE_UP_AFTER:
                self._gave_up = exchange.error
        self._simulated = self._simulated or exchange.simulated
        start_s, usage = self._start_s, exchange.usage
        error, detail = judge(exchange)
        sent_s = exchange.sent_s - start_s
        record = RequestRecord(
            index=index,
            intended_s=sent_s if intended_s is None else intended_s,
            sent_s=sent_s,
            end_s=exchange.end_s - start_s,
            times_s=array("d", [at_s - start_s for at_s in exchange.times_s]),
            prompt_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else None,
            error=error,
            error_detail=detail[:300],
            asked_tokens=asked_tokens,
            silent=exchange.silent,
            closing_s=exchange.closing_s - start_s if exchange.closing_s else 0.0,
        )
        self._records.append(record)
        return record

    async def _watch(self) -> None:
        """Abort requests that exceed the request timeout or the stall timeout."""
        share = self._share
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            at_s = self._now_s()
            for connection in list(self._active):
                since = connection.waiting_since()
                if since is None:
                    continue
                sent_s, last_byte_s, answered = since
                if at_s - sent_s > share.request_timeout_s:
                    connection.abort("timeout", f"not complete within {share.request_timeout_s:g} s")
                elif at_s - last_byte_s > share.stall_timeout_s:
                    when = "during the response" if answered else "before the first token"
                    connection.abort("stall", f"no byte for {share.stall_timeout_s:g} s {when}; see --stall-timeout")


def judge(exchange: Exchange) -> tuple[str | None, str]:
    """Return the kind of failure of a finished exchange and its message, or None for a complete response with usage."""
    if exchange.error is not None:
        return exchange.error, exchange.error_detail
    if not exchange.finished:
        return "closed", "the stream ended without [DONE] or a finish_reason"
    if exchange.usage is None:
        return "missing_usage", "the server stated no usage, so its tokens cannot be counted"
    if not exchange.times_s or exchange.usage.completion_tokens == 0:
        return "empty", "the response contained no token"
    return None, ""
