r"""Plan a deployment before it costs anything.

  gemma plan
  gemma plan tpu-v6e1
  gemma plan --compare l4-12b-qat tpu-v6e1
  gemma plan tpu-v6e1 --live
  gemma plan --accelerator H100 -- vllm serve google/gemma-4-31B-it
  gemma plan --from deployment.yaml
  gemma plan --model google/gemma-4-12B-it --compare
  gemma plan --solve --workload in=4000,out=500,users=32

Shows whether the deployment fits, its start-up time, speed and cost, and the
findings. Without a stack, one line for each.
"""

import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.quotas import Quotas
from gemma_serving.planning.errors import PlanningError
from gemma_serving.scripts.cli.command import (
    Command,
    Effect,
    chosen_of,
    print_progress,
    print_result,
    print_text,
    run_command,
)
from gemma_serving.scripts.cli.options import JsonSwitch, Option, Rare, parted_at_dashes, project_id
from gemma_serving.scripts.plan.plan_options import (
    ComparisonOptions,
    GkeChoices,
    Judging,
    QuestionOptions,
    Solving,
    given_options,
)

if TYPE_CHECKING:
    from gemma_serving.planning.cost.subject import Subject
    from gemma_serving.planning.question.types import Plan
    from gemma_serving.planning.solve.remedy_wording import Wording
    from gemma_serving.scripts.doctor.api import Diagnosis

_CONFLICTS: Final = (
    ("solve", "stack compare explain costs platform quantization vllm image set config draft-config device"),
    ("solve", "from-hub text-only min-concurrency"),
    ("stack", "model accelerator platform quantization vllm config image text-only device draft-config compare"),
    ("compare", "vllm image"),
    ("costs", "explain compare device"),
    ("from-hub", "config"),
    ("compile", "solve compare device"),
    ("gke", "solve compare compile explain costs from-hub"),
    ("gcloud", "solve compare compile explain costs from-hub gke live"),
    ("live", "solve compare compile gke"),
    ("from", "stack model solve gke gcloud live compile finding"),
    ("line", "from stack model solve gke gcloud live compile finding"),
)
"""An option, and those that it cannot be combined with."""
_CHANGES: Final[Mapping[str, str]] = {
    "model": "model=ID",
    "quantization": "quantization=NAME",
    "image": "image=NAME",
    "vllm": "image=NAME",
}
"""Settings of a stack by the option that does the same without one."""
_NEEDS: Final = (
    ("write max-ttft-s max-tpot-s region rows", "--solve"),
    ("min-context min-concurrency max-usd-per-hour", "--compare or --solve"),
    ("solve", "--workload in=4000,out=500,users=32"),
    ("from-hub", "--model ORG/NAME or STACK"),
    ("save", "--from-hub"),
    ("yes", "--compile"),
    ("gke gcloud live", "STACK"),
    ("replicas spare-node compute-class gateway callers", "--gke"),
)
"""Options, and the requirements of each."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of the command."""

    question: QuestionOptions
    comparison: ComparisonOptions
    solving: Solving
    judging: Judging
    gke: GkeChoices
    source: Annotated[
        Path | None,
        Option(
            "Plan the vLLM server of a manifest, a Dockerfile, a compose file or a script. A line follows --.",
            flag="--from",
            metavar="FILE",
            person=True,
        ),
    ] = None
    write: Annotated[str | None, Rare("With --solve: create Pulumi.NAME.yaml.", metavar="NAME", person=True)] = None
    gcloud: Annotated[
        bool,
        Rare(
            "Print a gcloud command that deploys the server of a Cloud Run stack. It creates no account, bucket, secret or alert, and limits no cost."
        ),
    ] = False
    finding: Annotated[str | None, Rare("Explain this finding, such as FIT01.", metavar="ID")] = None
    explain: Annotated[bool, Option("Show the sums of memory and start-up, and the notes.")] = False
    costs: Annotated[bool, Option("Show the full bill, a cold start, and the break-even for always-on.")] = False
    live: Annotated[bool, Option("Also ask Google what blocks the stack: the list of `gemma doctor STACK`.")] = False
    as_json: JsonSwitch = False


def _plan(options: PlanOptions, line: Sequence[str] = ()) -> ExitCode:
    gc.disable()  # a plan ends within a second, and collections are 4% of it
    try:
        if line or options.source:
            return _pasted(options, line)
        if options.finding:
            return _explained(options)
        return _as_gcloud(options) if options.gcloud else _answered(options)
    finally:
        gc.enable()


def _explained(options: PlanOptions) -> ExitCode:
    from gemma_serving.scripts.plan.explained_finding import show_finding

    for other in sorted(_used(options)):
        raise PlanningError(f"--finding and {_typed(other)} cannot be combined.")
    return show_finding(options.finding or "", as_json=options.as_json)


