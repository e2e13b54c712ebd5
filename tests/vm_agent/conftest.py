"""The machine of an agent that runs in threads of a test, in virtual time. The agent ends with its test."""

from pathlib import Path

import pytest

from gemma_serving.vm_agent import containers, publishing
from gemma_serving.vm_agent.clock import AgentClock
from tests.clock import ThreadClock
from tests.vm_agent.docker import in_threads
from tests.vm_agent.in_process import Serving
from tests.vm_agent.machine import Machine


class VirtualClock(ThreadClock, AgentClock):
    """The clock of an agent in threads."""


class Unwaited(AgentClock):
    """A clock on which nothing waits, for pauses between requests, also those of threads of a pool."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


@pytest.fixture
def clock():
    clock = VirtualClock()
    yield clock
    clock.close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: VirtualClock):
    """The machine of an agent in this process: its docker and its servers run in this process too."""
    machine = Machine(tmp_path, clock=clock, requests=Unwaited())
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    for module in (containers, publishing):
        monkeypatch.setattr(module, "subprocess", in_threads(machine.docker, clock))
    yield machine
    clock.close()
    machine.close()


@pytest.fixture
def serving(machine: Machine):
    return Serving(machine)


@pytest.fixture
def waits(machine: Machine) -> list[float]:
    """Return the list of the pauses between requests, in seconds. None of them takes time."""
    assert isinstance(machine.requests, Unwaited)
    return machine.requests.waited
