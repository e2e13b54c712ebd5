"""Whole sweeps against a server of known timing in a process of its own, straight and with faults."""

import asyncio
import contextlib
import gc
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from loadtest import sweep as sweeps
from loadtest.__main__ import main
from loadtest.endpoint import Endpoint
from loadtest.errors import NotReachedError, SweepError
from loadtest.generator.pool import HOME, WorkerPool, _Worker
from loadtest.settings import ForecastBand, SweepSettings
from loadtest.store import ResultStore, read_results, read_run
from loadtest.sweep import run_sweep, seed_of
from loadtest.tests.model_pool import ModelPool, ModelServer
from loadtest.traffic.points import Sweep

SWEEP = Sweep(
    concurrency=(4,), request_rate=(), input_tokens=(32,), output_tokens=(8,), requests=12, duration_s=None, seed=1
)


class Quiet:
    def __init__(self):
        self.lines = []
        self.on_done = None

    def line(self, text):
        self.lines.append(text)

    def skipped(self, point, reason):
        self.lines.append(f"{point.key} {reason}")

    def done(self, point, result):
        if self.on_done is not None:
            self.on_done(point, result)

    def begin(self, *_):
        pass

    start = progress = end = begin


MANY = (24, 25)
"""Users of the points in which the server is lost: each meets one failure, after which none pauses before the client gives up."""


def bench(url, out, sweep=SWEEP, reporter=None, endpoint=None, *, run=asyncio.run, recovery_limit_s=30.0, **options):
    settings = SweepSettings(**{"url": url, "model": None, "out": out, "warm_up": 0, "workers": 1} | options)
    endpoint = endpoint or Endpoint(base_url=url)
    with mock.patch.object(sweeps, "RECOVERY_LIMIT_S", recovery_limit_s):
        outcome = run_sweep(settings, sweep, endpoint, reporter or Quiet(), run=run)
    return outcome, {result["point"]["key"]: result for result in read_results(out)} if outcome.stored else {}


def only(results):
    (result,) = results.values()
    return result


def other_notes(result):
    """The notes of a point without those that every short point on a busy machine has."""
    usual = (
        "the steady window has",
        "the whole point has",
        "the point is too short",
        "the mean time to first token is uncertain",
    )
    return [note for note in result["notes"] if not note.startswith(usual) and "in bunches" not in note]


def test_prompts_are_exact_and_unique_and_the_server_agrees(calm, tmp_path):
    before = calm.control()
    _, results = bench(calm.url, tmp_path, replace(SWEEP, input_tokens=(9, 200), concurrency=(2, 4)))
    after = calm.control()
    assert after["duplicates"] == before["duplicates"]
    assert after["requests"] - before["requests"] == 4 * 12
    for result in results.values():
        assert set(result["input_lens"]) == {result["point"]["input_tokens"]}
        assert set(result["output_lens"]) == {8}
        assert result["server"]["prefix_cache_hits"] == 0
        assert result["server"]["generation_tokens"] == result["total_output_tokens"]
        assert other_notes(result) == []
        assert result["simulated"] == "timed"


def test_a_repeated_seed_meets_the_prefix_cache_and_the_result_says_so(calm, tmp_path):
    for folder in ("a", "b"):
        _, results = bench(calm.url, tmp_path / folder, replace(SWEEP, seed=99))
    assert only(results)["server"]["prefix_cache_hit_rate"] == 1.0
    assert "100% of the prompt tokens came from the prefix cache, so they were not computed" in only(results)["notes"]


def test_a_seed_that_nobody_gave_differs_from_run_to_run_and_a_continuation_keeps_it(tmp_path):
    settings = SweepSettings(url="u", model=None, out=tmp_path)
    assert len({seed_of(settings, None) for _ in range(5)}) > 1
    (tmp_path / "run.json").write_text('{"seed": 7}')
    assert seed_of(replace(settings, resume=True), None) == 7
    assert seed_of(settings, 3) == 3


