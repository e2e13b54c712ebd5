"""Phases of a Cloud Run server's start while `gemma up` waits: read from the log of the local cloud's HTTP server, or from planted lines."""

import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest

from gemma_serving.cloud.server_logs import ServerLine
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.stack_facts import CloudFacts, StackFacts
from gemma_serving.contracts.three_answers import Absent, Present
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.scripts.up import start_phases as module
from gemma_serving.scripts.up.start_phases import StartPhases
from localcloud.world.scenario import Logging, OperationDurations, Scenario
from tests.cloud.populated import PROJECT, open_world
from tests.polling import until
from tests.scripts.logs.test_logs import RUN, write

WAITS = "6 of 9: creating gcp:cloudrunv2:Service vllm"
OTHERS = (
    "5 of 9: creating gcp:storage:Bucket models",
    "7 of 9: creating gcp:cloudrunv2:ServiceIamMember invoker",
    "8 of 9: creating gcp-tpu:index:QueuedResource capacity",
    "9 of 9: deleting gcp:cloudrunv2:Service vllm",
)
NEW, FORMER = "gemma-l4-qat-00002-b", "gemma-l4-qat-00001-a"
ORIGIN = "(EngineCore pid=90) INFO 11-27 12:00:01"
START = (
    (f"{ORIGIN} [gpu_model_runner.py:1] Starting to load model m...", "loading: Starting to load model m..."),
    (f"{ORIGIN} [model.py:1] Using max model len 8192", "loading: Starting to load model m..."),
    ("Loading checkpoint shards:  50% Completed | 1/2", "loading: Loading checkpoint shards:  50% Completed | 1/2"),
    (f"{ORIGIN} [backends.py:1] Compiling a graph for x", "compiling: Compiling a graph for x"),
    (
        "Capturing CUDA graphs (decode, FULL): 10%\x1b[2J",
        "compiling: Capturing CUDA graphs (decode, FULL): 10%\x1b[2J",
    ),
    ("Loading weights took 3 s", "compiling: Capturing CUDA graphs (decode, FULL): 10%\x1b[2J"),
    (f"{ORIGIN} [core.py:1] init engine (warmup model) took 9 s", "compiling: init engine (warmup model) took 9 s"),
    ("INFO:     Application startup complete.", "ready"),
)
"""Lines of vLLM's log, and what is shown after each."""


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", PROJECT)


def facts(stack="l4-qat", *, running=None):
    server = None if running is None else Present(CloudFacts(state="READY", running=running))
    return StackFacts(stack=stack, state=Absent(), outputs=Absent(), server=server)


def settings(stack="l4-qat"):
    return stack_settings(stack, project=PROJECT)


@contextmanager
def start_phases(*of):
    with closing(StartPhases(*of)) as phases:
        yield phases.during


def shown(describe, wanted, step=WAITS):
    """Ask as the engine's watch does, until the answer is as wanted, and return it."""
    until(lambda: describe(step) == wanted, f"{wanted!r} is shown")
    return wanted


class Log:
    """Stands in for Cloud Logging: lines that each read returns, and the number of reads."""

    def __init__(self, monkeypatch):
        self.lines, self.reads, self.error = [], 0, None
        monkeypatch.setattr(module.google_api, "connect", lambda _project: None)
        monkeypatch.setattr(module, "follow", self._follow)

    def add(self, text, where=NEW):
        self.lines.append(ServerLine(moment=datetime.now(UTC), source="stdout", where=where, text=text))

    def _follow(self, *_, pause, **__):
        at = 0
        while True:
            self.reads += 1
            if self.error is not None:
                raise self.error
            while at < len(self.lines):
                at += 1
                yield self.lines[at - 1]
            yield None
            pause(0)


@pytest.fixture
def log(monkeypatch):
    return Log(monkeypatch)


def test_the_phases_are_those_of_the_log_in_cloud_logging():
    scenario = Scenario(operations=OperationDurations(instant=True), logging=Logging(lag_s=0))
    with open_world(scenario) as world, start_phases(facts(), settings()) as describe:
        assert describe(WAITS) == ""
        for text, wanted in START:
            write(world, RUN, text, minutes=0)
            assert shown(describe, wanted) == wanted


def test_lines_of_the_revision_that_serves_are_not_of_this_start(log):
    with start_phases(facts(running=FORMER), settings()) as describe:
        log.add("Compiling a graph", FORMER)
        log.add("Loading weights took 3 s")
        assert shown(describe, "loading: Loading weights took 3 s") == "loading: Loading weights took 3 s"


def test_only_the_step_of_the_service_reads_and_reading_ends_with_the_engine(log):
    log.add("Loading weights took 3 s")
    others = set(threading.enumerate())  # the reader of another test may still end
    with start_phases(facts(), settings()) as describe:
        assert {describe(step) for step in OTHERS} == {""}
        assert log.reads == 0
        assert shown(describe, "loading: Loading weights took 3 s")
        assert {describe(step) for step in OTHERS} == {""}
        (reader,) = (each for each in set(threading.enumerate()) - others if each.name.endswith("(_read)"))
    until(lambda: not reader.is_alive(), "the reader ends")


def test_a_log_that_cannot_be_read_is_said_once_and_not_read_again(log, capsys):
    log.error = ScriptError("Cannot read the logs of stack l4-qat: denied.")
    with start_phases(facts(), settings()) as describe:
        describe(WAITS)
        said = until(lambda: describe(WAITS) or capsys.readouterr().err, "the error is said")
        assert said == "up: the phases of the start are not shown. Cannot read the logs of stack l4-qat: denied.\n"
        assert [describe(WAITS) for _ in range(20)] == [""] * 20
        assert capsys.readouterr().err == ""
    assert log.reads == 1
