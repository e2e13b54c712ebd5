"""The image and the weights are prepared in parallel: both are awaited, both end, and the first error that decides is the one that is seen."""

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from gemma_serving.contracts.compile_cache import ARCHIVE_METADATA_KEY, programs_key
from gemma_serving.contracts.guest_attributes import FETCHING_WEIGHTS, PULLING_IMAGE, WAITING_FOR_HUB
from gemma_serving.contracts.serving_document import parse_document
from gemma_serving.vm_agent.base import ServingError, SupersededError
from gemma_serving.vm_agent.cloud import MetadataClient
from gemma_serving.vm_agent.compile_cache import CompiledPrograms
from gemma_serving.vm_agent.together import Together, Work
from tests.polling import until
from tests.vm_agent.in_process import Serving, calls, held
from tests.vm_agent.machine import Machine, document
from tests.vm_agent.test_compile_cache import KEY_VERSION, SECRET_KEY, SETTINGS

CACHED = "huggingface/hub/models--org--new/refs/main"
FULL = "write /x: no space left on device"
VERDICT, OTHER_VERDICT = ServingError("manifest unknown"), ServingError("no object")
PASSES = ServingError("503", waits_for=WAITING_FOR_HUB)
DENIED = ServingError("403", denied=True)


def wait_for(gate: threading.Event, cancelled: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not gate.wait(0.01):
        if cancelled():
            raise SupersededError
        assert time.monotonic() < deadline, "the part was neither done nor cancelled"


class Parts:
    """Two parts, each of which raises what the test gives it, once the test lets it."""

    def __init__(self, image: BaseException | None = None, weights: BaseException | None = None):
        self.told: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.is_cancelled = threading.Event()
        self.begun = {PULLING_IMAGE: 0, FETCHING_WEIGHTS: 0}
        self.ended: list[str] = []
        self.gates = {PULLING_IMAGE: threading.Event(), FETCHING_WEIGHTS: threading.Event()}
        self.works: dict[str, Work] = {
            PULLING_IMAGE: self.part(PULLING_IMAGE, image),
            FETCHING_WEIGHTS: self.part(FETCHING_WEIGHTS, weights),
        }

    def part(self, phase: str, raised: BaseException | None) -> Work:
        def work(progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
            self.begun[phase] += 1
            progress(f"part {self.begun[phase]}")
            try:
                wait_for(self.gates[phase], cancelled)
                if raised is not None:
                    raise raised
            finally:
                self.ended.append(phase)

        return work

    def run(self) -> None:
        Together(lambda *told: self.told.append(told), self.is_cancelled.is_set, self.lines.append, 0.02).run(
            self.works
        )

    def open(self, *phases: str) -> None:
        for phase in phases:
            self.gates[phase].set()

    def raised(self) -> BaseException:
        with pytest.raises((ServingError, SupersededError, OSError)) as caught:
            self.run()
        assert sorted(set(self.ended)) == sorted(self.works), "no work outlives the run"
        return caught.value


@pytest.mark.parametrize("first", [PULLING_IMAGE, FETCHING_WEIGHTS])
def test_a_verdict_ends_the_other_at_once(first: str):
    parts = Parts(**{"image" if first == PULLING_IMAGE else "weights": VERDICT})
    parts.open(first)
    assert parts.raised() is VERDICT
    assert parts.ended[0] == first


@pytest.mark.parametrize("passing", [PASSES, DENIED])
def test_after_an_error_that_passes_the_other_is_finished(passing: ServingError):
    parts = Parts(image=passing)
    parts.open(PULLING_IMAGE)
    threading.Timer(0.2, parts.open, (FETCHING_WEIGHTS,)).start()
    assert parts.raised() is passing
    assert parts.begun == {PULLING_IMAGE: 1, FETCHING_WEIGHTS: 1}
    assert (FETCHING_WEIGHTS, f"part 1; {PULLING_IMAGE}: {passing}") in parts.told


def test_a_verdict_is_not_hidden_by_an_earlier_error_that_passes(capsys: pytest.CaptureFixture[str]):
    parts = Parts(image=PASSES, weights=OTHER_VERDICT)
    parts.open(PULLING_IMAGE)
    threading.Timer(0.2, parts.open, (FETCHING_WEIGHTS,)).start()
    assert parts.raised() is OTHER_VERDICT
    assert "Beside the error that is reported: 503" in capsys.readouterr().err


def test_of_two_verdicts_the_first_is_seen():
    parts = Parts(image=VERDICT, weights=OTHER_VERDICT)

    def late(_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
        with suppress(SupersededError):
            wait_for(threading.Event(), cancelled)
        parts.ended.append(FETCHING_WEIGHTS)
        raise OTHER_VERDICT

    parts.works[FETCHING_WEIGHTS] = late
    parts.open(PULLING_IMAGE)
    assert parts.raised() is VERDICT


def test_a_newer_document_ends_both():
    parts = Parts()
    threading.Timer(0.1, parts.is_cancelled.set).start()
    assert isinstance(parts.raised(), SupersededError)


def test_an_agent_that_is_stopped_ends_both(monkeypatch: pytest.MonkeyPatch):
    """SIGTERM raises in the main thread, which waits for both."""
    parts, join, is_first = Parts(), threading.Thread.join, [True]

    def stopped(thread: threading.Thread, timeout: float | None = None) -> None:
        if is_first and threading.current_thread() is threading.main_thread():
            is_first.clear()
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", stopped)
    with pytest.raises(KeyboardInterrupt):
        parts.run()
    assert sorted(parts.ended) == sorted(parts.works)


class TestAFullDisk:
    @pytest.mark.parametrize("full", [PULLING_IMAGE, FETCHING_WEIGHTS])
    def test_is_met_by_one_after_the_other(self, full: str):
        order: list[str] = []

        def part(phase: str) -> Work:
            def work(_progress: Callable[[str], None], cancelled: Callable[[], bool]) -> None:
                order.append(phase)
                if len(order) > len(Parts().works):
                    return
                if phase == full:
                    raise OSError(28, "No space left on device") if full == FETCHING_WEIGHTS else ServingError(FULL)
                wait_for(threading.Event(), cancelled)

            return work

        Together(lambda *_: None, lambda: False).run(
            {phase: part(phase) for phase in (PULLING_IMAGE, FETCHING_WEIGHTS)}
        )
        assert order[2:] == [PULLING_IMAGE, FETCHING_WEIGHTS]

    def test_that_stays_full_is_the_error(self):
        parts = Parts(image=ServingError(FULL, retry=False))
        parts.open(PULLING_IMAGE)
        assert str(parts.raised()) == FULL
        assert parts.begun == {PULLING_IMAGE: 2, FETCHING_WEIGHTS: 1}

    def test_is_a_verdict_at_once_if_nothing_else_was_under_way(self):
        parts = Parts(image=ServingError(FULL, retry=False))
        parts.open(FETCHING_WEIGHTS)
        threading.Timer(0.2, parts.open, (PULLING_IMAGE,)).start()
        assert str(parts.raised()) == FULL
        assert parts.begun == {PULLING_IMAGE: 1, FETCHING_WEIGHTS: 1}


class TestProgress:
    def test_of_both_is_told_in_the_first_phase_and_then_of_the_other(self):
        parts = Parts()
        threading.Timer(0.1, parts.open, (PULLING_IMAGE,)).start()
        threading.Timer(0.3, parts.open, (FETCHING_WEIGHTS,)).start()
        parts.run()
        assert parts.told[0] == (PULLING_IMAGE, "")
        assert (PULLING_IMAGE, f"part 1; {FETCHING_WEIGHTS}: part 1") in parts.told
        assert parts.told[-1] == (FETCHING_WEIGHTS, "part 1")
        assert parts.ended == [PULLING_IMAGE, FETCHING_WEIGHTS]

    def test_of_one_that_ended_first_is_not_told_again(self):
        parts = Parts()
        threading.Timer(0.1, parts.open, (FETCHING_WEIGHTS,)).start()
        threading.Timer(0.3, parts.open, (PULLING_IMAGE,)).start()
        parts.run()
        assert {phase for phase, _ in parts.told} == {PULLING_IMAGE}
        assert parts.told[-1] == (PULLING_IMAGE, "part 1")

    def test_is_told_again_while_nothing_changes(self):
        parts = Parts()

        def told_again() -> bool:
            return parts.told.count((PULLING_IMAGE, f"part 1; {FETCHING_WEIGHTS}: part 1")) > 2

        def open_then() -> None:
            until(told_again, "a detail that the publisher dropped is told again")
            parts.open(*parts.works)

        threading.Thread(target=open_then, daemon=True).start()
        parts.run()

    def test_has_a_line_for_each_part_that_is_done_and_none_for_another(self):
        parts = Parts(image=PASSES)
        parts.open(*parts.works)
        assert parts.raised() is PASSES
        (line,) = parts.lines
        assert re.fullmatch(rf"Done after \d+\.\d s: {FETCHING_WEIGHTS}\.", line)


class TestAStart:
    def test_waits_for_the_weights_of_the_hub_after_the_image(self, serving: Serving, machine: Machine):
        go = held(machine)
        asked = serving.ask(args=["org/new", f"--port={serving.port}"])
        serving.sees("fetching weights", asked, "")
        assert (calls(machine, "run"), len(calls(machine, "pull"))) == ([], 1)
        go.set()
        serving.sees("ready", asked, asked)
        assert (machine.root / CACHED).exists()

    def test_waits_for_the_image_after_the_weights(self, serving: Serving, machine: Machine):
        held(machine).set()
        (machine.root / "hang-pull").touch()
        asked = serving.ask(args=["org/new", f"--port={serving.port}"])
        machine.until((machine.root / CACHED).exists, "the weights are there before the image")
        serving.sees("pulling image", asked, "")
        assert calls(machine, "run") == []
        (machine.root / "hang-pull").unlink()
        serving.sees("ready", asked, asked)

    def test_has_its_compiled_programs_before_its_image(self, serving: Serving, machine: Machine):
        machine.secrets[KEY_VERSION] = SECRET_KEY.encode()
        machine.attributes[ARCHIVE_METADATA_KEY] = SETTINGS.text()
        publisher, elsewhere = serving.agent.publisher, machine.root / "elsewhere"
        served = parse_document(document(serving.port, args=["google/gemma-4-E2B-it", f"--port={serving.port}"]))
        folder = elsewhere / programs_key(served)
        folder.mkdir(parents=True)
        (folder / "jit_backbone-cache").write_bytes(b"program")
        CompiledPrograms(MetadataClient(clock=machine.requests), publisher, elsewhere).save(served)
        serving.agent.programs.root = machine.root / "programs"
        (machine.root / "hang-pull").touch()
        asked = serving.ask()
        restored = machine.root / "programs" / folder.name / "jit_backbone-cache"
        machine.until(restored.exists, "the programs are there before the image")
        serving.sees("pulling image", asked, "")
        assert calls(machine, "run") == []
        (machine.root / "hang-pull").unlink()
        serving.sees("ready", asked, asked)

    def test_copies_a_bucket_meanwhile_and_tells_the_progress_of_both(self, serving: Serving, machine: Machine):
        machine.objects["new/one.safetensors"], machine.objects["new/two.safetensors"] = b"weights", b"more"
        go = threading.Event()
        machine.on_download = lambda name: None if "one" in name else machine.hold(go)
        (machine.root / "hang-pull").touch()
        weights = {"mode": "bucket", "uri": "gs://models/new", "path": str(machine.root / "weights")}
        asked = serving.ask(weights=weights)
        both = "0 of 12 layers; fetching weights: 0.0 of 0.0 GiB"
        machine.until(lambda: machine.guest().get("detail") == both, "the progress of both is told")
        (machine.root / "hang-pull").unlink()
        serving.sees("fetching weights", asked, "")
        assert calls(machine, "run") == []
        go.set()
        serving.sees("ready", asked, asked)
        assert (machine.root / "weights/two.safetensors").read_bytes() == b"more"

    def test_ends_both_for_a_newer_document(self, serving: Serving, machine: Machine):
        go = held(machine)
        (machine.root / "hang-pull").touch()
        serving.sees("pulling image", serving.ask(args=["org/new", f"--port={serving.port}"]), "")
        machine.until(lambda: any(path.startswith("storage/") for _, path, *_ in machine.hub.asked), "both have begun")
        asked = serving.ask("--max-num-seqs=4")
        (machine.root / "hang-pull").unlink()
        go.set()
        serving.sees("ready", asked, asked)
        assert not (machine.root / CACHED).exists()
