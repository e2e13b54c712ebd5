"""Compare the zones and regions where an accelerator could run: the hardware, the provisioning model, the quota, and what waits.

    python -m scripts.capacity
    python -m scripts.capacity v6e-4 L4 --json
    python -m scripts.capacity --stack tpu-v6e4
    python -m scripts.capacity --write tpu-v6e4

Stock is known only by asking for it: it is shown with its age, from this project's own requests. Nothing is asked for here.
Exit code 0 means that every place answered, 1 that some did not, 2 that the question is wrong or that --write has nothing to write.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.former_names import CAPACITY, with_former_names
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
        raise ValueError(", ".join(PROVISIONING_MODELS[:-1]) + f" or {PROVISIONING_MODELS[-1]}")
    return text


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """Options of the command."""

    accelerators: Annotated[
        tuple[str, ...],
        Option(
            "Accelerators to compare, such as v6e-4 or L4; all that this project deploys if none is named.",
            metavar="ACCELERATOR",
            positional=True,
            repeated=True,
        ),
    ] = ()
    stack: Annotated[
        str | None,
        Option("Compare places for this stack: its accelerator, its provisioning, its size.", metavar="NAME"),
    ] = None
    provisioning: Annotated[
        str | None,
        Option(
            "How slices are bought: flex-start, spot, standard or reservation; that of the stack, else flex-start.",
            metavar="MODEL",
            parse=_provisioning,
        ),
    ] = None
    project: Annotated[
        str | None,
        Option(
            "Google Cloud project; by default that of the stack or of the environment.", metavar="ID", parse=project_id
        ),
    ] = None
    write: Annotated[
        str | None,
        Option(
            "Show the open places as a change of this stack's file, and write it after a question.", metavar="STACK"
        ),
    ] = None
    yes: Annotated[bool, Option("With --write: do not ask.")] = False
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
    asked, need = _asked(options, settings), _need(stack, settings)
    say("capacity", f"asking about {', '.join(one.name for one in asked.accelerators)} in project {asked.project}")
    answers = read_all(caller_of(asked.project), asked, remaining_s=deadline())
    now = datetime.now(UTC)
    places = judge(asked, answers, _history(answers, now), need)
    problems = table.problems_of(answers)
    if not options.as_json:
        table.show(places, problems, now)
    change = _change(options, settings, places)
    if options.as_json:
        report = _report(asked, places, problems, change, now)
        print(json.dumps(with_former_names(report, CAPACITY), allow_nan=False))
    if change is not None:
        return ExitCode.DONE
    return ExitCode.FAILED if problems else ExitCode.DONE


def _require_tpu_api(stack: str | None, settings: "Settings | None") -> None:
    """Refuse a stack on Compute Engine: its quotas and what waits there are not those that this command reads."""
    if settings is not None and settings.tpu is not None and settings.tpu.api == "compute-engine":
        from planning.machine.hardware import COMPUTE_QUOTAS

        quota = COMPUTE_QUOTAS[settings.tpu.provisioning]
        raise CommandRefusedError(
            f"Stack {stack} has tpu.api compute-engine, and this command reads the Cloud TPU API only. "
            f"Show its quota with `gcloud alpha quotas info describe {quota} --service=compute.googleapis.com --project={settings.project}`, "
            f"and what exists with `python -m scripts.status --stack {stack}`."
        )


def _check(options: CapacityOptions) -> None:
    """Raise CommandRefusedError for options that do not go together."""
    if options.write and options.stack and options.write != options.stack:
        raise CommandRefusedError("--write names the stack that is compared; leave out --stack.")
    if options.write and (options.accelerators or options.provisioning):
        raise CommandRefusedError(
            "--write takes accelerator and provisioning from the stack; leave out ACCELERATOR and --provisioning."
        )
    if options.yes and not options.write:
        raise CommandRefusedError("--yes belongs to --write; give both.")


def _asked(options: CapacityOptions, settings: "Settings | None") -> "CapacityQuestion":
    from cloud.offers import CapacityQuestion
    from planning.solve.candidates import deployable_accelerators
    from stacks.loading import project_from_environment

    project = options.project or (settings.project if settings else project_from_environment())
    if project is None:
        raise CommandRefusedError("No project is named; pass --project ID, or set GOOGLE_CLOUD_PROJECT.")
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
    from planning.data.prices import LIST_PRICES
    from scripts.capacity.gates import Need
    from stacks.price_file import book_of

    if settings is None:
        return Need()
    tpu, run = settings.tpu, settings.cloud_run
    return Need(
        stack=stack,
        places=tuple(tpu.zones) if tpu else (run.region,) if run else (),
        instances=run.max_instances if run else 1,
        vcpu=run.cpu if run else None,
        memory_gib=run.memory_mib / 1024 if run else None,
        prices=book_of(settings.prices) or LIST_PRICES,
    )


def _history(answers: "Answers", now: datetime) -> "StockHistory":
    """Return the history with what is seen now. One that cannot be read or written is named, and stops nothing."""
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
    """Show the change of the stack's file, ask, and write it; None without --write."""
    if options.write is None or settings is None:
        return None
    from engine.runner import project_folder
    from scripts.capacity.change import change_of
    from scripts.cli.prompts import confirm

    path = project_folder() / f"Pulumi.{options.write}.yaml"
    change = change_of(path, options.write, settings, places)
    if not change.diff:
        say("capacity", f"{path.name} names these places already; nothing is written.")
        return change
    print(change.diff, end="", file=sys.stderr if options.as_json else sys.stdout, flush=True)
    if change.note:
        say("capacity", change.note)
    if not options.yes:
        confirm(
            f"Write this change into {path.name}?",
            without_terminal=f"{path.name} would change and stdin is no terminal; pass --yes to write it.",
            declined="Nothing was changed; type yes, or pass --yes.",
        )
    change.write()
    say("capacity", f"changed {path.name}; `pulumi preview --stack {options.write}` shows what it means.")
    return change


def _report(
    asked: "CapacityQuestion",
    places: "Sequence[JudgedPlace]",
    problems: Sequence[str],
    change: "FileChange | None",
    now: datetime,
) -> dict[str, object]:
    from cloud.simulated import is_simulated
    from scripts.capacity.gates import ORDER
    from scripts.capacity.table import to_json

    return {
        "project": asked.project,
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
