"""The steady window, the trends of an open loop, and the checks of a point against itself, on planted requests."""

import random
from dataclasses import replace

import pytest

from loadtest.generator.load import arrivals
from loadtest.measure import Objective, load_figures
from loadtest.proof import little_reasons, server_reasons
from loadtest.steady import judged, saturation_figures, steady_figures, steady_notes, steady_window, tail
from loadtest.tests.model_pool import planted_record
from loadtest.traffic.points import Point

TOKENS = 11


def point(**load):
    closed = "concurrency" in load
    return Point(
        mode="closed" if closed else "open",
        level=load["concurrency"] if closed else load["rate"],
        input_tokens=8,
        output_tokens=TOKENS,
        requests=None,
        duration_s=None,
        seed=1,
    )


def record(index, sent_s, ttft_s, e2e_s):
    step_s = (e2e_s - ttft_s) / (TOKENS - 1)
    times_s = [sent_s + ttft_s + number * step_s for number in range(TOKENS)]
    return planted_record(index, sent_s, times_s, prompt_tokens=8)


def open_loop(rate, duration_s, seed, *, slots=None, e2e_s=1.0, noise_s=0.0):
    """An open loop on a server that answers in `e2e_s`, with so many requests at once; the others wait in line."""
    rng = random.Random(seed)  # noqa: S311 - a planted load, no secret
    free = [0.0] * (slots or 100_000)
    found = []
    for index, at_s in enumerate(arrivals(rate, round(rate * duration_s), seed, poisson=True)):
        slot = min(range(len(free)), key=free.__getitem__) if slots else index
        start_s = max(at_s, free[slot])
        free[slot] = start_s + e2e_s
        late_s = rng.uniform(0, noise_s)
        wait_s = start_s - at_s
        found.append(record(index, at_s, wait_s + 0.1 + late_s, wait_s + e2e_s + late_s))
    return found


def saturation(records, rate):
    return saturation_figures(records, steady_window(records, point(rate=rate)), rate)


@pytest.mark.parametrize("rate", [2.0, 8.0, 40.0])
@pytest.mark.parametrize("e2e_s", [0.2, 3.0, 7.0])
def test_unlimited_capacity_is_never_called_saturated(rate, e2e_s):
    for seed in range(25):
        records = open_loop(rate, 30.0, seed, e2e_s=e2e_s, noise_s=0.2)
        assert not saturation(records, rate)["over"], (rate, e2e_s, seed)


def test_limited_capacity_is_found_within_a_tenth():
    # Eight at once for half a second each: 16 requests a second.
    over = {rate: [saturation(open_loop(rate, 60.0, seed, slots=8, e2e_s=0.5), rate) for seed in range(10)] for rate in
            (12.0, 14.4, 17.6, 20.0)}  # fmt: skip
    for rate in (12.0, 14.4):
        assert [found["over"] for found in over[rate]] == [False] * 10
    for rate in (17.6, 20.0):
        assert [found["over"] for found in over[rate]] == [True] * 10
        assert all(found["answered_per_s"] == pytest.approx(16.0, rel=0.1) for found in over[rate])


def test_a_point_that_is_shorter_than_its_answers_is_not_judged():
    found = saturation(open_loop(4.0, 5.0, 1, e2e_s=30.0), 4.0)
    assert found["over"] is None
    assert "too short" in found["reason"]
    few = saturation(open_loop(1.0, 10.0, 1), 1.0)
    assert few["over"] is None
    assert "too few for a trend" in few["reason"]


def waves(concurrency, count, ttft_s=0.1, e2e_s=1.0):
    """A closed loop in lockstep. The answers of its first wave begin a second late."""
    found, at_s = [], 0.0
    for number in range(count):
        slow_s = 1.0 if number == 0 else 0.0
        found += [
            record(number * concurrency + slot, at_s, ttft_s + slow_s, e2e_s + slow_s) for slot in range(concurrency)
        ]
        at_s += e2e_s + slow_s
    return found


