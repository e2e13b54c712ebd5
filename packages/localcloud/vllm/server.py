"""The server process: parses the command line, simulates the start, then serves until SIGTERM."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from aiohttp import web

from localcloud.open_files import raise_open_files
from localcloud.vllm import KILLED_MARK, PLANNED_MARK, parent_watch, places, settings
from localcloud.vllm.app import VllmApi
from localcloud.vllm.arguments import ArgumentError, Arguments, given_arguments, parse
from localcloud.vllm.boot import KilledError, Start, StartupStep, plan
from localcloud.vllm.faults import FaultError, PlantedFaults
from localcloud.vllm.middleware import Middleware
from localcloud.vllm.refusals import EngineStartError
from localcloud.vllm.settings import RuntimeEnvironment

_BACKLOG: Final = 2048
_CLOSE_LIMIT_S: Final = 1.0
"""Seconds in which an aborted request's last bytes are written."""


def _log(line: str, *, level: str = "INFO") -> None:
    stamp = datetime.now().astimezone().strftime("%m-%d %H:%M:%S")
    print(f"(APIServer pid=1) {level} {stamp} {line}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Run the server. Returns vLLM's exit codes: 2 for a wrong command line, 1 for a failed start, 0 after SIGTERM."""
    try:
        environment = settings.read(os.environ)
        if list(argv[:2]) == ["hf", "download"]:
            return places.download(argv[2:], environment)
        parent_watch.hold(environment.lifeline)
        raise_open_files()
        faults = PlantedFaults(environment.faults)
        arguments = parse(argv)
        start = plan(arguments, environment)
        listener = _bind(arguments, environment)
    except (settings.VariableError, FaultError) as error:
        print(f"localcloud.vllm: {error}", file=sys.stderr)
        return 2
    except (ArgumentError, EngineStartError) as error:
        _traceback(str(error))
        return 1
    except OSError as error:
        _traceback(f"OSError: [Errno {error.errno}] {error.strerror}")
        return 1
    print(
        f"{PLANNED_MARK} port {arguments.port}, {start.total_s:.1f} simulated seconds at {environment.clock_speed:g} per second. "
        "This is not vLLM: no model is loaded, and the answers are marked as simulated.",
        flush=True,
    )
    # vLLM logs its arguments, keys included.
    _log(f"[utils.py:1] non-default args: {given_arguments(arguments)}")
    # vLLM binds its port first and listens on it last, so a connection is rejected until the engine is up.
    with listener:
        try:
            return asyncio.run(_run(arguments, environment, start, faults, listener))
        except KeyboardInterrupt:
            return 0


def _traceback(message: str) -> None:
    print("Traceback (most recent call last):\n  ...\n" + message, file=sys.stderr, flush=True)


def _bind(arguments: Arguments, environment: RuntimeEnvironment) -> socket.socket:
    host = environment.bind_host or arguments.host or "127.0.0.1"
    if not environment.bind_host and host in ("0.0.0.0", "::", ""):
        # Never expose the simulation: replace an address for all interfaces by the loopback address.
        host = "127.0.0.1"
    port = arguments.port if environment.bind_port is None else environment.bind_port
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


async def _run(
    arguments: Arguments, environment: RuntimeEnvironment, start: Start, faults: PlantedFaults, listener: socket.socket
) -> int:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if not await _start(start, environment, stopped):
        return 0 if stopped.is_set() else 1
    assert start.capacity is not None  # noqa: S101 - a start without an error has a capacity
    assert start.model is not None  # noqa: S101
    try:
        # vLLM creates its application when the engine is up, so a wrong path fails equally late.
        middleware = Middleware(arguments.middleware, environment.python_path)
    except ArgumentError as error:
        _traceback(str(error))
        return 1
    loaded = (start.model, start.capacity)
    api = VllmApi(arguments, environment, start, loaded=loaded, faults=faults, middleware=middleware)
    close_s = arguments.shutdown_timeout + _CLOSE_LIMIT_S
    runner = web.AppRunner(api.application(), handler_cancellation=True, access_log=None, shutdown_timeout=close_s)
    await runner.setup()
    site = web.SockSite(runner, listener, backlog=_BACKLOG)
    _log(f"[api_server.py:1] Starting vLLM API server 0 on http://{arguments.host or '0.0.0.0'}:{arguments.port}")
    await site.start()
    print(f"[simulated] listening on port {listener.getsockname()[1]}", flush=True)
    print("INFO:     Started server process [1]", flush=True)
    print("INFO:     Waiting for application startup.", flush=True)
    print("INFO:     Application startup complete.", flush=True)
    await stopped.wait()
    print("INFO:     Shutting down", flush=True)
    loop.call_later(arguments.shutdown_timeout, api.slots.end_all)
    await runner.cleanup()  # rejects new connections, and waits for running requests
    print("INFO:     Waiting for application shutdown.", flush=True)
    print("INFO:     Application shutdown complete.", flush=True)
    return 0


async def _start(start: Start, environment: RuntimeEnvironment, stopped: asyncio.Event) -> bool:
    """Run the steps of the start. Return True if the engine is up."""
    started = time.monotonic()
    for step in start.steps:
        left = step.at_s / environment.clock_speed - (time.monotonic() - started)
        if left > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), left)
        if stopped.is_set() or not _take(step):
            return False
    return True


def _take(step: StartupStep) -> bool:
    """Log one step and write its cache file. Return False if the step fails."""
    if step.line.startswith("[simulated]"):
        print(step.line, flush=True)
    elif step.line and not step.line.startswith("["):  # a progress bar, which vLLM's logger does not write
        print(step.line, file=sys.stderr, flush=True)
    elif step.line:
        _log(step.line)
    if step.cache_file is not None:
        step.cache_file.parent.mkdir(parents=True, exist_ok=True)
        step.cache_file.write_text("content of the real server's cache\n", encoding="utf-8")
    if isinstance(step.error, KilledError):
        print(f"{KILLED_MARK} {step.error.used_mib} MiB used", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if step.error is not None:
        _log("[core.py:1] EngineCore failed to start.", level="ERROR")
        _traceback(str(step.error))
        return False
    return True