def _pasted(options: PlanOptions, line: Sequence[str]) -> ExitCode:
    """Plan the server of a file or of a line. Without an accelerator, on each."""
    from gemma_serving.scripts.plan.pasted_question import pasted

    _check({*_used(options), *(["line"] if line else []), *(["finding"] if options.finding else [])})
    found = pasted(options.source, line, options.question)
    question = found.asked(options.question)
    if options.comparison.compare is not None or not (question.accelerator or question.device):
        from gemma_serving.scripts.plan.compare import compare

        question = replace(question, image=options.question.image, vllm=options.question.vllm)
        whole = options.comparison.compare is not None
        beside = {"pasted": asdict(found)}
        code = compare(question, options.comparison, as_json=options.as_json, whole=whole, beside=beside)
    else:
        planned = plan_of_question(replace(options, question=question))
        if options.as_json:
            print_text(json.dumps({**plan_object(planned), "pasted": asdict(found)}, indent=2, allow_nan=False))
        else:
            show_plan(planned)
        code = verdict_of(planned)
    if not options.as_json:
        print_text("")
        for sentence in found.lines(question):
            print_result(sentence)
    return code


def _as_gcloud(options: PlanOptions) -> ExitCode:
    from gemma_serving.scripts.plan.gcloud import show_gcloud

    _check(_used(options))
    return show_gcloud(options.question, as_json=options.as_json)


def _answered(options: PlanOptions) -> ExitCode:
    used = _used(options)
    stacks = options.comparison.compare
    if stacks or not used:
        from gemma_serving.scripts.plan.stacks import show_stacks

        for other in sorted(used - {"compare", "stack"}):
            raise PlanningError(f"Stacks after --compare and --{other} cannot be combined.")
        return show_stacks([*filter(None, [options.question.stack]), *(stacks or ())], as_json=options.as_json)
    _check(used)
    if options.solving.solve:
        from gemma_serving.scripts.plan.solve import (
            solve_question,  # imports all of the planner and, with --write, the settings
        )

        return solve_question(
            options.question, options.comparison, options.solving, write=options.write, as_json=options.as_json
        )
    if options.comparison.compare is not None:
        from gemma_serving.scripts.plan.compare import compare

        return compare(_with_checkpoint(options.question), options.comparison, as_json=options.as_json)
    if options.judging.compile:
        from gemma_serving.scripts.plan.compile import run_judge

        return run_judge()
    live: Sequence[Diagnosis] = ()
    quotas: Quotas = ()
    if options.live and options.question.stack:
        live, quotas = _live(options.question.stack)
    planned = plan_of_question(options, quotas)
    if options.gke.gke:
        from gemma_serving.scripts.plan.gke import show_gke

        question = planned.options.question
        return show_gke(question, options.gke, planned.subject, planned.wording, as_json=options.as_json)
    if options.as_json:
        listed = {"checks": [line.to_json() for line in live]} if options.live else {}
        print_text(json.dumps({**plan_object(planned), **listed}, indent=2, allow_nan=False))
    else:
        show_plan(planned)
        if live:
            _show_live(options.question.stack or "", live)
    is_blocked = any(line.is_absent and line.blocks for line in live)
    return ExitCode.REFUSED if is_blocked else verdict_of(planned)


def _live(stack: str) -> "tuple[Sequence[Diagnosis], Quotas]":
    """Return each answer about what the stack needs from its project, and the quotas that were read."""
    from gemma_serving.engine.state import read
    from gemma_serving.scripts.doctor.api import live_checks, read_quotas
    from gemma_serving.scripts.stack.settings import stack_settings

    lines = live_checks(stack_settings(stack), read(stack))
    return lines, read_quotas(lines)


def _show_live(stack: str, lines: "Sequence[Diagnosis]") -> None:
    """Print what a stack needs as `gemma doctor` does."""
    from gemma_serving.scripts.doctor.api import report, width_of

    print_text(f"\n{report(f'Needs of stack {stack}', lines, width=width_of(sys.stdout))}")


@dataclass(frozen=True, kw_only=True)
class PlannedQuestion:
    """A question, and its plan."""

    options: PlanOptions
    subject: "Subject"
    plan: "Plan"
    wording: "Wording"


