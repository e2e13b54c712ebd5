"""Sweeps over sockets against a server that records what it did: every figure is the truth within 2 %, or the point is invalid.

test_planted_times.py has the same definitions on a clock of its own, where no figure may differ at all.
"""

import json
import statistics
from dataclasses import replace

import pytest

from loadtest.__main__ import main
from loadtest.tests.test_sweep_runs import bench, only
from loadtest.traffic.points import Sweep

SWEEP = Sweep(
    concurrency=(4,), request_rate=(), input_tokens=(32,), output_tokens=(16,), requests=24, duration_s=None, seed=1
)
NEAR = 0.02


def measured(server, out, sweep=SWEEP, **options):
    """Measure one point, and return it with what the server saw of it."""
    before = len(server.truth())
    outcome, results = bench(server.url, out, sweep, **options)
    assert outcome.ending == "done", outcome.detail
    return only(results), server.truth()[before:]


def truth_of(rows):
    """The figures of vllm bench serve, from the readings of the server's own clock, in ms."""
    done = [row for row in rows if row["completed"]]
    spans = [(row["last_s"] - row["first_s"]) / (row["tokens"] - 1) for row in done if row["tokens"] > 1]
    ttfts, e2es = ([row[name] - row["received_s"] for row in done] for name in ("first_s", "last_s"))
    return {
        "mean_ttft_ms": statistics.fmean(ttfts) * 1000,
        "median_ttft_ms": statistics.median(ttfts) * 1000,
        "mean_tpot_ms": statistics.fmean(spans) * 1000,
        "median_tpot_ms": statistics.median(spans) * 1000,
        "mean_e2el_ms": statistics.fmean(e2es) * 1000,
        "median_e2el_ms": statistics.median(e2es) * 1000,
        # The server reads `last_s` before it writes; `end_s` comes after, when the client may have read already.
        "duration_ms": (max(row["last_s"] for row in rows) - min(row["received_s"] for row in rows)) * 1000,
    }


def assert_true_or_invalid(server, result, rows):
    """No time is shorter than the server's, whatever the machine does. If the point is valid, each is longer by 2 % at most.

    Both add their lateness: the server's largest one and the client's. test_planted_times.py has the definitions without any.
    """
    figures, truth = {**result, "duration_ms": result["duration"] * 1000}, truth_of(rows)
    for name, wanted in truth.items():
        if "tpot" not in name:  # a late first token makes it shorter
            assert figures[name] >= wanted - 0.01, name
    if not result["valid"]:
        assert result["invalid_reasons"]
        return
    late_ms = 1.0 + 2 * (result["client"]["lag_max_ms"] + 1000 * server.control()["late_max_s"])
    for name, wanted in truth.items():
        slack_ms = late_ms / 15 if "tpot" in name else late_ms
        if name == "duration_ms":  # the first request can start late, and the last one end late
            slack_ms *= 2
        if name != "duration_ms" or not result["failed"]:  # a refused request is not in the server's list of streams
            assert figures[name] == pytest.approx(wanted, rel=NEAR, abs=slack_ms), name


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_every_figure_is_the_servers_with_a_tail_of_special_tokens(calm, tmp_path, chat):
    calm.control({"tail": 12})
    result, rows = measured(calm, tmp_path, chat=chat)
    assert (result["completed"], result["failed"]) == (24, 0)
    assert result["total_output_tokens"] == 24 * 16
    assert set(result["input_lens"]) == {32}
    assert_true_or_invalid(calm, result, rows)
    # A clock that stops at the last text would say a fifth.
    assert result["median_tpot_ms"] > 0.5 * truth_of(rows)["median_tpot_ms"]


