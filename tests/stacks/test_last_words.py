"""Every crashed boot of the accuracy corpus is recognized by its last words, and by the rule that predicts it."""

from pathlib import Path

import pytest

from gemma_serving.planning.planner import plan
from gemma_serving.planning.rules.findings import RULES
from gemma_serving.stacks.hooks.failure_hints import cause_of
from tests.planning.corpus.measured import load, subject_of
from tests.stacks.test_crash_lines import start_of

LOGS = Path(__file__).parents[1] / "fixtures" / "boot_logs"
DEAD = {boot.id: boot for boot in load().boots if boot.died}
NO_LAST_WORDS = {
    "bf16-26b-l4": "the report has no line of the log, only `out of memory`",
    "bf16-31b-l4": "as above",
    "fp8-26b-h100": "the report has no line of the log",
    "awq-31b-2xh100-097": "as above",
    "q4-2507-5090-256k": "the report says the line in its own words",
    "q4-2507-fp8-5090-deepgemm": "as above",
    "g31b-fp8-2x3090-55k": "as above",
    "g31b-fp8-2x3090-67k": "as above",
    "g31b-qat-2x3090-256k": "as above",
}
UNPREDICTED = {
    "sweep-12b-16k": "the engine's last line names no cause",
    "sweep-12b-32k": "as above",
    "sweep-12b-64k": "as above",
    "dense-12b-h100": "as above",
}


def start_for(boot):
    return start_of("tpu-v6e1" if subject_of(boot).resolved.is_tpu else "l4-12b-qat")


@pytest.mark.parametrize("name", [name for name in DEAD if name not in NO_LAST_WORDS])
def test_each_dead_boot_is_recognized_with_what_to_change(name):
    boot = DEAD[name]
    cause = cause_of(["INFO loading", boot.message], start_for(boot))
    assert cause is not None, boot.message
    assert "gemma-serving:" in cause.hint or "`gemma " in cause.hint, cause.hint
    assert not cause.finding or cause.finding in RULES


@pytest.mark.parametrize("name", [name for name in DEAD if name not in NO_LAST_WORDS and name not in UNPREDICTED])
def test_the_recognized_rule_is_one_that_the_planner_found_or_could_not_find(name):
    """A dead boot whose plan blocks is recognized by one of the rules that block it, or by none."""
    boot = DEAD[name]
    cause, planned = cause_of([boot.message], start_for(boot)), plan(boot.deployment)
    found = {finding.id for finding in planned.findings}
    if not planned.fits and cause.finding:
        assert cause.finding in found, (cause.finding, found)


def lines_of(name):
    return (LOGS / name).read_text(encoding="utf-8").splitlines()


def test_a_public_log_of_a_dead_tpu_server_names_the_utilization():
    cause = cause_of(lines_of("v5e-1-dies.log"), start_of("tpu-v6e1"))
    assert cause.finding == "FIT05"
    assert "It needs 384.11MB. 346.77MB is free." in cause.hint
    assert "Set gemma-serving:vllm.gpuMemoryUtilization to 0.89 or less." in cause.hint


@pytest.mark.parametrize(("name", "stack"), [("l4-runs.log", "l4-12b-qat"), ("v6e-4-runs.log", "tpu-v6e1")])
def test_a_log_of_a_server_that_runs_has_no_cause(name, stack):
    assert cause_of(lines_of(name), start_of(stack)) is None
