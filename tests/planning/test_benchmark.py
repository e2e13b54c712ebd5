"""The benchmark of the planner runs and gives ratios; how large they are is not a test's business."""

import json

from authors.benchmarks import plan_speed


def test_both_the_command_and_the_function_are_shown_as_ratios_to_an_empty_interpreter(capsys, monkeypatch):
    for name in ("QUESTIONS", "SEARCHES"):  # one of each: the others differ in their words alone
        monkeypatch.setattr(plan_speed, name, dict([*getattr(plan_speed, name).items()][:1]))
    assert plan_speed.main(["--runs", "1", "--json"]) == 0
    captured = capsys.readouterr()
    timings = {t["what"]: t for t in json.loads(captured.out)["timings"]}
    assert timings["python -c pass"]["ratio"] == 1
    assert sum(what.startswith("scripts.plan --json") for what in timings) == len(plan_speed.QUESTIONS) + len(
        plan_speed.SEARCHES
    )
    assert sum("--solve" in what for what in timings) == len(plan_speed.SEARCHES)
    assert sum(what.startswith("plan()") for what in timings) == len(plan_speed.QUESTIONS)
    assert all(t["ratio"] > 0 for t in timings.values())
    assert "run 1 of 1" in captured.err
