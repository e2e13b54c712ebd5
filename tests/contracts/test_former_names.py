"""Renamed JSON keys: documents have both names, readers accept documents of either release."""

import json

import pytest

from contracts.fields import from_json
from contracts.former_names import (
    ROLLOUT_OUTCOMES,
    TEARDOWN,
    current_value,
    with_current_names,
    with_current_plan,
    with_former_names,
    with_former_plan,
)
from contracts.outputs import MarginSummary, PlanSummary
from contracts.rollout_record import ROLLOUT_ANNOTATION, RolloutRecord, read_record

CURRENT = {"leaked": ["a"], "stacks": [{"unknown": ["why"], "retained": {}}], "clean": False}
BEFORE = {"left": ["a"], "stacks": [{"untold": ["why"], "kept": {}}], "clean": False}


def test_a_document_has_both_names_at_every_depth():
    both = with_former_names(CURRENT, TEARDOWN)
    assert both["left"] == both["leaked"] == ["a"]
    assert both["stacks"] == [{"unknown": ["why"], "untold": ["why"], "retained": {}, "kept": {}}]
    assert with_former_names(both, TEARDOWN) == both


def test_a_reader_accepts_the_names_of_both_releases():
    assert with_current_names(BEFORE, TEARDOWN) == CURRENT
    assert with_current_names(with_former_names(CURRENT, TEARDOWN), TEARDOWN) == CURRENT


def test_the_current_name_wins():
    assert with_current_names({"left": ["old"], "leaked": ["new"]}, TEARDOWN) == {"leaked": ["new"]}


@pytest.mark.parametrize(
    ("former", "current"),
    [("gone back", "rolled back manually"), ("not gone back", "not rolled back"), ("rolled back", "rolled back")],
)
def test_an_outcome_of_a_rollout_has_its_current_name(former, current):
    assert current_value(former, ROLLOUT_OUTCOMES) == current_value(current, ROLLOUT_OUTCOMES) == current


def test_a_record_of_the_former_release_is_read_and_stays_readable_for_it():
    text = '{"outcome":"gone back","reason":"Why.","revision":"s-1","schema":1,"share":100}'
    record = read_record({"annotations": {ROLLOUT_ANNOTATION: text}})
    assert isinstance(record, RolloutRecord)
    assert (record.outcome, record.text()) == ("rolled back manually", text)


FORMER_OUTPUTS = """{"target": "tpu", "plan": {
 "fits": false, "verdict": "oom", "model": "google/gemma-4-E2B-it", "accelerator": "v5e-1", "platform": "tpu-vm",
 "memory": {"usableGib": 15.75, "weightsGib": 9.1, "activationsGib": 0.8, "graphsGib": 0.0, "kvGib": 4.7, "kvTokens": 235008,
  "kvBlocks": 7344, "maxConcurrency": 14.3},
 "startup": {"pullS": 60.0, "loadS": 90.5, "compileS": 300.0, "totalS": 450.5, "probeBudgetS": 600},
 "throughput": {"decodeTokPerS": 120.0, "saturatedTokPerS": 4000.0},
 "cost": {"usdPerHour": 1.2, "maxUsd": 21.6, "usdPerMillionTokens": 12.5},
 "margin": {"says": "may fail", "finding": "FIT05", "hasGib": 1.102, "needsGib": 0.816, "enoughGib": 1.257}}}"""


def test_a_stack_that_the_former_release_deployed_is_read():
    plan = from_json(PlanSummary, with_current_plan(json.loads(FORMER_OUTPUTS))["plan"])
    assert plan.verdict == "out-of-memory"
    assert plan.margin == MarginSummary(
        verdict="may fail", finding="FIT05", available_gib=1.102, minimum_gib=0.816, recommended_gib=1.257
    )


def test_a_stack_has_the_former_keys_of_its_margin_as_well():
    former = json.loads(FORMER_OUTPUTS)["plan"]["margin"]
    current = with_current_plan(json.loads(FORMER_OUTPUTS))
    assert with_former_plan(current)["plan"]["margin"] == current["plan"]["margin"] | former
    assert with_current_plan(with_former_plan(current)) == current
    assert with_former_plan({"target": "tpu"}) == with_current_plan({"target": "tpu"}) == {"target": "tpu"}
