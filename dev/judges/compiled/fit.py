"""Temporaries and code of the steps of the grid and of the stacks: compiled, and planned by the planner's formulas."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any

from dev.judges.compiled.rows import ROWS
from gemma_serving.planning.cost.subject import examine
from gemma_serving.planning.memory.tpu_programs import layers_mib, step_gib
from gemma_serving.scripts.plan.question import question_from


def fitted_rows(answers: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield each compiled step: name, compiled and planned temporaries in GiB."""
    for row in ROWS:
        if row.group not in {"grid", "stack"} or row.name not in answers:
            continue
        resolved = examine(question_from(row.question)).resolved
        for one in answers[row.name]["programs"]:
            is_listed = not row.steps or one["tokens"] in row.steps
            if one["name"] == "backbone" and is_listed and not one["error"]:
                yield f"{row.name} {one['tokens']} tokens", one["temporaries_gib"], step_gib(resolved, one["tokens"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOfSteps:
    """Code of the steps' programs of one stack on one device, in MiB."""

    stack: str
    smallest_mib: float
    largest_mib: float
    mean_mib: float
    """Over the batch sizes that the server compiles, by the logarithm of their tokens between the smallest and the largest."""
    planned_mib: float


def code_rows(answers: Mapping[str, Any]) -> Iterator[CodeOfSteps]:
    """Yield the code of each stack whose smallest and largest step were compiled."""
    for row in ROWS:
        if row.group != "stack" or row.name not in answers:
            continue
        answer = answers[row.name]
        steps = {one["tokens"]: one["code_mib"] for one in answer["programs"] if one["name"] == "backbone"}
        first, last = min(steps, default=0), max(steps, default=0)
        if first == last:
            continue
        sizes = answer["built"]["token_paddings"]
        between = [log2(size / first) / log2(last / first) for size in sizes]
        yield CodeOfSteps(
            stack=row.name,
            smallest_mib=steps[first],
            largest_mib=steps[last],
            mean_mib=steps[first] + (steps[last] - steps[first]) * sum(between) / len(between),
            planned_mib=layers_mib(examine(question_from(row.question)).resolved.spec),
        )
