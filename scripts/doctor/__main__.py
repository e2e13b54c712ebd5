"""Check that a project is ready for a stack. Read-only.

Each check is ok, missing or unknown, with the command that fixes it. Checks with the same cause are grouped; --json lists each. Exit code 0: all
checks are ok. Exit code 1: a check is missing or unknown. A hub or registry that this machine cannot reach is ignored, because the server reaches
them from Google's network.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cloud.simulated import is_simulated
from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option
from scripts.cli.project_ids import project_id

if TYPE_CHECKING:
    from scripts.doctor.diagnosis import Diagnosis


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """Options of the command."""

    stack: Annotated[str | None, Option("Name of the stack. Default: only checks for all stacks.", metavar="NAME")] = (
        None
    )
    project: Annotated[
        str | None,
        Option(
            "Project to check. Default: gcp:project of the stack, then GOOGLE_CLOUD_PROJECT.",
            metavar="ID",
            parse=project_id,
        ),
    ] = None
    as_json: JsonSwitch = False


def _doctor(options: DoctorOptions) -> ExitCode:
    from scripts.cli.settings import gateway_settings, stack_settings
    from scripts.doctor.run import examine
    from stacks.loading import project_from_environment

    gateway = gateway_settings(options.stack, project=options.project) if options.stack is not None else None
    has_server = options.stack is not None and gateway is None
    settings = stack_settings(options.stack or "", project=options.project) if has_server else None
    found = settings or gateway
    project = options.project or (found.project if found else project_from_environment())
    if project is None:
        raise CommandRefusedError("No project set. Pass --project ID or set GOOGLE_CLOUD_PROJECT.")
    if settings is not None and settings.project != project:
        settings = settings.model_copy(update={"project": project})
    lines = examine(project, options.stack, settings, gateway)
    ready = all(line.state == "ok" or (line.state == "unknown" and not line.required) for line in lines)
    if options.as_json:
        print(json.dumps(_report(project, options.stack, lines, ready=ready)))
    else:
        _show(project, options.stack, lines)
    return ExitCode.DONE if ready else ExitCode.FAILED


def _report(project: str, stack: str | None, lines: "Sequence[Diagnosis]", *, ready: bool) -> dict[str, object]:
    checks = [
        {key: value for key, value in asdict(line).items() if key not in {"api", "required", "state"}}
        | {"status": line.state}
        for line in lines
    ]
    return {"project": project, "stack": stack, "simulated": is_simulated(), "ready": ready, "checks": checks}


def _show(project: str, stack: str | None, lines: "Sequence[Diagnosis]") -> None:
    from scripts.doctor.rendering import report, width_of

    where = " (local cloud, simulated)" if is_simulated() else ""
    title = f"Project {project}, {f'stack {stack}' if stack else 'without a stack'}{where}"
    print(report(title, lines, width=width_of(sys.stdout)))


COMMAND: Final = Command(name="doctor", help=__doc__, options=DoctorOptions, run=_doctor)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
