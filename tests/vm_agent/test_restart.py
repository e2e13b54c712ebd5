"""A requested restart: a new nonce in the metadata restarts the server of the same document, once, and drains it first."""

from types import SimpleNamespace

import pytest

from gemma_serving.contracts.guest_attributes import IDLE_SINCE_KEY, NOT_IDLE
from gemma_serving.contracts.rollout import RolloutLimits
from gemma_serving.vm_agent.follow import LatestDocument
from gemma_serving.vm_agent.running_server import IdleTime, ServerLoad
from localcloud.running.shims import docker_images
from tests.vm_agent.docker import REGISTRY_FAULT
from tests.vm_agent.in_process import Serving, calls, written
from tests.vm_agent.machine import IMAGE, Machine, document

FIRST, SECOND = "2026-11-22T19:00:00Z-a", "2026-11-22T20:00:00Z-b"


def restarted(serving: Serving, machine: Machine, nonce: str, asked: str) -> None:
    """Wait until a reader sees that this restart is over: the nonce stands for the phase."""
    wanted = {"restart": nonce, "phase": "ready", "document-hash": asked, "serving-hash": asked}
    machine.until(lambda: wanted.items() <= machine.guest().items(), f"{wanted} is published")


def started_again(first: Serving, nonce: str) -> Serving:
    """Start another agent on the machine, with the same document and this nonce."""
    second = Serving(first.machine)
    text = document(first.port, secretEnv={}, args=["google/gemma-4-E2B-it", f"--port={first.port}"])
    second.latest.set(text, None, nonce)
    return second


def order_of(machine: Machine, *keys: str) -> list[tuple[str, str]]:
    """The values of these attributes, in the order in which a reader could see them."""
    return [(key, value) for key, value in list(machine.published) if key in keys]


def test_a_nonce_restarts_the_server_of_the_same_document_once_with_a_pause(serving: Serving, machine: Machine):
    good = serving.good()
    serving.latest.set_restart(FIRST)
    restarted(serving, machine, FIRST, good)
    serving.latest.set_restart(FIRST)
    assert [len(calls(machine, verb)) for verb in ("run", "stop")] == [2, 1]
    assert machine.guest()["pause-began-at"] < machine.guest()["pause-ended-at"]
    assert written(machine, "serving-hash") == ["", good, "", good]
    serving.latest.set_restart(SECOND)
    restarted(serving, machine, SECOND, good)
    assert len(calls(machine, "run")) == 3


def test_a_reader_of_the_new_nonce_never_sees_the_phase_from_before_it(serving: Serving, machine: Machine):
    serving.good()
    machine.published.clear()
    serving.latest.set_restart(FIRST)
    machine.until(lambda: ("restart", FIRST) in machine.published, "the nonce is published")
    before = order_of(machine, "phase", "restart")
    assert before.index(("phase", "starting")) < before.index(("restart", FIRST))
    machine.until(lambda: ("phase", "ready") in machine.published, "it is ready again")
    assert before[:1] == [("phase", "starting")]


def test_running_requests_end_before_the_server_is_stopped(serving: Serving, machine: Machine):
    good = serving.serves(limits=RolloutLimits(drain_s=3600))
    busy, asked = (machine.root / f"gemma-serving.{name}" for name in ("busy", "asked"))
    busy.write_text("1.0")
    asked.unlink(missing_ok=True)
    serving.latest.set_restart(FIRST)
    machine.until(asked.exists, "the agent waits for an idle moment")
    assert calls(machine, "stop") == []
    busy.write_text("0.0")
    restarted(serving, machine, FIRST, good)
    assert len(calls(machine, "stop")) == 1


def test_a_restarted_agent_adopts_the_server_that_was_restarted(machine: Machine):
    first = Serving(machine)
    good = first.good()
    first.latest.set_restart(FIRST)
    restarted(first, machine, FIRST, good)
    runs = len(calls(machine, "run"))
    first.let_go()
    machine.published.clear()
    restarted(started_again(first, FIRST), machine, FIRST, good)
    assert len(calls(machine, "run")) == runs


def test_an_agent_that_was_down_during_the_request_restarts_the_server(machine: Machine):
    first = Serving(machine)
    good = first.good()
    first.let_go()
    restarted(started_again(first, FIRST), machine, FIRST, good)
    assert len(calls(machine, "run")) == 2


def test_a_document_that_was_given_up_is_tried_again(serving: Serving, machine: Machine):
    good = serving.good()
    bad = serving.ask("--no-such-flag")
    serving.sees("failed", bad, good)
    runs = len(calls(machine, "run"))
    serving.latest.set_restart(FIRST)
    machine.until(lambda: len(calls(machine, "run")) == runs + 2, "it is tried again and rolled back again")
    serving.sees("failed", bad, good)
    assert serving.agent.stored.failed is not None
    assert serving.agent.stored.failed.limits == serving.latest.limits_name()


