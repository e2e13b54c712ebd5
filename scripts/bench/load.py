"""Generate one worker's share of a point's load.

Closed loop: a fixed number of slots, each with a connection of its own, each sending its next request when the last is answered.
Open loop: requests leave at times drawn beforehand, whatever the server does; their latency counts from the intended time, so that a
late client makes the server look worse and never better.
"""

import asyncio
import gc
import json
import random
import ssl
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from scripts.bench.lag import LagSampler
from scripts.bench.prompts import PromptMaker, Recipe
from scripts.bench.records import RequestRecord, WorkerResult
from scripts.client.wire import Exchange, Origin, WireConnection, now_s, request_bytes, request_head

WATCH_PERIOD_S: Final = 0.25
CONNECT_LIMIT_S: Final = 30.0
CONNECTS_AT_ONCE: Final = 128
"""New connections opened at the same time before the start. A server's backlog is often 128."""
STALE_AFTER_S: Final = 1.0
"""If a reused connection ends this soon without a byte, the server had closed it while it was idle."""
GIVE_UP_AFTER: Final = 20
"""Consecutive failed connections after which the server counts as gone."""
RAMP_S: Final = 0.0001
"""Delay between the first requests of two slots of a closed loop. A thousand simultaneous requests would wait for one another in the
server's accept loop, and their time to first token would measure that."""
PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses of a slot after consecutive failures, so that a refusing server is not overloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One worker's share of one point. Worker `worker` of `workers` sends the requests whose index leaves that remainder."""

    url: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, object]
    """Body of the request without its prompt."""
    recipe: Recipe
    first_index: int
    """Index of the point's first request. Warm-up and measurement use different indexes."""
    worker: int
    workers: int
    concurrency: int
    """Slots of this worker (closed loop), or most requests of this worker in flight (open loop)."""
    rate_per_s: float | None
    """Requests per second of all workers together; None for a closed loop."""
    poisson: bool
    requests: int | None
    duration_s: float | None
    request_limit_s: float
    stall_limit_s: float


def arrivals(rate_per_s: float, seed: int, *, poisson: bool) -> Iterator[float]:
    """Yield the intended send times of an open loop without end, in seconds from the start. All workers draw the same times."""
    rng = random.Random(seed)  # noqa: S311 - filler text and load patterns, no secret
    at_s = 0.0
    while True:
        yield at_s
        at_s += rng.expovariate(rate_per_s) if poisson else 1 / rate_per_s


