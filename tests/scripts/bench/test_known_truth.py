"""Sweeps against a server that records what it did: every figure is the truth within 2 %, or the point says that it is invalid."""

import asyncio
import json
import statistics
from dataclasses import replace

import pytest

from scripts.bench.__main__ import COMMAND
from scripts.bench.points import Sweep
from scripts.bench.settings import SweepSettings
from scripts.bench.store import read_results, read_run
from scripts.bench.sweep import run_sweep
from scripts.cli.command import run_command
from scripts.client.access import ServerAccess
from scripts.client.openai import OpenAIClient, chat_body
from tests.scripts.bench.test_sweep_runs import STALL_LIMIT_S, Quiet

SWEEP = Sweep(
    concurrency=(4,), request_rate=(), input_tokens=(32,), output_tokens=(16,), requests=24, duration_s=None, seed=1
)
NEAR = 0.02
STOOD_STILL_S = 0.05
"""A server that the machine kept from running for longer answers otherwise than it was told to."""


@pytest.fixture
def calm(server):
    server.control({})
    yield server
    server.control({})


def measured(server, out, sweep=SWEEP, **options):
    """Measure one point, and return it with what the server saw of it."""
    before = len(server.truth())
    settings = SweepSettings(url=server.url, model=None, out=out, warm_up=0, workers=1, **options)
    outcome = run_sweep(settings, sweep, ServerAccess(base_url=server.url, auth="none"), Quiet())
    assert outcome.ending == "done", outcome.detail
    (result,) = read_results(out)
    return result, server.truth()[before:]


def truth_of(rows):
    """The figures of vllm bench serve, from the readings of the server's own clock, in ms."""
    done = [row for row in rows if row["completed"]]
    spans = [(row["last_s"] - row["first_s"]) / (row["tokens"] - 1) for row in done if row["tokens"] > 1]
    return {
        "mean_ttft_ms": statistics.fmean(row["first_s"] - row["received_s"] for row in done) * 1000,
        "mean_tpot_ms": statistics.fmean(spans) * 1000,
        "mean_e2el_ms": statistics.fmean(row["last_s"] - row["received_s"] for row in done) * 1000,
        "duration_ms": (max(row["end_s"] for row in rows) - min(row["received_s"] for row in rows)) * 1000,
    }


def assert_true_or_invalid(result, rows):
    """The point is invalid for a stated reason, or each figure is the server's within 2 % and the client's own lateness."""
    if not result["valid"]:
        assert result["invalid_reasons"]
        return
    figures = {**result, "duration_ms": result["duration"] * 1000}
    late_ms = 1.0 + result["client"]["lag_p99_ms"]  # at most; printed with the point
    for name, wanted in truth_of(rows).items():
        slack_ms = late_ms / 15 if name == "mean_tpot_ms" else late_ms
        assert figures[name] == pytest.approx(wanted, rel=NEAR, abs=slack_ms), name


@pytest.mark.parametrize(
    "tail",
    [0, 12, 16],
    ids=["text", "a tail of special tokens", "special tokens only"],
)
@pytest.mark.parametrize("chat", [True, False])
def test_every_figure_is_the_servers_whatever_the_tokens_say(calm, tmp_path, tail, chat):
    calm.control({"tail": tail})
    result, rows = measured(calm, tmp_path, chat=chat)
    assert (result["completed"], result["failed"]) == (24, 0)
    assert result["total_output_tokens"] == 24 * 16
    assert_true_or_invalid(result, rows)
    # As long for a token as the server's own clock says, however many of them have text: one that stops at the last text says a fifth.
    spans_ms = [(row["last_s"] - row["first_s"]) / (row["tokens"] - 1) * 1000 for row in rows]
    assert not result["valid"] or result["median_tpot_ms"] > statistics.median(spans_ms) / 2


