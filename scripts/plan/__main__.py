"""Plan a deployment before it costs anything: whether it fits, how long it starts, what it costs, and what is wrong with it.

    python -m scripts.plan --stack NAME [--fix [--write]]
    python -m scripts.plan --model google/gemma-4-31B-it --accelerator H100 --set maxModelLen=32768 --json
    python -m scripts.plan --model google/gemma-4-12B-it --compare --min-concurrency 8 --max-usd-per-hour 6

Exit code 0 means that it fits, 2 that it is blocked or out of memory, or that the question is wrong.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from planning.errors import PlanningError
from planning.planner import plan_of
from planning.subject import examine
from planning.wording import worded
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option
from scripts.plan.question import Comparison, Question, deployment_from, wording_of


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the command."""

    question: Question
    comparison: Comparison
    fix: Annotated[bool, Option("With --stack: show the change of its file that removes what blocks, as a diff.")] = (
        False
    )
    write: Annotated[bool, Option("With --fix: make that change.")] = False
    explain: Annotated[bool, Option("Show the formulas with their numbers.")] = False
    as_json: JsonSwitch = False


def _plan(options: PlanOptions) -> ExitCode:
    _check(options)
    question = options.question
    if options.comparison.compare:
        from scripts.plan.compare import compare

        return compare(question, options.comparison, as_json=options.as_json)
    if options.fix and question.stack is not None:
        from scripts.plan.fix import fix

        return fix(question.stack, write=options.write)
    deployment = deployment_from(question)
    wording = wording_of(question, deployment)
    try:
        subject = examine(deployment)
    except PlanningError as error:
        raise PlanningError(worded(str(error), wording)) from None
    plan = plan_of(subject)
    if options.explain:
        from planning.explain import explain

        for title, lines in explain(subject):
            print(title)
            print("".join(f"  {line}\n" for line in lines))
    elif options.as_json:
        print(json.dumps(plan.to_json(wording), indent=2))
    else:
        from scripts.plan.table import show  # rich costs more than the plan

        show(plan, wording)
    return ExitCode.DONE if plan.fits else ExitCode.REFUSED


def _check(options: PlanOptions) -> None:
    """Raise PlanningError for options that do not go together."""
    question, comparison = options.question, options.comparison
    if question.stack is not None:
        given = question.given or ("--compare" if comparison.compare else None)
        if given:
            raise PlanningError(f"--stack takes everything from the stack's settings; leave out {given}.")
        if options.fix and (options.as_json or options.explain):
            raise PlanningError("--fix prints a diff; leave out --json and --explain.")
        if options.write and not options.fix:
            raise PlanningError("--write belongs to --fix; give both.")
    elif options.fix or options.write:
        raise PlanningError("--fix and --write change a stack's settings; name it: --stack NAME.")
    elif question.model is None and question.config is None:
        raise PlanningError("Say what to plan: --stack NAME, or --model ID --accelerator NAME.")
    elif question.accelerator is None and not comparison.compare:
        raise PlanningError("Say on what: --accelerator NAME, or --compare for all of them.")
    if options.as_json and options.explain:
        raise PlanningError("--explain is for people and --json for programs; choose one.")
    if not comparison.compare and comparison.limits != (None, None, None):
        raise PlanningError("--min-context, --min-concurrency and --max-usd-per-hour belong to --compare.")


COMMAND: Final = Command(name="plan", help=__doc__, options=PlanOptions, run=_plan)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