OPEN, CLOSED = (
    {"concurrency": (), "request_rate": (5.0, 20.0, 44.0, 50.0, 60.0, 70.0)},
    {"concurrency": (1, 4, 8, 16, 32, 64)},
)
SATURATION = {
    "open": (OPEN, 4, True, ["open-r60-i32-o11-n0", "open-r70-i32-o11-n0"]),
    "closed": (CLOSED, 4, True, ["closed-c32-i32-o11-n0", "closed-c64-i32-o11-n0"]),
    "open, enough slots": (OPEN, None, True, []),
    "closed, enough slots": (CLOSED, None, True, []),
    "not asked": (CLOSED, 4, False, []),
}
"""Loads, slots of the server, whether it was asked, and the points that are left out."""


@pytest.mark.parametrize("case", SATURATION)
def test_loads_above_saturation_are_left_out_and_said_so(calm, tmp_path, monkeypatch, case):
    # On a model of a server, four at once for 100 ms each: 40 requests per second.
    loads, slots, asked, left_out = SATURATION[case]
    model = ModelServer(ttft_s=0.02, tpot_s=0.008, slots=slots)
    monkeypatch.setattr("loadtest.sweep.WorkerPool", lambda: ModelPool(model))
    sweep = replace(SWEEP, **loads, output_tokens=(11,), requests=None, duration_s=30.0)
    reporter = Quiet()
    outcome, results = bench(calm.url, tmp_path, sweep, reporter, stop_when_saturated=asked)
    assert [row["key"] for row in outcome.left_out] == left_out
    assert reporter.lines == [f"{key} the server is saturated at a lower load" for key in left_out]
    assert read_run(tmp_path).get("left_out", []) == [dict(row) for row in outcome.left_out]
    if loads is OPEN:
        over = [result["saturation"]["over"] for result in results.values()]
        assert over == ([False, False, True, True] if left_out else [False] * 6)
    assert all(result["valid"] for result in results.values())


def test_two_processes_share_a_point_without_sending_anything_twice_and_warm_up_is_not_counted(calm, tmp_path):
    before = calm.control()
    _, results = bench(calm.url, tmp_path, replace(SWEEP, requests=25), workers=2, warm_up=5)
    assert only(results)["client"]["workers"] == 2
    assert (only(results)["num_prompts"], only(results)["completed"]) == (25, 25)
    assert calm.control()["requests"] - before["requests"] == 25 + 5


class MovableLoop(asyncio.SelectorEventLoop):
    """A loop on the real clock that a test can move forward."""

    moved_s = 0.0

    def time(self):
        return super().time() + self.moved_s


def test_a_point_that_takes_too_long_is_ended_with_what_is_known(calm, tmp_path):
    loop, reporter = MovableLoop(), Quiet()

    def progress(finished, in_flight):
        if (finished, in_flight) == (3, 4):
            loop.moved_s = 3600.0

    reporter.progress = progress
    calm.control({"kind": "hang", "spare": 3})  # each of the four users gets into a request that has no end
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        outcome, results = bench(
            calm.url, tmp_path, replace(SWEEP, requests=100_000), reporter, run=runner.run, point_timeout_s=3600.0
        )
    assert outcome.ending == "done"
    assert only(results)["completed"] == 3
    assert only(results)["errors_by_kind"] == {"aborted": 4}


def test_a_server_killed_in_the_middle_ends_the_sweep_which_resumes_and_counts_nothing_twice(start_server, tmp_path):
    options = ("--ttft-s", "0.02", "--tpot-s", "0.005", "--port", str(port_that_nobody_takes()))
    first = start_server(*options)
    reporter = Quiet()
    reporter.on_done = lambda point, _result: first.process.kill() if point.level == 5 else None
    sweep = replace(SWEEP, concurrency=(4, 5, *MANY), requests=25)
    outcome, results = bench(first.url, tmp_path, sweep, reporter, recovery_limit_s=0.5)
    assert outcome.ending == "server gone"
    assert "closed-c24-i32-o8-n0" in outcome.detail
    assert set(results) == {"closed-c4-i32-o8-n0", "closed-c5-i32-o8-n0"}
    second = start_server(*options)
    outcome, results = bench(second.url, tmp_path, sweep, resume=True)
    assert (outcome.ending, outcome.stored) == ("done", 4)
    assert second.control()["requests"] == 50
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 4


