"""Each signal that ends a command reaches what it started, once: a second one makes the engine end without its state."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gemma_serving.engine.children import interruptible, run_async, started
from tests.polling import until
from tests.tracked import tracked

ROOT = Path(__file__).resolve().parents[2]
ENGINE = """#!/bin/sh
trap 'echo interrupted >>heard' INT
touch running
while [ ! -f stop ]; do sleep 0.05; done
echo ended >>heard
"""
COMMAND = """
import os
import subprocess
import sys
import threading
import time
from gemma_serving.engine.children import interruptible, started

def wait(has_ended):  # in steps, because a signal just before a wait without end is noticed only after it
    while not has_ended():
        time.sleep(0.05)

def work():
    with started(["./engine"]) as process:
        wait(lambda: process.poll() is not None)

class Counted(subprocess.Popen):
    def send_signal(self, signum):  # of two signals that are pending at once the engine hears one
        with open("sent", "a") as sent:
            print(signum, file=sent)
        super().send_signal(signum)

class Slow(Counted):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        time.sleep(1)  # the program runs and the thread does not know it yet

subprocess.Popen = Slow if sys.argv[1] == "slow thread" else Counted
try:
    with interruptible():
        if sys.argv[1] != "main":
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            wait(lambda: not thread.is_alive())
        else:
            work()
except KeyboardInterrupt:
    with open("heard", "a") as heard:
        print("130", file=heard)
    os._exit(130)
"""


class Started:
    """A command whose engine writes each signal and its own end down, and ends when the test says so."""

    def __init__(self, folder, where):
        self.folder = folder
        (folder / "engine").write_text(ENGINE)
        (folder / "engine").chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        words = [sys.executable, "-c", COMMAND, where]
        self.process = subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        (self.folder / "stop").touch()  # ends the engine, which is not in the command's group
        self.process.kill()
        self.process.wait()

    def heard(self):
        path = self.folder / "heard"
        return path.read_text().split() if path.exists() else []

    def end(self):
        (self.folder / "stop").touch()
        return self.process.wait(timeout=120)


@pytest.mark.parametrize(
    ("where", "signals"),
    [
        ("main", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)),
        ("thread", (signal.SIGTERM, signal.SIGINT)),
        ("slow thread", (signal.SIGTERM, signal.SIGINT)),
    ],
)
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the command", "to the group, as Ctrl-C"])
def test_each_signal_reaches_the_engine_once_and_the_command_ends_after_it(tmp_path, send, where, signals):
    with Started(tmp_path, where) as command:
        until((tmp_path / "running").exists, "the engine runs")
        for number, signum in enumerate(signals, 1):
            send(command.process.pid, signum)
            until(lambda count=number: len(command.heard()) >= count, "the engine hears the signal")
        assert command.end() == 130
    assert command.heard() == [*["interrupted"] * len(signals), "ended", "130"]
    assert (tmp_path / "sent").read_text().split() == [str(int(signal.SIGINT))] * len(signals)


def test_without_a_command_the_interrupt_is_passed_on_too():
    with pytest.raises(KeyboardInterrupt), started([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        raise KeyboardInterrupt
    assert process.returncode in {-signal.SIGINT, 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_a_coroutine_where_it_waits_and_not_inside_a_step(number):
    done = []

    async def work():
        signal.raise_signal(number)
        done.append("whole step")
        try:
            await asyncio.sleep(600)
        finally:
            done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt), interruptible():
        run_async(work())
    assert done == ["whole step", "cleaned up"]


def test_a_coroutine_that_is_cancelled_by_others_was_not_interrupted():
    async def work():
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError), interruptible():
        run_async(work())


MAY_START = frozenset(
    {
        "gemma_serving/cloud/staging/template_age.py",
        "gemma_serving/engine/children.py",
        "gemma_serving/engine/trial.py",
        "scripts/agent/programs.py",
        "scripts/stack/access.py",
    }
)
"""The renderer of a stranger's template, which ends by itself; the one runner; the step of `.venv/bin/pulumi` that becomes the engine; commands of the
assistant, which write to files, and its process that outlives it to end a stack; and a tunnel, which runs in a session of its own until its user closes it."""


def starts_programs(text):
    return (
        re.search(r"subprocess\.(run|Popen|call|check_\w+)\(|os\.(system|popen|spawn\w*|exec\w*)\(", text) is not None
    )


def test_programs_are_started_in_one_place():
    assert starts_programs("done = subprocess.run(words)")
    assert starts_programs("with subprocess.Popen(words) as process:")
    paths = tracked("gemma_serving/cloud", "gemma_serving/engine", "scripts", "stacks")
    found = {str(path.relative_to(ROOT)) for path in paths if starts_programs(path.read_text())}
    assert found == MAY_START
