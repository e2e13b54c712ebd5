"""Preview a stack, confirm the effect and the cost, and deploy it.

  gemma up tpu-v6e1
  gemma up tpu-v6e1 --yes
  gemma up tpu-v6e1 --restart

First it makes the list of `gemma doctor STACK`: passphrase, APIs, roles, policies, quotas, zones, image, weights, secrets, what the server loads from the
hub, and limits that are used up. If it needs what is missing, it prints the list and stops. Before anything changes, it prints the effect on the server,
the duration and the cost. Ctrl-C during the deployment keeps the created resources and prints their cost. `pulumi up --stack STACK` deploys the same.

It runs the program of the project's folder, with its virtual environment and its provider plugins, and so does --dry-run.

It continues from what an interrupted or failed run left, and imports what Google has of the stack and its state lacks. If another folder began that, it
asks; without a terminal, it changes nothing. A stack without a state gets one.

--set writes a setting to the file first. With --dry-run --json, the output has the id of exactly this deployment; --plan ID runs it only if
the program, the settings, the packages and the steps are still the same, in the copy of the project that was compared.

With --restart, the server on a TPU VM drains the running requests and starts again. Capacity, address and settings stay, and edits of the file wait.
For a Cloud Run service, see docs/cloud-run.md.
"""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, Effect, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """Options of the command."""

    stack: Annotated[str, Option("Name of the stack.", metavar="STACK")]
    yes: Annotated[bool, Option("Deploy without a question.", person=True)] = False
    refresh: Annotated[bool, Option("Compare the state with Google first.")] = False
    restart: Annotated[bool, Option("Only restart the server, with the settings that it has.")] = False
    dry_run: Annotated[bool, Option("Show what it found and the effect without changing anything.")] = False
    set: Annotated[
        tuple[str, ...],
        Option(
            "Write this setting to the stack's file before the deployment, such as cloudRun.maxInstances=2. The value none removes a key. Repeatable.",
            metavar="KEY=VALUE",
            repeated=True,
        ),
    ] = ()
    plan: Annotated[
        str | None, Option("Run only if --dry-run --json still shows the plan with this id.", metavar="ID")
    ] = None
    as_json: JsonSwitch = False


def _up(options: UpOptions) -> ExitCode:
    if options.restart:
        return _restart(options)
    from gemma_serving.engine.runner import noted_up
    from gemma_serving.scripts.plan.api import changes_of_file
    from gemma_serving.scripts.stack.frozen import frozen_up
    from gemma_serving.scripts.up.deploying import deploy
    from gemma_serving.scripts.up.request import UpRequest
    from gemma_serving.scripts.up.starting import prepared_stack

    changes = changes_of_file(options.set)
    is_frozen = bool(changes or options.plan or (options.dry_run and options.as_json))
    with frozen_up(options.stack, changes) if is_frozen else nullcontext() as frozen:
        request = UpRequest(
            yes=options.yes,
            refreshes=options.refresh,
            dry_run=options.dry_run,
            as_json=options.as_json,
            given=options.plan,
            changes=changes,
            frozen=frozen,
        )
        noted = nullcontext() if options.dry_run else noted_up(options.stack)
        with noted, prepared_stack(options.stack, dry_run=options.dry_run) as (facts, settings):
            return deploy(facts, settings, request)


def _restart(options: UpOptions) -> ExitCode:
    from gemma_serving.scripts.up.restarting import restart_server

    if options.refresh or options.set:
        raise CommandRefusedError("--restart changes no resource and no setting. Remove --refresh and --set.")
    return restart_server(
        options.stack, dry_run=options.dry_run, given=options.plan, yes=options.yes, as_json=options.as_json
    )


COMMAND: Final = Command(
    name="up",
    help=__doc__,
    options=UpOptions,
    run=_up,
    effect=Effect.CHANGES,
    needs="settings",
    exit_codes={
        ExitCode.REFUSED: "refused before any change, for example by a check, or because another folder may have begun what it found and no terminal "
        "confirms the import"
    },
    after_interrupt="No resource was changed.",
)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
