"""Check that a project is ready for a stack. Read-only.

  gemma doctor tpu-v6e1
  gemma doctor --project my-project

Each check is ok, missing or unknown, with the command that fixes it. Checks with the same cause are grouped; --json lists each.
`gemma plan STACK --live` prints the same list, and `gemma up` refuses with it. Here it is followed by the checks of this machine.
"""

import json
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Final

from gemma_serving.cloud.simulated import is_simulated
from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_text, run_command
from gemma_serving.scripts.cli.options import CheckedProject, JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of the command."""

    stack: Annotated[str | None, Option("Name of the stack. Default: only checks for all stacks.", metavar="STACK")] = (
        None
    )
    project: CheckedProject = None
    as_json: JsonSwitch = False


def _doctor(options: DoctorOptions) -> ExitCode:
    from gemma_serving.engine.state import StackState, read
    from gemma_serving.scripts.doctor import checkup
    from gemma_serving.scripts.doctor.rendering import report, width_of
    from gemma_serving.scripts.stack.settings import stack_settings
    from gemma_serving.stacks.deployed.home_region import home_region
    from gemma_serving.stacks.loading import project_from_environment

    stack, project = options.stack, options.project
    settings = stack_settings(stack, project=project) if stack is not None else None
    state = read(stack) if stack else StackState(stack="", status="missing")
    if settings is not None and project is None:
        home_region(settings, state.stack, state.by_urn)
    project = project or (settings.project if settings else project_from_environment())
    if project is None:
        raise CommandRefusedError("No project set. Pass --project ID or set GOOGLE_CLOUD_PROJECT.")
    if settings is not None and settings.project != project:
        settings = replace(settings, project=project)
    lines = checkup.run_checks(project, state, settings, choose=checkup.all_checks)
    ready = all(line.word == "ok" or (line.is_unknown and not line.required) for line in lines)
    if options.as_json:
        checks = [line.to_json() for line in lines]
        found_json = {"project": project, "stack": stack, "simulated": is_simulated(), "ready": ready, "checks": checks}
        print_text(json.dumps(found_json))
    else:
        where = " (local cloud, simulated)" if is_simulated() else ""
        title = f"Project {project}, {f'stack {stack}' if stack else 'without a stack'}{where}"
        print_text(report(title, lines, width=width_of(sys.stdout)))
    return ExitCode.DONE if ready else ExitCode.FAILED


COMMAND: Final = Command(
    name="doctor",
    help=__doc__,
    options=DoctorOptions,
    run=_doctor,
    needs="settings",
    exit_codes={
        ExitCode.DONE: "all checks are ok. A hub or registry that this machine cannot reach is ignored, because the server reaches them "
        "from Google's network",
        ExitCode.FAILED: "a check is missing or unknown",
        ExitCode.REFUSED: "the stack is deployed in another project than the settings name",
    },
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
