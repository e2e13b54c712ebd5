"""A docker that does not respond is no fault of the document: the agent waits in virtual time, and uses up nothing."""

from collections.abc import Callable

import pytest

from gemma_serving.contracts.guest_attributes import RESTORING, RETRYING, WAITING_FOR_DOCKER
from gemma_serving.contracts.rollout import RolloutLimits
from gemma_serving.vm_agent.stored_state import AgentPacing, Probation, StoredState
from localcloud.running.shims.docker import NO_DAEMON
from localcloud.running.shims.machine import read_json
from tests.polling import until
from tests.vm_agent.conftest import VirtualClock
from tests.vm_agent.in_process import Serving, calls, written
from tests.vm_agent.machine import Machine

REAL = AgentPacing()


@pytest.fixture
def serving(machine: Machine, clock: VirtualClock):
    serving = Serving(
        machine,
        restart_delays_s=REAL.restart_delays_s,
        prepare_delays_s=REAL.prepare_delays_s,
        trial_delays_s=REAL.trial_delays_s,
        probation_s=10**9,
    )
    serving.agent.publisher.progress_s = 2.0
    return serving


class Outage:
    """A daemon that is gone, for some virtual time. One that was stopped has stopped the server too."""

    def __init__(self, serving: Serving, machine: Machine, clock: VirtualClock) -> None:
        self.serving, self.file, self.clock, self.back_s = serving, machine.vm.stopped_docker, clock, 0.0
        self.file.touch()

    def lasts(self, seconds: float) -> None:
        self.back_s = self.clock.now() + seconds
        self.clock.at(self.back_s, self.file.unlink)


def first_start(_serving: Serving) -> None:
    """Nothing has served yet."""


def is_on_probation(serving: Serving) -> None:
    serving.good()
    serving.serves("--max-num-seqs=4")


@pytest.mark.parametrize("away_s", [10.0, 180.0, 1800.0])
@pytest.mark.parametrize("before", [first_start, Serving.good, is_on_probation])
def test_an_outage_is_waited_for_and_uses_up_nothing(
    serving: Serving, machine: Machine, clock: VirtualClock, before: Callable[[Serving], object], away_s: float
):
    before(serving)
    asked, former, starts = machine.guest().get("document-hash", ""), StoredState().back, StoredState().probation
    ran = len(calls(machine, "run")) if former else 0
    outage = Outage(serving, machine, clock)
    if former:
        serving.server_ends(0)
    else:
        asked = serving.ask()
    serving.sees(WAITING_FOR_DOCKER, asked, "")
    assert machine.guest()["detail"].endswith(f"docker does not respond: {NO_DAEMON}")
    outage.lasts(away_s)
    serving.sees("ready", asked, asked)
    assert clock.now() < outage.back_s + 60, "it comes back when docker does"
    assert len(calls(machine, "run")) == ran + 1
    assert {"failed", RETRYING, RESTORING} & set(written(machine, "phase")) == set()
    assert serving.agent.publisher.restarts == 0
    assert (StoredState().back, StoredState().probation, StoredState().failed) == (
        former or StoredState().good,
        starts,
        None,
    )


def test_an_outage_that_begins_when_the_server_is_started_is_waited_for(
    serving: Serving, machine: Machine, clock: VirtualClock
):
    hangs = machine.root / "hang-run"
    hangs.touch()
    asked = serving.ask()
    machine.until((machine.root / "docker.log").exists, "docker is asked")
    machine.until(lambda: calls(machine, "run"), "the server is about to start")
    outage = Outage(serving, machine, clock)
    hangs.unlink()
    serving.sees(WAITING_FOR_DOCKER, asked, "")
    outage.lasts(180.0)
    serving.sees("ready", asked, asked)
    assert {"failed", RETRYING} & set(written(machine, "phase")) == set()


def test_every_outage_is_waited_for_however_many_there_are(serving: Serving, machine: Machine, clock: VirtualClock):
    """More of them than a document on probation has starts."""
    is_on_probation(serving)
    asked = machine.guest()["document-hash"]
    for number in range(2 * len(REAL.probation_delays_s)):
        outage = Outage(serving, machine, clock)
        serving.server_ends(0)
        serving.sees(WAITING_FOR_DOCKER, asked, "")
        outage.lasts(180.0)
        serving.sees("ready", asked, asked)
        assert len(calls(machine, "run")) == 3 + number
    assert "failed" not in written(machine, "phase")


def test_a_server_that_ends_by_itself_after_an_outage_uses_up_its_starts(
    serving: Serving, machine: Machine, clock: VirtualClock
):
    is_on_probation(serving)
    asked, good = machine.guest()["document-hash"], serving.agent.stored.documents()[1].text_hash
    outage = Outage(serving, machine, clock)
    serving.server_ends(0)
    serving.sees(WAITING_FOR_DOCKER, asked, "")
    outage.lasts(10.0)
    for number in range(2, 6):
        machine.until(lambda: written(machine, "serving-hash").count(asked) == number, f"start {number} is ready")  # noqa: B023 - it is called here
        serving.server_ends()
    serving.sees("failed", asked, good)


def test_the_time_of_a_change_does_not_pass_during_an_outage(serving: Serving, machine: Machine, clock: VirtualClock):
    serving.good()
    outage = Outage(serving, machine, clock)
    serving.server_ends(0)
    newer = serving.ask("--max-num-seqs=4", limits=RolloutLimits(ready_timeout_s=60.0))
    serving.sees(WAITING_FOR_DOCKER, newer, "")
    outage.lasts(1800.0)
    serving.sees("ready", newer, newer)
    assert "failed" not in written(machine, "phase")


def test_a_server_that_outlives_its_daemon_serves_until_the_next_one_ends_it(
    serving: Serving, machine: Machine, clock: VirtualClock
):
    is_on_probation(serving)
    asked, starts = machine.guest()["document-hash"], StoredState().probation
    outage = Outage(serving, machine, clock)
    machine.until(lambda: serving.agent._docker_left, "the agent notices it")
    assert machine.guest()["phase"] == "ready"

    def come_back() -> None:
        serving.server_ends()
        until(lambda: not (read_json(machine.vm.record("gemma-serving")) or {})["running"], "the server has ended")
        outage.file.unlink()

    clock.at(clock.now(), come_back)
    machine.until(lambda: len(calls(machine, "run")) == 3, "it is started again")
    serving.sees("ready", asked, asked)
    assert {"failed", RETRYING} & set(written(machine, "phase")) == set()
    assert StoredState().probation == starts


def test_a_daemon_that_starts_after_the_agent_excuses_no_document_that_took_the_machine_down(
    serving: Serving, machine: Machine, clock: VirtualClock
):
    is_on_probation(serving)
    bad, good = machine.guest()["document-hash"], serving.agent.stored.documents()[1].text_hash
    serving.let_go()
    serving.server_ends()
    state = StoredState()
    assert state.probation is not None
    state.probation = Probation(state.probation.ready, starts=1 + len(REAL.probation_delays_s))
    state.write()
    outage, rebooted = Outage(serving, machine, clock), Serving(machine)
    rebooted.port = serving.port
    assert rebooted.ask("--max-num-seqs=4") == bad
    rebooted.sees(WAITING_FOR_DOCKER, bad, "")
    outage.lasts(10.0)
    rebooted.sees("failed", bad, good)
