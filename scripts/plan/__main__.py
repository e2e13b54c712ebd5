r"""Plan a deployment before it costs anything.

  gemma plan NAME [--costs | --measured]
  gemma plan --model google/gemma-4-31B-it --accelerator H100 \
      --set maxModelLen=32768 --json
  gemma plan --model google/gemma-4-12B-it --compare \
      --min-concurrency 8 --max-usd-per-hour 6
  gemma plan --solve --workload in=4000,out=500,users=32 \
      --max-ttft-s 1 --write NAME
  gemma plan --solve --workload in=4000,out=500,users=32 \
      --model 26B --hours-per-day 8

Shows whether the deployment fits, its start-up time, speed and cost, and the
findings. Exit code 0 means that it fits, 2 that it is blocked, out of memory, or the options
are invalid.
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
from planning.rules.findings import notes_of
from planning.solve.plan_json import plan_json
from planning.solve.wording import remedy_of, worded
from scripts.cli.command import Command, run_command, say, tell
from scripts.cli.options import JsonSwitch, Option
from scripts.cli.project_ids import project_id
from scripts.plan.question import NONE, Comparison, Question, deployment_from, wording_of
from scripts.plan.solve_options import Solving, check_solving


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the command."""

    question: Question
    comparison: Comparison
    solving: Solving
    write: Annotated[
        str | None,
        Option("With --solve: create Pulumi.NAME.yaml.", metavar="NAME"),
    ] = None
    explain: Annotated[bool, Option("Show the formulas with their numbers, and the notes.")] = False
    costs: Annotated[bool, Option("Show the full bill, a cold start, and the break-even for always-on.")] = False
    measured: Annotated[bool, Option("With --stack: compare the plan with smoke and bench results.")] = False
    as_json: JsonSwitch = False


def _plan(options: PlanOptions) -> ExitCode:
    _check(options)
    question = options.question if options.solving.solve else _with_checkpoint(options.question)
    if options.solving.solve:
        from scripts.plan.solve import solve_question  # imports all of the planner and, with --write, the settings

        return solve_question(
            question, options.comparison, options.solving, write=options.write, as_json=options.as_json
        )
    if options.comparison.compare:
        from scripts.plan.compare import compare

        return compare(question, options.comparison, as_json=options.as_json)
    if options.measured:
        from scripts.plan.measured import show_measured

        return show_measured(question, as_json=options.as_json)
    today = datetime.now(UTC).date().isoformat()
    deployment = replace(deployment_from(question), today=today)
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

        notes = [f"{one.id}: {worded(one.message, wording)} {remedy_of(one, wording)}" for one in notes_of(plan)]
        for title, lines in (*explain(subject), ("Notes", notes)):
            print(title)
            tell("".join(f"  {line}\n" for line in lines))
    elif options.costs:
        from scripts.plan.costs import show_costs  # rich takes longer to load than the plan

        show_costs(plan, today)
    else:
        from scripts.plan.table import show  # rich takes longer to load than the plan

        show(plan, wording)
    return ExitCode.DONE if plan.fits else ExitCode.REFUSED


def _more(subject: Subject, *, explained: bool) -> dict[str, object]:
    """Return the JSON keys in addition to the plan (a service's loading modes and, with --explain, the formulas)."""
    from planning.cost.loading_modes import loading_modes

    ways = [one.to_json() for one in loading_modes(subject)]
    found: dict[str, object] = {"loading_modes": ways} if ways else {}
    if explained:
        from planning.solve.explain import explain

        found["explanation"] = [{"title": title, "lines": list(lines)} for title, lines in explain(subject)]
    return found


def _check(options: PlanOptions) -> None:
    """Raise PlanningError for options that cannot be combined."""
    comparison = options.comparison
    if options.solving.solve:
        _check_solve(options)
        return
    if options.solving.given is not None:
        raise PlanningError(f"{options.solving.given} requires --solve.")
    if options.write is not None:
        raise PlanningError("--write NAME requires --solve. Add --solve.")
    if options.question.stack is not None:
        _check_stack(options)
    else:
        _check_description(options)
    _check_source(options.question)
    _check_output(options)
    _check_measured(options)
    if not comparison.compare and comparison.limits != (None, None, None):
        raise PlanningError("--min-context, --min-concurrency and --max-usd-per-hour require --compare or --solve.")


def _check_solve(options: PlanOptions) -> None:
    in_use = (
        ("--compare", options.comparison.compare),
        ("--explain", options.explain),
        ("--costs", options.costs),
        ("--measured", options.measured),
    )
    others = tuple(name for name, given in in_use if given)
    check_solving(options.question, options.comparison, options.solving, others=others)