def test_a_tunnel_that_ends_is_not_a_server_that_is_gone(start_server, tmp_path):
    server = start_server("--ttft-s", "0.02", "--tpot-s", "0.005")
    reporter = Quiet()
    reporter.on_done = lambda *_: server.process.kill()
    tunnel = Endpoint(
        base_url=server.url,
        not_reached=lambda error: "" if server.process.poll() is None else f"the tunnel ended: {error}",
    )
    outcome, results = bench(
        server.url,
        tmp_path / "a",
        replace(SWEEP, concurrency=MANY, requests=25),
        reporter,
        tunnel,
        recovery_limit_s=0.5,
    )
    assert outcome.ending == "unreachable"
    assert outcome.detail.startswith("the tunnel ended:")
    assert len(results) == 1
    with pytest.raises(NotReachedError, match="the tunnel ended"):
        bench(server.url, tmp_path / "b", endpoint=tunnel)
    with pytest.raises(SweepError, match="Cannot measure"):
        bench(server.url, tmp_path / "c")


def test_a_server_that_dies_while_it_answers_leaves_no_half_point(start_server, tmp_path):
    dying = start_server("--ttft-s", "0.02", "--tpot-s", "0.005")
    dying.control({"kind": "exit", "every": 9, "after_tokens": 2})
    outcome, results = bench(
        dying.url, tmp_path, replace(SWEEP, concurrency=MANY[:1], requests=60), recovery_limit_s=0.5
    )
    assert outcome.ending == "server gone"
    assert results == {}


@pytest.mark.long
def test_a_server_that_comes_back_has_its_point_measured_again_from_the_start(start_server, tmp_path, monkeypatch):
    options = ("--ttft-s", "0.02", "--tpot-s", "0.005", "--port", str(port_that_nobody_takes()))
    first = start_server(*options)
    first.control({"kind": "exit", "every": 9, "after_tokens": 2})
    second = []
    lost = sweeps._lost

    async def revive(run):
        """Start the second server when the load generator has given up the first."""
        second.append(start_server(*options))
        return await lost(run)

    monkeypatch.setattr(sweeps, "_lost", revive)
    reporter = Quiet()
    outcome, results = bench(first.url, tmp_path, replace(SWEEP, requests=60), reporter)
    assert outcome.ending == "done"
    assert any("measuring the point again" in text for text in reporter.lines)
    assert (only(results)["completed"], only(results)["failed"]) == (60, 0)
    assert "measured again from its start" in only(results)["notes"][-1]
    assert second[0].control()["requests"] == 60


