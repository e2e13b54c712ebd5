"""Verdicts on planted sweeps and rounds, drawn many times: a wrong alarm is as rare as stated, and a real change is found."""

import json
import math
import random
from statistics import NormalDist

import numpy as np
import pytest

from scripts.bench.__main__ import COMMAND
from scripts.bench.compare import compare_folders
from scripts.bench.errors import SweepError
from scripts.bench.live import LivePlan, run_rounds
from scripts.bench.sequential import SequentialTest, central_share, student_t
from scripts.bench.traffic.points import Sweep
from scripts.cli.command import run_command
from tests.scripts.bench.test_bench_reports import folder, result

LEVELS = (4, 16)


def drawn(seed, slower, spread, repeats, *, levels=LEVELS):
    """A sweep whose repeats vary by `spread`, as a machine does from run to run."""
    rng = random.Random(seed)  # noqa: S311 - planted noise, no secret
    return [
        result(level, 256, slower=slower * math.exp(rng.gauss(0, spread)), repeat=n, requests=16)
        for level in levels
        for n in range(repeats)
    ]


def compared(tmp_path, seed, slower, spread, repeats, *, levels=LEVELS):
    before = folder(tmp_path / f"a{seed}", drawn(seed, 1.0, spread, repeats, levels=levels))
    after = folder(tmp_path / f"b{seed}", drawn(seed + 10_000, slower, spread, repeats, levels=levels))
    return compare_folders(before, after, threshold=0.05, confidence=0.95)


def test_four_identical_sweeps_of_one_run_give_no_worse(tmp_path):
    paths = [folder(tmp_path / str(n), drawn(n, 1.0, 0.08, 1)) for n in range(4)]
    for first in paths:
        for second in paths:
            comparison = compare_folders(first, second, threshold=0.05, confidence=0.95)
            assert not comparison.worse
            assert {change.verdict for change in comparison.changes} <= {"same", "unclear"}


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_are_at_most_unclear(tmp_path, repeats):
    comparison = compared(tmp_path, 1, 1.5, 0.01, repeats)
    assert {change.verdict for change in comparison.changes} == {"unclear"}
    assert {change.basis for change in comparison.changes} == {"requests"}


def test_identical_servers_raise_an_alarm_as_rarely_as_stated(tmp_path):
    # One point with three repeats has four degrees of freedom: intervals of the normal distribution would be far too narrow.
    verdicts = [
        change.verdict
        for seed in range(150)
        for change in compared(tmp_path, seed, 1.0, 0.1, 3, levels=(4,)).changes
        if change.metric == "output throughput"
    ]
    assert len(verdicts) == 150
    assert sum(verdict in {"worse", "better"} for verdict in verdicts) <= 0.05 * 150


def test_a_server_that_is_a_tenth_slower_is_found_with_repeats(tmp_path):
    found = sum(compared(tmp_path, seed, 1.10, 0.01, 4).worse for seed in range(40))
    assert found >= 0.9 * 40


def test_sweeps_of_different_versions_are_not_compared(tmp_path):
    old = folder(tmp_path / "a", [{**result(8, 256), "schema_version": 1}])
    new = folder(tmp_path / "b", [{**result(8, 256), "schema_version": 2}])
    with pytest.raises(SweepError, match="measured by different versions of this tool"):
        compare_folders(old, new, threshold=0.05, confidence=0.95)


