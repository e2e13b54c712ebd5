"""Loads beyond fixed lengths, judged by what the server received: count, order, prefixes and its own times."""

import itertools
from dataclasses import replace

import pytest

from loadtest.errors import SweepError
from loadtest.reports.report import write_reports
from loadtest.store import read_run
from loadtest.tests.test_sweep_runs import bench, only, other_notes
from loadtest.traffic.lengths import parse_lengths
from loadtest.traffic.points import Sweep
from loadtest.traffic.spec import Traffic

SWEEP = Sweep(
    concurrency=(2,), request_rate=(), input_tokens=(40,), output_tokens=(6,), requests=8, duration_s=None, seed=1
)


@pytest.fixture
def keeping(start_server):
    return start_server("--ttft-s", "0.01", "--tpot-s", "0.002", "--keep-requests")


def contents(server):
    return [item["body"]["messages"][-1]["content"] for item in server.received()]


def measured(server, tmp_path, sweep=SWEEP, **options):
    """The one point of a sweep, whose results are in the folder out."""
    return only(bench(server.url, tmp_path / "out", sweep, **options)[1])


def by_session(server):
    """The requests of each session, which has a first message of its own."""
    sessions = {}
    for item in server.received():
        sessions.setdefault(item["body"]["messages"][0]["content"], []).append(item)
    return list(sessions.values())


def test_each_turn_of_a_session_sends_the_conversation_so_far(keeping, tmp_path):
    result = measured(keeping, tmp_path, replace(SWEEP, requests=12, traffic=Traffic(turns=3, think_time_s=0.15)))
    sessions = by_session(keeping)
    assert [[len(turn["body"]["messages"]) for turn in turns] for turns in sessions] == [[1, 3, 5]] * 4
    for turns in sessions:
        for before, after in itertools.pairwise(turns):
            held = before["body"]["messages"]
            assert after["body"]["messages"][: len(held)] == held
            # The answer that the server gave: six of its words.
            answer = after["body"]["messages"][len(held)]
            assert answer == {"role": "assistant", "content": " alpha beta gamma delta epsilon zeta"}
            assert after["at_s"] - before["at_s"] >= 0.15 + 0.01 + 5 * 0.002
    assert result["sessions"] == {"begun": 4, "ended_at_max_model_len": 0, "turns": 3, "think_time_s": 0.15}
    assert sorted(result["input_lens"]) == sorted([40] * 4 + [82] * 4 + [124] * 4)


OPEN_SESSIONS = replace(
    SWEEP, concurrency=(), request_rate=(20.0,), requests=12, traffic=Traffic(turns=3, think_time_s=0.15)
)


def test_sessions_arrive_at_their_rate_and_each_turn_waits_for_the_answer_before_and_thinks(start_server, tmp_path):
    # An answer takes longer than the time between two sessions: a closed loop would send one session after the other.
    server = start_server("--ttft-s", "0.3", "--tpot-s", "0.002", "--keep-requests")
    result = measured(server, tmp_path, OPEN_SESSIONS, poisson=False, stall_timeout_s=60.0)
    assert (result["completed"], result["failed"]) == (12, 0)
    assert (result["request_rate"], result["max_concurrency"]) == (20.0, None)
    assert result["sessions"] == {"begun": 4, "ended_at_max_model_len": 0, "turns": 3, "think_time_s": 0.15}
    turns_of_all = list(zip(result["start_times"], result["e2els"], strict=True))
    sessions = [turns_of_all[first : first + 3] for first in range(0, 12, 3)]
    # The plan of the load, whatever this machine does: sessions at 20 per second, and turns after answer and think time.
    assert [turns[0][0] for turns in sessions] == pytest.approx([0.0, 0.05, 0.10, 0.15])
    for turns in sessions:
        for (before_s, took_s), (after_s, _) in itertools.pairwise(turns):
            assert after_s >= before_s + took_s + 0.15 - 1e-5
    # What the server received: never a turn before the answer to the one before, by its own clock.
    for turns in by_session(server):
        assert [len(turn["body"]["messages"]) for turn in turns] == [1, 3, 5]
        for before, after in itertools.pairwise(turns):
            assert after["at_s"] - before["at_s"] >= 0.3 + 5 * 0.002 + 0.15
    # No judgement of a steady state, and words for the rate.
    assert (result["steady"], result["saturation"]) == (None, None)
    assert "20 per second is the rate of new sessions; 4 sessions sent 12 requests" in result["notes"]


def test_sessions_of_an_open_loop_without_think_time_have_no_steady_window_and_end_with_the_duration(keeping, tmp_path):
    sweep = replace(OPEN_SESSIONS, requests=None, duration_s=0.5, traffic=Traffic(turns=200))
    result = measured(keeping, tmp_path, sweep, poisson=False, stall_timeout_s=60.0)
    assert result["sessions"]["begun"] == 10  # 20 per second x 0.5 s
    assert (result["steady"], result["saturation"], result["failed"]) == (None, None, 0)
    # A turn is sent only before the end; an answer of 20 ms leaves room for 25 of 200 turns.
    assert max(result["start_times"]) <= 0.5
    assert result["completed"] <= 10 * 25


