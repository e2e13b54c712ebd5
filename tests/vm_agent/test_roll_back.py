"""A changed document that fails: the last good one serves again, and the guest attributes say what was asked and what serves."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from gemma_serving.contracts.path_guard import GUARD_ARGUMENT, GUARD_MODULE
from gemma_serving.contracts.rollout import RolloutLimits
from gemma_serving.vm_agent import containers, path_guard
from gemma_serving.vm_agent.stored_state import StoredState
from gemma_serving.vm_agent.weights import remove_copy
from localcloud.running.shims import docker, docker_images
from tests.polling import until
from tests.vm_agent.docker import REGISTRY_FAULT
from tests.vm_agent.in_process import OTHER_IMAGE, Serving, calls, written
from tests.vm_agent.machine import IMAGE, Machine, document, free_port

KEY = "sk-of-the-stack-0123456789"


@pytest.mark.parametrize(
    ("flag", "words", "starts"), [("--no-such-flag", "unrecognized arguments", 1), ("--crash", "ValueError", 2)]
)
def test_a_server_that_does_not_start_is_rolled_back_and_both_things_are_said(
    serving: Serving, machine: Machine, flag: str, words: str, starts: int
):
    good = serving.good()
    bad = serving.ask(flag)
    serving.sees("failed", bad, good)
    assert words in machine.guest()["detail"]
    phases = [phase for phase, seen in machine.moments() if seen == bad]
    assert phases[-2:] == ["restoring", "failed"]
    assert len(calls(machine, "run")) == 1 + starts + 1, (
        "the bad one as often as a trial allows, then the good one again"
    )


def test_the_pause_lasts_from_the_stop_of_the_old_server_until_the_good_one_answers_again(
    serving: Serving, machine: Machine
):
    good = serving.good()
    assert "pause-began-at" not in machine.guest(), "the first start is not a pause"
    serving.sees("failed", serving.ask("--no-such-flag"), good)
    guest = machine.guest()
    assert guest["pause-began-at"] < guest["pause-ended-at"]
    assert len(written(machine, "pause-began-at")) == 1, "the way back belongs to the same pause"
    assert written(machine, "serving-hash") == ["", good, "", good]


def test_a_good_change_has_one_pause_and_becomes_the_last_good_one(serving: Serving, machine: Machine):
    serving.good()
    second = serving.serves("--max-num-seqs=4")
    assert machine.guest()["pause-ended-at"] > machine.guest()["pause-began-at"]
    assert StoredState(machine.root / "state").good == serving.agent.stored.good
    serving.sees("failed", serving.ask("--no-such-flag"), second)


def test_the_first_document_that_fails_has_nothing_to_go_back_to(serving: Serving, machine: Machine):
    bad = serving.ask("--no-such-flag")
    serving.sees("failed", bad, "")
    assert "restoring" not in written(machine, "phase")
    assert len(calls(machine, "run")) == 1


def test_an_image_that_does_not_exist_never_stops_the_old_server(serving: Serving, machine: Machine):
    good = serving.good()
    bad = serving.ask(image=IMAGE.replace("vllm-tpu", "missing"))
    serving.sees("failed", bad, good)
    assert "manifest unknown" in machine.guest()["detail"]
    assert calls(machine, "stop") == []
    assert written(machine, "serving-hash") == ["", good]
    assert "pause-began-at" not in machine.guest()


def test_a_document_that_compiles_longer_than_its_budget_is_rolled_back(serving: Serving, machine: Machine):
    good = serving.good()
    bad = serving.ask("--stuck")
    serving.sees("compiling", bad, "")
    serving.latest.set_limits(
        RolloutLimits(ready_timeout_s=0).text()
    )  # so its time is over, however fast this machine is
    serving.sees("failed", bad, good)
    assert machine.guest()["detail"].endswith("The server was not ready within 0 s (tpu.readyTimeout).")


def test_a_document_whose_time_ends_before_its_image_is_here_never_stops_the_old_server(
    serving: Serving, machine: Machine
):
    good = serving.good()
    (machine.root / "hang-pull").touch()
    bad = serving.ask(image=OTHER_IMAGE)
    serving.sees("pulling image", bad, good)
    serving.latest.set_limits(RolloutLimits(ready_timeout_s=0).text())
    serving.sees("failed", bad, good)
    assert calls(machine, "stop") == []


def test_a_failed_document_is_tried_again_when_its_limits_change_and_not_before(serving: Serving, machine: Machine):
    good = serving.good()
    bad = serving.ask("--crash", limits=RolloutLimits(ready_timeout_s=500))
    serving.sees("failed", bad, good)
    starts = len(calls(machine, "run"))
    assert serving.ask("--crash", limits=RolloutLimits(ready_timeout_s=500)) == bad
    serving.agent.publisher.publish_again()
    assert len(calls(machine, "run")) == starts
    serving.ask("--crash", limits=RolloutLimits(ready_timeout_s=600))
    machine.until(lambda: len(calls(machine, "run")) > starts + 1, "it is tried again and rolled back again")
    serving.sees("failed", bad, good)


def test_a_document_that_changes_again_during_the_way_back_is_served(serving: Serving, machine: Machine):
    serving.good()
    stuck = machine.root / "gemma-serving.stuck"
    stuck.touch()
    bad = serving.ask("--no-such-flag")
    machine.until(lambda: machine.guest().get("phase") == "restoring", "the way back has begun")
    fixed = serving.ask("--max-num-seqs=4")
    machine.until(lambda: machine.guest().get("document-hash") == fixed, "the newer document is taken up")
    stuck.unlink()
    serving.sees("ready", fixed, fixed)
    assert bad != fixed
    assert len(written(machine, "pause-began-at")) == 1


def test_a_good_image_that_left_the_registry_is_started_from_the_machine(serving: Serving, machine: Machine):
    asked = serving.serves(image="us-docker.pkg.dev/p/repo/vllm/vllm-tpu:nightly")
    bad = serving.ask("--no-such-flag", image=OTHER_IMAGE)
    machine.until(lambda: OTHER_IMAGE in docker_images.pulled(machine.vm), "the new image is here")
    (machine.root / REGISTRY_FAULT).write_text("manifest unknown")
    serving.sees("failed", bad, asked)


def test_a_good_document_that_does_not_start_any_more_is_said_with_both_reasons(serving: Serving, machine: Machine):
    serving.good()
    (machine.root / "no-device").touch()
    serving.sees("failed", serving.ask("--no-such-flag"), "")
    said, both, also_said = machine.guest()["detail"].partition("does not start either")
    assert ("unrecognized arguments" in said, both != "", "no device" in also_said) == (True, True, True)


def test_a_secret_that_was_destroyed_does_not_stop_the_way_back(serving: Serving, machine: Machine):
    version = "projects/p/secrets/s/versions/3"
    machine.secrets[version] = b"value"
    good = serving.serves(secretEnv={"HF_TOKEN": version})
    del machine.secrets[version]
    serving.sees("failed", serving.ask("--no-such-flag"), good)
    assert "value" not in "".join(path.read_text() for path in (machine.root / "state").iterdir())


@pytest.mark.parametrize("is_guarded", [False, True], ids=["open", "guarded"])
def test_a_newer_document_during_the_drain_keeps_the_old_server(
    serving: Serving, machine: Machine, *, is_guarded: bool
):
    good = with_key(serving, machine) if is_guarded else serving.good()
    busy, asked = (machine.root / f"gemma-serving.{name}" for name in ("busy", "asked"))
    busy.write_text("2.0")
    serving.ask("--max-num-seqs=4", limits=RolloutLimits(drain_s=3600))
    machine.until(asked.exists, "the agent waits for an idle moment")
    assert (with_key(serving, machine) if is_guarded else serving.good()) == good
    assert calls(machine, "stop") == []


def test_the_path_guard_is_written_mounted_and_first_on_the_path_of_python(
    serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(docker, "IMAGE_VARIABLES", ("PATH=/usr/bin", "PYTHONPATH=/image/packages"))
    with_key(serving, machine)
    (run,) = calls(machine, "run")
    folder = machine.root / "state" / "path-guard"
    assert f"--volume={folder}:/opt/gemma-serving:ro" in run
    assert "--env=PYTHONPATH=/opt/gemma-serving:/image/packages" in run
    assert (folder / f"{GUARD_MODULE}.py").read_text() == Path(path_guard.__file__).read_text()
    assert KEY not in (machine.root / "docker.log").read_text()


def test_a_server_without_a_key_has_no_guard(serving: Serving, machine: Machine):
    serving.good()
    assert not any("PYTHONPATH" in word or "path-guard" in word for word in calls(machine, "run")[0])


def with_key(serving: Serving, machine: Machine) -> str:
    """Serve a document with an API key until it is ready; return its hash."""
    version = "projects/p/secrets/s/versions/3"
    machine.secrets[version] = KEY.encode()
    return serving.serves(GUARD_ARGUMENT, secretEnv={"VLLM_API_KEY": version})


def test_a_memory_disk_that_is_full_when_the_server_starts_is_rolled_back(
    serving: Serving, machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    good, make, left = serving.good(), containers.tempfile.mkstemp, [1, 2]

    def full(**options: str):
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(**options)

    monkeypatch.setattr(containers.tempfile, "mkstemp", full)
    serving.sees("failed", serving.ask("--max-num-seqs=4"), good)
    assert "No space left on device" in machine.guest()["detail"]


class TestRoomOnTheDisk:
    def test_an_image_leaves_when_a_newer_one_is_good(self, serving: Serving, machine: Machine):
        serving.good()
        serving.serves(image=OTHER_IMAGE)
        machine.until(lambda: StoredState().fetched == {OTHER_IMAGE: "image"}, "the older image is gone")
        assert calls(machine, "rmi") == [["rmi", IMAGE]]

    def test_an_image_that_failed_leaves_with_the_next_change(self, serving: Serving, machine: Machine):
        good = serving.good()
        serving.sees("failed", serving.ask("--no-such-flag", image=OTHER_IMAGE), good)
        assert calls(machine, "rmi") == []
        serving.serves("--max-num-seqs=4")
        machine.until(lambda: StoredState().fetched == {IMAGE: "image"}, "the image that failed is gone")
        assert calls(machine, "rmi") == [["rmi", OTHER_IMAGE]]

    def test_weights_leave_when_others_are_good_and_strangers_stay(
        self, serving: Serving, machine: Machine, tmp_path: Path
    ):
        machine.objects |= {"one/config.json": b"{}", "two/config.json": b"{}"}
        for name in ("one", "two"):
            weights = {"mode": "bucket", "uri": f"gs://models/{name}", "path": str(tmp_path / "m" / name)}
            serving.serves(weights=weights)
            (tmp_path / "m" / name / "mine.txt").touch()
        wanted = ["one/mine.txt", "two/config.json", "two/mine.txt"]

        def found() -> list[str]:
            return sorted(str(path.relative_to(tmp_path / "m")) for path in (tmp_path / "m").glob("*/[!.]*"))

        machine.until(lambda: found() == wanted, "the older weights are gone")

    def test_weights_in_or_around_a_kept_folder_stay(self, tmp_path: Path):
        for path in (tmp_path / "config.json", tmp_path / "m/config.json"):
            path.parent.mkdir(exist_ok=True)
            path.touch()
            path.with_name(".config.json.generation").touch()
        assert not remove_copy(str(tmp_path), {str(tmp_path / "m")})
        assert not remove_copy(str(tmp_path / "m"), {str(tmp_path)})
        assert (tmp_path / "config.json").exists()
        assert (tmp_path / "m/config.json").exists()


def test_a_full_disk_does_not_stop_a_roll_back(machine: Machine):
    (machine.root / "state").write_text("a file where the folder should be")
    serving = Serving(machine)
    good = serving.good()
    serving.sees("failed", serving.ask("--no-such-flag"), good)


@pytest.mark.long
class TestTheAgentEnds:
    """The whole program, ended in the middle of a change."""

    @pytest.fixture
    def machine(self, tmp_path: Path):
        machine = Machine(tmp_path)
        yield machine
        machine.close()

    @pytest.fixture
    def booted(self, machine: Machine):
        port = free_port()

        def text(*arguments: str) -> str:
            return document(port, secretEnv={}, args=["m", f"--port={port}", *arguments])

        good = machine.set_document(text())
        machine.boot()
        until(lambda: machine.guest().get("phase") == "ready", "the first document is ready")
        return machine, good, text

    @staticmethod
    def rolled_back(machine: Machine, bad: str, good: str) -> None:
        wanted = {"phase": "failed", "document-hash": bad, "serving-hash": good}
        until(lambda: wanted.items() <= machine.guest().items(), "the good one serves in place of the bad one")

    def test_between_the_stop_of_the_old_and_the_start_of_the_new(
        self, booted: tuple[Machine, str, Callable[..., str]]
    ):
        machine, good, text = booted
        (machine.root / "hang-run").touch()
        bad = machine.set_document(text("--no-such-flag"))
        until(lambda: len(calls(machine, "run")) == 2, "the new server is about to start")
        began = machine.guest()["pause-began-at"]
        machine.kill_agent()
        machine.published.clear()
        (machine.root / "hang-run").unlink()
        machine.boot()
        self.rolled_back(machine, bad, good)
        assert machine.guest()["pause-began-at"] == began, "the pause began before the agent ended"

    @pytest.mark.parametrize("end", ["kill_agent", "cut_power"])
    def test_during_the_way_back(self, booted: tuple[Machine, str, Callable[..., str]], end: str):
        machine, good, text = booted
        (machine.root / "gemma-serving.stuck").touch()
        bad = machine.set_document(text("--no-such-flag"))
        until(lambda: machine.guest().get("phase") == "restoring", "the way back has begun")
        until(machine.vm.record("gemma-serving").exists, "a server is started")
        getattr(machine, end)()
        machine.published.clear()
        (machine.root / "gemma-serving.stuck").unlink()
        tried = sum("--no-such-flag" in call for call in calls(machine, "run"))
        machine.boot()
        self.rolled_back(machine, bad, good)
        assert "unrecognized arguments" in machine.guest()["detail"]
        assert sum("--no-such-flag" in call for call in calls(machine, "run")) == tried, (
            "the bad one is not tried again"
        )

    def test_again_and_again_with_the_machine(self, booted: tuple[Machine, str, Callable[..., str]]):
        machine, good, text = booted
        bad = machine.set_document(text("--stuck"))
        for _ in range(2):
            until(lambda: ("compiling", bad) in machine.moments(), "the new server compiles")
            machine.cut_power()
            machine.published.clear()
            machine.boot()
        self.rolled_back(machine, bad, good)
        stopped = "The server was started 2 times, but the agent or the TPU VM stopped before it was ready."
        assert stopped in machine.guest()["detail"]
        assert sum("--stuck" in call for call in calls(machine, "run")) == 2

    def test_and_the_next_one_reads_no_line_that_it_cannot_mask(self, machine: Machine):
        version = "projects/p/secrets/s/versions/3"
        machine.secrets[version] = b"value"
        text_hash = machine.set_document(document(free_port()))
        machine.boot()
        until(lambda: machine.guest().get("serving-hash") == text_hash, "the document serves")
        machine.kill_agent()
        read = len(calls(machine, "logs"))
        del machine.secrets[version]
        machine.published.clear()
        machine.boot()
        until(lambda: machine.guest().get("phase") == "ready", "the server is taken over")
        assert len(calls(machine, "logs")) == read