def test_a_window_that_is_shorter_than_a_request_is_no_window():
    """Two waves of four: the second is sent within a millisecond of the first one's end."""
    records = [record(n, n // 4 * 1.001 + n % 4 * 0.0003, 0.1, 1.0) for n in range(8)]
    assert steady_window(records, point(concurrency=4)) is None
    assert steady_window([*records, record(8, 2.002, 0.1, 1.0)], point(concurrency=4)) is not None


def test_what_a_point_is_judged_by_comes_from_the_steady_window(subtests):
    """The first wave is 90 ms, a tenth of the requests in the window 40 ms, the others 10 ms."""
    limits = Objective(ttft_s=0.02)
    for count, highest in ((8, None), (40, 90), (80, 95), (400, 99)):
        with subtests.test(f"{count} requests in the window"):
            ttfts_s = [0.09] * 4 + [0.04 if n % 10 == 9 else 0.01 for n in range(count)]
            records = [record(n, n // 4 * 1.0, ttft_s, 1.0) for n, ttft_s in enumerate(ttfts_s)]
            failed = replace(records[-1], index=len(records), error="http_503")
            window = steady_window([*records, failed], point(concurrency=4))
            steady = steady_figures([*records, failed], window, limits)
            assert (steady["requests"], steady["first_wave"]["requests"]) == (count, 4)
            assert (steady["median_ttft_ms"], steady["first_wave"]["median_ttft_ms"]) == pytest.approx((10, 90))
            assert steady["highest_percentile"] == highest
            assert (steady["p99_ttft_ms"] is None) == (highest != 99)
            good = count - count // 10
            assert steady["good_share"] == pytest.approx(
                good / (count + 1), abs=1e-6
            )  # the failed request was sent too
            whole = load_figures([*records, failed], limits)
            assert whole["p99_ttft_ms"] is not None  # as vllm bench serve has it
            shown = judged({**whole, "steady": steady})
            assert judged(shown) == shown
            assert max(shown["ttfts"]) <= 0.04 < max(whole["ttfts"])
            assert len(shown["ttfts"]) == len(shown["e2els"]) == len(shown["start_times"]) == count
            assert (shown["good_share"], shown["output_throughput"]) == (
                steady["good_share"],
                whole["output_throughput"],
            )
            assert tail(shown, "ttft") == (None if highest is None else (highest, pytest.approx(40, abs=31)))
            former = judged({**whole, "steady": None})
            assert (former["ttfts"], former["p99_ttft_ms"] is None) == (whole["ttfts"], count + 4 < 299)


def test_a_note_says_what_carries_the_percentiles():
    few, enough = {"requests": 86}, {"requests": 299}
    assert steady_notes(enough, unsteady=False, complete=400) == []
    assert steady_notes(few, unsteady=False, complete=100) == [
        "the steady window has 86 complete requests, but p99 needs 299: the highest reliable is p95"
    ]
    short, count = steady_notes(None, unsteady=False, complete=8)
    assert short.startswith("the point is too short for a steady window")
    assert count.endswith(
        "the whole point has 8 complete requests, but p99 needs 299: they support no percentile above the median"
    )
    assert len(steady_notes(None, unsteady=True, complete=8)) == 1


def test_a_clock_that_stops_too_early_contradicts_littles_law():
    records, load = waves(4, 4), point(concurrency=4)
    window = steady_window(records, load)
    assert little_reasons(records, load_figures(records, None), load, window) == []
    few = "only 3 requests were sent, fewer than the 4 users of this load; raise --requests or --duration"
    assert few in little_reasons(records[:3], load_figures(records[:3], None), load, None)
    cut = [replace(r, times_s=r.times_s[:4]) for r in records]  # times end with the fourth of eleven tokens
    (reason,) = little_reasons(cut, load_figures(cut, None), load, window)
    assert reason == (
        "Little's law does not hold: 4.00 requests were in flight on average, but request rate x E2E is 1.98 (more than 10% apart)"
    )


def test_slots_that_stand_idle_are_named():
    records = [record(n, n * 1.5, 0.1, 1.0) for n in range(12)]
    load = point(concurrency=1)
    reasons = little_reasons(records, load_figures(records, None), load, steady_window(records, load))
    assert "0.65 requests were in flight on average in the steady window, not 1" in reasons[0]


def server_side(records, *, ttft=1.0, decode=1.0, tokens=1.0, count=1.0):
    return {
        "requests_begun": round(len(records) * count),
        "mean_ttft_ms": ttft * 1000 * sum(r.times_s[0] - r.sent_s for r in records) / len(records),
        "decode_s": decode * sum(r.times_s[-1] - r.times_s[0] for r in records),
        "generation_tokens": tokens * sum(r.output_tokens for r in records),
        "round_trip_ms": 1.0,
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"ttft": 1.05, "decode": 0.95}, None),
        ({"ttft": 1.5}, "time to first token is shorter than the server's: 350.0 ms here, 525.0 ms in"),
        ({"ttft": 0.5}, "time to first token is longer than the server's: 350.0 ms here, 175.0 ms in"),
        ({"decode": 1.5}, "time per output token is 90.00 ms here, but 135.00 ms in the server's histogram"),
        ({"tokens": 0.9}, "the responses state 176 output tokens, but the server's counter 158"),
    ],
)
def test_figures_that_disagree_with_the_servers_own_make_a_point_invalid(change, said):
    records = waves(4, 4)
    reasons, notes = server_reasons(records, load_figures(records, None), server_side(records, **change))
    assert notes == []
    assert [said in reason for reason in reasons] == ([True] if said else []), reasons


def test_a_server_that_counted_other_requests_is_not_compared():
    records = waves(4, 4)
    reasons, notes = server_reasons(records, load_figures(records, None), server_side(records, count=0.5, ttft=9.0))
    assert reasons == []
    assert "the server's metrics count 8 requests, but this point has 16" in notes[0]


def test_the_pace_of_a_point_with_a_failure_is_not_compared():
    records = waves(4, 4)
    broken = [replace(records[0], error="closed"), *records[1:]]
    reasons, _ = server_reasons(broken, load_figures(broken, None), server_side(records, decode=1.5))
    assert not any("time per output token" in reason for reason in reasons), reasons
