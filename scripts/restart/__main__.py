"""Restart the server on a TPU VM without changing its settings.

  gemma restart tpu-v6e1 --dry-run
  gemma restart tpu-v6e1

The TPU VM drains the running requests and starts the server again. Capacity,
address and settings stay. Prompts, and waits until the server is ready.
For a Cloud Run service, see docs/cloud-run.md.
"""

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_progress, print_result, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option, StackName
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.stack.dry_run_id import dry_run_id, require_same_dry_run


@dataclass(frozen=True, kw_only=True)
class RestartOptions:
    """Options of the command."""

    stack: StackName
    dry_run: Annotated[bool, Option("Show the effect without changing anything.")] = False
    plan: Annotated[str | None, Option("Run only if --dry-run still shows the plan with this id.", metavar="ID")] = None
    yes: Annotated[bool, Option("Skip the confirmation.")] = False
    as_json: JsonSwitch = False


def _restart(options: RestartOptions) -> ExitCode:
    from gemma_serving.scripts.restart.machine import machine_of, restart

    stack = options.stack
    found = machine_of(stack)
    look = {"stack": stack, "target": "tpu", "server": found.machine.name, "requests_fail_s": found.pause_s}
    plan, effect = dry_run_id(look), found.effect
    require_same_dry_run(options.plan, plan, command=f"gemma restart {stack}")
    if options.dry_run:
        shown = {"schema_version": 2, "dry_run": True, **look, "sentences": [effect], "plan": plan}
        print_text(json.dumps(shown) if options.as_json else f"{effect}\nPlan: {plan}")
        return ExitCode.DONE
    print_progress("restart", effect)
    if not options.yes:
        confirm(
            f"Restart the server of stack {stack}?",
            without_terminal="A restart needs a confirmation, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Cancelled. Nothing was changed.",
        )
    reason = restart(found)
    if options.as_json:
        print_text(
            json.dumps({"schema_version": 2, "dry_run": False, **look, "outcome": "restarted", "reason": reason})
        )
    else:
        print_result(f"{stack}: restarted. {reason}")
    return ExitCode.DONE


COMMAND: Final = Command(
    name="restart",
    help=__doc__,
    options=RestartOptions,
    run=_restart,
    changes=True,
    needs="state",
    after_interrupt="A requested restart continues; see `gemma status`.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
