"""The search for the highest load that keeps limits: its test, its steps, and what it finds on a server of known capacity."""

import random
from dataclasses import replace

import pytest

from contracts.exit_codes import ExitCode
from scripts.bench import sweep as sweep_module
from scripts.bench.__main__ import COMMAND
from scripts.bench.measure import Objective
from scripts.bench.points import Sweep
from scripts.bench.records import EndLoad, StopLoad
from scripts.bench.report import write_reports
from scripts.bench.slo_search import ShareTest, StepTest, backlog_s, bisection_for, found_json
from scripts.bench.store import read_results, read_run
from scripts.cli.command import run_command
from tests.scripts.bench.planted_pool import PlantedPool
from tests.scripts.bench.test_sweep_runs import bench

SWEEP = Sweep(
    concurrency=(), request_rate=(8.0,), input_tokens=(32,), output_tokens=(11,), requests=None, duration_s=None, seed=1
)


def verdict_of(miss_rate, seed, share=0.99, most=1000):
    test, rng = ShareTest(share=share), random.Random(seed)  # noqa: S311 - draws of a test, no secret
    for _ in range(most):
        missed = rng.random() < miss_rate
        test.missed, test.kept = test.missed + missed, test.kept + (not missed)
        if test.verdict is not None:
            break
    return test.forced, test.kept + test.missed


def test_the_sequential_test_errs_as_seldom_as_it_says_and_stops_early():
    for miss_rate, wrong in ((0.005, "misses"), (0.02, "keeps")):
        verdicts = [verdict_of(miss_rate, seed) for seed in range(400)]
        assert sum(verdict == wrong for verdict, _ in verdicts) <= 0.07 * 400  # 5 % and the noise of 400 draws
    assert verdict_of(0.0, 1) == ("keeps", 194)
    assert verdict_of(1.0, 1) == ("misses", 3)
    assert max(count for _, count in (verdict_of(0.01, seed) for seed in range(50))) <= 1000


def test_verdicts_count_in_the_order_of_sending():
    step = StepTest(test=ShareTest(share=0.99), skipped=0)
    assert step.take([(index, True) for index in range(3, 400)]) is None  # the first three are not known yet
    assert (step.test.kept, step.test.missed) == (0, 0)
    assert isinstance(step.take([(0, False), (1, False), (2, False)]), StopLoad)
    assert step.ended == "misses"
    calm = StepTest(test=ShareTest(share=0.99), skipped=100)
    assert calm.take([(index, True) for index in range(250)]) is None
    assert isinstance(calm.take([(index, True) for index in range(250, 400)]), EndLoad)
    assert calm.test.kept == 194
    # The first answers of an overloaded server are quick; they do not count.
    late = StepTest(test=ShareTest(share=0.99), skipped=100)
    assert isinstance(late.take([(index, index < 100) for index in range(200)]), StopLoad)
    assert (late.test.kept, late.test.missed) == (0, 3)
    hopeless = StepTest(test=ShareTest(share=0.99), skipped=5000)
    assert isinstance(hopeless.take([(index, index < 30) for index in range(50)]), StopLoad)


@pytest.mark.parametrize("limit", [0.3, 2.3, 77.0])
def test_bisection_ends_within_five_percent(limit):
    search = bisection_for((), (1.0,))
    while (level := search.next_level()) is not None:
        search.learn(level, "keeps" if level <= limit else "misses")
    assert search.kept <= limit < search.missed <= search.kept * 1.06
    assert search.steps <= 16


def test_bisection_of_users_is_exact_and_stays_between_its_ends():
    search = bisection_for((1, 64), ())
    levels = []
    while (level := search.next_level()) is not None:
        levels.append(level)
        search.learn(level, "keeps" if level <= 13 else "misses")
    assert (search.kept, search.missed) == (13, 14)
    assert all(level.is_integer() and 1 <= level <= 64 for level in levels)
    everything = bisection_for((2, 8), ())
    while (level := everything.next_level()) is not None:
        everything.learn(level, "keeps")
    assert (everything.kept, everything.missed) == (8, None)


def test_the_test_begins_when_a_backlog_shows():
    assert backlog_s(Objective(ttft_s=1.0, e2e_s=3.0)) == 20.0
    assert backlog_s(Objective(tpot_s=0.05)) == 0.0
    assert backlog_s(Objective(e2e_s=30.0)) == 60.0


