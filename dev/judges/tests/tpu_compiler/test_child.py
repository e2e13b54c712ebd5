"""The child process: a clean environment, an end in every case, and a reason for each end without an answer."""

import os
import resource
import time
from pathlib import Path

import pytest

from dev.judges.tests.processes import is_gone
from dev.judges.tests.tpu_compiler.judge import STAGES, answered, given, interpreter
from dev.judges.tests.tpu_compiler.questions import question
from dev.judges.tpu_compiler import confined
from dev.judges.tpu_compiler.answer import Stage, answer_of
from dev.judges.tpu_compiler.child import ROOT, command_of, run_child
from dev.judges.tpu_compiler.confined import clean_environment
from gemma_serving.contracts.errors import CommandRefusedError
from tests.polling import until


@pytest.fixture
def run(tmp_path: Path):
    """Run an interpreter with these events; returns the events and the reason."""

    def ran(events, end="", report=lambda event: None, limit_s=60.0):
        python = interpreter(tmp_path, events, end)
        request = question().write(tmp_path / f"work-{time.monotonic_ns()}")
        (tmp_path / "home").mkdir(exist_ok=True)
        environment = clean_environment({"VLLM_X": "1"}, tmp_path / "home")
        return run_child(
            command_of(python, request), environment, tmp_path / "logs" / "judge.log", report=report, limit_s=limit_s
        )

    return ran


def test_each_event_is_reported_and_a_complete_answer_has_no_reason(run, tmp_path):
    reported = []
    events, reason = run(answered(), report=reported.append)
    assert reason == ""
    assert [event for event in reported if event is not None] == list(events)
    assert len(events) == len(answered())
    assert (tmp_path / "logs" / "judge.log").read_text() == "a warning of vLLM\n"


def test_the_child_is_the_room_and_nothing_of_the_folder_that_it_starts_in(run, tmp_path):
    run(answered())
    words = given(tmp_path)["arguments"]
    assert words[:2] == ["-P", "-c"]
    assert f"sys.path.append({str(ROOT)!r})" in words[2]
    assert "from dev.judges.tpu_compiler.server.start import main" in words[2]


def test_no_secret_reaches_the_child(run, tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_OAUTH_ACCESS_TOKEN", "VLLM_API_KEY", "PULUMI_X"):
        monkeypatch.setenv(name, "canary-secret")
    run(answered())
    found = given(tmp_path)
    assert "canary" not in str(found)
    assert found["environment"].keys() - {"PATH", "HOME", "VLLM_X", "LC_CTYPE"} == set()
    assert found["environment"]["HOME"] == str(tmp_path / "home")


READS = """
found = {}
for pid in (os.getppid(), os.getpid()):
    for name in ("environ", "mem", "fd/1", "root/etc"):
        path = f"/proc/{pid}/{name}"
        try:
            found[name] = os.stat(path) if "/" in name else open(path, "rb").read(1)
        except PermissionError:
            found[name] = "denied"
        except OSError:
            found[name] = "read"
    with open(sys.argv[-1] + ".own" * (pid == os.getpid()), "w") as file:
        file.write(str([name for name, value in found.items() if value == "denied"]))
open("/proc/cpuinfo").read()
"""


def test_the_child_cannot_read_what_its_parent_holds(run, tmp_path):
    assert run(answered()[:-1], READS)[1] == ""
    (read,) = tmp_path.glob("work-*/*.json")
    assert read.read_text() == "['environ', 'mem', 'fd/1', 'root/etc']"
    assert read.with_name(f"{read.name}.own").read_text() == "[]"


def test_a_kernel_that_cannot_confine_it_is_a_refusal(run, monkeypatch):
    monkeypatch.setattr(confined, "_CREATE_RULESET", 1_000)
    with pytest.raises(
        CommandRefusedError, match=r"cannot confine it: Function not implemented\. Run the command where"
    ):
        run(answered())


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed (exit -9), usually because memory ran out"),
        ("sys.exit(3)", "the process ended with exit code 3"),
        ("time.sleep(60)", "did not end within"),
    ],
)
def test_a_child_that_dies_or_hangs_has_a_reason_with_its_log(run, tmp_path, end: str, said: str):
    events, reason = run(answered()[:3], end, limit_s=2)
    assert said in reason
    assert str(tmp_path / "logs" / "judge.log") in reason
    assert len(events) == 3


def test_a_judge_that_fails_has_judged_nothing(run, tmp_path):
    failed = {"event": "failed", "stage": "weights", "words": "TypeError: no shape"}
    events, reason = run([*answered()[:3], failed])
    assert reason == f"the judge failed at weights: TypeError: no shape. Log: {tmp_path / 'logs' / 'judge.log'}"
    assert answer_of(events, reason).refusal is None


def test_a_line_that_is_not_an_event_ends_the_child(run):
    events, reason = run([STAGES[0], "Downloading ...", *answered()], "time.sleep(60)")
    assert "the judge's answer is not understood" in reason
    assert [type(event) for event in events] == [Stage]


def test_an_answer_counts_although_the_process_ends_late_or_badly(run):
    assert run(answered(), "time.sleep(60)")[1] == ""
    assert run(answered(), "sys.exit(1)")[1] == ""


def test_an_interrupt_ends_the_child_and_its_own_children(run, tmp_path):
    grandchild = f"""
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
worker = subprocess.Popen(["sleep", "600"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{worker.pid}}")
time.sleep(600)
"""

    def interrupt(event):
        if (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().count(" "):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([STAGES[0]], grandchild, report=interrupt)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until(lambda: all(map(is_gone, pids)), "the child and its own children end")


def test_an_interpreter_that_is_not_there_is_a_reason(tmp_path):
    events, reason = run_child([str(tmp_path / "no")], {}, tmp_path / "log", report=lambda event: None)
    assert (events, reason) == ((), f"{tmp_path / 'no'} cannot be started: No such file or directory")


def test_a_process_with_many_open_files_reads_the_child(run):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_000:
        pytest.skip("this machine allows fewer open files")
    if soft < 2_000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2_000, hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        assert run(answered())[1] == ""
    finally:
        for number in opened:
            os.close(number)