def port_that_nobody_takes():
    """A free port below the range from which Linux and macOS give ports to others, so that a second server can have it too."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def until(came_about):
    """Wait until something has come about."""
    end_s = time.monotonic() + 60
    while not came_about():
        assert time.monotonic() < end_s
        time.sleep(0.02)  # between two looks at another process


def workers_of_this_process():
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and b".worker" in (folder / "cmdline").read_bytes():
                parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if int(parent) == os.getpid():
                    yield int(folder.name)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found through /proc")
def test_a_load_generator_that_is_killed_ends_the_sweep_and_is_not_blamed_on_the_server(calm, tmp_path):
    reporter = Quiet()
    reporter.progress = lambda *_: [os.kill(pid, signal.SIGKILL) for pid in workers_of_this_process()]
    outcome, _ = bench(calm.url, tmp_path, replace(SWEEP, requests=100_000), reporter)
    assert (outcome.ending, outcome.stored) == ("client failed", 0)
    assert "a process of the load generator exited unexpectedly" in outcome.detail
    assert not list(workers_of_this_process())


def test_a_sweep_that_cannot_begin_says_why(calm, start_server, tmp_path):
    refused = r"GET /v1/models failed: cannot connect to 127\.0\.0\.1:9 \(Connection refused\)\. Check that the server runs at this address\."
    with pytest.raises(SweepError, match=rf"Cannot measure .*: {refused}"):
        bench("http://127.0.0.1:9", tmp_path)
    locked = r"returned 401 \(who are you\?\)\. Set GEMMA_API_KEY to a key that the server accepts\."
    with pytest.raises(SweepError, match=locked):
        bench(start_server("--token", "secret").url, tmp_path)
    with pytest.raises(SweepError, match="--model is 'other', but the server serves timed"):
        bench(calm.url, tmp_path, model="other")
    assert not (tmp_path / "results.jsonl").exists()


def test_a_server_without_a_tokenizer_and_ignore_eos_is_calibrated_by_usage_and_measured_without_it(
    start_server, tmp_path
):
    plain = start_server("--ttft-s", "0.001", "--tpot-s", "0.001", "--no-tokenize", "--refuse-ignore-eos")
    reporter = Quiet()
    _, results = bench(plain.url, tmp_path, replace(SWEEP, input_tokens=(77,)), reporter, warm_up=1)
    assert only(results)["input_lens_source"] == "usage"
    assert only(results)["input_lens"] == [77] * 12
    assert any("ignore_eos" in text for text in reporter.lines)


def test_more_streams_than_the_usual_limit_of_open_files_are_held(calm, tmp_path):
    """The soft limit of a shell is raised by the load generator itself; only the hard one is refused."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv.pop(1))))\n"
        "sys.argv[0] = 'bench'\n"
        "import sys\nfrom loadtest.__main__ import main\nsys.exit(main())\n"
    )
    load = "--concurrency 150 --requests 150 --input-tokens 16 --output-tokens 4 --warm-up 0"
    words = ["--url", calm.url, *load.split(), "--allow-invalid"]
    for hard, code_wanted, said in ((400, 0, "1 point in"), (100, 2, "needs more open files than the 100")):
        command = [sys.executable, "-c", code, str(hard), *words, "--workers", "1", "--out", str(tmp_path / str(hard))]
        done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code_wanted, done.stderr
        assert said in done.stderr
    assert read_results(tmp_path / "400")[0]["failed"] == 0


def run_cli(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "loadtest", *words],
        cwd=HOME,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interruption_leaves_complete_files_and_says_how_to_continue(calm, tmp_path, number):
    load = "--concurrency 1,2,3 --input-tokens 8 --output-tokens 8 --requests 30 --allow-invalid"
    words = ["--url", calm.url, *load.split()]
    calm.control({"kind": "endless", "after_tokens": 2, "spare": 40})  # the second point is never complete
    given = [*words, "--warm-up", "0", "--seed", "4", "--out", str(tmp_path)]
    process = run_cli(*given)
    stored = tmp_path / "results.jsonl"
    until(lambda: stored.exists() and stored.read_bytes().endswith(b"\n"))
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "exception was never retrieved" not in errors
    assert len(read_results(tmp_path)) == 1
    assert "1 of 3 points are complete" in errors
    printed = shlex.split(errors.rsplit("Continue with: ", 1)[1].splitlines()[0])
    assert printed == ["python", "-m", "loadtest", *given, "--resume"]
    for name in ("report.html", "run.json"):
        assert (tmp_path / name).stat().st_size > 0
    assert read_run(tmp_path)["seed"] == 4
    until(lambda: calm.control()["open"] == 0)  # no stream is left open
    calm.control({})
    again = run_cli(*words, "--warm-up", "0", "--resume", "--json", "--out", str(tmp_path))
    output, errors = again.communicate(timeout=60)
    assert again.returncode == 0, errors
    told = json.loads(output)
    assert (told["ending"], told["stored"], told["simulated"]) == ("done", 3, "timed")


