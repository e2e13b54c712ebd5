"""Plan a deployment before it costs anything: whether it fits, how long it starts, what it costs, and what is wrong with it.

    python -m scripts.plan --stack NAME [--costs | --measured | --fix [--write]]
    python -m scripts.plan --model google/gemma-4-31B-it --accelerator H100 --set maxModelLen=32768 --json
    python -m scripts.plan --model google/gemma-4-12B-it --compare --min-concurrency 8 --max-usd-per-hour 6
    python -m scripts.plan --solve --workload in=4000,out=500,users=32 --max-ttft-s 1 --write NAME

Exit code 0 means that it fits, 2 that it is blocked or out of memory, or that the question is wrong.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final

from contracts.exit_codes import ExitCode
from planning.cost.subject import Subject, examine
from planning.errors import PlanningError
from planning.planner import plan_of
from planning.solve.plan_json import plan_json
from planning.solve.wording import worded
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option
from scripts.plan.learn_options import LearnOptions
from scripts.plan.question import Comparison, Question, deployment_from, wording_of
from scripts.plan.solve_options import Solving, check_solving


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the command."""

    question: Question
    comparison: Comparison
    fix: Annotated[bool, Option("With --stack: show the change of its file that removes what blocks, as a diff.")] = (
        False
    )
    solving: Solving
    write: Annotated[
        str | None,
        Option(
            "With --fix: make that change. With --solve: make the file Pulumi.NAME.yaml of the cheapest deployment.",
            metavar="NAME",
            bare="",
        ),
    ] = None
    explain: Annotated[bool, Option("Show the formulas with their numbers.")] = False
    costs: Annotated[bool, Option("Show the whole bill, a cold start, and when running all the time is cheaper.")] = (
        False
    )
    measured: Annotated[bool, Option("With --stack: show what smoke and bench measured beside the plan.")] = False
    as_json: JsonSwitch = False


def _plan(options: PlanOptions) -> ExitCode:
    _check(options)
    question = options.question
    if options.solving.solve:
        from scripts.plan.solve import solve_question  # imports all of the planner and, with --write, the settings

        return solve_question(
            question, options.comparison, options.solving, write=options.write, as_json=options.as_json
        )
    if options.comparison.compare:
        from scripts.plan.compare import compare

        return compare(question, options.comparison, as_json=options.as_json)
    if options.fix and question.stack is not None:
        from scripts.plan.fix import fix

        return fix(question.stack, write=options.write is not None)
    if options.measured:
        from scripts.plan.measured import show_measured

        return show_measured(question, as_json=options.as_json)
    deployment = replace(deployment_from(question), today=datetime.now(UTC).date().isoformat())
    wording = wording_of(question, deployment)
    try:
        subject = examine(deployment)
    except PlanningError as error:
        raise PlanningError(worded(str(error), wording)) from None
    plan = plan_of(subject)
    if options.as_json:
        document = {**plan_json(plan, wording), **_more(subject, explained=options.explain)}
        print(json.dumps(document, indent=2, allow_nan=False))
    elif options.explain:
        from planning.solve.explain import explain

        for title, lines in explain(subject):
            print(title)
            print("".join(f"  {line}\n" for line in lines))
    elif options.costs:
        from scripts.plan.costs import show_costs  # rich costs more than the plan

        show_costs(plan)
    else:
        from scripts.plan.table import show  # rich costs more than the plan

        show(plan, wording)
    return ExitCode.DONE if plan.fits else ExitCode.REFUSED


def _more(subject: Subject, *, explained: bool) -> dict[str, object]:
    """Return what the JSON document has beside the plan: the loading modes of a service, and the formulas where they are asked for."""
    from planning.cost.loading_modes import loading_modes

    ways = [one.to_json() for one in loading_modes(subject)]
    found: dict[str, object] = {"loading_modes": ways} if ways else {}
    if explained:
        from planning.solve.explain import explain

        found["explanation"] = [{"title": title, "lines": list(lines)} for title, lines in explain(subject)]
    return found


