"""docs/authors/compiled.md: the planner's TPU rows next to vLLM's own server and Google's compiler."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from authors.compiled.answers import read_answers
from authors.compiled.fit import fitted_rows
from authors.compiled.rows import ROWS, STEPS, JudgedRow, half_of
from authors.tables import table
from planning.cost.subject import examine
from scripts.plan.question import deployment_from
from tpu_compiler.replaced import REPLACED
from tpu_compiler.wheels import WHEELS

_INTRODUCTION: Final = """# What the compiler says

This page is generated: `make docs` writes it from authors/compiled/answers.json.
Each row is a server that was built on a machine without a TPU: vLLM's own parser and configuration, tpu-inference's worker, model and sizes of the KV
cache, and programs that libtpu compiled for the slice.
`gemma plan STACK --compile` does the same for one stack, and `python -m authors.compiled` judges every row without an answer.
It judges shapes, memory and compilation.
It does not judge speed, answers, the weights' files, capacity, network or permissions.
To compile is less than to start: a program knows nothing of the code of other programs, and no program ran.
"""


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
            *_fit(answers),
            *_replaced(),
        )
    )


def _wheels() -> Iterator[str]:
    yield "## Wheels"
    yield ""
    yield "A lock has every package with its hash; its own hash is part of each stored answer's key."
    yield ""
    rows = (
        (f"`{one.name}`", one.words, sha256(one.lock.read_bytes()).hexdigest()[:12], f"{one.download_gb:.1f}", one.gap)
        for one in WHEELS
    )
    yield table("lock | packages | SHA-256 | download, GB | gap", rows)


def _rows(answers: Mapping[str, Any], *groups: str) -> Iterator[tuple[JudgedRow, Any]]:
    yield from ((row, answers[row.name]) for row in ROWS if row.group in groups and row.name in answers)


def _planned(answers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Planned and built, per device"
    yield ""
    yield "GiB are 2^30 bytes. The plan's figures are those of the day of the answer; a test compares them with today's plan."
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
    yield "The compiler accepts a program if its inputs, temporaries and new outputs fit into the device: that is its edge."
    yield "The plan's minimum also has the code of all programs, which a program does not know, so the plan blocks servers that would compile."
    yield "GiB; free is what the stack's settings leave."
    yield "vLLM on TPU runs the sampler at the start before the KV cache exists, so the minimum does not count it whole."
    yield "Under load, 256 sequences on one chip take 1.25 GiB with their logits, which the recommended value does not count either."
    yield ""
    head = "server | free | largest program | its inputs and it | usable | plan: minimum | recommended"
    yield table(head, _edge_rows(answers))


def _edge_rows(answers: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for row, answer in _rows(answers, "stack"):
        compiled = [one for one in answer["programs"] if not one["error"]]
        if not compiled:
            continue
        usable_gib = examine(deployment_from(row.question)).resolved.accelerator.usable_gib
        largest = max(compiled, key=_working_gib)
        inside = max(one["arguments_gib"] + _working_gib(one) for one in compiled)
        planned = answer["planned"]
        figures = (planned["outside_gib"], _working_gib(largest), inside, usable_gib)
        edges = (planned["outside_minimum_gib"], planned["outside_recommended_gib"])
        yield row.name, *(f"{value:.2f}" for value in (*figures, *edges))


def _working_gib(program: Mapping[str, Any]) -> float:
    return program["temporaries_gib"] + program["outputs_gib"] - program["aliased_gib"]


def _programs(answers: Mapping[str, Any]) -> Iterator[str]:
    yield "## Compiled programs, per device"
    yield ""
    head = "server | program | temporaries, GiB | new outputs, GiB | code, MiB | seconds"
    yield table(head, _program_rows(answers))
    yield "Seconds are those of two cores with other work beside it."
    yield ""


def _program_rows(answers: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for row, answer in _rows(answers, "stack", "other", "blocked", "grid"):
        for one in answer["programs"]:
            size = f"{one['tokens']:,} tokens" if one["tokens"] else f"{one['sequences']:,} sequences"
            if one["error"]:
                yield row.name, f"{one['name']}, {size}", "refused", "-", "-", f"{one['seconds']:.0f}"
                continue
            new_gib = one["outputs_gib"] - one["aliased_gib"]
            figures = (f"{one['temporaries_gib']:.3f}", f"{new_gib:.3f}", f"{one['code_mib']:.1f}")
            yield row.name, f"{one['name']}, {size}", *figures, f"{one['seconds']:.0f}"


def _fit(answers: Mapping[str, Any]) -> Iterator[str]:
    rows = tuple(fitted_rows(answers))
    yield "## Temporaries of a step, planned and compiled"
    yield ""
    yield "The formula's constants are fitted to the rows with an even SHA-256 of their name; the others are held out."
    yield "The list of rows was committed before the fit."
    yield "Steps of the stacks are not in the list."
    yield "That of tpu-v6e1 with 4,096 tokens is the program of `E2B v6e-1 256 seq auto 4096 tokens`, so it was fitted to."
    yield "Another shape, in which the hidden state too needs more per token in a long step, fits the first half as well (0.011 and 0.013 GiB)."
    yield "It misses two held-out rows by more than 0.1 GiB, so the choice between both shapes has seen the held-out half."
    yield ""
    compared = (
        (name, half_of(name), f"{measured:.3f}", f"{planned:.3f}", f"{planned - measured:+.3f}")
        for name, measured, planned in rows
    )
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


def _replaced() -> Iterator[str]:
    yield "## Replaced functions"
    yield ""
    yield table("function | replaced by | could hide", ((f"`{one.name}`", one.by, one.could_hide) for one in REPLACED))