def test_a_point_that_was_written_when_the_interrupt_came_is_counted(calm, tmp_path, monkeypatch, capsys):
    append = ResultStore.append

    def interrupted(store, result):
        append(store, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(ResultStore, "append", interrupted)
    words = ["--url", calm.url, "--concurrency", "1,2,3", "--input-tokens", "8", "--output-tokens", "8"]
    assert main([*words, "--requests", "4", "--warm-up", "0", "--out", str(tmp_path)]) == 130
    assert "1 of 3 points are complete" in capsys.readouterr().err


ENOUGH = ["--url", "http://127.0.0.1:9", "--out", "x"]
"""Words of a measurement without a mistake."""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "x"], "Pass --url URL"),
        (["--url", "http://127.0.0.1:9"], "Pass --out DIR"),
        (["--ulr", "http://127.0.0.1:9", "--out", "x"], "--ulr is not an option. Did you mean --url? See --help"),
        (["--url", "http://127.0.0.1:9", "--stall-limit", "9"], "Did you mean --stall-timeout? See --help"),
        (["--url", "http://127.0.0.1:9", "--qqqq=1"], "--qqqq is not an option. See --help"),
        (["compare", "a", "b", "--threshhold", "1"], "--threshhold is not an option. Did you mean --threshold?"),
        (["compare", "a", "b", "c"], "c is not expected. See --help"),
        (["--url", "http://localhost:9", "--out", "x"], "Use 127.0.0.1"),
        (["--url", "127.0.0.1:9", "--out", "x"], "expected http://HOST"),
        ([*ENOUGH, "--preset", "huge"], "it must be quick or grid"),
        (
            [*ENOUGH, "--prefix-share", "0.5", "--prefix-tokens", "8"],
            "--prefix-share and --prefix-tokens cannot be combined",
        ),
        ([*ENOUGH, "--think-time", "2"], "--think-time 2 requires --turns N"),
        ([*ENOUGH, "--images", "1"], "--images is not an option. See --help"),
        ([*ENOUGH, "--adapters", "a,a"], "--adapters is 'a,a'; it must be different names, such as a,b."),
        ([*ENOUGH, "--input-tokens", "zipf:a=1"], "--input-tokens is 'zipf:a=1'; it must be uniform:min=100,max=2000"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence_and_exit_code_2(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert message in capsys.readouterr().err


class Slow:
    """A forecast that only one user fits into the sweep's time."""

    def figures(self, _traffic, point):
        rate = 1e6 if point.level == 1 else 0.1
        return {"output_throughput": ForecastBand(low=rate, typical=1e6, high=1e6)}


def test_a_sweep_with_a_limit_leaves_out_what_does_not_end_by_its_forecast(calm, tmp_path):
    reporter = Quiet()
    sweep = replace(SWEEP, concurrency=(1, 4, 8), limit_s=120.0)
    outcome, results = bench(calm.url, tmp_path, sweep, reporter, forecast=Slow())
    left_out = ["closed-c4-i32-o8-n0", "closed-c8-i32-o8-n0"]
    assert (outcome.ending, list(results)) == ("done", ["closed-c1-i32-o8-n0"])
    assert [row["key"] for row in outcome.left_out] == left_out
    assert reporter.lines[0] == f"{left_out[0]} it does not end in the time of the preset; --concurrency 4 measures it"


def test_a_sweep_with_a_limit_ends_when_the_server_is_slower_than_its_forecast(start_server, tmp_path):
    slow = start_server("--ttft-s", "600", "--tpot-s", "0.005")
    begin_s = time.monotonic()
    outcome, results = bench(slow.url, tmp_path, replace(SWEEP, concurrency=(1, 4), limit_s=1.0))
    assert time.monotonic() - begin_s < 300
    assert (outcome.ending, results, len(outcome.left_out)) == ("done", {}, 2)


def test_a_pool_ends_a_worker_whose_result_nobody_read(monkeypatch):
    """Its pipe is full, so it cannot exit, and the open pipe would outlive the event loop."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    writes = "import sys; sys.stdout.buffer.write(bytes(150_000)); sys.stdout.flush(); sys.stdin.read()"

    async def start_and_close():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", writes, **pipes)
        await asyncio.sleep(0.1)
        async with WorkerPool() as pool:
            pool._workers.append(_Worker(process))
        return process.returncode

    assert asyncio.run(start_and_close()) == 0  # not killed
    gc.collect()
    assert not unraisable
