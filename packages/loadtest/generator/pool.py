"""Start and control of the load generator's processes."""

import asyncio
import contextlib
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Self

from loadtest.client.wire import now_s
from loadtest.generator.load import Share
from loadtest.records import FRAME, Progress, Ready, StartLoad, StopLoad, WorkerResult, packed, unpacked

HOME: Final = Path(__file__).resolve().parents[len((__package__ or "").split("."))]
"""Folder in which Python finds this package."""
READY_LIMIT_S: Final = 180.0
"""Timeout for opening several thousand TLS connections and creating their first prompts."""
START_DELAY_S: Final = 0.05
"""Delay before the first request, so all workers start together."""
CLOSE_LIMIT_S: Final = 3.0
STOP_LIMIT_S: Final = 45.0
"""Timeout for aborting requests in flight. Opening a connection takes at most 30 s."""
STREAMS_PER_WORKER: Final = 512
"""Streams per worker. A worker handles about 50,000 events per second; 512 streams at 50 tokens per second are half of that."""

ShowProgress = Callable[[int, int], None]
"""Receives the number of finished requests and of requests in flight."""


class WorkerError(Exception):
    """A process of the load generator exited or did not respond."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def client_machine() -> dict[str, Any]:
    """Return system, architecture, processor, usable cores, Python, and the load average of the last minute; None if unknown.

    Nothing in them identifies a user or a host.
    """
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str | None:
    """Return the name of the processor; None if the system does not report it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def workers_for(streams: int, cores: int) -> int:
    """Return the number of processes for concurrent streams: one per STREAMS_PER_WORKER, at most one per core."""
    return max(1, min(cores, -(-streams // STREAMS_PER_WORKER)))


def raise_open_files_limit() -> None:
    """Raise this process's limit of open files to the hard limit. The usual default is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports a hard limit that it then refuses
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int | None:
    """Return the hard limit of open files, or None if none exists."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


class _Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.finished = 0
        self.in_flight = 0

    async def send(self, message: object) -> None:
        stdin = self.process.stdin
        if stdin is None:
            raise WorkerError("a worker has no input")
        stdin.write(packed(message))
        try:
            await stdin.drain()
        except (ConnectionError, BrokenPipeError) as error:
            raise WorkerError("a process of the load generator exited unexpectedly") from error

    async def receive(self) -> object:
        stdout = self.process.stdout
        if stdout is None:
            raise WorkerError("a worker has no output")
        try:
            (size,) = FRAME.unpack(await stdout.readexactly(FRAME.size))
            return unpacked(await stdout.readexactly(size))
        except asyncio.IncompleteReadError as error:
            raise WorkerError("a process of the load generator exited unexpectedly") from error

    async def ended(self) -> None:
        """Wait until the process has exited. Its unread output is discarded.

        With a full pipe the process cannot exit, and an open pipe outlives the event loop, which then prints "Event loop is closed".
        """
        if self.process.stdout is not None:
            while await self.process.stdout.read(1 << 20):
                pass
        await self.process.wait()


class WorkerPool:
    """Processes that are started when needed and reused for the next point. Use it as an asynchronous context manager."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop all processes, by force if necessary."""
        workers, self._workers = self._workers, []
        for worker in workers:
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        for worker in workers:
            try:
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await worker.ended()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.kill()
                await worker.ended()

    async def _grow(self, count: int) -> None:
        while len(self._workers) < count:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"{__package__}.worker",
                stdin=asyncio.subprocess.PIPE,
                process_group=0,  # Ctrl-C of the terminal reaches only the parent, which stops its workers
                stdout=asyncio.subprocess.PIPE,
                cwd=HOME,
            )
            self._workers.append(_Worker(process))

    async def run(self, shares: Sequence[Share], *, limit_s: float, progress: ShowProgress) -> list[WorkerResult]:
        """Run one point with one worker per share. After `limit_s` seconds the remaining requests are aborted and reported.

        Raises WorkerError if a process exited unexpectedly. A cancellation stops all processes and loses their data about the point.
        """
        await self._grow(len(shares))
        workers = self._workers[: len(shares)]
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                await asyncio.gather(
                    *(self._prepare(worker, share) for worker, share in zip(workers, shares, strict=True))
                )
        except TimeoutError as error:
            await self.close()
            raise WorkerError(f"the load generator was not ready within {READY_LIMIT_S:.0f} s") from error
        start_s = now_s() + START_DELAY_S
        results = [asyncio.ensure_future(self._result(worker, workers, progress)) for worker in workers]
        for result in results:
            result.add_done_callback(_look)
        try:
            for worker in workers:
                await worker.send(StartLoad(start_s))
            done = await _all_done(results, limit_s)
            if not done:
                for worker in workers:
                    await worker.send(StopLoad())
                done = await _all_done(results, STOP_LIMIT_S)
            if not done:
                raise WorkerError(f"the load generator did not stop within {STOP_LIMIT_S:.0f} s")  # noqa: TRY301 - it is cleaned up like the others
            return [result.result() for result in results]
        except (asyncio.CancelledError, WorkerError):
            for result in results:
                result.cancel()
            await asyncio.gather(*results, return_exceptions=True)
            await self.close()
            raise

    @staticmethod
    async def _prepare(worker: _Worker, share: Share) -> None:
        await worker.send(share)
        answer = await worker.receive()
        if not isinstance(answer, Ready):
            raise WorkerError(f"the load generator sent {answer!r} instead of ready")
        worker.finished = worker.in_flight = 0

    @staticmethod
    async def _result(worker: _Worker, workers: Sequence[_Worker], progress: ShowProgress) -> WorkerResult:
        while not isinstance(message := await worker.receive(), WorkerResult):
            if isinstance(message, Progress):
                worker.finished, worker.in_flight = message.finished, message.in_flight
            progress(sum(w.finished for w in workers), sum(w.in_flight for w in workers))
        return message


def _look(result: "asyncio.Future[WorkerResult]") -> None:
    """Retrieve a failure, because asyncio prints one that was never retrieved, and a signal can end the point first."""
    if not result.cancelled():
        result.exception()


async def _all_done(results: Sequence["asyncio.Future[WorkerResult]"], limit_s: float) -> bool:
    """Wait at most `limit_s` seconds until all results have arrived or one has failed. Raises the failure."""
    done, pending = await asyncio.wait(results, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
    for result in done:
        result.result()
    return not pending