def step(level, verdict, usd):
    return {
        "point": {"level": level}, "search": {"verdict": verdict, "kept": 194, "missed": 0}, "usd_per_million_output_tokens": usd,
        "valid": True,
    }  # fmt: skip


def test_the_sentence_names_the_limits_the_load_and_the_cost():
    objective = Objective(ttft_s=1.0, tpot_s=0.05)
    steps = [step(1.0, "keeps", 0.9), step(2.3, "keeps", 0.41), step(2.4, "misses", 0.4)]
    found = found_json(steps, name="l4-qat", objective=objective, share=0.99, whole=False)
    assert found["sentence"] == "l4-qat keeps ttft<=1, tpot<=0.05 up to 2.3 req/s: 0.41 USD per million output tokens"
    nothing = found_json([step(0.01, "misses", None)], name="m", objective=objective, share=0.9, whole=False)
    assert (
        nothing["sentence"]
        == "m keeps ttft<=1, tpot<=0.05 for 0.9 of the requests at no load that was tried, not even 0.01 req/s"
    )
    assert nothing["valid"] is False


def test_the_rate_of_a_server_with_limited_capacity_is_found(start_server, tmp_path, monkeypatch):
    """4 streams of 100 ms: 40 requests per second. The answers are planted: a busy machine would find less."""
    server = start_server()
    monkeypatch.setattr(sweep_module, "WorkerPool", lambda: PlantedPool(slots=4, stream_s=0.1))
    objective = Objective(ttft_s=0.4)
    sweep = replace(SWEEP, request_rate=(20.0, 80.0))
    options = {"objective": objective, "find": True, "slo_share": 0.9, "usd_per_hour": 3.6, "poisson": False}
    options["forecast"] = {"decode_tok_per_s": 120.0, "saturated_tok_per_s": 400.0}
    outcome, results = bench(server.url, tmp_path, sweep, **options)
    found = read_run(tmp_path)["found"]
    assert outcome.found == found
    assert found["level"] == pytest.approx(40, rel=0.06)
    assert found["missed_at"] <= found["level"] * 1.06
    assert f"keeps ttft<=0.4 for 0.9 of the requests up to {found['level']:g} req/s: " in found["sentence"]
    for result in results.values():
        search = result["search"]
        assert (search["verdict"] == "keeps") == (result["point"]["level"] <= found["level"])
    # The report has the sentence, the load, and the forecast beside what was measured.
    write_reports(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "Throughput, measured and forecast" in page
    assert f"forecast, requests/s offered {found['level']:g}: 400 tok/s" in page
    assert "highest load in req/s that keeps the limits" in page
    # Continued, it measures nothing again and finds the same.
    again, _ = bench(server.url, tmp_path, sweep, resume=True, **options)
    assert (again.measured, again.found) == (0, found)
    assert len(read_results(tmp_path)) == found["steps"]


def test_users_are_found_too(start_server, tmp_path):
    """3 streams of 60 ms. A request of u users waits for the u - 3 before it: 200 ms are passed at 12 users."""
    server = start_server("--ttft-s", "0.02", "--tpot-s", "0.004", "--capacity", "3")
    sweep = replace(SWEEP, request_rate=(), concurrency=(1, 16), requests=60)
    options = {"objective": Objective(ttft_s=0.2), "find": True, "slo_share": 0.8}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_module, "WorkerPool", lambda: PlantedPool(slots=3, stream_s=0.06))
        bench(server.url, tmp_path / "planted", sweep, **options)
    assert read_run(tmp_path / "planted")["found"]["level"] in {11, 12}
    _, results = bench(server.url, tmp_path / "real", sweep, **options)
    found = read_run(tmp_path / "real")["found"]
    assert found["unit"] == "users"
    assert len(results) == found["steps"] <= 16
    assert found["level"] is None or found["level"] < 14  # a timer is never early; a busy machine finds less


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--find", "slo"], "add --slo"),
        (["--find", "knee"], "--find is 'knee'; it must be slo"),
        (["--find", "slo", "--slo", "ttft=1", "--duration", "5"], "--find slo and --duration exclude each other"),
        (["--find", "slo", "--slo", "ttft=1"], "give one of --input-tokens, such as --input-tokens 128"),
    ],
)
def test_a_search_that_cannot_be_is_refused(words, why, capsys, tmp_path):
    code = run_command(COMMAND, ["--url", "http://127.0.0.1:9", "--out", str(tmp_path / "o"), *words])
    assert code == ExitCode.REFUSED
    assert why in capsys.readouterr().err