def test_two_processes_share_sessions_without_sending_any_twice(keeping, tmp_path):
    sweep = replace(OPEN_SESSIONS, requests=10, traffic=Traffic(turns=2))
    result = measured(keeping, tmp_path, sweep, workers=2)
    assert (result["client"]["workers"], result["completed"], result["sessions"]["begun"]) == (2, 10, 5)
    firsts = [item["body"]["messages"][0]["content"] for item in keeping.received()]
    assert sorted(firsts.count(text) for text in set(firsts)) == [2] * 5


def test_a_failed_turn_ends_its_session_and_no_other(keeping, tmp_path):
    keeping.control({"kind": "status", "status": 503, "times": 1})
    result = measured(keeping, tmp_path, OPEN_SESSIONS, poisson=False, stall_timeout_s=60.0)
    assert (result["completed"], result["errors_by_kind"]) == (9, {"http_503": 1})


def test_a_session_ends_before_it_exceeds_max_model_len(start_server, tmp_path):
    server = start_server("--ttft-s", "0.01", "--tpot-s", "0.002", "--keep-requests", "--max-model-len", "100")
    result = measured(server, tmp_path, replace(SWEEP, requests=40, traffic=Traffic(turns=5)))
    assert result["failed"] == 0
    assert result["sessions"]["ended_at_max_model_len"] == result["sessions"]["begun"] == 8
    assert max(len(item["body"]["messages"]) for item in server.received()) == 3
    assert any("8 of 8 sessions ended early" in note for note in result["notes"])


def test_prompts_share_the_stated_part_and_the_note_says_that_it_was_asked_for(keeping, tmp_path):
    result = measured(keeping, tmp_path, replace(SWEEP, input_tokens=(104,), traffic=Traffic(prefix_share=0.5)))
    prompts = [text.split() for text in contents(keeping)]
    assert len({tuple(words[:50]) for words in prompts}) == 1
    assert len({tuple(words[50:66]) for words in prompts}) == 8
    assert set(result["input_lens"]) == {104}


def test_lengths_of_a_distribution_are_what_the_server_counts(keeping, tmp_path):
    traffic = Traffic(
        input_lengths=parse_lengths("uniform:min=20,max=60"), output_lengths=parse_lengths("uniform:min=2,max=9")
    )
    result = measured(keeping, tmp_path, replace(SWEEP, requests=30, traffic=traffic))
    assert sorted(result["input_lens"]) == sorted(len(text.split()) + 4 for text in contents(keeping))
    assert 20 <= min(result["input_lens"]) < max(result["input_lens"]) <= 60
    assert result["output_lens"] == [length for length in result["output_lens"] if 2 <= length <= 9]
    assert other_notes(result) == []


@pytest.mark.parametrize("turns", [1, 2])
def test_adapters_are_named_in_turn_and_by_one_session_throughout(start_server, tmp_path, turns):
    server = start_server("--keep-requests", "--adapters", "red,blue,green")
    traffic = Traffic(adapters=("red", "blue", "green"), turns=turns)
    result = measured(server, tmp_path, replace(SWEEP, concurrency=(1,), requests=6 * turns, traffic=traffic))
    named = [item["body"]["model"] for item in server.received()]
    assert named == [name for name in ("red", "blue", "green") * 2 for _ in range(turns)]
    assert result["completed"] == 6 * turns
    assert result["traffic"]["adapters"] == ["red", "blue", "green"]
    assert result["point"]["traffic"].startswith("adapters red, blue, green in turn")
    write_reports(tmp_path / "out")
    assert "adapters red, blue, green in turn" in (tmp_path / "out" / "report.html").read_text()


def test_an_adapter_has_the_length_limit_of_its_model(start_server, tmp_path):
    server = start_server("--adapters", "red", "--max-model-len", "512")
    assert measured(server, tmp_path, replace(SWEEP, requests=2), model="red")["completed"] == 2
    assert read_run(tmp_path / "out")["server"]["max_model_len"] == 512


def test_an_adapter_that_the_server_does_not_serve_is_refused(start_server, tmp_path):
    sweep = replace(SWEEP, traffic=Traffic(adapters=("red", "blue")))
    with pytest.raises(SweepError, match="--adapters has blue, but the server serves timed, red"):
        measured(start_server("--adapters", "red"), tmp_path, sweep)


def test_a_load_is_continued_only_as_it_was(keeping, tmp_path):
    sweep = replace(SWEEP, traffic=Traffic(prefix_share=0.5))
    measured(keeping, tmp_path, sweep)
    sent = len(keeping.received())
    assert measured(keeping, tmp_path, sweep, resume=True)["point"]["traffic"] == "shared prefix 50%"
    assert len(keeping.received()) == sent
    with pytest.raises(SweepError, match=r"--resume: the sweep in .* has traffic"):
        measured(keeping, tmp_path, replace(SWEEP, traffic=Traffic(prefix_share=0.25)), resume=True)
