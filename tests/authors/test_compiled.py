"""What the compiler said is next to today's plan, and a difference cannot hide."""

from types import ModuleType

import pytest

from authors.compiled.__main__ import changes
from authors.compiled.answers import read_answers
from authors.compiled.fit import fitted_rows
from authors.compiled.page import page
from authors.compiled.rows import ROWS, half_of, is_held_out
from planning.cost.subject import examine
from planning.planner import plan_of
from scripts.plan.compile import planned_of
from scripts.plan.question import deployment_from
from tpu_compiler.replaced import REPLACED
from tpu_compiler.server.patching import replace

ANSWERS = read_answers()
JUDGED = [row for row in ROWS if row.name in ANSWERS and row.group != "grid"]
WITHIN_GIB = 0.1
"""Largest difference of a held-out row."""
NOT_PLANNED = {"tpu-v6e1-26b-w4a16": "no wheel has 4-bit experts"}


@pytest.mark.parametrize("row", JUDGED, ids=lambda row: row.name)
def test_the_plan_of_today_is_what_upstreams_server_was_built_with(row):
    planned, answer = planned_of(plan_of(examine(deployment_from(row.question)))), ANSWERS[row.name]
    assert planned.fits == answer["planned"]["fits"]
    built = answer["built"]
    if not planned.fits or row.name in NOT_PLANNED:
        return
    assert answer["verdict"] == "agrees", answer["sentence"]
    assert planned.weights_gib == pytest.approx(built["weights_gib"], rel=0.002)
    assert planned.kv_blocks == built["kv_blocks"]


def test_each_shipped_tpu_stack_is_judged_or_named_with_its_reason():
    stacks = {row.name for row in ROWS if row.group == "stack"}
    assert len(stacks) == 9
    assert stacks - ANSWERS.keys() == set()


def test_what_is_not_judged_and_what_is_refused_stands_on_the_page():
    text = page()
    for row in JUDGED:
        answer = ANSWERS[row.name]
        assert answer["verdict"] in {"agrees", "compiles"} or f"- **{row.name}**: {answer['sentence']}" in text


def test_the_halves_of_the_grid_are_those_that_were_committed_before_the_fit():
    steps = [step for row in ROWS for step in row.step_names]
    assert (len(steps), sum(map(is_held_out, steps))) == (35, 19)
    assert is_held_out("31B v6e-4 32 seq auto 512 tokens")
    assert not is_held_out("31B v6e-4 32 seq auto 2048 tokens")


def test_held_out_steps_need_what_was_planned():
    held = {name: planned - measured for name, measured, planned in fitted_rows(ANSWERS) if half_of(name) == "held out"}
    assert len(held) > 8
    assert {name: off for name, off in held.items() if abs(off) > WITHIN_GIB} == {}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"weights_gib": 7.0}, "weights_gib"),
        ({"kv_blocks": 1}, "kv_blocks"),
        ({"path": "torch"}, "path"),
    ],
)
def test_another_version_that_builds_another_server_is_named(fault, said):
    before = ANSWERS["tpu-v6e4-31b"]
    assert list(changes(before, before)) == []
    assert [line.split()[0] for line in changes(before, {**before, "built": {**before["built"], **fault}})] == [said]


def test_a_refusal_of_another_version_is_named():
    before = ANSWERS["tpu-v6e4-31b"]
    now = {**before, "verdict": "refused", "sentence": "Refused: no.", "built": None}
    assert list(changes(before, now)) == ["agrees before, refused now: Refused: no."]


def test_a_function_without_a_row_cannot_be_replaced():
    with pytest.raises(KeyError, match="has no row"):
        replace(ModuleType("jax"), "grad", None)
    jax = ModuleType("jax")
    replace(jax, "jit", "replaced")
    assert jax.jit == "replaced"
    assert all(row.by and row.could_hide for row in REPLACED)
