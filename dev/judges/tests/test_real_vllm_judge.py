"""Verdicts of the comparison with a real vLLM: the same, different, inconclusive."""

import pytest

from dev.judges.real_vllm.judge import (
    compare_point,
    count_faults,
    faults_of,
    ratio_interval,
)
from dev.judges.tests.real_vllm_run import measured

ASKED = {"requests": 32, "input_tokens": 8192, "output_tokens": 2048}


def verdicts(rows):
    return {row.figure: row.relative.verdict for row in rows}


@pytest.mark.parametrize(
    ("ratios", "low", "high"),
    [
        ([1.0, 1.1, 0.9, 1.2, 0.8, 1.3], 0.8, 1.3),  # six: all of them, 96.9 %
        ([1.0, 1.1, 0.9, 1.2, 0.8, 1.3, 0.7, 5.0, 1.0], 0.8, 1.3),  # nine: one of each end may be cut, 96.1 %
        ([0.1, 0.2, *[1.0] * 8, 7.0, 8.0], 1.0, 1.0),  # twelve: two, 96.1 %
    ],
)
def test_the_interval_holds_the_median_with_95_percent(ratios, low, high):
    interval = ratio_interval(ratios, 0.05)
    assert (interval.low, interval.high) == (low, high)


def test_a_server_that_is_slower_in_some_rounds_is_no_difference_of_the_tools():
    speeds = [(1.0, 2.0), (1.5, 1.0), (1.0, 1.0), (3.0, 1.2), (1.0, 1.8), (2.0, 1.0)]
    rows = compare_point("c4", [(measured(ours), measured(theirs)) for ours, theirs in speeds])
    assert set(verdicts(rows).values()) == {"agrees"}
    assert faults_of(rows) == []


def test_a_tool_that_reads_the_server_wrongly_differs_whatever_the_noise():
    speeds = [(1.0, 2.0), (1.5, 1.0), (1.0, 1.0), (3.0, 1.2), (1.0, 1.8), (2.0, 1.0)]
    rows = compare_point("c4", [(measured(ours, tool=1.3), measured(theirs)) for ours, theirs in speeds])
    assert set(verdicts(rows).values()) == {"differs"}
    assert any(fault.startswith("c4: tpot differs by +30.0%") for fault in faults_of(rows))


def test_a_difference_from_the_servers_own_histogram_is_a_fault_unless_the_results_mark_it(subtests):
    """Both tools are wrong by the same factor, so that only the server's histogram can tell."""
    mark = ("the mean time to first token is uncertain by 3.0 ms",)
    for name, tool, marks, said in (
        ("within", 1.02, (), set()),
        ("beyond 3 %", 1.05, (), {"tpot", "itl", "e2el"}),
        ("beyond 10 %", 1.15, (), {"ttft", "tpot", "itl", "e2el"}),
        ("marked", 1.15, mark, {"tpot", "itl", "e2el"}),
    ):
        with subtests.test(name):
            rows = compare_point("c4", [(measured(tool=tool, marks=marks), measured(tool=tool))] * 6)
            assert set(verdicts(rows).values()) == {"agrees"}
            assert {fault.split()[1] for fault in faults_of(rows)} == said
            assert all("from the server's own histogram, more than" in fault for fault in faults_of(rows))
    half = [(measured(tool=1.15, marks=marks), measured(tool=1.15)) for marks in (mark, ()) * 3]
    assert any(fault.startswith("c4: ttft differs by +15.0%") for fault in faults_of(compare_point("c4", half)))


def test_a_point_of_which_nothing_can_be_told_is_a_fault():
    noisy = [(measured(tool=tool), measured()) for tool in (0.5, 2.0, 1.0, 1.7, 0.6, 1.1)]
    rows = compare_point("c4", noisy)
    assert set(verdicts(rows).values()) == {"inconclusive"}
    (fault,) = faults_of(rows)
    assert "c4: inconclusive" in fault


def test_exact_counts_pass_with_the_surplus_that_the_tool_declares():
    theirs = measured(input_tokens=8195, surplus_tokens=3, server={**measured().server, "input_tokens": 8195.0})
    assert count_faults("c4", ASKED, [(measured(), theirs)] * 2) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"output_tokens": 2047}, "2047 output tokens, but 2048 were requested"),
        ({"input_tokens": 8193}, "8193 input tokens, but 8192 were requested"),
        ({"requests": 31, "failed": 1}, "1 requests failed"),
        ({"server": {**measured().server, "output_tokens": 2049.0}}, "2048 output tokens, but the server counted 2049"),
    ],
)
def test_one_token_too_many_or_too_few_is_a_fault(changed, said):
    for pair in ((measured(**changed), measured()), (measured(), measured(**changed))):
        faults = count_faults("c4", ASKED, [pair])
        assert any(said in fault for fault in faults), faults