class LoadGenerator:
    """Run one share. `prepare` opens connections and makes the first prompts; `run` starts at a given time."""

    def __init__(self, share: Share, loop: asyncio.AbstractEventLoop) -> None:
        self._share = share
        self._loop = loop
        self._origin = Origin.of(share.url)
        self._head = request_head(self._origin, share.path, share.headers)
        self._maker = PromptMaker(share.recipe)
        self._tls = ssl.create_default_context() if self._origin.tls else None
        self._idle: list[WireConnection] = []
        self._active: set[WireConnection] = set()
        self._ready: dict[int, bytes] = {}
        self._records: list[RequestRecord] = []
        self._start_s = 0.0
        self._failures_in_a_row = 0
        self._gave_up: str | None = None
        self._stopping = False
        self._stale_retries = 0
        self._shed = 0
        self._simulated = False

    @property
    def finished(self) -> int:
        """Requests that have ended."""
        return len(self._records)

    @property
    def in_flight(self) -> int:
        """Requests in flight."""
        return len(self._active)

    def stop(self) -> None:
        """Send no more requests and end those in flight."""
        self._stopping = True
        for connection in list(self._active):
            connection.abort("aborted", "the point was ended before the answer was complete")

    async def prepare(self) -> None:
        """Open connections and make prompts, so that the measurement does not include either."""
        share = self._share
        for index in self._indexes():
            if len(self._ready) >= share.concurrency * 2:
                break
            self._ready[index] = self._request(index)
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
        sampler = LagSampler(self._loop)
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection during a measurement would delay all times
        await asyncio.sleep(max(0.0, start_s - now_s()))
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
            wall_s, cpu_s = now_s() - start_s, time.process_time() - cpu_s
            gc.enable()
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
        )

    def _indexes(self) -> Iterator[int]:
        share = self._share
        last = None if share.requests is None else share.first_index + share.requests
        for index in count(share.first_index + share.worker, share.workers):
            if last is not None and index >= last:
                return
            yield index

    def _request(self, index: int) -> bytes:
        share = self._share
        prompt = self._maker.prompt(index)
        body: dict[str, Any] = dict(share.body)
        if share.path.endswith("/chat/completions"):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        return request_bytes(self._head, json.dumps(body, separators=(",", ":")).encode())

    async def _connect(self) -> WireConnection:
        async with asyncio.timeout(CONNECT_LIMIT_S):
            _, connection = await self._loop.create_connection(
                WireConnection,
                self._origin.host,
                self._origin.port,
                ssl=self._tls,
                server_hostname=self._origin.host if self._tls else None,
            )
        return connection

    def _time_is_up(self) -> bool:
        share = self._share
        return self._stopping or self._gave_up is not None or (
            share.duration_s is not None and now_s() - self._start_s >= share.duration_s
        )  # fmt: skip

    async def _closed_loop(self) -> None:
        share, indexes = self._share, self._indexes()  # one iterator: the next free slot takes the next index
        slots: list[asyncio.Task[None]] = []
        for number in range(share.concurrency):
            delay_s = self._start_s + (number * share.workers + share.worker) * RAMP_S - now_s()
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
            record = await self._send(index, None)
            failures = 0 if record.error is None else failures + 1
            if failures:
                await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])

    async def _open_loop(self, rate_per_s: float) -> None:
        share = self._share
        last = None if share.requests is None else share.requests
        tasks: set[asyncio.Task[RequestRecord]] = set()
        for number, at_s in enumerate(arrivals(rate_per_s, share.recipe.seed, poisson=share.poisson)):
            if (last is not None and number >= last) or (share.duration_s is not None and at_s >= share.duration_s):
                break
            if number % share.workers != share.worker:
                continue
            delay_s = self._start_s + at_s - now_s()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            elif number % 16 == 0:
                await asyncio.sleep(0)  # already late: catch up, but read answers
            if self._stopping or self._gave_up is not None:
                break
            if len(tasks) >= share.concurrency:
                self._shed += 1
                continue
            task = self._loop.create_task(self._send(share.first_index + number, at_s))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        if tasks:
            await asyncio.gather(*tasks)

    async def _send(self, index: int, intended_s: float | None) -> RequestRecord:
        """Send one request and wait for its end. Every request gives exactly one record."""
        request = self._ready.pop(index, None) or self._request(index)
        for attempt in (0, 1):
            began_s = now_s()
            connection = self._take()
            connect_s = 0.0
            if connection is None:
                try:
                    connection = await self._connect()
                except (OSError, TimeoutError) as error:
                    why = str(error) or f"no connection within {CONNECT_LIMIT_S:.0f} s"
                    at_s = now_s()
                    return self._keep(
                        index, intended_s, 0.0, Exchange(sent_s=at_s, end_s=at_s, error="connect", error_detail=why)
                    )
                connect_s = now_s() - began_s
            reused = connection.reused
            exchange, done = connection.exchange(request)
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
                return self._keep(index, intended_s, connect_s, exchange)
            self._stale_retries += 1
        raise AssertionError("unreachable: the second attempt always gives a record")

    def _take(self) -> WireConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _keep(self, index: int, intended_s: float | None, connect_s: float, exchange: Exchange) -> RequestRecord:
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
            connect_s=connect_s,
            end_s=exchange.end_s - start_s,
            times_s=array("d", [at_s - start_s for at_s in exchange.times_s]),
            prompt_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else None,
            error=error,
            error_detail=detail[:300],
        )
        self._records.append(record)
        return record

    async def _watch(self) -> None:
        """End requests that exceed the request limit or the stall limit."""
        share = self._share
        while True:
            await asyncio.sleep(WATCH_PERIOD_S)
            at_s = now_s()
            for connection in list(self._active):
                since = connection.waiting_since()
                if since is None:
                    continue
                sent_s, last_byte_s, answered = since
                if at_s - sent_s > share.request_limit_s:
                    connection.abort("timeout", f"not complete within {share.request_limit_s:g} s")
                elif answered and at_s - last_byte_s > share.stall_limit_s:
                    connection.abort("stall", f"no byte for {share.stall_limit_s:g} s during the answer")


def judge(exchange: Exchange) -> tuple[str | None, str]:
    """Return the kind of failure of a finished exchange and its message; None for a complete answer with usage."""
    if exchange.error is not None:
        return exchange.error, exchange.error_detail
    if not exchange.finished:
        return "closed", "the stream ended without [DONE] or a finish_reason"
    if exchange.usage is None:
        return "missing_usage", "the server stated no usage, so its tokens cannot be counted"
    if not exchange.times_s:
        return "empty", "the answer held no output"
    return None, ""
