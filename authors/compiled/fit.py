"""Temporaries of the steps of the grid and of the stacks: compiled, and planned by the planner's formula."""

from collections.abc import Iterator, Mapping
from typing import Any

from authors.compiled.rows import ROWS
from planning.cost.subject import examine
from planning.memory.tpu_programs import step_gib
from scripts.plan.question import deployment_from


def fitted_rows(answers: Mapping[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield each compiled step: name, compiled and planned temporaries in GiB."""
    for row in ROWS:
        if row.group not in {"grid", "stack"} or row.name not in answers:
            continue
        resolved = examine(deployment_from(row.question)).resolved
        for one in answers[row.name]["programs"]:
            is_listed = not row.steps or one["tokens"] in row.steps
            if one["name"] == "backbone" and is_listed and not one["error"]:
                yield f"{row.name} {one['tokens']} tokens", one["temporaries_gib"], step_gib(resolved, one["tokens"])
