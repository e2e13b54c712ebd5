import pytest

from contracts.former_names import (
    TEARDOWN,
    current_outcome,
    with_current_names,
    with_former_names,
)
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
    assert current_outcome(former) == current_outcome(current) == current


def test_a_record_of_the_former_release_is_read_and_stays_readable_for_it():
    text = '{"outcome":"gone back","reason":"Why.","revision":"s-1","schema":1,"share":100}'
    record = read_record({"annotations": {ROLLOUT_ANNOTATION: text}})
    assert isinstance(record, RolloutRecord)
    assert (record.outcome, record.text()) == ("rolled back manually", text)