def plan_of_question(options: PlanOptions, quotas: Quotas = ()) -> PlannedQuestion:
    """Return the plan of a question, with the quotas that were read. Raises PlanningError."""
    from gemma_serving.planning.cost.subject import examine
    from gemma_serving.planning.planner import plan_of
    from gemma_serving.scripts.plan.question import question_from, wording_of

    asked = replace(options, question=_with_checkpoint(options.question))
    today = datetime.now(UTC).date().isoformat()
    question = question_from(asked.question).changed(today=today, quotas=quotas)
    subject = examine(question)
    wording = wording_of(asked.question, question)
    return PlannedQuestion(options=asked, subject=subject, plan=plan_of(subject), wording=wording)


def verdict_of(planned: PlannedQuestion) -> ExitCode:
    """Return the exit code of a shown plan. Say why `gemma up` will reject the settings, if it will."""
    stack = planned.options.question.stack
    moved = _moved(stack) if stack else ""
    if moved:
        print_progress("plan", f"`gemma up {stack}` will reject these settings. {moved}")
        return ExitCode.REFUSED
    return ExitCode.DONE if planned.plan.fits else ExitCode.REFUSED


def show_plan(planned: PlannedQuestion) -> None:
    """Print a plan as text."""
    options, plan, wording = planned.options, planned.plan, planned.wording
    if not plan.fits and (options.explain or options.costs):
        from gemma_serving.scripts.plan.table import show_verdict

        show_verdict(plan, wording)
    if options.explain:
        from gemma_serving.planning.rules.findings import notes_of
        from gemma_serving.planning.solve.explain import explain
        from gemma_serving.planning.solve.remedy_wording import message_of, remedy_of

        notes = [f"{one.id}: {message_of(one, wording)} {remedy_of(one, wording)}" for one in notes_of(plan)]
        for title, lines in (*explain(planned.subject), ("Notes", notes)):
            print_text(title)
            print_result("".join(f"  {line}\n" for line in lines))
        if plan.fits and plan.workload is not None:
            from gemma_serving.scripts.plan.table import show_workload

            show_workload(plan, plan.workload)
    elif options.costs:
        from gemma_serving.scripts.plan.costs import show_costs  # rich takes longer to load than the plan

        show_costs(plan)
    else:
        from gemma_serving.planning.planner import assumed_note, original_note
        from gemma_serving.planning.solve.faster_start import faster_start
        from gemma_serving.planning.solve.stored_programs import stored_programs
        from gemma_serving.planning.solve.text_only_start import text_only_start
        from gemma_serving.scripts.plan.table import show  # rich takes longer to load than the plan

        faster = faster_start(planned.subject)
        named = text_only_start(planned.subject, wording) if faster is None else faster.text(wording)
        starts = (stored_programs(planned.subject), named and f"Faster with {named}")
        assumed = "" if options.question.stack else assumed_note(planned.subject)
        note = " ".join(filter(None, (original_note(planned.subject), assumed)))
        stated = options.question.workload is not None
        show(plan, wording, note, tuple(filter(None, starts)), has_table=stated)


def plan_object(planned: PlannedQuestion) -> dict[str, object]:
    """Return a plan as one object in JSON types."""
    from gemma_serving.planning.solve.faster_start import faster_start
    from gemma_serving.planning.solve.plan_json import plan_json

    subject, wording = planned.subject, planned.wording
    found: dict[str, object] = plan_json(planned.plan, wording)
    faster = faster_start(subject)
    found["faster_start"] = None if faster is None else faster.to_json(wording)
    if planned.options.explain:
        from gemma_serving.planning.solve.explain import explain
        from gemma_serving.planning.speed.start_limits import stage_limits

        found["explanation"] = [{"title": title, "lines": list(lines)} for title, lines in explain(subject)]
        start = subject.known_startup
        found["start_limits"] = start and [one.to_json() for one in stage_limits(subject.resolved, start)]
    return found


def _moved(stack: str) -> str:
    """Return why the next `up` rejects the region of the settings file, as far as a local backend's file shows it; else an empty string."""
    from gemma_serving.engine.backend import file_text

    if not file_text(stack):
        return ""
    from gemma_serving.contracts.errors import CommandRefusedError
    from gemma_serving.engine.state import stored
    from gemma_serving.scripts.stack.settings import stack_settings
    from gemma_serving.stacks.deployed.home_region import home_region

    deployed = stored(stack)
    if not deployed.projects:
        return ""
    try:
        home_region(stack_settings(stack, project=deployed.projects[0]), stack, deployed.by_urn)
    except CommandRefusedError as error:
        return str(error)
    return ""


def _used(options: PlanOptions) -> set[str]:
    """Return the options that the command line has, without `--json`."""
    groups = (options.question, options.comparison, options.solving, options.judging, options.gke)
    single = {name for name in ("write", "gcloud", "explain", "costs", "live") if getattr(options, name)}
    single |= {"from"} if options.source else single
    return single | {name for group in groups for name in given_options(group)}


