"""A changed document that fails: the last good one serves again, and the guest attributes say what was asked and what serves."""

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.rollout import RolloutLimits
from tests.vm_agent.machine import IMAGE, Machine, document, eventually, free_port
from vm_agent import kept as kept_module
from vm_agent.cloud import MetadataClient
from vm_agent.kept import FailedChange, GoodDocument, KeptState
from vm_agent.publishing import PhasePublisher
from vm_agent.serving import Agent, LatestDocument

OTHER_IMAGE = IMAGE.replace("a" * 64, "b" * 64)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    machine = Machine(tmp_path)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    yield machine
    machine.close()


class Serving:
    """An agent in this process, with short delays, and what a reader of the machine sees."""

    def __init__(self, machine: Machine, **changes: object):
        self.machine, self.latest, metadata = machine, LatestDocument(), MetadataClient()
        options = {"restart_delays_s": (0.05, 0.05), "prepare_delays_s": (0.05,), "trial_delays_s": (0.05,)}
        self.agent = Agent(
            metadata,
            self.latest,
            PhasePublisher(metadata, progress_s=0.1),
            health_poll_s=0.1,
            **{**options, **changes},  # pyright: ignore[reportArgumentType]
        )
        self.port = free_port()
        threading.Thread(target=self.agent.run, daemon=True).start()

    def ask(self, *arguments: str, limits: RolloutLimits | None = None, **changes: object) -> str:
        """Ask for a server with these arguments; return the hash of its document."""
        given = {"secretEnv": {}, "args": ["google/gemma-4-E2B-it", f"--port={self.port}", *arguments], **changes}
        text = document(self.port, **given)
        self.latest.set(text, limits.text() if limits else None)
        return kept_module.document_hash(text)

    def sees(self, phase: str, asked: str, serving: str) -> None:
        """Wait until a reader sees this phase of the asked document, and this document as the one that serves."""
        wanted = {"phase": phase, "document-hash": asked, "serving-hash": serving}
        eventually(lambda: wanted.items() <= self.machine.guest().items(), f"{wanted} is published")

    def good(self) -> str:
        """Serve a document until it is ready; return its hash."""
        asked = self.ask()
        self.sees("ready", asked, asked)
        return asked

    def let_go(self) -> None:
        self.latest.set(None)
        eventually(
            lambda: "waiting for the metadata key" in self.machine.guest().get("detail", ""), "the agent lets go"
        )


@pytest.fixture
def serving(machine: Machine):
    serving = Serving(machine)
    yield serving
    serving.let_go()


def calls(machine: Machine, verb: str) -> list[list[str]]:
    return [call for call in machine.docker_calls() if call[0] == verb and "gemma-serving-fetch" not in call]


def written(machine: Machine, key: str) -> list[str]:
    return [value for name, value in machine.published if name == key]


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
    assert "pause-began-at" not in machine.guest(), "the first start is no pause"
    serving.sees("failed", serving.ask("--no-such-flag"), good)
    guest = machine.guest()
    assert guest["pause-began-at"] < guest["pause-ended-at"]
    assert len(written(machine, "pause-began-at")) == 1, "the way back belongs to the same pause"
    assert written(machine, "serving-hash") == ["", good, "", good]


def test_a_good_change_has_one_pause_and_becomes_the_last_good_one(serving: Serving, machine: Machine):
    serving.good()
    second = serving.ask("--max-num-seqs=4")
    serving.sees("ready", second, second)
    assert machine.guest()["pause-ended-at"] > machine.guest()["pause-began-at"]
    assert KeptState(machine.root / "state").good == serving.agent.kept.good
    serving.sees("failed", serving.ask("--no-such-flag"), second)


def test_a_change_that_stops_nothing_has_no_pause_although_the_one_before_had(serving: Serving, machine: Machine):
    serving.good()
    second = serving.ask("--max-num-seqs=4")
    serving.sees("ready", second, second)
    serving.sees("failed", serving.ask(image=IMAGE.replace("vllm-tpu", "missing")), second)
    assert (machine.guest()["pause-began-at"], machine.guest()["pause-ended-at"]) == ("", "")


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


def test_two_bad_documents_in_a_row_go_back_to_the_same_good_one(serving: Serving, machine: Machine):
    good = serving.good()
    for flag in ("--no-such-flag", "--crash"):
        bad = serving.ask(flag)
        serving.sees("failed", bad, good)
    mended = serving.ask("--max-num-seqs=4")
    serving.sees("ready", mended, mended)
    assert serving.agent.kept.failed is None


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
    eventually(lambda: len(calls(machine, "run")) > starts + 1, "it is tried again and rolled back again")
    serving.sees("failed", bad, good)


def test_a_document_that_changes_again_during_the_way_back_is_served(serving: Serving, machine: Machine):
    serving.good()
    stuck = machine.root / "gemma-serving.exit.stuck"
    stuck.touch()
    bad = serving.ask("--no-such-flag")
    eventually(lambda: machine.guest().get("phase") == "restoring", "the way back has begun")
    mended = serving.ask("--max-num-seqs=4")
    eventually(lambda: machine.guest().get("document-hash") == mended, "the newer document is taken up")
    stuck.unlink()
    serving.sees("ready", mended, mended)
    assert bad != mended
    assert len(written(machine, "pause-began-at")) == 1