def test_the_first_output_ends_the_time_to_first_token_and_special_tokens_before_it_do_not(calm, tmp_path):
    calm.control({"lead": 8})
    result, rows = measured(calm, tmp_path)
    assert result["completed"] == 24
    assert sorted(result["ttfts"]) >= sorted(row["first_s"] - row["received_s"] for row in rows)
    assert_true_or_invalid(result, rows)


def test_a_server_whose_own_histograms_disagree_makes_the_point_invalid(calm, tmp_path):
    calm.control({"metrics_factor": 10})
    result, _ = measured(calm, tmp_path)
    said = " ".join(result["invalid_reasons"])
    assert "the mean time to first token is shorter than the server's own" in said
    assert "in the server's histogram" in said


def test_the_server_and_the_client_agree_and_the_steady_window_stands_beside(calm, tmp_path):
    result, rows = measured(calm, tmp_path, replace(SWEEP, output_tokens=(40,)))
    assert result["server"]["requests_begun"] == 24
    truth = truth_of(rows)
    assert result["server"]["mean_ttft_ms"] == pytest.approx(truth["mean_ttft_ms"], rel=0.01)
    steady = result["steady"]
    assert 4 < steady["requests"] < 24
    assert steady["requests"] + steady["requests_left_out"] == 24
    assert 0 < steady["start_s"] < steady["end_s"] < result["duration"]
    assert result["saturation"] is None


@pytest.mark.parametrize(("capacity", "over"), [(0, False), (2, True)])
def test_a_limited_server_is_over_saturated_and_an_unlimited_one_is_not(start_server, tmp_path, capacity, over):
    # Two at once for 100 ms each: 20 requests a second. Forty are offered.
    server = start_server("--ttft-s", "0.05", "--tpot-s", "0.01", "--capacity", str(capacity))
    sweep = replace(SWEEP, concurrency=(), request_rate=(40.0,), requests=80, output_tokens=(6,))
    result, rows = measured(server, tmp_path, sweep)
    found, has_stood_still = result["saturation"], server.control()["stood_still_s"] > STOOD_STILL_S
    if has_stood_still or not result["valid"]:
        return  # the machine was the limit; test_steady.py has the verdicts on planted answers
    assert found["over"] is over
    if over:
        ends = sorted(row["end_s"] for row in rows)
        assert found["answered_per_s"] == pytest.approx(79 / (ends[-1] - ends[0]), rel=0.25)
        assert any("over-saturated" in note for note in result["notes"])


def test_the_smoke_client_reads_the_same_speed_from_an_answer_that_ends_in_special_tokens(calm):
    async def streams():
        async with OpenAIClient(calm.url) as client:
            body = chat_body("timed", "hello", max_tokens=40, stream=True)
            return [await client.stream(body, limit_s=120) for _ in range(5)]

    before = len(calm.truth())
    calm.control({"tail": 30})
    streamed = asyncio.run(streams())
    rows = calm.truth()[before:]
    assert [one.events for one in streamed] == [10] * 5
    assert all(one.decode_tok_per_s is not None for one in streamed)
    # The server's own time for 39 tokens. A clock that stops at the last text says a quarter of it, in each of the five.
    shares = [
        (one.last_s - one.ttft_s) / (row["last_s"] - row["first_s"]) for one, row in zip(streamed, rows, strict=True)
    ]
    assert max(shares) > 0.6
    assert min(shares) < 1.6


def test_an_aborted_answer_is_not_complete(calm, tmp_path):
    calm.control({"kind": "abort", "every": 4})
    result, _ = measured(calm, tmp_path)
    assert result["errors_by_kind"] == {"abort": 6}
    assert result["error_examples"]["abort"] == "the server ended the answer with finish_reason abort"


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("html", "html", "an HTML page (text/html; charset=utf-8)"),
        ("gzip", "compressed", "content-encoding gzip"),
        ("json", "no_stream", "content-type application/json, not text/event-stream"),
    ],
)
def test_a_body_that_is_no_stream_is_named_as_what_it_is(calm, tmp_path, kind, error, said):
    calm.control({"kind": kind, "every": 2})
    result, _ = measured(calm, tmp_path)
    assert result["errors_by_kind"] == {error: 12}
    assert said in result["error_examples"][error]


