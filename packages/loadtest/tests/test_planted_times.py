"""Every figure of a point, computed from events whose times are planted, against the definitions written down a second time.

The load generator and its parser are the real ones; the clock is not, so that a wrong formula fails on every machine and a slow machine
never does. test_known_truth.py has the same over sockets, where a point may say that it is invalid instead.
"""

import statistics
from itertools import accumulate, pairwise

import pytest

from loadtest.measure import (
    Objective,
    client_figures,
    error_figures,
    failure_reason,
    load_figures,
)
from loadtest.proof import little_reasons
from loadtest.steady import steady_figures, steady_window
from loadtest.tests.virtual_time import PROMPT_TOKENS, Script, run_load, share_of
from loadtest.traffic.points import Point
from loadtest.ttft_uncertainty import invalid_reasons

CLOSED = Point(mode="closed", level=4, input_tokens=4, output_tokens=16, requests=24, duration_s=None, seed=1)
LIMITS = Objective(ttft_s=0.25, tpot_s=0.06)
NEAR = 1e-4


def spread(name, values_s):
    ms = [1000 * value_s for value_s in values_s]
    percentiles = statistics.quantiles(ms, n=100, method="inclusive")
    return {
        f"mean_{name}_ms": statistics.fmean(ms),
        f"median_{name}_ms": statistics.median(ms),
        f"std_{name}_ms": statistics.pstdev(ms),
        f"p90_{name}_ms": percentiles[89],
        f"p99_{name}_ms": percentiles[98],
    }


def truth(log):
    """The definitions of docs/benchmarking.md, from the server's log."""
    done = [served for served in log if served.script.kind == "text"]
    duration_s = max(served.end_s for served in log) - min(served.sent_s for served in log)
    tokens = sum(served.script.tokens for served in done)
    last = {id(served): served.events[-1][0] for served in done}
    ttfts = [served.first_s - served.sent_s for served in done]
    tpots = [(last[id(s)] - s.first_s) / (s.script.tokens - 1) for s in done]
    gaps = [after - before for s in done for (before, _), (after, _) in pairwise(s.events)]
    good = sum(ttft <= 0.25 + 1e-9 and tpot <= 0.06 + 1e-9 for ttft, tpot in zip(ttfts, tpots, strict=True))
    moments = sorted([(s.sent_s, 1) for s in log] + [(s.end_s, -1) for s in log])
    running = accumulate(change for _, change in moments)
    return {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(log) - len(done),
        "total_input_tokens": PROMPT_TOKENS * len(done),
        "total_output_tokens": tokens,
        "request_throughput": len(done) / duration_s,
        "output_throughput": tokens / duration_s,
        "total_token_throughput": (tokens + PROMPT_TOKENS * len(done)) / duration_s,
        "request_goodput": good / duration_s,
        "max_concurrent_requests": max(running),
        **spread("ttft", ttfts),
        **spread("tpot", tpots),
        **spread("itl", gaps),
        **spread("e2el", [last[id(s)] - s.sent_s for s in done]),
    }


def assert_true(result, log):
    figures, wanted = load_figures(result.records, LIMITS), truth(log)
    for name, value in wanted.items():
        assert figures[name] == pytest.approx(value, rel=NEAR, abs=0.01 if name.endswith("_ms") else 1e-4), name
    return figures


def varied(number, **more):
    """Answers that differ from one another, so a mean differs from a median."""
    slow = number % 5
    return Script(ttft_s=0.2 + 0.03 * slow, tpot_s=0.05 + 0.005 * slow, **more)


@pytest.mark.parametrize(
    ("tail", "lead"),
    [(0, 0), (12, 0), (16, 0), (0, 5), (3, 5)],
    ids=["text", "a tail of special tokens", "special tokens only", "special tokens first", "both"],
)
def test_every_figure_is_the_truth_whatever_the_tokens_say(monkeypatch, tail, lead):
    result, log = run_load(monkeypatch, share_of(), lambda number: varied(number, tail=tail, lead=lead))
    figures = assert_true(result, log)
    assert (figures["completed"], figures["max_concurrent_requests"]) == (24, 4)
    # By hand: the fastest answers have 50 ms a token from the first token of any kind, so no mean is below that.
    assert figures["mean_tpot_ms"] >= (15 - min(lead, 15)) / 15 * 50 - 1e-6
    window = steady_window(result.records, CLOSED)
    assert window is not None
    assert little_reasons(result.records, figures, CLOSED, window) == []
    assert invalid_reasons(client_figures([result]), figures) == []


KINDS = [
    ("429", "http_429"),
    ("503", "http_503"),
    ("reset", "reset"),
    ("close", "closed"),
    ("malformed", "malformed"),
    ("error_event", "error_event"),
    ("missing_usage", "missing_usage"),
    ("empty", "empty"),
    ("abort", "abort"),
    ("gzip", "compressed"),
    ("html", "html"),
    ("json", "no_stream"),
    ("hang", "stall"),
    ("stall", "stall"),
    ("slow", "timeout"),
]
NAMED = {
    "abort": "the server finished the response with finish_reason abort",
    "html": "an HTML page (text/html; charset=utf-8)",
    "compressed": "content-encoding gzip",
    "no_stream": "content-type application/json, not text/event-stream",
}
"""Messages of failures that a user meets behind a proxy, by kind."""
SLOW = {"slow": {"tokens": 12, "tpot_s": 9.0}}
"""A token every 9 s stalls for no 10 s, and is not complete within 60 s."""