def test_the_first_document_that_failed_is_tried_again(serving: Serving, machine: Machine):
    (machine.root / "no-device").touch()
    asked = serving.ask()
    serving.sees("failed", asked, "")
    (machine.root / "no-device").unlink()
    serving.latest.set_restart(FIRST)
    restarted(serving, machine, FIRST, asked)


def test_a_restart_on_request_does_not_count_against_a_document_on_probation(machine: Machine):
    serving = Serving(machine, probation_s=3600.0, probation_delays_s=(0.05, 0.05))
    serving.good()
    second = serving.serves("--max-num-seqs=4")
    for number in range(4):
        serving.latest.set_restart(f"{FIRST}{number}")
        restarted(serving, machine, f"{FIRST}{number}", second)
    probation = serving.agent.stored.probation
    assert probation is not None
    assert probation.starts == 1


def test_an_image_that_cannot_be_pulled_does_not_stop_the_server(serving: Serving, machine: Machine):
    good = serving.good()
    docker_images.remove(machine.vm, IMAGE)
    (machine.root / REGISTRY_FAULT).write_text("manifest unknown")
    serving.latest.set_restart(FIRST)
    machine.until(lambda: machine.guest().get("phase") in {"retrying", "failed"}, "the reason is published")
    assert "manifest unknown" in machine.guest()["detail"]
    assert machine.guest()["restart"] == FIRST
    assert calls(machine, "stop") == []
    assert machine.guest()["serving-hash"] == good
    (machine.root / REGISTRY_FAULT).unlink()


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "a=b", "ä"])
def test_a_value_that_is_no_nonce_is_ignored(given: str):
    latest = LatestDocument()
    latest.set("text", None)
    latest.set_restart(given)
    assert (latest.restart(), latest.get()) == (None, (1, "text"))


def test_the_key_of_a_restart_is_removed_without_effect():
    latest = LatestDocument()
    latest.set("text", None, FIRST)
    latest.set_restart(None)
    assert (latest.restart(), latest.get()[0]) == (FIRST, 1)
    latest.set("text", None, SECOND)
    assert latest.restart() == FIRST, "only the thread that follows the key knows which value is newer"


class TestIdleTime:
    def after(self, *loads: "ServerLoad | None"):
        """The published values after readings of these loads, 20 s apart."""
        published: dict[str, str] = {}
        publisher = SimpleNamespace(set_fact=published.__setitem__)
        clock = SimpleNamespace(s=1_000_000.0)
        idle = IdleTime(publisher, now=lambda: clock.s)  # pyright: ignore[reportArgumentType]
        idle.begin()
        found: list[str] = []
        for load in loads:
            clock.s += 20
            idle.read(lambda load=load: load)
            found.append(published[IDLE_SINCE_KEY])
        return found

    def test_starts_over_with_a_request_that_came_and_went_between_two_readings(self):
        quiet = [ServerLoad(0, 7)] * 5
        found = self.after(*quiet, ServerLoad(0, 8), *[ServerLoad(0, 8)] * 3)
        assert found[4] != NOT_IDLE
        assert found[5:] == [NOT_IDLE, NOT_IDLE, NOT_IDLE, "1970-01-12T13:48:40Z"]

    def test_is_busy_while_a_request_runs_however_long(self):
        assert set(self.after(*[ServerLoad(1, 7)] * 200)) == {NOT_IDLE}

    def test_is_unknown_while_the_server_reports_nothing_and_goes_on_if_nothing_was_finished(self):
        quiet = [ServerLoad(0, 7)] * 5
        found = self.after(*quiet, None, None, ServerLoad(0, 7))
        assert found[5:7] == ["", ""]
        assert found[7] == found[4] != NOT_IDLE

    def test_starts_over_with_a_server_that_counts_from_zero_again(self):
        found = self.after(*[ServerLoad(0, 7)] * 5, ServerLoad(0, 0))
        assert found[-1] == NOT_IDLE

    def test_reads_the_metrics_of_a_real_answer(self, serving: Serving, machine: Machine):
        serving.good()
        served = serving.agent.stored.documents()[0].document
        assert serving.agent.server.load(served) is None, "without the counter of finished requests nothing is known"
        (machine.root / "gemma-serving.answered").write_text("stop=3 abort=1")
        (machine.root / "gemma-serving.busy").write_text("2.0")
        assert serving.agent.server.load(served) == ServerLoad(2, 4, 3)
