"""Compare zones and regions for an accelerator.

  gemma capacity
  gemma capacity v6e-4 L4 --json
  gemma capacity tpu-v6e1

For each zone and form of capacity, shows whether it is offered, the used quota, the price and this project's latest request. If the request waits or
failed, the cause is quota, stock or unknown. For a Cloud Run GPU, shows the same for each region. Available capacity is known only after a request.
For a stack, ends with the part of the list of `gemma doctor` that is about its quotas and zones. Requests no capacity.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_progress, print_text, run_command
from gemma_serving.scripts.cli.options import CheckedProject, JsonSwitch, Option

if TYPE_CHECKING:
    from gemma_serving.scripts.doctor.api import Diagnosis


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
        Option("Compare locations for this stack's accelerator, provisioning model and size.", metavar="STACK"),
    ] = None
    project: CheckedProject = None
    as_json: JsonSwitch = False


def _capacity(options: CapacityOptions) -> ExitCode:
    from datetime import UTC, datetime

    from gemma_serving.cloud.caller import caller_of
    from gemma_serving.cloud.offers import deadline, read_all
    from gemma_serving.cloud.simulated import is_simulated
    from gemma_serving.engine import state as states
    from gemma_serving.scripts.capacity.table import ORDER, problems_of, show, to_json
    from gemma_serving.scripts.doctor.api import judge, place_findings, question_of
    from gemma_serving.scripts.stack.settings import stack_settings
    from gemma_serving.stacks.loading import project_from_environment

    settings = stack_settings(options.stack, project=options.project) if options.stack else None
    if settings is not None and settings.tpu is not None and settings.tpu.api == "compute-engine":
        raise CommandRefusedError(
            f"tpu.api of stack {options.stack} is compute-engine, but this command reads only the Cloud TPU API. "
            f"For its quota, run `gemma doctor {options.stack}`. For its resources, run `gemma status {options.stack}`."
        )
    project = options.project or (settings.project if settings else project_from_environment())
    if project is None:
        raise CommandRefusedError("No project set. Pass --project ID or set GOOGLE_CLOUD_PROJECT.")
    question = question_of(project, settings, options.accelerators)
    names = ", ".join(one.name for one in question.accelerators)
    print_progress("capacity", f"querying locations of {names} in project {project}")
    caller = caller_of(project)
    responses = read_all(caller, question, remaining_s=deadline())
    now = datetime.now(UTC)
    state = states.read(options.stack) if options.stack else None
    places, problems = judge(question, responses, options.stack, settings), problems_of(responses)
    findings: Sequence[Diagnosis] = ()
    is_shared = any(problem.is_shared for problem in responses.problems)
    if state is not None and settings is not None and not is_shared:
        findings = place_findings(
            caller,
            settings,
            state.stack,
            responses=responses,
            places=places,
            requests=not state.has_server,
        )
    if options.as_json:
        report = {
            "project": project,
            "simulated": is_simulated(),
            "order": ORDER,
            "locations": [to_json(place, now) for place in places],
            "checks": [line.to_json() for line in findings],
            "problems": list(problems),
        }
        print_text(json.dumps(report, allow_nan=False))
    else:
        show(places, problems, now, [line for line in findings if line.word != "ok"])
    return ExitCode.FAILED if problems else ExitCode.DONE


COMMAND: Final = Command(
    name="capacity",
    help=__doc__,
    options=CapacityOptions,
    run=_capacity,
    needs="settings",
    after_interrupt="Nothing was changed.",
    exit_codes={
        ExitCode.DONE: "every location was read",
        ExitCode.FAILED: "some locations were not read",
        ExitCode.REFUSED: "the options are invalid",
    },
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