@pytest.mark.parametrize(
    ("freedom", "bound"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_students_t_has_the_values_of_the_tables(freedom, bound):
    assert student_t(0.05, freedom) == pytest.approx(bound, abs=1e-4)
    assert central_share(bound, freedom) == pytest.approx(0.95, abs=1e-5)
    assert student_t(0.05, 500) == pytest.approx(NormalDist().inv_cdf(0.975))


def plan(tmp_path, rounds=12):
    sweep = Sweep(
        concurrency=LEVELS, request_rate=(), input_tokens=(256,), output_tokens=(32,), requests=16, duration_s=None, seed=1
    )  # fmt: skip
    return LivePlan(
        before="http://a", after="http://b", model=None, sweep=sweep, folder=tmp_path, threshold=0.05, confidence=0.95,
        most_rounds=rounds,
    )  # fmt: skip


def live(tmp_path, seed, slower, *, spread=0.02, drift=0.0, rounds=12, valid=True):
    """Rounds on two planted servers behind one machine that drifts."""
    rng = random.Random(seed)  # noqa: S311 - planted noise, no secret
    order = []

    def measure(side, number):
        order.append(side)
        factor = (slower if side == "b" else 1.0) * math.exp(rng.gauss(0, spread) + drift * len(order))
        return [result(level, 256, slower=factor, repeat=number, requests=8, valid=valid) for level in LEVELS]

    return run_rounds(plan(tmp_path, rounds), measure, lambda _text: None), "".join(order)


def test_rounds_are_interleaved_so_that_a_drift_is_no_difference(tmp_path):
    comparison, order = live(tmp_path, 1, 1.0, spread=0.001, drift=0.02)
    assert order.startswith("abbabaab")
    assert {change.verdict for change in comparison.changes} == {"same"}
    assert "stopped because every figure was decided" in comparison.ending


def test_a_server_that_is_a_tenth_slower_is_found_and_the_rounds_end(tmp_path):
    for seed in range(30):
        comparison, order = live(tmp_path, seed, 1.10)
        assert {change.verdict for change in comparison.changes} == {"worse"}, seed
        assert len(order) < 4 * 12


def test_identical_servers_are_the_same_or_unclear(tmp_path):
    worse = [live(tmp_path, seed, 1.0, spread=0.04)[0].worse for seed in range(60)]
    assert sum(worse) <= 0.05 * 60


def test_the_limit_of_rounds_ends_what_is_not_known(tmp_path):
    comparison, order = live(tmp_path, 1, 1.0, spread=0.5, rounds=4)
    assert len(order) == 16
    assert "stopped at the limit with 8 figures undecided" in comparison.ending
    nothing, _ = live(tmp_path, 1, 1.0, rounds=3, valid=False)
    assert (nothing.changes, len(nothing.left_out)) == ((), 6)
    assert not nothing.worse


def test_looking_after_every_round_keeps_the_error_of_the_whole():
    test = SequentialTest(threshold=0.0, confidence=0.95, most_rounds=12, figures=1)
    noise = np.random.default_rng(7).normal(0, 0.03, size=(400, 12))
    wrong = sum(
        any(test.look(row[:n], higher_is_better=True).verdict in {"worse", "better"} for n in range(3, 13))
        for row in noise.tolist()
    )
    assert wrong <= 0.05 * 400


def test_two_running_servers_are_compared_in_turns(start_server, tmp_path, capsys):
    fast = start_server("--ttft-s", "0.02", "--tpot-s", "0.002")
    slow = start_server("--ttft-s", "0.02", "--tpot-s", "0.02")
    words = ["compare", "--live", fast.url, slow.url, "--concurrency", "2", "--requests", "8", "--input-tokens", "16"]
    words += ["--output-tokens", "12", "--rounds", "3", "--folder", str(tmp_path), "--json"]
    code = run_command(COMMAND, words)
    told = json.loads(capsys.readouterr().out)
    verdicts = {change["metric"]: change["verdict"] for change in told["changes"]}
    if told["changes"]:  # a machine too busy to measure makes every round invalid, and says so
        assert verdicts["mean TPOT"] in {"worse", "unclear"}
        assert all(change["basis"] == "rounds" for change in told["changes"])
    else:
        assert told["left_out"]
    assert code == (1 if told["worse"] else 0)
    assert "rounds of four measurements" in told["ending"]
    assert fast.control()["requests"] > 6 * 8
    assert slow.control()["requests"] > 6 * 8
    assert run_command(COMMAND, words) == 2
    assert "has results already" in capsys.readouterr().err
