"""The benchmark of the planner runs; how large its figures are is not a test's business."""

from authors.benchmarks.plan_speed import EMPTY, QUESTIONS, SEARCHES, measure


def test_the_empty_interpreter_the_command_and_the_function_are_measured():
    seconds = measure(1)
    assert EMPTY in seconds
    assert sum(what.startswith("scripts.plan --json") for what in seconds) == len(QUESTIONS) + len(SEARCHES)
    assert sum(what.startswith("plan()") for what in seconds) == len(QUESTIONS)
    assert all(least_s > 0 for least_s in seconds.values())
