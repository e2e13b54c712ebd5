"""Preview a stack, confirm the effect and the cost, and deploy it.

  gemma up tpu-v6e1
  gemma up tpu-v6e1 --yes
  gemma up tpu-v6e1 --restart

First it runs the checks of `gemma doctor` that a deployment needs: APIs, quotas, weights, the image, what the server loads from the hub, passphrase,
and limits that are used up. If one fails, it prints a list and stops. Before anything changes, it prints the effect on the server, the duration and the
cost. Ctrl-C during the deployment keeps the created resources and prints their cost. `pulumi up --stack STACK` deploys the same.

It continues from what an interrupted or failed run left, and imports what Google has of the stack and its state lacks. If another folder began that, it
asks; without a terminal, it changes nothing. A stack without a state gets one.

With --restart, the server on a TPU VM drains the running requests and starts again. Capacity, address and settings stay, and edits of the file wait.
For a Cloud Run service, see docs/cloud-run.md.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_progress, run_command
from gemma_serving.scripts.cli.options import Option


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """Options of the command."""

    stack: Annotated[str, Option("Name of the stack.", metavar="STACK")]
    yes: Annotated[bool, Option("Deploy without a question.")] = False
    refresh: Annotated[bool, Option("Compare the state with Google first.")] = False
    restart: Annotated[bool, Option("Only restart the server, with the settings that it has.")] = False
    dry_run: Annotated[bool, Option("Show what it found and the effect without changing anything.")] = False
    plan: Annotated[
        str | None, Option("With --restart: run only if --dry-run still shows the plan with this id.", metavar="ID")
    ] = None
    as_json: Annotated[bool, Option("With --restart: print JSON.", flag="--json")] = False


def _up(options: UpOptions) -> ExitCode:
    if options.restart:
        return _restart(options)
    if options.plan or options.as_json:
        raise CommandRefusedError(
            f"--plan and --json need --restart. To see the changes first, run `gemma up {options.stack} --dry-run`."
        )
    from gemma_serving.scripts.stack.held_networks import finish_held
    from gemma_serving.scripts.up.deploying import deploy
    from gemma_serving.scripts.up.starting import prepared_stack

    finish_held(partial(print_progress, "up"), but=options.stack)
    with prepared_stack(options.stack, dry_run=options.dry_run) as (facts, settings):
        return deploy(facts, settings, yes=options.yes, refreshes=options.refresh, dry_run=options.dry_run)


def _restart(options: UpOptions) -> ExitCode:
    from gemma_serving.scripts.up.restarting import restart_server

    if options.refresh:
        raise CommandRefusedError("--restart changes no resource. Remove --refresh.")
    return restart_server(
        options.stack, dry_run=options.dry_run, given=options.plan, yes=options.yes, as_json=options.as_json
    )


COMMAND: Final = Command(
    name="up",
    help=__doc__,
    options=UpOptions,
    run=_up,
    changes=True,
    needs="settings",
    exit_codes={
        ExitCode.REFUSED: "refused before any change, for example by a check, or because another folder may have begun what it found and no terminal "
        "confirms the import"
    },
    after_interrupt="No resource was changed.",
)

if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
