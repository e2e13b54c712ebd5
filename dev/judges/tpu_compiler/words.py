"""The judge's answer as text and as JSON."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from dev.judges.tpu_compiler.answer import CompileAnswer
from dev.judges.tpu_compiler.judged_plan import JudgedPlan
from dev.judges.tpu_compiler.replaced import REPLACED
from dev.judges.tpu_compiler.verdict import Planned
from gemma_serving.planning.units import duration


def show(judged: JudgedPlan, *, explains: bool) -> None:
    """Print what was built next to the plan, the verdict and the gap; with `explains`, what the judge replaces."""
    from rich.console import Console  # noqa: PLC0415 - rich takes longer to load than the plan

    from gemma_serving.scripts.cli.tables import console as screen  # noqa: PLC0415 - as above
    from gemma_serving.scripts.cli.tables import paragraph  # noqa: PLC0415 - as above

    console: Console = screen(sys.stdout)
    console.print()
    _tables(console, judged)
    for line in lines_of(judged):
        paragraph(console, line)
    for title, lines in explanation(judged) if explains else ():
        console.print()
        paragraph(console, title)
        for line in lines:
            paragraph(console, line, prefix="  ")


def _tables(console: Any, judged: JudgedPlan) -> None:  # noqa: ANN401 - rich's console
    from gemma_serving.scripts.cli.tables import FittedTable  # noqa: PLC0415 - rich takes longer to load than the plan

    planned, built = judged.planned, judged.answer.built
    if built is None:
        return
    numbers = ("planned", "built", "difference")
    shown = FittedTable(f"Planned and built, per chip ({judged.topology})", ("figure", *numbers), numbers=numbers)
    for name, plan_gib, built_gib in (
        ("weights, GiB", planned.weights_gib, built.weights_gib),
        ("KV cache, GiB", planned.kv_gib, built.kv_gib),
    ):
        shown.add_row(name, f"{plan_gib:.3f}", f"{built_gib:.3f}", f"{round(built_gib - plan_gib, 3) + 0.0:+.3f}")
    blocks = (f"{planned.kv_blocks:,}", f"{built.kv_blocks:,}", f"{built.kv_blocks - planned.kv_blocks:+,}")
    shown.add_row(f"blocks of {built.block_size} tokens", *blocks)
    console.print(shown)
    console.print()
    if not judged.answer.programs:
        return
    figures = ("temporaries, GiB", "code, MiB", "seconds")
    programs = FittedTable("Compiled programs, per chip", ("program", *figures), numbers=figures)
    for one in judged.answer.programs:
        sizes = (_figure(one.temporaries_gib, 3), _figure(one.code_mib, 1))
        programs.add_row(one.title, *sizes, f"{one.seconds:.0f}")
    console.print(programs)
    console.print()


def _figure(value: float | None, digits: int) -> str:
    return "not compiled" if value is None else f"{value:.{digits}f}"


def lines_of(judged: JudgedPlan) -> Iterator[str]:
    """Yield the sentences below the tables: memory outside the budget, the verdict and the gap."""
    if judged.answer.built is not None and judged.answer.programs:
        yield memory_outside_budget(judged.planned, judged.answer)
    yield judged.judgement.sentence
    yield judged.gap
    if judged.is_stored:
        yield "This is the stored answer to the same question."
    elif not judged.answer.reason:
        yield f"The answer took {duration(judged.seconds)}; it is stored."


def memory_outside_budget(planned: Planned, answer: CompileAnswer) -> str:
    """Return what the compiled programs say about the memory outside the budget."""
    needed = answer.working_gib + answer.code_gib
    compiled = f"{len(answer.programs)} of {answer.all_programs}" if answer.all_programs else f"{len(answer.programs)}"
    if needed > planned.outside_gib:
        meaning = "more than there is"
    elif needed > planned.outside_minimum_gib:
        meaning = "more than the planned minimum"
    else:
        meaning = "within the planned minimum"
    return (
        f"Outside the budget: {planned.outside_gib:.2f} GiB; planned minimum {planned.outside_minimum_gib:.2f}, recommended "
        f"{planned.outside_recommended_gib:.2f}. The compiled programs ({compiled}) need {needed:.2f} GiB: {answer.working_gib:.2f} for "
        f"the largest one while it runs and {answer.code_gib:.2f} for code, {meaning}. Other programs and the runtime need more."
    )


def explanation(judged: JudgedPlan) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what the judge replaces, with what each could hide, and the versions."""
    replaced = [f"{one.name}: {one.by}. Could hide: {one.could_hide}." for one in REPLACED]
    yield "Replaced functions of the wheels, and what each could hide", replaced
    built = judged.answer.built
    if built is not None:
        versions = [f"{name} {version}" for name, version in built.versions.items()]
        yield "Versions", [*versions, " ".join(built.platform_version.split())]


def _seconds(judged: JudgedPlan) -> float:
    done = judged.answer.done
    return judged.seconds if done is None else done.seconds


def compiled_json(judged: JudgedPlan, *, explains: bool) -> dict[str, object]:
    """Return the answer in JSON types."""
    answer = judged.answer
    replaced: dict[str, object] = {"replaced": [asdict(one) for one in REPLACED]} if explains else {}
    return {
        "verdict": judged.judgement.word,
        "sentence": judged.judgement.sentence,
        "gap": judged.gap,
        "versions": answer.built.versions if answer.built else {},
        "planned": asdict(judged.planned),
        "built": _object(answer.built),
        "programs": [_object(one) for one in answer.programs],
        "all_programs": answer.all_programs,
        "refusal": _object(answer.refusal),
        "is_stored": judged.is_stored,
        "seconds": round(_seconds(judged), 1),
        **replaced,
    }


def _object(event: msgspec.Struct | None) -> dict[str, object] | None:
    """Return the fields of an event, without its tag."""
    if event is None:
        return None
    fields: dict[str, object] = msgspec.to_builtins(event)
    return {name: value for name, value in fields.items() if name != "event"}
