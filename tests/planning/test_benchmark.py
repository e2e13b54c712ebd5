"""The benchmark of the planner runs; how large its figures are is not a test's business."""

from authors.benchmarks import plan_speed


def test_the_empty_interpreter_the_command_and_the_function_are_measured(monkeypatch):
    for name in ("QUESTIONS", "SEARCHES"):  # one of each: the others differ in their words alone
        monkeypatch.setattr(plan_speed, name, dict([*getattr(plan_speed, name).items()][:1]))
    seconds = plan_speed.measure(1)
    assert plan_speed.EMPTY in seconds
    assert sum(what.startswith("scripts.plan --json") for what in seconds) == 2
    assert sum(what.startswith("plan()") for what in seconds) == 1
    assert all(least_s > 0 for least_s in seconds.values())
