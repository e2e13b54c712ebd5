"""What the compiler said is next to today's plan, and a difference cannot hide."""

from types import ModuleType

import pytest

from dev.judges.compiled.__main__ import changes
from dev.judges.compiled.fit import code_rows, fitted_rows
from dev.judges.compiled.page import ORIGINS, operations
from dev.judges.compiled.rows import ROWS, half_of, is_held_out
from dev.judges.compiled.stored_answers import read_answers
from dev.judges.tpu_compiler.judged_plan import planned_of
from dev.judges.tpu_compiler.replaced import REPLACED
from dev.judges.tpu_compiler.server.patching import replace
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.data.overheads import CONSTANTS
from gemma_serving.planning.data.quantization import SCHEMES
from gemma_serving.planning.machine.families import FAMILIES
from gemma_serving.planning.memory.tpu_programs import code_gib, sampling_gib
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.scripts.plan.plan_options import QuestionOptions
from gemma_serving.scripts.plan.question import question_from
from tests.records import replace as replace_record

ANSWERS = read_answers()
JUDGED = [row for row in ROWS if row.name in ANSWERS and row.group != "grid"]
WITHIN_GIB = 0.1
"""Largest difference of a held-out row."""
MEMORY_UNITS = {"GiB", "MiB", "MiB per layer", "GiB per billion parameters", "bytes", "count"}
NOT_PLANNED = {"tpu-v6e1-26b-w4a16": "no wheel has 4-bit experts"}


@pytest.mark.parametrize("row", JUDGED, ids=lambda row: row.name)
def test_the_plan_of_today_is_what_upstreams_server_was_built_with(row):
    planned, answer = planned_of(plan_of(examine(question_from(row.question)))), ANSWERS[row.name]
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


def test_the_halves_of_the_grid_are_those_that_were_committed_before_the_fit():
    steps = [step for row in ROWS for step in row.step_names]
    assert (len(steps), sum(map(is_held_out, steps))) == (35, 19)
    assert is_held_out("31B v6e-4 32 seq auto 512 tokens")
    assert not is_held_out("31B v6e-4 32 seq auto 2048 tokens")


def test_held_out_steps_need_what_was_planned():
    held = {name: planned - measured for name, measured, planned in fitted_rows(ANSWERS) if half_of(name) == "held out"}
    assert len(held) > 8
    assert {name: off for name, off in held.items() if abs(off) > WITHIN_GIB} == {}


def test_the_error_of_the_minimum_is_the_largest_miss_of_a_step():
    misses = [abs(planned - measured) for _, measured, planned in fitted_rows(ANSWERS)]
    assert CONSTANTS["TPU_PROGRAM_MARGIN_GIB"].value == pytest.approx(max(misses), abs=0.005)


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


def test_no_constant_of_memory_outside_the_budget_is_without_its_origin():
    """The page says of each whether it is compiled, fitted, logged or assumed."""
    named = {name for _, names, _ in ORIGINS for name in names.split(", ")} - {"none"}
    known = {name for name in CONSTANTS if name.startswith("TPU_") and CONSTANTS[name].unit in MEMORY_UNITS}
    of_v6e = FAMILIES["v6e"].measured
    known |= {name for name, one in of_v6e.items() if one.unit in MEMORY_UNITS}
    assert named == known


@pytest.mark.parametrize("row", [row for row in ORIGINS if row[1] != "none"], ids=lambda row: row[0])
def test_the_origin_of_a_constant_is_what_its_row_says(row: tuple[str, str, str]):
    _, names, origin = row
    rows = {**FAMILIES["v5e"].measured, **CONSTANTS}
    words = " ".join(f"{rows[name].what} {rows[name].fitted_to}" for name in names.split(", "))
    marks = {"compiled": "compiled", "fitted": "least squares", "logged": "xbill9", "assumed": "assumed"}
    kind = origin.partition(":")[0]
    assert marks[kind] in words
    assert (kind == "fitted") == (marks["fitted"] in words)
    assert (kind == "assumed") == (marks["assumed"] in words)


@pytest.mark.parametrize("sequences", [32, 64, 256])
def test_sampling_under_load_takes_no_more_than_planned_and_a_full_batch_as_much(sequences: int):
    """Logits, temporaries and outputs of each compiled sampler, on one, four and eight chips."""
    compared = 0
    for row in ROWS:
        for one in ANSWERS.get(row.name, {"programs": ()})["programs"]:
            if (one["name"], one["sequences"]) != ("sample", sequences):
                continue
            taken = one["arguments_gib"] + one["temporaries_gib"] + one["outputs_gib"] - one["aliased_gib"]
            planned = sampling_gib(examine(question_from(row.question)).resolved)
            assert taken <= planned * 1.005
            assert sequences < 256 or taken == pytest.approx(planned, rel=0.01)
            compared += 1
    assert compared > 0


def test_the_code_of_steps_is_the_compilers_mean_of_each_kind_of_layer():
    found = [one for one in code_rows(ANSWERS) if one.stack != "tpu-v6e4"]
    assert len(found) == 6
    for one in found:
        assert 0.75 < one.planned_mib / one.mean_mib < 1.25, one
    together = sum(one.planned_mib for one in found) / sum(one.mean_mib for one in found)
    assert together == pytest.approx(1, abs=0.03)


def test_a_text_server_has_half_of_the_steps_code_and_four_bits_the_whole():
    whole, text = (resolved_of("E2B", is_text=is_text) for is_text in (False, True))
    samplers_gib = 6 * CONSTANTS["TPU_SAMPLER_CODE_MIB"].value / 1_024
    assert code_gib(text, 9) - samplers_gib == pytest.approx((code_gib(whole, 9) - samplers_gib) / 2)
    assert code_gib(replace_record(text, scheme=SCHEMES["w4a16"]), 9) == code_gib(whole, 9)


def test_a_mixture_of_experts_computes_no_more_than_its_padding():
    """So the time of its prompts is not that of its operations (`planning.speed.steps.expert_rows_s`)."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for row in ROWS:
        resolved = examine(question_from(row.question)).resolved
        for one in ANSWERS.get(row.name, {"programs": ()})["programs"]:
            if one["tokens"] and not one["error"]:
                times[resolved.spec.is_moe].append(operations(one, resolved.spec, resolved.tp))
    assert len(times[True]) > 5
    assert all(1.1 < one < 1.2 for one in times[True])
    assert all(0.99 < one < 1.1 for one in times[False])


def resolved_of(size: str, *, is_text: bool) -> Resolved:
    """Return the server of a model on one chip."""
    model = f"google/gemma-4-{size}-it"
    return examine(question_from(QuestionOptions(model=model, accelerator="v6e-1", text_only=is_text))).resolved
