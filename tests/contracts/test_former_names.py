"""Renamed JSON keys: documents have both names, readers accept documents of either release."""

from contracts.former_names import TEARDOWN, with_current_names, with_former_names

CURRENT = {"leaked": ["a"], "stacks": [{"unknown": ["why"], "retained": {}}], "clean": False}
BEFORE = {"left": ["a"], "stacks": [{"untold": ["why"], "kept": {}}], "clean": False}


def test_both_names_are_written_at_every_depth():
    both = with_former_names(CURRENT, TEARDOWN)
    assert both["left"] == both["leaked"] == ["a"]
    assert both["stacks"] == [{"unknown": ["why"], "untold": ["why"], "retained": {}, "kept": {}}]


def test_documents_of_either_release_are_read_alike():
    assert with_current_names(BEFORE, TEARDOWN) == CURRENT
    assert with_current_names(with_former_names(CURRENT, TEARDOWN), TEARDOWN) == CURRENT
    assert with_current_names(CURRENT, TEARDOWN) == CURRENT


def test_the_current_name_counts_where_a_document_has_both_with_different_values():
    assert with_current_names({"left": ["old"], "leaked": ["new"]}, TEARDOWN) == {"leaked": ["new"]}
