"""Several stacks in one table: the verdict, start, speed and price of each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.settings_files import settings_file, stacks_in
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.planner import plan
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.solve.plan_json import plan_json
from gemma_serving.planning.solve.remedy_wording import Wording
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.plan.question import ROOT
from gemma_serving.scripts.plan.rows import Row, plan_cells, show_rows
from gemma_serving.scripts.stack.settings import NO_PROJECT
from gemma_serving.stacks.loading import SettingsError, from_file
from gemma_serving.stacks.planned import to_question, today
from gemma_serving.stacks.settings_wording import StackWording


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStack:
    """A stack with its plan, or with the error of its settings."""

    name: str
    plan: Plan | None = None
    wording: Wording | None = None
    error: str = ""

    @property
    def cells(self) -> Mapping[str, str]:
        """Its cells by heading."""
        return {"verdict": "invalid"} if self.plan is None else plan_cells(self.plan)

    def to_json(self) -> dict[str, object]:
        """Return it as one object: `stack`, and the plan as `gemma plan STACK --json` has it, or `error`."""
        if self.plan is None or self.wording is None:
            return {"stack": self.name, "error": self.error}
        return {"stack": self.name, **plan_json(self.plan, self.wording)}


def show_stacks(names: Sequence[str], *, as_json: bool) -> ExitCode:
    """Print one row for each stack; without names, for all in the project's folder.

    Return 2 if a named stack does not fit. Raises PlanningError for a named stack without a settings file.
    """
    found = names or stacks_in(ROOT)
    if not found:
        raise PlanningError("No deployment to plan. Pass STACK, or --model ID and --accelerator NAME.")
    rows = [_planned(name) for name in found]
    if as_json:
        print_text(json.dumps({"stacks": [row.to_json() for row in rows]}, indent=2, allow_nan=False))
    else:
        errors = (f"{row.name}: {row.error}" for row in rows if row.error)
        show_rows(
            [Row(cells={"stack": row.name, **row.cells}) for row in rows],
            headings=("stack", "model", "on", "verdict", "start", "tok/s", "tok/s, full", "$/h"),
            least=("tok/s", "tok/s, full", "on", "start", "model"),
            notes=(*errors, "tok/s is for one request alone. The whole plan of one: gemma plan STACK."),
        )
    is_good = all(row.plan is not None and row.plan.fits for row in rows)
    return ExitCode.DONE if is_good or not names else ExitCode.REFUSED


def _planned(name: str) -> PlannedStack:
    file = settings_file(name, ROOT)
    try:
        question = to_question(from_file(file, project=NO_PROJECT), ROOT, today=today())
        return PlannedStack(name=name, plan=plan(question), wording=StackWording(question, name))
    except (SettingsError, PlanningError) as error:
        if not file.is_file():
            raise PlanningError(str(error)) from None
        return PlannedStack(name=name, error=str(error).splitlines()[0])
