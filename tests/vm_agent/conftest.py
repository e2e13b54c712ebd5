"""An agent that runs in a thread of a test ends with the test, before the machine that it talks to is gone."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from contracts.serving_document import ServingDocument
from tests.vm_agent.docker import Threads, in_threads
from tests.vm_agent.in_process import Serving
from tests.vm_agent.machine import Machine
from vm_agent import cloud, containers, publishing
from vm_agent.compile_cache import CompiledPrograms
from vm_agent.follow import LatestDocument
from vm_agent.serving import Agent

LIMIT_S = 60.0
SLICE_S = 0.1


@pytest.fixture(autouse=True)
def agents_end_with_their_test(monkeypatch: pytest.MonkeyPatch):
    """Let every wait of an agent end its thread once the test is over: the agent itself serves for ever."""
    over, threads, caches = threading.Event(), list[threading.Thread](), list[CompiledPrograms]()
    run, wait, close, archive = (
        Agent.run,
        LatestDocument.wait_for_newer,
        Machine.close,
        CompiledPrograms.server_is_ready,
    )

    def running(agent: Agent) -> None:
        threads.append(threading.current_thread())
        with suppress(SystemExit):
            run(agent)

    def archiving(cache: CompiledPrograms, served: ServingDocument) -> threading.Thread:
        caches.append(cache)
        threads.append(archive(cache, served))
        return threads[-1]

    def waiting(latest: LatestDocument, version: int, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not over.is_set():
            left_s = end - time.monotonic()
            if wait(latest, version, max(0.0, min(left_s, SLICE_S))) or left_s <= 0:
                return latest.get()[0] > version
        raise SystemExit

    def closing(machine: Machine) -> None:
        over.set()
        for cache in caches:
            cache.stop()
        for thread in threads:
            thread.join(LIMIT_S)
        close(machine)
        assert not [thread for thread in threads if thread.is_alive()]

    monkeypatch.setattr(Agent, "run", running)
    monkeypatch.setattr(LatestDocument, "wait_for_newer", waiting)
    monkeypatch.setattr(CompiledPrograms, "server_is_ready", archiving)
    monkeypatch.setattr(Machine, "close", closing)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The machine of an agent in this process: its docker and its servers run in this process too."""
    machine, servers = Machine(tmp_path), Threads()
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    for module in (containers, publishing):
        monkeypatch.setattr(module, "subprocess", in_threads(tmp_path, servers))
    yield machine
    machine.close()
    servers.close()


@pytest.fixture
def serving(machine: Machine):
    serving = Serving(machine)
    yield serving
    serving.let_go()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Between attempts to call Google nothing waits; returns how long it would have been."""
    waited: list[float] = []
    monkeypatch.setattr(cloud, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waited.append))
    return waited
