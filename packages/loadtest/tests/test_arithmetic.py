import io
from array import array
from dataclasses import replace

import pytest

from loadtest.measure import (
    Objective,
    client_figures,
    error_figures,
    load_figures,
)
from loadtest.records import packed, read_message
from loadtest.tests.model_pool import planted_record, planted_result
from loadtest.ttft_uncertainty import bunch_findings, invalid_reasons


def record(index, intended_s, times_s, **more):
    return planted_record(index, intended_s, times_s, prompt_tokens=10, end_s=times_s[-1] + 0.01, **more)


# Worked by hand. A: sent at 0, tokens at 0.2, 0.3, 0.4, 0.5 => TTFT 0.2, TPOT 0.3 / 3 = 0.1, E2E 0.5, 4 tokens.
# B: sent at 1, events at 1.4 and 2.0 that held 7 tokens => TTFT 0.4, TPOT 0.6 / 6 = 0.1, E2E 1.0, one gap of 0.6.
# C: sent at 2, one token at 2.1 => TTFT 0.1, no TPOT, E2E 0.1.   D failed and counts in nothing but `failed`.
TRACE = [
    record(0, 0.0, [0.2, 0.3, 0.4, 0.5]),
    record(1, 1.0, [1.4, 2.0], output_tokens=7),
    record(2, 2.0, [2.1]),
    record(3, 0.5, [0.9], error="closed", error_detail="words"),
]


def test_a_trace_worked_by_hand_gives_the_figures_of_the_hand():
    """test_planted_times.py has the definitions of all figures; here are events of many tokens, and an answer of one."""
    # From the first send at 0 to the end of the last request at 2.11; 12 output tokens, 30 input tokens, three requests.
    wanted = {
        "duration": 2.11, "completed": 3, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 12, "output_throughput": 12 / 2.11,
        "mean_ttft_ms": 700 / 3, "p90_ttft_ms": 360, "mean_tpot_ms": 100, "mean_itl_ms": 900 / 4, "median_e2el_ms": 500,
    }  # fmt: skip
    figures = load_figures(TRACE, None)
    assert {name: figures[name] for name in wanted} == pytest.approx(wanted, abs=1e-3)
    assert figures["ttfts"] == pytest.approx([0.2, 0.4, 0.1])
    assert figures["request_goodput"] is None


@pytest.mark.parametrize(
    ("objective", "good"),
    [(Objective(ttft_s=0.3), 2), (Objective(ttft_s=0.3, e2e_s=0.2), 1), (Objective(tpot_s=0.09), 1)],
    ids=["ttft", "ttft and e2e", "tpot, which an answer of one token keeps"],
)
def test_goodput_counts_requests_that_keep_every_objective(objective, good):
    assert load_figures(TRACE, objective)["request_goodput"] == pytest.approx(good / 2.11, abs=1e-4)


def test_failures_are_listed_by_kind_with_their_words():
    assert error_figures(TRACE) == {"errors_by_kind": {"closed": 1}, "error_examples": {"closed": "words"}}


def worker(records, lags=(), **more):
    return planted_result(records, lags_s=array("d", lags), stale_retries=2, **more)


def test_a_workers_report_survives_its_journey():
    sent = worker(TRACE, lags=[0.001, 0.002])
    assert read_message(io.BytesIO(packed(sent))) == sent


TTFT = {"mean_ttft_ms": 200.0, "p99_ttft_ms": 400.0}


def test_a_result_is_invalid_when_the_client_was_the_limit_and_says_why(subtests):
    """Lags count in proportion to the time to first token: 5 % of its mean, a quarter of its p99."""
    late_once = [0.0] * 980 + [0.12] * 20
    rows = {
        "5 % of the mean": (worker(TRACE, lags=[0.00999] * 100), TTFT, []),
        "6 % of the mean": (worker(TRACE, lags=[0.012] * 100), TTFT, ["late by 12 ms on average, more than 5%"]),
        "30 % of the p99": (worker(TRACE, lags=late_once), TTFT, ["late by 120 ms at the 99th percentile, more than 25%"]),
        "24 % of the p99": (worker(TRACE, lags=late_once), TTFT | {"p99_ttft_ms": 500.0}, []),
        "no p99": (worker(TRACE, lags=late_once), TTFT | {"p99_ttft_ms": None}, ["(200 ms)"]),
        "20 ms to the first token": (worker(TRACE, lags=[0.045] * 100), {"mean_ttft_ms": 20.0, "p99_ttft_ms": 30.0}, ["by 45 ms on", "by 45 ms at"]),
        "a slow server": (worker(TRACE, lags=[0.2] * 100), {"mean_ttft_ms": 5000.0, "p99_ttft_ms": 9000.0}, []),
        "processor": (worker(TRACE, cpu_s=9.9), TTFT, ["busy for 99%"]),
        "not sent": (worker(TRACE, shed=7), TTFT, ["7 requests were not sent"]),
        "sent late": (worker([record(0, 0.0, [1.0], sent_s=0.8)]), TTFT, ["sent late by 800 ms"]),
    }  # fmt: skip
    for name, (result, figures, said) in rows.items():
        with subtests.test(name):
            reasons = invalid_reasons(client_figures([result]), figures)
            assert [part in reason for part, reason in zip(said, reasons, strict=True)] == [True] * len(said), reasons


def test_a_late_client_names_what_made_it_late(subtests):
    """More processes are advised only if one used its core for half of the time."""
    late = worker(TRACE, lags=[0.2] * 100, cpu_s=1.0)
    rows = {
        "busy machine": (
            late,
            "ran for only 10% of the time, so this machine or its hypervisor is busy with other work",
        ),
        "own processor": (replace(late, cpu_s=9.0), "use a faster machine, or more --workers"),
    }
    for name, (result, said) in rows.items():
        with subtests.test(name):
            reason, _ = invalid_reasons(client_figures([result]), TTFT)
            assert said in reason
            assert ("--workers" in reason) == (name == "own processor")


def test_events_in_bunches_name_the_proxy_or_the_late_client(subtests):
    """Eight events every 40 ms; a finish reason that comes with the last token is not a bunch."""
    bunched = [record(n, 0.0, [1.0 + 0.04 * (number // 8) for number in range(32)]) for n in range(4)]
    even = [record(n, 0.0, [1.0 + 0.005 * number for number in range(32)] + [1.155]) for n in range(4)]
    some = [*bunched, *(replace(row, index=row.index + 4) for row in even * 3)]
    proxy, client = (
        "a proxy buffers (nginx: turn proxy_buffering off), or the machine of the server is busy",
        "the client was late by 30.0 ms on average; a client process ran for only 10% of the time",
    )
    rows = {
        "proxy": (bunched, 0.1, [proxy], []),
        "client": (bunched, 30.0, [client], []),
        "some": (some, 0.1, [], [proxy]),
        "even": (even, 0.1, [], []),
        "one event": ([record(0, 0.0, [1.0])], 0.1, [], []),
    }
    for name, (records, lag_ms, said, noted) in rows.items():
        with subtests.test(name):
            figures = client_figures([worker(records)]) | {"lag_mean_ms": lag_ms}
            reasons, notes = bunch_findings(records, figures)
            assert (len(reasons), len(notes)) == (len(said), len(noted))
            assert all(part in text for part, text in zip([*said, *noted], [*reasons, *notes], strict=True))
