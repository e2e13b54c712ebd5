"""Verdicts on planted sweeps, drawn many times: a wrong alarm is as rare as stated, and a real change is found."""

import math
import random
from statistics import NormalDist, fmean

import pytest

from loadtest.compare import compare_folders
from loadtest.measure import central_share, percentile, student_t
from loadtest.tests.test_reports import folder, result
from loadtest.traffic.points import default_requests

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


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_cannot_tell(tmp_path, repeats):
    comparison = compared(tmp_path, 1, 1.5, 0.01, repeats)
    assert {change.verdict for change in comparison.changes} == {"cannot tell"}
    assert {change.basis for change in comparison.changes} == {"none"}


def sampled(seed, slower, spread, *, levels=LEVELS, repeats=3):
    """A sweep with the default number of requests, each with a drawn latency: a long tail of TTFT, and a narrow TPOT."""
    rng, found = random.Random(seed), []  # noqa: S311 - planted noise, no secret
    for level in levels:
        requests, _ = default_requests(level)
        for repeat in range(repeats):
            machine = slower * math.exp(rng.gauss(0, spread))
            ttfts = [machine * 0.1 * math.exp(rng.gauss(0, 0.3)) for _ in range(requests)]
            tpots = [machine * 0.02 * math.exp(rng.gauss(0, 0.05)) for _ in range(requests)]
            e2els = [ttft + 31 * tpot for ttft, tpot in zip(ttfts, tpots, strict=True)]
            figures = {
                "median_ttft_ms": 1000 * percentile(sorted(ttfts), 50),
                "p99_ttft_ms": 1000 * percentile(sorted(ttfts), 99),
                "mean_tpot_ms": 1000 * fmean(tpots),
                "output_throughput": level * 32 / fmean(e2els),
            }
            found.append(
                {**result(level, 256, repeat=repeat, requests=requests), **figures, "ttfts": ttfts, "e2els": e2els}
            )
    return found


def sampled_comparison(tmp_path, seed, slower, spread):
    before = folder(tmp_path / f"a{seed}", sampled(seed, 1.0, spread))
    after = folder(tmp_path / f"b{seed}", sampled(seed + 10_000, slower, spread))
    return compare_folders(before, after, threshold=0.05, confidence=0.95)


def test_the_default_requests_in_three_repeats_find_a_tenth_and_raise_no_alarm_without(tmp_path):
    """Repeats vary by 1 %. A server that is 10 % slower is found at least 9 times of 10, an identical one is never worse in 50."""
    slower = [sampled_comparison(tmp_path, seed, 1.10, 0.01) for seed in range(20)]
    assert sum(comparison.worse for comparison in slower) >= 18
    assert {change.metric for change in slower[0].changes} >= {"p99 TTFT"}  # 299 requests a side support it
    (tmp_path / "same").mkdir()
    assert not any(sampled_comparison(tmp_path / "same", seed, 1.0, 0.01).worse for seed in range(50))


@pytest.mark.parametrize(
    ("freedom", "bound"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_students_t_has_the_values_of_the_tables(freedom, bound):
    assert student_t(0.05, freedom) == pytest.approx(bound, abs=1e-4)
    assert central_share(bound, freedom) == pytest.approx(0.95, abs=1e-5)
    assert student_t(0.05, 500) == pytest.approx(NormalDist().inv_cdf(0.975))