def _check(used: set[str]) -> None:
    """Raise PlanningError for options that cannot be combined, or without a deployment."""
    for sentence in (*_wrong(used - {"accelerator", "image"} if "gke" in used else used), *_lacking(used)):
        raise PlanningError(sentence)


def _wrong(used: set[str]) -> Iterator[str]:
    for option, others in _CONFLICTS:
        found = (other for other in others.split() if {option, other} <= used)
        yield from (_refused(option, other) for other in found)
    for dependent, needed in _NEEDS:
        if used.isdisjoint(word.removeprefix("--").lower() for word in needed.split()):
            found = (option for option in dependent.split() if option in used)
            yield from (f"--{option} requires {needed}. Add {needed}." for option in found)


def _refused(option: str, other: str) -> str:
    """Return that two options cannot be combined, with the change of the stack that does the same."""
    change = _CHANGES.get(other, "") if option == "stack" else ""
    return f"{_typed(option)} and {_typed(other)} cannot be combined.{change and f' Pass --set {change}.'}"


def _typed(option: str) -> str:
    return {"stack": "STACK", "line": "A line after --"}.get(option, f"--{option}")


def _lacking(used: set[str]) -> Iterator[str]:
    if not used.isdisjoint({"solve", "stack", "from", "line"}):
        return
    places = used & {"accelerator", "device"}
    if used.isdisjoint({"model", "config"}):
        yield "No deployment to plan. Pass STACK, or --model ID and --accelerator NAME."
    elif not places and "compare" not in used:
        yield "No accelerator. Pass --accelerator NAME, or --compare for all of them."
    elif len(places) > 1 and "compare" not in used:
        yield "--accelerator and --device cannot be combined without --compare."


def _with_checkpoint(question: QuestionOptions) -> QuestionOptions:
    """Return the question with the checkpoint of a family: the original, or the one stored in the requested precision."""
    from gemma_serving.planning.data.checkpoints import family, stored_as

    members = () if question.config or question.from_hub else family(question.model or "")
    if not members:
        return question
    original = members[0].architecture
    stored = stored_as(original, question.quantization) if question.quantization else ()
    chosen = next(iter(stored), original)
    others = f"; --solve compares all {len(members)} checkpoints" if len(members) > 1 else ""
    print_progress("plan", f"{question.model} is {chosen}{others}.")
    return replace(question, model=chosen)


@dataclass(frozen=True, kw_only=True)
class PricesOptions:
    """Options of `gemma plan prices`."""

    stack: Annotated[str | None, Option("Count the calls for this stack's project.", metavar="STACK")] = None
    project: Annotated[
        str | None,
        Option(
            "Project that the calls count for. Default: gcp:project of --stack, then GOOGLE_CLOUD_PROJECT.",
            metavar="ID",
            parse=project_id,
            person=True,
        ),
    ] = None
    dry_run: Annotated[bool, Option("Only show the changes; write nothing.")] = False
    as_json: JsonSwitch = False


def _prices(options: PricesOptions) -> ExitCode:
    """Refresh the prices from Google's price catalog.

      gemma plan prices --dry-run
      gemma plan prices --project my-project

    Reads the list prices of TPU chips, Cloud Run and disks in US dollars, writes
    prices.json next to Pulumi.yaml, and shows the changes. Every plan and preview
    uses that file; commit it. Needs the Cloud Billing API, which costs nothing.
    Writes nothing unless the whole catalog was read.
    """
    from gemma_serving.scripts.plan.prices import refresh_prices

    return refresh_prices(options.stack, options.project, dry_run=options.dry_run, as_json=options.as_json)


COMMAND: Final = Command(
    name="plan",
    effect=Effect.READS,
    help=__doc__,
    options=PlanOptions,
    run=_plan,
    exit_codes={
        ExitCode.DONE: "the deployment fits",
        ExitCode.FAILED: "with --compile, the server was not judged",
        ExitCode.REFUSED: "the deployment is blocked, also by what --live reads, or out of memory, `gemma up` will reject it, no deployment meets the "
        "limits, or the options are invalid; with --compile, also: vLLM's code or Google's compiler rejects the server",
    },
    subcommands=(Command(name="prices", help=_prices.__doc__, options=PricesOptions, run=_prices),),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code. The words after the first `--` are a line to plan."""
    given = sys.argv[1:] if arguments is None else arguments
    words, line = parted_at_dashes(given)
    if not line or chosen_of(COMMAND, words)[0] is not COMMAND:
        return run_command(COMMAND, given)
    return run_command(replace(COMMAND, run=partial(_plan, line=line)), words)


if __name__ == "__main__":
    sys.exit(main())
