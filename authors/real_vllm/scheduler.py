"""Steps and times to the first token that vLLM's own scheduler gives, against the stored ones.

The scheduler runs without a model and without an accelerator (scheduler_loop.py). scheduler.csv has each scenario with its answer, and
`tests/planning/test_sharing.py` compares the planner's formulas with them. Times are in steps of one decoding request.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from authors.real_vllm.environment import HERE, MODEL, RealVllmHome
from authors.real_vllm.judge import RealVllmPart
from authors.real_vllm.server import RealVllmCores, run_tool, tools_environment
from authors.tables import csv_text

FILE: Final = HERE / "scheduler.csv"
_LOOP: Final = HERE / "scheduler_loop.py"
_LIMIT_S: Final = 3_600.0


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SchedulerScenario(_Row):
    """Users in a closed loop, and what steps cost. The field names are columns of the file."""

    users: int
    prompt_tokens: int
    shared_tokens: int
    """Tokens of a prompt that are the same in all prompts, and so come from the prefix cache."""
    output_tokens: int
    budget_tokens: int
    """max-num-batched-tokens."""
    rounds: int
    """Requests of each user."""
    drawn: bool
    """Whether each prompt and response has a random length, half to one and a half times the stated one, which puts requests at random phases."""
    prompt_cost: float
    """Time that 1,000 tokens of prompts add to a step."""
    decode_cost: float
    """Time that each decoding request except the first adds to a step."""


class SchedulerAnswer(_Row):
    """Means of the first requests of all users, and of the later ones, without the second ones if lengths are drawn."""

    requests_per_time: float
    first_time: float
    """Time to the first token of the first requests, which all users send at once."""
    later_time: float
    later_median_time: float
    later_steps: float
    """Steps that end between the arrival of a request and its first token, the one that generates it included."""


class SchedulerRow(SchedulerScenario, SchedulerAnswer):
    """A scenario with its answer."""

    @property
    def answer(self) -> Mapping[str, float]:
        """The answer alone."""
        return {name: getattr(self, name) for name in SchedulerAnswer.model_fields}

    @property
    def scenario(self) -> Mapping[str, float]:
        """The scenario alone."""
        return {name: getattr(self, name) for name in SchedulerScenario.model_fields}


def stored_rows() -> Sequence[SchedulerRow]:
    """Return the rows of the file."""
    with FILE.open(encoding="utf-8", newline="") as stream:
        return TypeAdapter(list[SchedulerRow]).validate_python(list(csv.DictReader(stream)))


def check_scheduler(home: RealVllmHome, cores: RealVllmCores) -> RealVllmPart:
    """Run all scenarios and compare. Raises RealVllmError if the scheduler cannot be driven."""
    stored = stored_rows()
    scenarios = home.results / "scenarios.json"
    scenarios.write_text(json.dumps([row.scenario for row in stored]), encoding="utf-8")
    command = [str(home.programs / "python"), str(_LOOP), str(home.models / MODEL), str(scenarios)]
    text = run_tool(
        command, home.results, tools_environment(home, {}), home.results / "scheduler.log", cores, limit_s=_LIMIT_S
    )
    found = TypeAdapter(list[SchedulerAnswer]).validate_json(text)
    write_rows(home.results / FILE.name, stored, found)
    faults = scheduler_faults(stored, found)
    agree = len(stored) - len(faults)
    lines = ["#### The scheduler", "", f"{agree} of {len(stored)} scenarios have the stored steps and times."]
    return RealVllmPart(lines=lines, faults=faults)


def scheduler_faults(stored: Sequence[SchedulerRow], found: Sequence[SchedulerAnswer]) -> Sequence[str]:
    """Return a sentence for each scenario whose answer is not the stored one."""
    return [
        f"scheduler.csv, line {number}: vLLM's scheduler gives {answer}, and the file has {row.answer}; copy results/scheduler.csv and "
        "check the formulas of planning/speed/sharing.py"
        for number, (row, answer) in enumerate(zip(stored, found, strict=True), start=2)
        if row.answer != answer.model_dump()
    ]


def write_rows(path: Path, scenarios: Sequence[SchedulerRow], answers: Sequence[SchedulerAnswer]) -> None:
    """Write the scenarios with these answers in the format of the file."""
    rows = [{**row.scenario, **answer.model_dump()} for row, answer in zip(scenarios, answers, strict=True)]
    names = [*SchedulerScenario.model_fields, *SchedulerAnswer.model_fields]
    path.write_text(csv_text(names, [[row[name] for name in names] for row in rows]), encoding="utf-8")
