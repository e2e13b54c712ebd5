"""Comparisons of planted sweeps, some drawn many times: a wrong alarm is as rare as stated, and a real change is found."""

import json
import math
import random
from statistics import NormalDist, fmean

import pytest

from loadtest.__main__ import main
from loadtest.compare import change_verdict, compare_folders, comparison_json
from loadtest.measure import central_share, percentile, student_t
from loadtest.reports.markdown import comparison_markdown
from loadtest.tests.test_reports import folder, result
from loadtest.traffic.points import default_requests

LEVELS = (4, 16)


def compared(tmp_path, before, after, run=None):
    """The comparison of two sweeps with these results; `run` is more of the second one's run.json."""
    folders = folder(tmp_path / "a", before), folder(tmp_path / "b", after, run=run)
    return compare_folders(*folders, threshold=0.05, confidence=0.95)


def repeated(*slower, levels=(8,), **more):
    """Loads with a repeat for each factor of the times."""
    return [result(level, 256, slower=s, repeat=n, **more) for level in levels for n, s in enumerate(slower)]


@pytest.mark.parametrize("repeats", [1, 2])
def test_fewer_than_three_repeats_cannot_tell(tmp_path, repeats):
    comparison = compared(tmp_path, repeated(*[1.0] * repeats), repeated(*[2.0] * repeats))
    assert {change.verdict for change in comparison.changes} == {"cannot tell"}
    assert {change.basis for change in comparison.changes} == {"none"}
    assert json.loads(json.dumps(comparison_json(comparison), allow_nan=False))["changes"][0]["high"] is None


def test_a_slower_server_is_worse_with_an_interval_around_what_happened(tmp_path):
    fast, slow = repeated(0.99, 1.0, 1.01, levels=LEVELS), repeated(1.19, 1.2, 1.21, levels=LEVELS)
    comparison = compared(tmp_path, fast, slow)
    throughput = [change for change in comparison.changes if change.metric == "output throughput"]
    assert all(change.low < 1 / 1.2 < change.high < 1 for change in throughput)
    assert {change.verdict for change in comparison.changes} == {"worse"}
    assert {change.basis for change in comparison.changes} == {"repeats"}
    back = compare_folders(tmp_path / "b", tmp_path / "a", threshold=0.05, confidence=0.95)
    assert {change.verdict for change in back.changes} == {"better"}


POINT = "8 users, 256 in, 32 out"
SHARED = result(8, 256)
SHARED["point"]["traffic"] = "shared prefix 50%"
DIFFERENCES = {
    "failures": ([result(8, 256, failed=16)], {}, f"{POINT}: 20.0% of the requests failed, up from 0.0%", f"- **{POINT}: 20.0%"),
    "differences": ([result(8, 256)], {"model": "other"}, "model was org/<m> before and is other after", "Not the same load: model was"),
    "missing": ([SHARED], {}, POINT, "**NOT COMPARED**"),
    "left_out": ([result(8, 256, valid=False)], {}, f"{POINT}: invalid", "**NOT COMPARED**"),
}  # fmt: skip
"""By the field of the comparison that has it: results and run.json after, what the field says, and the Markdown."""


@pytest.mark.parametrize("field", DIFFERENCES)
def test_what_differs_besides_the_times_is_named(tmp_path, field):
    after, run, said, markdown = DIFFERENCES[field]
    comparison = compared(tmp_path, [result(8, 256)], after, run)
    assert getattr(comparison, field) == (said,)
    assert comparison.worse == (field == "failures")
    assert comparison.compared_nothing == (field in {"missing", "left_out"})
    code = main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c.md")])
    assert code == (field != "differences")
    assert markdown in (tmp_path / "c.md").read_text()