def _check_stack(options: PlanOptions) -> None:
    given = options.question.given or ("--compare" if options.comparison.compare else None)
    if given:
        raise PlanningError(
            f"--stack and {given} cannot be combined, because the stack's settings define the deployment."
        )
    if options.question.set and options.measured:
        raise PlanningError("--set cannot be combined with --measured, which is about the stack as it is.")


def _with_checkpoint(question: Question) -> Question:
    """Return the question with the checkpoint of a family, such as `12B`: the original, or the one stored in the precision that is asked for."""
    from planning.data.checkpoints import family, stored_as

    members = () if question.config or question.from_hub else family(question.model or "")
    if not members:
        return question
    original = members[0].architecture
    stored = stored_as(original, question.quantization) if question.quantization else ()
    chosen = next(iter(stored), original)
    others = f"; --solve compares all {len(members)} checkpoints" if len(members) > 1 else ""
    say("plan", f"{question.model} is {chosen}{others}.")
    return replace(question, model=chosen)


def _check_description(options: PlanOptions) -> None:
    question, compares = options.question, options.comparison.compare
    if question.from_bucket:
        raise PlanningError("--from-bucket requires --stack NAME.")
    if question.model is None and question.config is None:
        raise PlanningError("No deployment to plan. Pass --stack NAME, or --model ID and --accelerator NAME.")
    if compares and question.vllm not in {None, NONE}:
        raise PlanningError(
            "--compare and --vllm cannot be combined, because a TPU and a GPU have images of their own."
        )
    places = (question.accelerator is not None) + question.has_own_device
    if places == 0 and not compares:
        raise PlanningError("No accelerator. Pass --accelerator NAME, --device FIGURES, or --compare for all of them.")
    if compares and question.image not in {None, NONE}:
        raise PlanningError("--compare and --image cannot be combined, because a TPU and a GPU have different images.")
    if places > 1 and not compares:
        raise PlanningError("--accelerator and --device cannot be combined without --compare.")


def _check_measured(options: PlanOptions) -> None:
    """Raise PlanningError for options that cannot be combined with --measured."""
    if not options.measured:
        return
    if options.question.stack is None:
        raise PlanningError("--measured requires --stack NAME.")
    if options.explain or options.costs or options.comparison.compare or options.solving.solve:
        raise PlanningError(
            "--measured cannot be combined with --explain, --costs, --compare or --solve (--json is allowed)."
        )
    question = options.question
    if question.workload is not None or question.from_hub or question.from_bucket:
        raise PlanningError("--measured cannot be combined with --workload, --from-hub or --from-bucket.")


def _check_source(question: Question) -> None:
    if question.from_hub and question.from_bucket:
        raise PlanningError("--from-hub and --from-bucket cannot be combined.")
    if question.save is not None and not (question.from_hub or question.from_bucket):
        raise PlanningError("--save requires --from-hub or --from-bucket.")


def _check_output(options: PlanOptions) -> None:
    """Raise PlanningError for conflicting output options."""
    if options.costs and options.question.has_own_device:
        raise PlanningError("--costs and --device cannot be combined, because a custom device has no Google price.")
    if options.costs and (options.explain or options.comparison.compare):
        raise PlanningError("--costs cannot be combined with --explain or --compare.")


@dataclass(frozen=True, kw_only=True)
class PricesOptions:
    """Options of `gemma plan prices`."""

    stack: Annotated[str | None, Option("Count the calls for this stack's project.", metavar="NAME")] = None
    project: Annotated[
        str | None,
        Option(
            "Project that the calls count for. Default: gcp:project of --stack, then GOOGLE_CLOUD_PROJECT.",
            metavar="ID",
            parse=project_id,
        ),
    ] = None
    dry_run: Annotated[bool, Option("Only show the changes; write nothing.")] = False
    as_json: JsonSwitch = False


def _prices(options: PricesOptions) -> ExitCode:
    """Refresh the prices from Google's price catalog.

      gemma plan prices --dry-run
      gemma plan prices --project ID

    Reads the list prices of TPU chips, Cloud Run and disks in US dollars, writes
    prices.json beside Pulumi.yaml, and shows the changes. Every plan and preview
    uses that file; commit it. Needs the Cloud Billing API, which costs nothing.
    Writes nothing unless the whole catalog was read.
    """
    from scripts.plan.prices import refresh_prices

    return refresh_prices(options.stack, options.project, dry_run=options.dry_run, as_json=options.as_json)


COMMAND: Final = Command(
    name="plan",
    help=__doc__,
    options=PlanOptions,
    run=_plan,
    subcommands=(Command(name="prices", help=_prices.__doc__, options=PricesOptions, run=_prices),),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
