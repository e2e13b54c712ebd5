"""Restart a deployed server without changing its settings.

  gemma restart NAME --dry-run
  gemma restart NAME

TPU: the machine drains the running requests, stops the server and starts it again; capacity, address and settings stay. Cloud Run: a new revision of
the same template replaces the old one, which serves until then. Shows the effect, prompts, and waits until the server is ready again.
"""

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from contracts.exit_codes import ExitCode
from contracts.plain_text import for_terminal
from scripts.cli.command import Command, run_command, say, tell
from scripts.cli.looked import require_looked
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.cli.prompts import confirm

if TYPE_CHECKING:
    from scripts.restart.run import Restart


@dataclass(frozen=True, kw_only=True)
class RestartOptions:
    """Options of the command."""

    stack: StackName
    dry_run: Annotated[bool, Option("Show the effect and the cost without changing anything.")] = False
    plan: Annotated[str | None, Option("Run only if --dry-run still shows the plan with this id.", metavar="ID")] = None
    yes: Annotated[bool, Option("Skip the confirmation.")] = False
    as_json: JsonSwitch = False


def _restart(options: RestartOptions) -> ExitCode:
    from scripts.restart.run import restart_of

    stack = options.stack
    restart: Restart = restart_of(stack, partial(say, "restart"))
    look = restart.look()
    require_looked(options.plan, look.plan, command=f"gemma restart {stack}")
    if options.dry_run:
        if options.as_json:
            print(json.dumps(look.to_json()))
        else:
            tell(_text(look.sentences, f"Plan: {look.plan}"))
        return ExitCode.DONE
    for sentence in look.sentences:
        say("restart", sentence)
    if not options.yes:
        confirm(
            f"Restart the server of stack {stack}?",
            without_terminal=f"Restarting stack {stack} replaces its server, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Nothing was changed. Type yes or pass --yes.",
        )
    report = restart.run()
    if options.as_json:
        print(json.dumps(report.to_json()))
    else:
        tell(_text((f"{stack}: {report.outcome}. {report.reason}",)))
    return report.exit_code


def _text(sentences: tuple[str, ...], *more: str) -> str:
    return "\n".join(for_terminal(line) for line in (*sentences, *more))


COMMAND: Final = Command(
    name="restart",
    help=__doc__,
    options=RestartOptions,
    run=_restart,
    after_interrupt=(
        "A restart that was already requested continues. `gemma status --watch` shows when the server is ready again."
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
