"""Compare zones and regions for an accelerator.

    gemma capacity
    gemma capacity v6e-4 L4 --json
    gemma capacity tpu-v6e4
    gemma capacity --write tpu-v6e4

Shows hardware, provisioning model, quota and requests of each location. Available capacity is known only after a request, so it is shown from this
project's own requests, with its age. Requests no capacity. Exit code 0: every location was read. 1: some were not. 2: the options are invalid or
--write has nothing to write.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.spelling import UnknownWordError
from scripts.cli.command import Command, run_command, say
from scripts.cli.options import JsonSwitch, Option
from scripts.cli.project_ids import project_id

if TYPE_CHECKING:
    from cloud.offers import Answers, CapacityQuestion
    from planning.question.types import ProvisioningModel
    from scripts.capacity.change import FileChange
    from scripts.capacity.gates import JudgedPlace, Need
    from scripts.capacity.history import StockHistory
    from stacks.settings import Settings


def _provisioning(text: str) -> str:
    from planning.cost.provisioning import PROVISIONING_MODELS

    if text not in PROVISIONING_MODELS:
        raise UnknownWordError(PROVISIONING_MODELS)
    return text


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """Options of the command."""

    accelerators: Annotated[
        tuple[str, ...],
        Option(
            "Accelerators to compare, such as v6e-4 or L4. Default: all deployable ones.",
            metavar="ACCELERATOR",
            positional=True,
            repeated=True,
        ),
    ] = ()
    stack: Annotated[
        str | None,
        Option("Compare locations for this stack's accelerator, provisioning model and size.", metavar="NAME"),
    ] = None
    provisioning: Annotated[
        str | None,
        Option(
            "flex-start, spot, standard or reservation. Default: the stack's or flex-start.",
            metavar="MODEL",
            parse=_provisioning,
        ),
    ] = None
    project: Annotated[
        str | None,
        Option(
            "Project to check. Default: gcp:project of the stack, then GOOGLE_CLOUD_PROJECT.",
            metavar="ID",
            parse=project_id,
        ),
    ] = None
    write: Annotated[
        str | None,
        Option("Write the open locations to this stack's file, after showing the change.", metavar="STACK"),
    ] = None
    yes: Annotated[bool, Option("Skip the confirmation of --write.")] = False
    as_json: JsonSwitch = False


def _capacity(options: CapacityOptions) -> ExitCode:
    _check(options)
    from cloud.caller import caller_of
    from cloud.offers import deadline, read_all
    from scripts.capacity import table
    from scripts.capacity.gates import judge
    from scripts.cli.settings import stack_settings

    stack = options.write or options.stack
    settings = stack_settings(stack, project=options.project) if stack else None
    _require_tpu_api(stack, settings)
    question, need = _question(options, settings), _need(stack, settings)
    names = ", ".join(one.name for one in question.accelerators)
    say("capacity", f"querying locations of {names} in project {question.project}")
    answers = read_all(caller_of(question.project), question, remaining_s=deadline())
    now = datetime.now(UTC)
    places = judge(question, answers, _history(answers, now), need)
    problems = table.problems_of(answers)
    if not options.as_json:
        table.show(places, problems, now)
    change = _change(options, settings, places)
    if options.as_json:
        report = _report(question, places, problems, change, now)
        print(json.dumps(report, allow_nan=False))
    if change is not None:
        return ExitCode.DONE
    return ExitCode.FAILED if problems else ExitCode.DONE


def _require_tpu_api(stack: str | None, settings: "Settings | None") -> None:
    """Reject a stack on Compute Engine, because this command reads only quotas and requests of the Cloud TPU API."""
    if settings is not None and settings.tpu is not None and settings.tpu.api == "compute-engine":
        from planning.machine.hardware import COMPUTE_QUOTAS

        quota = COMPUTE_QUOTAS[settings.tpu.provisioning]
        raise CommandRefusedError(
            f"tpu.api of stack {stack} is compute-engine, but this command reads only the Cloud TPU API. "
            f"For its quota, run `gcloud alpha quotas info describe {quota} --service=compute.googleapis.com --project={settings.project}`. "
            f"For its resources, run `gemma status {stack}`."
        )


def _check(options: CapacityOptions) -> None:
    """Raise CommandRefusedError for options that cannot be combined."""
    if options.write and options.stack and options.write != options.stack:
        raise CommandRefusedError("--write and --stack cannot name different stacks. Remove --stack.")
    if options.write and (options.accelerators or options.provisioning):
        raise CommandRefusedError(
            "--write cannot be combined with ACCELERATOR or --provisioning, because it uses the stack's settings."
        )


def _question(options: CapacityOptions, settings: "Settings | None") -> "CapacityQuestion":
    from cloud.offers import CapacityQuestion
    from planning.solve.candidates import deployable_accelerators
    from stacks.loading import project_from_environment

    project = options.project or (settings.project if settings else project_from_environment())
    if project is None:
        raise CommandRefusedError("No project set. Pass --project ID or set GOOGLE_CLOUD_PROJECT.")
    tpu, run = (settings.tpu, settings.cloud_run) if settings else (None, None)
    own = tpu.accelerator_type if tpu else run.gpu if run else None
    names: Sequence[str | None] = options.accelerators or (own,)
    found = [one for name in names for one in deployable_accelerators(name, option="ACCELERATOR")]
    return CapacityQuestion(
        project=project,
        accelerators=tuple(dict.fromkeys(found)),
        provisioning=_model(options, settings),
        zonal_redundancy=run.zonal_redundancy if run else False,
        zones=tuple(tpu.zones) if tpu else (),
        regions=(run.region,) if run else (),
    )


def _model(options: CapacityOptions, settings: "Settings | None") -> "ProvisioningModel":
    from planning.cost.provisioning import PROVISIONING_MODELS

    own = settings.tpu.provisioning if settings and settings.tpu else "flex-start"
    named = options.provisioning or own
    return next(model for model in PROVISIONING_MODELS if model == named)


def _need(stack: str | None, settings: "Settings | None") -> "Need":
    from cloud.price_file import book_of
    from planning.data.prices import LIST_PRICES
    from planning.machine.hardware import machines_at_once
    from scripts.capacity.gates import Need

    if settings is None:
        return Need(prices=book_of(None) or LIST_PRICES)
    tpu, run = settings.tpu, settings.cloud_run
    return Need(
        stack=stack,
        places=tuple(tpu.zones) if tpu else (run.region,) if run else (),
        instances=run.max_instances if run else 1,
        machines=machines_at_once(tpu.renew_before_s if tpu else None),
        vcpu=run.cpu if run else None,
        memory_gib=run.memory_mib / 1024 if run else None,
        prices=book_of(settings.prices) or LIST_PRICES,
    )


def _history(answers: "Answers", now: datetime) -> "StockHistory":
    """Return the history with the current requests. Report and ignore a file that cannot be read or written."""
    from scripts.capacity.gates import requests_in
    from scripts.capacity.history import HistoryError, StockHistory, record_requests

    requests = requests_in(answers)
    try:
        return record_requests(requests, now)
    except HistoryError as error:
        say("capacity", str(error))
        return StockHistory().with_requests([one for one in requests if one.stack is not None], now)


def _change(
    options: CapacityOptions, settings: "Settings | None", places: "Sequence[JudgedPlace]"
) -> "FileChange | None":
    """Show the change of the stack's file, confirm, and write it. Return None without --write."""
    if options.write is None or settings is None:
        return None
    from engine.runner import project_folder
    from scripts.capacity.change import change_of
    from scripts.cli.prompts import confirm

    path = project_folder() / f"Pulumi.{options.write}.yaml"
    change = change_of(path, options.write, settings, places)
    if not change.diff:
        say("capacity", f"{path.name} already has these locations. Nothing was written.")
        return change
    print(change.diff, end="", file=sys.stderr if options.as_json else sys.stdout, flush=True)
    if change.note:
        say("capacity", change.note)
    if not options.yes:
        confirm(
            f"Write this change into {path.name}?",
            without_terminal=f"Writing {path.name} needs a confirmation, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Nothing was changed. Type yes or pass --yes.",
        )
    change.write()
    say("capacity", f"changed {path.name}. To see the effect, run `pulumi preview --stack {options.write}`.")
    return change


def _report(
    question: "CapacityQuestion",
    places: "Sequence[JudgedPlace]",
    problems: Sequence[str],
    change: "FileChange | None",
    now: datetime,
) -> dict[str, object]:
    from cloud.simulated import is_simulated
    from scripts.capacity.gates import ORDER
    from scripts.capacity.table import to_json

    return {
        "project": question.project,
        "simulated": is_simulated(),
        "order": ORDER,
        "locations": [to_json(place, now) for place in places],
        "problems": list(problems),
        "change": None if change is None else {"file": change.path.name, "diff": change.diff},
    }


COMMAND: Final = Command(
    name="capacity",
    help=__doc__,
    options=CapacityOptions,
    run=_capacity,
    after_interrupt="Nothing was changed.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