def test_a_comparison_is_a_gate(tmp_path, capsys, subtests):
    """Exit codes without and with --gate, and words of the Markdown after its title."""

    def sweep(name, slower=1.0, levels=(8, 64), *, spread=0.002, **more):
        rows = repeated(
            *(slower * (1 + spread * n) for n in (-1, 0, 1)), levels=levels, requests=320, wobble=0.01, **more
        )
        return folder(tmp_path / name, rows)

    base, less, other = sweep("base"), sweep("less", 1.001, (8,)), sweep("other", 1.0, (4,))
    cases = {
        "same": (sweep("same", 1.001), 0, 0, ["**0 worse**, 0 better, 8 compared"]),
        "better": (sweep("better", 0.8), 0, 0, ["**0 worse**, 8 better, 8 compared"]),
        "worse": (sweep("worse", 1.2), 1, 1, ["**8 worse**, 0 better, 8 compared"]),
        "noisy": (sweep("noisy", spread=0.3), 0, 2, ["**0 worse, 8 cannot tell**"]),
        "a point less": (less, 0, 2, [f"> **Missing in {less}: 64 users, 256 in, 32 out.**"]),
        "another load": (other, 1, 2, ["because the sweeps have no common point", f"{base} has {POINT} | 64 users, 256", f"{other} has 4 users, 256"]),
        "all invalid": (sweep("invalid", valid=False), 1, 2, ["**NOT COMPARED**, because every common point is invalid in one of"]),
    }  # fmt: skip
    for name, (after, code, gate, words) in cases.items():
        with subtests.test(name):
            assert main(["compare", str(base), str(after)]) == code
            first = "\n\n".join(capsys.readouterr().out.split("\n\n")[1:3])
            assert all(part in first for part in words)
            assert main(["compare", str(base), str(after), "--gate", "--json"]) == gate
            found = json.loads(capsys.readouterr().out)
            assert found["verdict"] == {0: name, 1: "worse", 2: "cannot tell"}[gate]
            assert found["worse"] is (gate == 1)
            assert found["compared"] == len(found["changes"])


@pytest.mark.parametrize(
    ("gain", "low", "high", "verdict"),
    [
        (1.01, 0.97, 1.04, "same"),
        (1.01, 0.77, 1.32, "cannot tell"),
        (0.97, 0.94, 1.0, "cannot tell"),
        (0.9, 0.8, 1.01, "cannot tell"),
        (0.9, 0.85, 0.95, "worse"),
        (1.2, 1.1, 1.3, "better"),
        (1.0, 0.0, math.inf, "cannot tell"),
    ],
    ids=["narrow", "wide", "crosses the threshold", "beyond it, not certain", "worse", "better", "no interval"],
)
def test_the_same_needs_evidence(gain, low, high, verdict):
    assert change_verdict(gain, low, high, threshold=0.05) == verdict


def test_words_of_a_server_become_no_link_and_no_mention(tmp_path):
    words = (
        "[click](javascript:alert(1)) ![x](http://x/y) [a][b] @everyone <img src=x>, https://x/ www.x.y, vllm@sha256:0"
    )
    text = comparison_markdown(compared(tmp_path, [result(1, 16)], [result(1, 16)], {"model": words}))
    assert text.count("click") == 1
    assert [
        mark for mark in ("](javascript", "](http", "[a][b]", " @everyone", "<img", "://", "www.") if mark in text
    ] == []
    assert "vllm@sha256:0" in text


def sampled(seed, slower, spread):
    """A sweep with the default number of requests, each with a drawn latency: a long tail of TTFT, and a narrow TPOT."""
    rng, found = random.Random(seed), []  # noqa: S311 - planted noise, no secret
    for level in LEVELS:
        requests, _ = default_requests(level)
        for repeat in range(3):
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


def sampled_comparison(tmp_path, seed, slower):
    (tmp_path / f"{seed}-{slower}").mkdir()
    return compared(tmp_path / f"{seed}-{slower}", sampled(seed, 1.0, 0.01), sampled(seed + 10_000, slower, 0.01))


def test_the_default_requests_in_three_repeats_find_a_tenth_and_raise_no_alarm_without(tmp_path):
    """Repeats vary by 1 %. A server that is 10 % slower is found at least 9 times of 10, an identical one is never worse in 50."""
    slower = [sampled_comparison(tmp_path, seed, 1.10) for seed in range(20)]
    assert sum(comparison.worse for comparison in slower) >= 18
    assert {change.metric for change in slower[0].changes} >= {"p99 TTFT"}  # 299 requests a side support it
    assert not any(sampled_comparison(tmp_path, seed, 1.0).worse for seed in range(50))


@pytest.mark.parametrize(
    ("freedom", "bound"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_students_t_has_the_values_of_the_tables(freedom, bound):
    assert student_t(0.05, freedom) == pytest.approx(bound, abs=1e-4)
    assert central_share(bound, freedom) == pytest.approx(0.95, abs=1e-5)
    assert student_t(0.05, 500) == pytest.approx(NormalDist().inv_cdf(0.975))