@pytest.mark.parametrize(("kind", "error"), KINDS, ids=[kind for kind, _ in KINDS])
def test_failures_of_every_kind_count_in_the_duration_and_in_no_other_figure(monkeypatch, kind, error):
    def scripts(number):
        return Script(kind=kind, **SLOW.get(kind, {})) if number % 4 == 3 else varied(number)

    result, log = run_load(monkeypatch, share_of(), scripts)
    figures = assert_true(result, log)
    failures = error_figures(result.records)
    assert failures["errors_by_kind"] == {error: 6}
    assert NAMED.get(error, "") in failures["error_examples"][error]
    assert (figures["completed"], figures["failed"]) == (18, 6)
    assert failure_reason(figures, 0.01) == "6 of 24 requests failed (25.0%), more than --max-failed 0.01"
    assert failure_reason(figures, 0.25) is None
    if error in {"stall", "timeout"}:
        limit_s = 60.0 if error == "timeout" else 10.0
        held_s = [served.end_s - served.sent_s for served in log if served.script.kind == kind]
        # The limit, its watch of a quarter of a second, and the tokens before the silence.
        assert all(limit_s < held < limit_s + 0.6 for held in held_s)
        assert figures["duration"] > limit_s


def test_refused_connections_are_failures_of_their_own_kind(monkeypatch):
    # A slot whose connection was reset opens another one. The connections 4, 5 and 6 are refused.
    def scripts(number):
        return Script(kind="reset") if number in {1, 2} else varied(number)

    result, log = run_load(monkeypatch, share_of(), scripts, refused={4, 5, 6})
    figures = assert_true(result, log)
    assert error_figures(result.records)["errors_by_kind"] == {"connect": 3, "reset": 2}
    assert figures["completed"] == 19


def test_requests_that_the_point_itself_ends_are_aborted(monkeypatch):
    result, log = run_load(monkeypatch, share_of(requests=None), varied, stop_at_s=3.0)
    ended = [record for record in result.records if record.error is not None]
    assert {record.error for record in ended} == {"aborted"}
    assert len(ended) == 4
    figures = load_figures(result.records, None)
    assert figures["completed"] == len(log) - 4
    assert figures["duration"] == pytest.approx(3.0, abs=1e-3)


@pytest.mark.parametrize(("least", "sent"), [(8, 60), (80, 80)])
def test_a_slow_server_gets_the_requests_of_a_minute_and_at_least_the_first_waves(monkeypatch, least, sent):
    # Four at once, each for 4.1 s: 60 of the 307 requests that support p99 fit in a minute.
    share = share_of(requests=307, least_requests=least)
    result, log = run_load(monkeypatch, share, lambda _: Script(ttft_s=1.1, tpot_s=0.2))
    assert (len(result.records), len(log)) == (sent, sent)
    assert {record.error for record in result.records} == {None}


def test_the_steady_window_leaves_out_the_first_wave_and_what_ends_after_the_last_request(monkeypatch):
    # The first answers take two seconds longer.
    result, log = run_load(
        monkeypatch, share_of(requests=40), lambda number: Script(ttft_s=2.2 if number < 4 else 0.2, tail=4)
    )
    window = steady_window(result.records, CLOSED)
    steady = steady_figures(result.records, window)
    starts_s, ends_s = sorted(served.end_s for served in log)[3], max(served.sent_s for served in log)
    inside = [served for served in log if starts_s <= served.sent_s <= ends_s]
    assert (steady["start_s"], steady["end_s"]) == pytest.approx((starts_s, ends_s), abs=1e-5)
    # Of the second wave, three were sent before the last answer of the first one ended: slots start 0.1 ms apart.
    assert steady["requests"] == len(inside) == 40 - 4 - 3
    assert steady["mean_ttft_ms"] == pytest.approx(200, abs=0.01)
    assert steady["mean_tpot_ms"] == pytest.approx(50, abs=0.01)
    assert steady["mean_in_flight"] == pytest.approx(4.0, rel=0.01)
    in_window = sum(starts_s <= at_s < ends_s for served in log for at_s, _ in served.events)
    shown = sum(len(served.events) for served in log) / len(log)
    assert steady["output_throughput"] == pytest.approx(in_window * 16 / shown / (ends_s - starts_s), rel=NEAR)


def test_latencies_of_an_open_loop_count_from_the_intended_time(monkeypatch):
    """More than two requests in flight are not sent, and the others leave at their times: every tenth of a second."""
    share = share_of(rate_per_s=10.0, requests=20, concurrency=2)
    result, log = run_load(monkeypatch, share, lambda _number: Script())
    assert result.shed == 20 - len(log)
    assert "were not sent" in invalid_reasons(client_figures([result]), {})[0]
    for record in result.records:
        assert record.intended_s == pytest.approx(record.index / 10, abs=1e-9)
        assert record.ttft_s == pytest.approx(0.2, abs=1e-6)
    assert statistics.fmean(record.e2e_s for record in result.records) == pytest.approx(0.2 + 15 * 0.05, abs=1e-6)


def test_a_duration_ends_sending_and_waits_for_what_is_under_way(monkeypatch):
    result, log = run_load(monkeypatch, share_of(requests=None, duration_s=4.0), lambda _number: Script())
    # Each of the four users sends the next request 0.95 s after the last one.
    assert len(log) == len(result.records) == 4 * 5
    assert [record.error for record in result.records if record.error] == []
    assert max(served.sent_s for served in log) == pytest.approx(3.8, abs=0.01)
    assert max(record.end_s for record in result.records) == pytest.approx(4.75, abs=0.01)
