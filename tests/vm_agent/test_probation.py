"""A document whose server becomes ready and then ends: until it has earned to be good, the one before it stays and serves again."""

import pytest

from gemma_serving.vm_agent import containers
from gemma_serving.vm_agent.stored_state import Probation, StoredState
from tests.vm_agent.in_process import OTHER_IMAGE, Serving, calls, seen, written
from tests.vm_agent.machine import Machine

NO_DELAYS = (0.02, 0.02, 0.02)
VERSION = "projects/p/secrets/s/versions/{}"


@pytest.fixture
def serving(machine: Machine):
    return Serving(machine, probation_delays_s=NO_DELAYS, probation_s=3600.0)


def answered(machine: Machine, *counts: str) -> None:
    """Let the server state how many requests it has answered, by the reason of their end."""
    part = machine.root / "answered.part"
    part.write_text(" ".join(counts))
    part.replace(machine.root / "gemma-serving.answered")


def ends_after_each_start(serving: Serving, machine: Machine, asked: str, times: int) -> None:
    """End the document's server each time that it is ready."""
    for number in range(1, times + 1):
        machine.until(lambda: written(machine, "serving-hash").count(asked) == number, f"start {number} is ready")  # noqa: B023 - it is called here
        serving.server_ends()


def test_a_server_that_ends_four_times_after_it_was_ready_is_rolled_back(serving: Serving, machine: Machine):
    good = serving.good()
    bad = serving.serves("--max-num-seqs=4", image=OTHER_IMAGE)
    assert machine.guest()["former-hash"] == good
    ends_after_each_start(serving, machine, bad, 4)
    serving.sees("failed", bad, good)
    assert "exit code 137 (killed, most likely out of memory)" in machine.guest()["detail"]
    assert machine.guest()["detail"].endswith("It was ready before; this was start 4 of its probation.")
    assert sum("--max-num-seqs=4" in call for call in calls(machine, "run")) == 4
    assert calls(machine, "rmi") == [], "the former image stayed on the TPU VM"
    again = StoredState()
    assert (again.back, again.failed and again.failed.text_hash) == (again.good, bad)


def test_answers_end_the_probation_and_those_that_failed_do_not_count(serving: Serving, machine: Machine):
    good = serving.good()
    answered(machine, "stop=60", "length=39", "abort=500", "error=500")
    serving.serves("--max-num-seqs=4", image=OTHER_IMAGE)
    seen = len(written(machine, "updated-at"))
    serving.agent.publisher.heartbeat_s = 0.0
    machine.until(lambda: len(written(machine, "updated-at")) > seen + 3, "the agent has read the metrics")
    assert (machine.guest()["former-hash"], StoredState().good) == (good, serving.agent.stored.good)
    answered(machine, "stop=61", "length=39")
    machine.until(lambda: machine.guest()["former-hash"] == "", "the probation is over")
    assert serving.agent.stored.back == StoredState().good
    assert serving.agent.stored.find(good) is None
    machine.until(lambda: calls(machine, "rmi") != [], "the former image is gone")


@pytest.mark.parametrize(("counts", "is_over"), [(("stop=0",), False), (("stop=1",), True), ((), True)])
def test_time_ends_the_probation_of_a_server_that_has_answered_or_does_not_say(
    machine: Machine, counts: tuple[str, ...], is_over: bool
):
    serving = Serving(machine, probation_s=0.0)
    serving.good()
    if counts:
        answered(machine, *counts)
    serving.serves("--max-num-seqs=4")
    assert (machine.guest()["former-hash"] == "") is is_over


def test_the_count_survives_the_machine_and_a_document_on_probation_that_takes_it_down_is_taken_back(
    serving: Serving, machine: Machine
):
    good = serving.good()
    bad = serving.serves("--max-num-seqs=4")
    serving.let_go()
    state = StoredState()
    assert state.probation is not None
    state.probation = Probation(state.probation.ready, starts=4)
    state.write()
    serving.agent.stored.__init__()  # type: ignore[misc] # it reads the files, as that of an agent that starts again
    serving.server_ends()
    machine.until(lambda: not (found := containers.container_state()) or not found.running, "the server has ended")
    machine.published.clear()
    assert serving.ask("--max-num-seqs=4") == bad
    serving.sees("failed", bad, good)
    assert "was started 4 times, but it, the agent or the TPU VM stopped each time." in machine.guest()["detail"]


def test_a_change_during_a_probation_goes_back_to_the_server_that_never_stopped(serving: Serving, machine: Machine):
    good = serving.good()
    second = serving.serves("--max-num-seqs=4")
    bad = serving.ask("--max-num-seqs=8", image="us-docker.pkg.dev/p/repo/vllm/missing:1")
    serving.sees("failed", bad, second)
    assert len(calls(machine, "run")) == 2, "the server on probation never stopped"
    ends_after_each_start(serving, machine, second, 4)
    serving.sees("failed", bad, good)
    assert "manifest unknown" in machine.guest()["detail"], "it still says why the change failed"
    assert f"The previous document {second[:12]} does not start either" in machine.guest()["detail"]


def test_the_way_back_has_the_newest_secrets_and_undoing_the_change_the_older_ones(serving: Serving, machine: Machine):
    machine.secrets |= {VERSION.format(1): b"old-key", VERSION.format(2): b"new-key", VERSION.format(9): b"token"}
    before = {"VLLM_API_KEY": VERSION.format(1), "HF_TOKEN": VERSION.format(9)}
    good = serving.serves(secretEnv=before)
    bad = serving.ask("--crash", secretEnv={"VLLM_API_KEY": VERSION.format(2), "OTHER": VERSION.format(9)})
    serving.sees("failed", bad, good)

    def keys(name: str = "VLLM_API_KEY") -> list[str | None]:
        return [one["env"].get(name) for one in seen(machine)]

    assert keys() == ["old-key", "new-key", "new-key", "new-key"], "a key that was rotated stays rotated"
    assert keys("HF_TOKEN") == ["token", None, None, "token"], "a secret that only one of them names is its own"
    kept = "".join(path.read_text() for path in (machine.root / "state").glob("*.json"))
    assert "old-key" not in kept
    assert "new-key" not in kept
    assert serving.ask(secretEnv=before) == good
    serving.sees("ready", good, good)
    machine.until(lambda: len(keys()) == 5, "the server starts again with the secrets that it is asked for")
    assert keys()[-1] == "old-key"