def test_a_hang_before_the_first_byte_falls_under_the_stall_limit(calm, tmp_path):
    calm.control({"kind": "hang", "spare": 23})
    result, rows = measured(calm, tmp_path, stall_limit_s=STALL_LIMIT_S)
    assert result["errors_by_kind"] == {"stall": 1}
    assert "before the first token" in result["error_examples"]["stall"]
    # The last request hangs: the duration ends with it, although the complete answers were quick.
    answered_s = max(row["end_s"] for row in rows) - min(row["received_s"] for row in rows)
    assert result["duration"] > answered_s + 0.3


def test_a_server_that_refuses_is_not_fast_and_the_run_fails(calm, tmp_path):
    calm.control({"kind": "status", "status": 429, "spare": 12})
    settings = SweepSettings(url=calm.url, model=None, out=tmp_path, warm_up=0, workers=1)
    outcome = run_sweep(settings, SWEEP, ServerAccess(base_url=calm.url, auth="none"), Quiet())
    (result,) = read_results(tmp_path)
    assert (result["completed"], result["failed"]) == (12, 12)
    assert not result["valid"]
    assert result["invalid_reasons"][0] == "12 of 24 requests failed (50.0%), more than --max-failed 0.01"
    assert outcome.failing == 1


def test_failures_within_the_share_that_is_allowed_leave_a_point_valid(calm, tmp_path):
    calm.control({"kind": "status", "status": 429, "times": 1})
    result, _ = measured(calm, tmp_path, max_failed=0.05)
    assert result["failed"] == 1
    assert not [reason for reason in result["invalid_reasons"] if "--max-failed" in reason]


def test_retry_after_is_honoured_when_asked(calm, tmp_path):
    calm.control({"kind": "status", "status": 429, "retry_after": 1, "times": 3})
    result, _ = measured(calm, tmp_path, honour_retry_after=True)
    assert (result["completed"], result["failed"]) == (24, 0)
    assert result["client"]["retry_after_waits"] == 3
    assert sum(e2e_s > 1.0 for e2e_s in result["e2els"]) >= 3
    assert "3 requests were sent again after the time in Retry-After" in result["notes"][0]


def test_retry_after_beyond_the_request_limit_is_a_failure(calm, tmp_path):
    calm.control({"kind": "status", "status": 503, "retry_after": 60, "times": 2})
    result, _ = measured(calm, tmp_path, replace(SWEEP, requests=8), honour_retry_after=True, request_limit_s=30.0)
    assert result["errors_by_kind"] == {"http_503": 2}


def test_the_command_fails_and_says_so_first_when_requests_fail(calm, tmp_path, capsys):
    calm.control({"kind": "status", "status": 429, "spare": 12})
    words = [
        "--url",
        calm.url,
        "--concurrency",
        "2",
        "--requests",
        "20",
        "--input-tokens",
        "16",
        "--output-tokens",
        "4",
    ]
    code = run_command(COMMAND, [*words, "--warm-up", "0", "--json", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert code == 1
    assert json.loads(captured.out)["failing"] == 1
    assert "1 of 1 points FAILED: more than 0.01 of their requests" in captured.err
    text = (tmp_path / "report.html").read_text()
    assert text.index("points failed: more than 0.01") < text.index('class="facts"')
    old = read_run(tmp_path) | {"schema_version": 1}
    (tmp_path / "run.json").write_text(json.dumps(old))
    assert run_command(COMMAND, [*words, "--resume", "--out", str(tmp_path)]) == 2
    assert "was measured by another version of this tool" in capsys.readouterr().err
