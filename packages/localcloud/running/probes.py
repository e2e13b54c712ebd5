"""Cloud Run's startup and readiness probes: real requests to the server, with delays and periods on the accelerated clock."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from localcloud.json_values import as_object
from localcloud.running.processes import PlannedStart
from localcloud.world.timeline import Clock

_LEAST_TIMEOUT_S: Final = 1.0
"""Minimum timeout of a probe in real seconds. A shorter, accelerated timeout measures this machine, not the server."""
_LEAST_PERIOD_S: Final = 0.05
"""Minimum pause between readiness probes in real seconds, so a fast clock does not keep a core busy."""
_LAG_LIMIT_S: Final = 10.0
"""Real seconds to wait for a server that is ready according to its own plan. This machine causes the delay."""
_LAG_POLL_S: Final = 0.02
_OK: Final = range(200, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A startup probe. Times in simulated seconds; `path` is None for TCP."""

    port: int
    path: str | None
    initial_delay_s: float
    period_s: float
    timeout_s: float
    failure_threshold: int

    @property
    def budget_s(self) -> float:
        """Return the maximum duration of a start in simulated seconds. Cloud Run documents the delay plus failureThreshold x period."""
        return self.initial_delay_s + self.failure_threshold * self.period_s


def read_probe(given: Mapping[str, Any] | None, container_port: int) -> Probe:
    """Read the startup probe of a run.v2 container. Without one, return Cloud Run's documented default: one TCP attempt of 240 s."""
    if not given:
        return Probe(
            port=container_port, path=None, initial_delay_s=0, period_s=240, timeout_s=240, failure_threshold=1
        )
    http = as_object(given["httpGet"]) if "httpGet" in given else None
    action = as_object(given.get("tcpSocket")) if http is None else http
    return Probe(
        port=int(action.get("port") or container_port),
        path=None if http is None else str(http.get("path") or "/"),
        initial_delay_s=float(given.get("initialDelaySeconds") or 0),
        period_s=float(given.get("periodSeconds") or 10),
        timeout_s=float(given.get("timeoutSeconds") or 1),
        failure_threshold=int(given.get("failureThreshold") or 3),
    )


async def passes(probe: Probe, *, clock: Clock, port: int, planned: PlannedStart) -> bool:
    """Probe until an attempt succeeds (True) or `failure_threshold` attempts have failed (False).

    `port` is the real port of the server. A probe of a port other than the container's fails, as it does in the container. So does
    every probe of a start that exceeds the probe's budget: on a busy machine, the last attempt may come after the real start.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    reachable = probe.port == planned.port and planned.start_s <= probe.budget_s
    for attempt in range(probe.failure_threshold):
        due = started + clock.real_s(probe.initial_delay_s + attempt * probe.period_s)
        await asyncio.sleep(max(0.0, due - loop.time()))
        if reachable and await _attempt(probe, clock, port):
            return True
    end = started + clock.real_s(probe.budget_s)
    if not reachable:
        await asyncio.sleep(max(0.0, end - loop.time()))
        return False
    deadline = max(loop.time(), end) + _LAG_LIMIT_S
    while loop.time() < deadline:
        if await _attempt(probe, clock, port):
            return True
        await asyncio.sleep(_LAG_POLL_S)
    return False


async def watch(probe: Probe, *, clock: Clock, port: int, report: Callable[[bool], None]) -> None:
    """Probe a started server indefinitely and report whether it is ready: not after `failure_threshold` failed attempts, ready after one response."""
    failed = 0
    while True:
        await asyncio.sleep(max(clock.real_s(probe.period_s), _LEAST_PERIOD_S))
        failed = 0 if await _attempt(probe, clock, port) else failed + 1
        if failed in {0, probe.failure_threshold}:
            report(failed == 0)


async def _attempt(probe: Probe, clock: Clock, port: int) -> bool:
    timeout_s = max(_LEAST_TIMEOUT_S, clock.real_s(probe.timeout_s))
    with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                if probe.path is None:
                    return True
                writer.write(
                    f"GET {probe.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: GoogleHC/1.0\r\nConnection: close\r\n\r\n".encode()
                )
                status = await reader.readline()
                return int(status.split()[1]) in _OK
            except IndexError:
                return False
            finally:
                writer.close()
    return False