ANSWERS = {
    "an error of the old form": ({"kind": "old_error"}, {"error_event": 2}, None),
    "an event named error": ({"kind": "named_error"}, {"error_event": 2}, None),
    "finish_reason error": ({"kind": "finish", "reason": "error"}, {"finish_error": 2}, None),
    "finish_reason content_filter": ({"kind": "finish", "reason": "content_filter"}, {"content_filter": 2}, None),
    "a proxy that flushes eight events": ({"bunch": 8}, {}, "events come in bunches"),
    "usage of twice the events": ({"usage": 2}, {}, "(8 longer, 0 shorter)"),
    "usage of half the events": ({"usage": 0.5}, {}, "(0 longer, 8 shorter)"),
    "half of the length": ({"length": 0.5}, {}, "(0 longer, 8 shorter)"),
    "twice the length": ({"length": 2}, {}, "(8 longer, 0 shorter)"),
    "usage that nothing confirms": ({"length": 0.5, "usage": 2}, {}, "usage states 1.8 tokens per event"),
    "usage of fewer tokens than events": ({"length": 2, "usage": 0.5}, {}, "but their usage states 128 tokens"),
    "late usage": ({"late_usage_s": 0.3}, {}, "ms after the last token, so fewer requests were generated"),
    "a body that stays open": ({"held_open_s": 0.3}, {}, "ms after its last event, so fewer requests were generated"),
}
"""Answers without /metrics to compare with: the fault, the failures of eight requests, and the invalid reason or note."""


def test_answers_that_are_not_what_they_seem_are_named(calm, tmp_path, subtests):
    sweep = replace(SWEEP, requests=8, concurrency=(8,))
    for number, (name, (fault, errors, said)) in enumerate(ANSWERS.items()):
        with subtests.test(name):
            calm.control({"kind": "shape", "after_tokens": 3, "every": 4 if errors else 1, "no_metrics": True, **fault})
            result, rows = measured(calm, tmp_path / str(number), sweep, max_failed=0.5)
            assert result["errors_by_kind"] == errors
            if said is None:
                assert_true_or_invalid(calm, result, rows)
                continue
            named = result["notes"] if said.startswith("usage states") else result["invalid_reasons"]
            assert any(said in text for text in named), (result["invalid_reasons"], result["notes"])


def test_a_server_whose_own_histograms_disagree_makes_the_point_invalid(calm, tmp_path):
    calm.control({"metrics_factor": 10})
    result, _ = measured(calm, tmp_path)
    said = " ".join(result["invalid_reasons"])
    assert "the mean time to first token is shorter than the server's" in said
    assert "in the server's histogram" in said


def test_the_server_and_the_client_agree_and_the_steady_window_stands_beside(calm, tmp_path):
    result, rows = measured(calm, tmp_path, replace(SWEEP, output_tokens=(40,)))
    assert result["server"]["requests_begun"] == 24
    truth = truth_of(rows)
    assert result["server"]["mean_ttft_ms"] == pytest.approx(truth["mean_ttft_ms"], rel=0.01)
    errors = result["ttft_uncertainty"]
    assert errors["server_mean_ms"] == result["server"]["mean_ttft_ms"] <= errors["first_event_mean_ms"]
    assert errors["lag_of_mean_ttft"] == pytest.approx(errors["lag_mean_ms"] / result["mean_ttft_ms"], abs=1e-4)
    assert errors["tokens_per_event"] == pytest.approx(40 / 41, abs=1e-4)  # the finish reason has its own event
    steady = result["steady"]
    assert 4 < steady["requests"] < 24
    assert steady["requests"] + steady["requests_left_out"] == 24
    assert 0 < steady["start_s"] < steady["end_s"] < result["duration"]
    assert result["saturation"] is None


def test_the_command_fails_and_says_so_first_when_requests_fail(calm, tmp_path, capsys):
    calm.control({"kind": "status", "status": 429, "spare": 12})
    load = "--concurrency 2 --requests 20 --input-tokens 16 --output-tokens 4"
    words = ["--url", calm.url, *load.split()]
    code = main([*words, "--warm-up", "0", "--json", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert code == 1
    assert json.loads(captured.out)["failing"] == 1
    assert "1 of 1 point FAILED: more than 0.01 of their requests" in captured.err
    text = (tmp_path / "report.html").read_text()
    assert text.index("NOT VALID: NO point is valid") < text.index("<h2>")