def test_a_good_image_that_left_the_registry_is_started_from_the_machine(serving: Serving, machine: Machine):
    asked = serving.ask(image="us-docker.pkg.dev/p/repo/vllm/vllm-tpu:nightly")
    serving.sees("ready", asked, asked)
    bad = serving.ask("--no-such-flag", image=OTHER_IMAGE)
    eventually((machine.root / f"image-{OTHER_IMAGE.replace('/', '_')}").exists, "the new image is here")
    (machine.root / "registry-gone").touch()
    serving.sees("failed", bad, asked)


def test_a_good_document_that_does_not_start_any_more_is_said_with_both_reasons(serving: Serving, machine: Machine):
    serving.good()
    stuck = machine.root / "server.py"
    original = stuck.read_text()
    bad = serving.ask("--no-such-flag")
    eventually(lambda: len(calls(machine, "run")) == 2, "the bad one was started")
    stuck.write_text("import sys; print('no device'); sys.exit(2)")
    serving.sees("failed", bad, "")
    detail = machine.guest()["detail"]
    assert "unrecognized arguments" in detail or "no device" in detail
    assert "does not start either" in detail
    stuck.write_text(original)


def test_a_secret_that_was_destroyed_does_not_stop_the_way_back(serving: Serving, machine: Machine):
    version = "projects/p/secrets/s/versions/3"
    machine.secrets[version] = b"value"
    good = serving.ask(secretEnv={"HF_TOKEN": version})
    serving.sees("ready", good, good)
    del machine.secrets[version]
    serving.sees("failed", serving.ask("--no-such-flag"), good)
    assert "value" not in "".join(path.read_text() for path in (machine.root / "state").iterdir())


class TestTheAgentEnds:
    """The whole program, ended in the middle of a change."""

    @pytest.fixture
    def booted(self, machine: Machine):
        port = free_port()

        def text(*arguments: str) -> str:
            return document(port, secretEnv={}, args=["m", f"--port={port}", *arguments])

        good = machine.set_document(text())
        machine.boot()
        eventually(lambda: machine.guest().get("phase") == "ready", "the first document is ready")
        return machine, good, text

    @staticmethod
    def rolled_back(machine: Machine, bad: str, good: str) -> None:
        wanted = {"phase": "failed", "document-hash": bad, "serving-hash": good}
        eventually(lambda: wanted.items() <= machine.guest().items(), "the good one serves in place of the bad one")

    def test_between_the_stop_of_the_old_and_the_start_of_the_new(
        self, booted: tuple[Machine, str, Callable[..., str]]
    ):
        machine, good, text = booted
        (machine.root / "hang-run").touch()
        bad = machine.set_document(text("--no-such-flag"))
        eventually(lambda: len(calls(machine, "run")) == 2, "the new server is about to start")
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
        (machine.root / "gemma-serving.exit.stuck").touch()
        bad = machine.set_document(text("--no-such-flag"))
        eventually(lambda: machine.guest().get("phase") == "restoring", "the way back has begun")
        eventually((machine.root / "gemma-serving.json").exists, "a server is started")
        getattr(machine, end)()
        machine.published.clear()
        (machine.root / "gemma-serving.exit.stuck").unlink()
        tried = sum("--no-such-flag" in call for call in calls(machine, "run"))
        machine.boot()
        self.rolled_back(machine, bad, good)
        assert "unrecognized arguments" in machine.guest()["detail"]
        assert sum("--no-such-flag" in call for call in calls(machine, "run")) == tried, (
            "the bad one is not tried again"
        )


class TestKeptState:
    good, failed = GoodDocument("{}", IMAGE), FailedChange("abc", "def", "why")

    def test_it_is_read_again(self, tmp_path: Path):
        kept = KeptState(tmp_path / "state")
        kept.keep_good(self.good)
        kept.keep_failed(self.failed)
        kept.keep_pause("2026-01-01T00:00:00.000Z")
        again = KeptState(tmp_path / "state")
        assert (again.good, again.failed, again.pause_began_at) == (self.good, self.failed, "2026-01-01T00:00:00.000Z")
        again.keep_good(self.good)
        again.keep_pause("")
        last = KeptState(tmp_path / "state")
        assert (last.failed, last.pause_began_at) == (None, "")

    def test_a_full_disk_leaves_the_older_file_whole_and_memory_knows_the_newer_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        kept = KeptState(tmp_path, retry_s=0.0)
        kept.keep_good(self.good)
        newer = GoodDocument('{"newer": 1}', IMAGE)

        def full(_descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(kept_module.os, "fsync", full)
            kept.keep_good(newer)
        assert "No space left on device" in capsys.readouterr().err
        assert kept.good == newer
        assert KeptState(tmp_path).good == self.good
        assert [path.name for path in tmp_path.iterdir()] == ["good.json"], "no half-written file is left"
        kept.write()
        assert KeptState(tmp_path).good == newer

    @pytest.mark.parametrize("text", ["", "[]", "{", '{"text": "{}"}'])
    def test_a_damaged_file_counts_as_absent(self, tmp_path: Path, text: str):
        (tmp_path / "good.json").write_text(text)
        assert KeptState(tmp_path).good is None

    def test_a_full_disk_does_not_stop_a_roll_back(self, machine: Machine):
        (machine.root / "state").write_text("a file where the folder should be")
        serving = Serving(machine)
        good = serving.good()
        serving.sees("failed", serving.ask("--no-such-flag"), good)
        serving.let_go()


def test_the_state_folder_is_the_one_that_the_environment_names(machine: Machine):
    assert KeptState().folder == machine.root / "state"
    assert json.loads(RolloutLimits().text())["readyTimeoutS"] == 3600