def _check(options: PlanOptions) -> None:
    """Raise PlanningError for options that do not go together."""
    comparison = options.comparison
    if options.solving.solve:
        _check_solve(options)
        return
    if options.solving.given is not None:
        raise PlanningError(f"{options.solving.given} belongs to --solve; give both.")
    if options.write and not options.solving.solve:
        raise PlanningError("--write takes a name with --solve only; with --fix it changes the stack's file.")
    if options.question.stack is not None:
        _check_stack(options)
    else:
        _check_description(options)
    _check_source(options.question)
    _check_output(options)
    _check_measured(options)
    if not comparison.compare and comparison.limits != (None, None, None):
        raise PlanningError("--min-context, --min-concurrency and --max-usd-per-hour belong to --compare or --solve.")


def _check_solve(options: PlanOptions) -> None:
    in_use = (
        ("--compare", options.comparison.compare),
        ("--fix", options.fix),
        ("--explain", options.explain),
        ("--costs", options.costs),
        ("--measured", options.measured),
    )
    check_solving(options.question, options.comparison, others=tuple(name for name, given in in_use if given))
    if options.write == "":
        raise PlanningError("--write with --solve needs the name of the new stack; write --write NAME.")


def _check_stack(options: PlanOptions) -> None:
    given = options.question.given or ("--compare" if options.comparison.compare else None)
    if given:
        raise PlanningError(f"--stack takes everything from the stack's settings; leave out {given}.")
    if options.fix and (options.as_json or options.explain):
        raise PlanningError("--fix prints a diff; leave out --json and --explain.")
    if options.write is not None and not options.fix:
        raise PlanningError("--write belongs to --fix; give both.")


def _check_description(options: PlanOptions) -> None:
    question, compares = options.question, options.comparison.compare
    if options.fix or options.write is not None:
        raise PlanningError("--fix and --write change a stack's settings; name it: --stack NAME.")
    if question.from_bucket:
        raise PlanningError("--from-bucket reads the bucket of a stack; name it: --stack NAME.")
    if question.model is None and question.config is None:
        raise PlanningError("Say what to plan: --stack NAME, or --model ID --accelerator NAME.")
    places = (question.accelerator is not None) + question.has_own_device
    if places == 0 and not compares:
        raise PlanningError("Say on what: --accelerator NAME, --device FIGURES, or --compare for all of them.")
    if places > 1 and not compares:
        raise PlanningError("--accelerator and --device each say on what; leave one out, or add --compare for both.")


def _check_measured(options: PlanOptions) -> None:
    """Raise PlanningError for options that --measured has no use for."""
    if not options.measured:
        return
    if options.question.stack is None:
        raise PlanningError("--measured reads the figures of a deployed stack; name it: --stack NAME.")
    if options.explain or options.costs or options.fix or options.comparison.compare or options.solving.solve:
        raise PlanningError(
            "--measured shows one table; leave out --explain, --costs, --fix, --compare and --solve (--json is allowed)."
        )
    question = options.question
    if question.workload is not None or question.from_hub or question.from_bucket:
        raise PlanningError("--measured shows what is deployed; leave out --workload, --from-hub and --from-bucket.")


def _check_source(question: Question) -> None:
    if question.from_hub and question.from_bucket:
        raise PlanningError("--from-hub and --from-bucket each say where the config is; leave one out.")
    if question.save is not None and not (question.from_hub or question.from_bucket):
        raise PlanningError("--save keeps what --from-hub or --from-bucket read; add one of them.")


def _check_output(options: PlanOptions) -> None:
    """Raise PlanningError for two ways of printing at once."""
    if options.costs and options.question.has_own_device:
        raise PlanningError("--costs shows what Google bills, and --device is none of its machines; leave one out.")
    if options.costs and (options.explain or options.fix or options.comparison.compare):
        raise PlanningError("--costs shows the costs of one plan; leave out --explain, --fix and --compare.")


def _learn(options: LearnOptions) -> ExitCode:
    """Read a boot log of vLLM or a saved /metrics, add it to the corpus of measured boots, and show the plan beside it.

        python -m scripts.plan learn boot.log
        python -m scripts.plan learn boot.log --accelerator L4 --url URL
        python -m scripts.plan learn metrics.txt --stack NAME --show

    Servers that died are learned too: with where they died and their last words.
    """
    from scripts.plan.learn import learn

    return learn(options)


COMMAND: Final = Command(
    name="plan",
    help=__doc__,
    options=PlanOptions,
    run=_plan,
    subcommands=(Command(name="learn", help=_learn.__doc__, options=LearnOptions, run=_learn),),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
