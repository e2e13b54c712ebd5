"""Answers: every event is understood or the answer is none, and an unfinished answer never passes."""

import json

import pytest
from msgspec.structs import replace

from dev.judges.tests.tpu_compiler.judge import BUILT, DONE, PROGRAMS, REFUSED, STAGES, TOTAL, answered, program
from dev.judges.tpu_compiler.answer import NotUnderstoodError, answer_of, event_line, read_event
from dev.judges.tpu_compiler.verdict import Planned, judgement
from gemma_serving.contracts.exit_codes import ExitCode


def answer(events, reason=""):
    return answer_of([read_event(json.dumps(event)) for event in events], reason)


def planned(**changes):
    figures = {"weights_gib": 8.970, "kv_gib": 19.143, "kv_blocks": 4356}
    outside = {"outside_gib": 3.12, "outside_minimum_gib": 0.82, "outside_recommended_gib": 1.1}
    return Planned(**{"fits": True, **figures, **outside, **changes})


@pytest.mark.parametrize("event", [*answered(), REFUSED, program("sample", error="x", temporaries_gib=None)])
def test_each_event_is_read_and_written_as_it_is(event):
    assert json.loads(event_line(read_event(json.dumps(event)))) == event


@pytest.mark.parametrize("event", [STAGES[0], BUILT, TOTAL, PROGRAMS[0], REFUSED, DONE])
def test_an_event_without_one_of_its_fields_is_not_understood(event):
    for field in event:
        with pytest.raises(NotUnderstoodError, match="the judge's answer is not understood"):
            read_event(json.dumps({key: value for key, value in event.items() if key != field}))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        '{"event":"verdict"}',
        '{"event":"stage","name":"lunch","seconds":1}',
        json.dumps({**DONE, "seconds": -1}),
        json.dumps({**DONE, "seconds": "1"}),
        json.dumps({**DONE, "more": 1}),
        json.dumps({**PROGRAMS[0], "temporaries_gib": None}),
        json.dumps({**BUILT, "kv_blocks": 1.5}),
        b"\xff\xfe",
    ],
)
def test_any_other_line_is_not_understood(line):
    with pytest.raises(NotUnderstoodError, match="the judge's answer is not understood"):
        read_event(line)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "the judge ended without an answer"),
        (answered()[:-1], "the judge ended without an answer"),
        ([DONE], "the judge's answer is not understood: it has no built server"),
        ([BUILT, TOTAL, *PROGRAMS[:2], DONE], "the judge's answer is not understood: 2 of 3 programs"),
        (
            [BUILT, {**TOTAL, "total": 1}, program("sample", error="boom"), DONE],
            "sampler was not compiled: boom",
        ),
    ],
)
def test_an_unfinished_answer_is_not_judged(events, reason: str):
    found = judgement(planned(), answer(events))
    assert (found.word, found.exit_code, found.sentence) == ("not judged", ExitCode.FAILED, f"Not judged: {reason}.")


def test_equal_figures_agree_and_a_planted_fault_differs():
    assert judgement(planned(), answer(answered())).word == "agrees"
    halved = judgement(planned(weights_gib=8.970 / 2), answer(answered()))
    assert (halved.word, halved.exit_code) == ("differs", ExitCode.DONE)
    assert "weights 4.485 GiB planned, 8.970 GiB built" in halved.sentence
    doubled = judgement(planned(kv_blocks=4356 // 2), answer(answered()))
    assert "blocks 2,178 planned, 4,356 built" in doubled.sentence
    assert "KV cache 19.200 GiB planned" in judgement(planned(kv_gib=19.2), answer(answered())).sentence
    assert judgement(planned(kv_gib=19.143 * 1.0019), answer(answered())).word == "agrees"


def test_a_refusal_is_an_answer_also_without_an_end():
    found = judgement(planned(), answer([*STAGES, BUILT, TOTAL, REFUSED], "the process ended with exit code 1"))
    assert (found.word, found.exit_code) == ("refused", ExitCode.REFUSED)
    assert found.sentence.endswith("exceeds available HBM (31.24G).")


def test_a_server_that_compiles_although_the_plan_blocks_stays_blocked():
    found = judgement(planned(fits=False), answer(answered()))
    assert (found.word, found.exit_code) == ("compiles", ExitCode.REFUSED)
    assert judgement(planned(fits=False), answer([])).exit_code == ExitCode.REFUSED


def test_the_sum_of_the_programs_is_the_largest_while_it_runs_and_all_code():
    found = answer(answered())
    assert found.working_gib == pytest.approx(0.586)
    assert found.code_gib == pytest.approx(3 * 55 / 1024)
    # Weights are quantized before the KV cache takes its memory.
    early = replace(found.programs[0], name="quantization", temporaries_gib=9.0)
    assert replace(found, programs=(*found.programs, early)).working_gib == found.working_gib
