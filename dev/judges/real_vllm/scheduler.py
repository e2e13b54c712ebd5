"""Steps and times to the first token that vLLM's own scheduler gives, against the stored ones.

The scheduler runs without a model and without an accelerator (scheduler_loop.py). scheduler.csv has each scenario with its answer, and
`tests/planning/test_sharing.py` compares the planner's formulas with them. Times are in steps of one decoding request.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from dev.authors.tables import csv_text
from dev.judges.planted import refuse_planted
from dev.judges.real_vllm.environment import HERE, MODEL, RealVllmHome
from dev.judges.real_vllm.judge import RealVllmPart
from dev.judges.real_vllm.server import RealVllmCores, run_tool, tools_environment
from tests.planning.corpus.scheduler import FILE, SchedulerAnswer, SchedulerRow, SchedulerScenario, stored_rows

_LOOP: Final = HERE / "scheduler_loop.py"
_LIMIT_S: Final = 3_600.0


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
        "check the formulas of gemma_serving/planning/speed/sharing.py"
        for number, (row, answer) in enumerate(zip(stored, found, strict=True), start=2)
        if row.answer != answer.model_dump()
    ]


def write_rows(path: Path, scenarios: Sequence[SchedulerRow], answers: Sequence[SchedulerAnswer]) -> None:
    """Write the scenarios with these answers in the format of the file."""
    rows = [{**row.scenario, **answer.model_dump()} for row, answer in zip(scenarios, answers, strict=True)]
    names = [*SchedulerScenario.model_fields, *SchedulerAnswer.model_fields]
    path.write_text(csv_text(names, [[row[name] for name in names] for row in rows]), encoding="utf-8")


def planted_lie() -> None:
    """Refuse a thousandth of a step more than stored."""
    stored = stored_rows()
    first, *found = (SchedulerAnswer(**row.answer) for row in stored)
    changed = first.model_copy(update={"later_steps": first.later_steps + 0.001})
    refuse_planted("other steps are the stored ones", lambda: scheduler_faults(stored, [changed, *found]))
