"""dev/docs/compiled.md: the planner's TPU rows next to vLLM's own server and Google's compiler."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from dev.authors.tables import table
from dev.judges.compiled.fit import code_rows, fitted_rows
from dev.judges.compiled.rows import ROWS, STEPS, JudgedRow, half_of
from dev.judges.compiled.stored_answers import read_answers
from dev.judges.tpu_compiler.wheels import WHEELS
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.memory.budget import program_memory
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.speed.prefill import body_params
from gemma_serving.planning.speed.steps import FLOP_PER_PARAM
from gemma_serving.scripts.plan.question import question_from

_INTRODUCTION: Final = """# What the compiler says

This page is generated: `make docs` writes it from dev/judges/compiled/answers.json.
Each row is a server that was built on a machine without a TPU: vLLM's own parser and configuration, tpu-inference's worker, model and sizes of the KV
cache, and programs that libtpu compiled for the slice.
`gemma plan STACK --compile` does the same for one stack, and `python -m dev.judges.compiled` judges every row without an answer.
It judges shapes, memory and compilation.
It does not judge speed, answers, the weights' files, capacity, network or permissions.
To compile is less than to start: a program knows nothing of the code of other programs, and no program ran.
With `--explain`, `gemma plan STACK --compile` lists the functions that were replaced, and what each replacement could hide.
"""


ORIGINS: Final = (
    (
        "largest step",
        "TPU_STEP_GIB, TPU_STEP_HIDDEN, TPU_STEP_FEED_FORWARD, TPU_STEP_LAYER_EMBEDDINGS, TPU_STEP_EXPERT_INPUTS",
        "fitted",
    ),
    ("sampling under load", "TPU_SAMPLED_LOGIT_BYTES, TPU_DIVIDED_LOGIT_BYTES", "compiled"),
    ("verification of proposals", "TPU_VERIFIED_LOGIT_BYTES", "compiled"),
    ("start-up of speculative decoding", "none", "compiled: shapes of upstream's own start-up"),
    (
        "code",
        "TPU_LAYER_CODE_MIB, TPU_EXPERT_LAYER_CODE_MIB, TPU_EMBEDDING_LAYER_CODE_MIB, TPU_SAMPLER_CODE_MIB",
        "compiled",
    ),
    ("sampler at the start", "TPU_LOGIT_BYTES", "logged: E2B on v5e-1"),
    ("4-bit programs", "TPU_W4A16_PROGRAM_GIB, TPU_W4A16_GIB_PER_BILLION", "logged: v5e-1; none on v6e"),
    ("reserve", "TPU_BUCKET_RESERVE_GIB", "assumed"),
    ("error of the minimum", "TPU_PROGRAM_MARGIN_GIB", "compiled: the largest miss of a step"),
)
"""Parts of the memory outside the budget of one device, the constants of each, and where these come from."""


SHOWN_GIB: Final = 0.03
"""Difference between a compiled and a planned step above which the page shows the row."""


def page() -> str:
    """Return the page."""
    answers = read_answers()
    return "\n".join(
        (
            _INTRODUCTION,
            *_wheels(),
            *_planned(answers),
            *_programs(answers),
            *_edges(answers),
            *_origins(),
            *_fit(answers),
            *_code(answers),
        )
    )


def _wheels() -> Iterator[str]:
    yield "## Wheels"
    yield ""
    yield "A lock has every package with its hash; its own hash is part of each stored answer's key."
    yield ""
    rows = (
        (f"`{one.name}`", one.words, sha256(one.lock.read_bytes()).hexdigest()[:12], f"{one.download_gb:.1f}")
        for one in WHEELS
    )
    yield table("lock | packages | SHA-256 | download, GB", rows)
    yield "How the image differs from the wheels:"
    yield ""
    yield from (f"- `{one.name}`: {one.gap}" for one in WHEELS)
    yield ""


def _rows(answers: Mapping[str, Any], *groups: str) -> Iterator[tuple[JudgedRow, Any]]:
    yield from ((row, answers[row.name]) for row in ROWS if row.group in groups and row.name in answers)


def _planned(answers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Planned and built, per device"
    yield ""
    yield "GiB are 2^30 bytes. Built figures are upstream's own, planned ones follow its rules, and no column is fitted or assumed."
    yield "The plan's figures are those of the day of the answer; a test compares them with today's plan."
    yield ""
    head = "server | weights planned | built | KV cache planned | built | blocks planned | built | verdict"
    yield table(head, (_planned_row(row, one) for row, one in _rows(answers, "stack", "other", "blocked")))
    waiting = [row.name for row in ROWS if row.group != "grid" and row.name not in answers]
    if waiting:
        yield f"Not judged yet: {', '.join(waiting)}."
        yield ""
    for row, one in _rows(answers, "stack", "other", "blocked"):
        if one["verdict"] not in {"agrees", "compiles"}:
            yield f"- **{row.name}**: {one['sentence']}"
    yield ""


def _planned_row(row: JudgedRow, answer: Mapping[str, Any]) -> Sequence[str]:
    planned, built = answer["planned"], answer["built"]
    figures = [
        (f"{planned['weights_gib']:.3f}", f"{built['weights_gib']:.3f}" if built else "-"),
        (f"{planned['kv_gib']:.3f}", f"{built['kv_gib']:.3f}" if built else "-"),
        (f"{planned['kv_blocks']:,}", f"{built['kv_blocks']:,}" if built else "-"),
    ]
    plan = "fits" if planned["fits"] else "blocked"
    return (row.name, *(text for pair in figures for text in pair), f"plan: {plan}; {answer['verdict']}")


def _edges(answers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Memory outside the budget, per device"
    yield ""
    yield "GiB; the head of each column says where its figures come from."
    yield "The compiler accepts a program if its inputs, temporaries and new outputs fit into the device: that is its edge."
    yield "The plan's minimum also has the code of all programs, which a program does not know, so the plan blocks servers that would compile."
    yield "vLLM on TPU runs the sampler at the start before the KV cache exists, so the minimum does not count it whole."
    yield "Under load, 256 sequences on one chip take 1.25 GiB with their logits, which the recommended value counts."
    yield ""
    head = (
        "server | free (setting) | largest program (compiled) | its inputs and it (compiled) | usable (runtime's log; the compiler agrees)"
        " | largest step (fitted to compiled) | sampler at the start (log) | sampling under load (compiled) | code (compiled means)"
        " | reserve (assumed) | plan: minimum | recommended"
    )
    yield table(head, _edge_rows(answers))


def _edge_rows(answers: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for row, answer in _rows(answers, "stack"):
        compiled = [one for one in answer["programs"] if not one["error"]]
        if not compiled:
            continue
        resolved = examine(question_from(row.question)).resolved
        largest = max(compiled, key=_working_gib)
        inside = max(one["arguments_gib"] + _working_gib(one) for one in compiled)
        parts = program_memory(resolved)
        figures = (answer["planned"]["outside_gib"], _working_gib(largest), inside, resolved.accelerator.usable_gib)
        planned = (parts.step_gib, parts.sampler_gib, parts.sampling_gib, parts.code_gib, parts.reserve_gib)
        edges = (parts.minimum_gib, parts.recommended_gib)
        yield row.name, *(f"{value:.2f}" for value in (*figures, *planned, *edges))


def _origins() -> Iterator[str]:
    """Yield where each constant of the memory outside the budget comes from."""
    yield "A constant is compiled if Google's compiler gives it, and fitted if it is a parameter of a formula over compiled rows."
    yield "It is logged if a machine showed it, and assumed otherwise."
    yield ""
    yield table("part of the plan | constants of overheads.json | where they come from", ORIGINS)


def _code(answers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Code of a step, planned and compiled"
    yield ""
    yield "MiB of one program. The mean is over the batch sizes of the server, by the logarithm of their tokens between the two that were compiled."
    yield "A plan has a mean per layer: of plain layers, of layers with experts, and of layers with their own embeddings."
    yield "`tpu-v6e4` is not in these means: its fp8 KV cache has one head and blocks of 32 tokens on each of four chips."
    yield "The same server with blocks of 256 tokens has 8.3 MiB in the smallest step, with an fp8 and with a bf16 KV cache."
    yield "Which server the compiler gives that much code is unknown, so no plan counts it."
    yield ""
    rows = (
        (one.stack, *(f"{mib:.1f}" for mib in (one.smallest_mib, one.largest_mib, one.mean_mib, one.planned_mib)))
        for one in code_rows(answers)
    )
    yield table("server | smallest step | largest step | mean | planned", rows)


def _working_gib(program: Mapping[str, Any]) -> float:
    return program["temporaries_gib"] + program["outputs_gib"] - program["aliased_gib"]


def _programs(answers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Compiled programs, per device"
    yield ""
    head = "server | program | temporaries, GiB | new outputs, GiB | code, MiB | operations, times the plan's | seconds"
    yield table(head, _program_rows(answers))
    yield "All columns but the last are compiled. Seconds are those of two cores with other work beside it."
    yield "Operations are those of matrix products without attention, against two per active parameter, token and device in the plan."
    yield "A mixture of experts has up to 1.2 times as many, because each chip pads its columns of the experts."
    yield ""


def _program_rows(answers: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for row, answer in _rows(answers, "stack", "other", "blocked"):
        spec, devices = _served(row)
        for one in answer["programs"]:
            sizes = [f"{one[unit]:,} {unit}" for unit in ("tokens", "sequences") if one[unit]]
            name = ", ".join([one["name"], *sizes[:1]])
            if one["error"]:
                yield row.name, name, "refused", "-", "-", "-", f"{one['seconds']:.0f}"
                continue
            new_gib = one["outputs_gib"] - one["aliased_gib"]
            figures = (f"{one['temporaries_gib']:.3f}", f"{new_gib:.3f}", f"{one['code_mib']:.1f}")
            times = f"{operations(one, spec, devices):.2f}" if one["tokens"] else "-"
            yield row.name, name, *figures, times, f"{one['seconds']:.0f}"


def _served(row: JudgedRow) -> tuple[ModelSpec, int]:
    """Return the model of a row, and the devices that share a token."""
    resolved = examine(question_from(row.question)).resolved
    return resolved.spec, resolved.tp


def operations(program: Mapping[str, Any], spec: ModelSpec, devices: int) -> float:
    """Return the operations of a compiled step relative to those that the plan counts for one device."""
    return program["flops"] / (FLOP_PER_PARAM * body_params(spec) / devices * program["tokens"])


def _fit(answers: Mapping[str, Any]) -> Iterator[str]:
    rows = tuple(fitted_rows(answers))
    yield "## Temporaries of a step, planned and compiled"
    yield ""
    yield "The compiled column is the compiler's, the planned one the formula's: its constants are fitted to the rows with an even SHA-256 of their name."
    yield "The others are held out."
    yield "The list of rows was committed before the fit."
    yield "Steps of the stacks are not in the list."
    yield "Only the step of tpu-v6e1 with 4,096 tokens is also the row `E2B v6e-1 256 seq auto 4096 tokens`, so it was fitted to."
    yield "In another shape, the hidden state too needs more per token in a long step."
    yield "It fits the first half as well (0.011 and 0.013 GiB)."
    yield "It misses two held-out rows by more than 0.1 GiB, so the choice between both shapes has seen the held-out half."
    yield ""
    compared = (
        (name, half_of(name), f"{measured:.3f}", f"{planned:.3f}", f"{planned - measured:+.3f}")
        for name, measured, planned in rows
        if abs(planned - measured) > SHOWN_GIB
    )
    yield f"Of {len(rows)} rows, these differ by more than {SHOWN_GIB} GiB:"
    yield ""
    yield table("row | half | compiled, GiB | planned, GiB | difference", compared)
    worst, measured_gib, planned_gib = max(rows, key=lambda row: abs(row[2] - row[1]))
    yield f"The largest miss is {worst}: {planned_gib - measured_gib:+.3f} GiB."
    held = [abs(planned - measured) for name, measured, planned in rows if half_of(name) == "held out"]
    if held:
        yield f"Held out: {len(held)} rows, largest difference {max(held):.3f} GiB."
    missing = STEPS - {name for name, _, _ in rows}
    if missing:
        yield f"Not compiled yet: {len(missing)} of {len(STEPS)} rows."
    yield ""
