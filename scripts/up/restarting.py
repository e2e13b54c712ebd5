"""Restart of the server on a TPU VM, without a change of its settings."""

import json
import sys

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.engine.state import read
from gemma_serving.scripts.cli.command import print_progress, print_result, print_text
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.doctor.api import require_secrets, width_of
from gemma_serving.scripts.stack.dry_run_id import dry_run_id, require_same_dry_run
from gemma_serving.scripts.stack.settings import stack_settings
from gemma_serving.scripts.up.machine import machine_of, restart
from gemma_serving.scripts.up.starting import report_unknown, waiting_edits


def restart_server(stack: str, *, dry_run: bool, given: str | None, yes: bool, as_json: bool) -> ExitCode:
    """Restart the server on a TPU VM with the settings that it has. `given`: id of the dry run that may be executed.

    Raises CommandRefusedError for a server that cannot be restarted now, and ScriptError if nothing new serves.
    """
    found = machine_of(stack)
    look = {"stack": stack, "target": "tpu", "server": found.machine.name, "requests_fail_s": found.pause_s}
    plan = dry_run_id(look)
    sentences = [found.effect, *filter(None, [waiting_edits(stack)])]
    effect = " ".join(sentences)
    require_same_dry_run(given, plan, command=f"gemma up {stack} --restart")
    if dry_run:
        shown = {"schema_version": 2, "dry_run": True, **look, "sentences": sentences, "plan": plan}
        print_text(json.dumps(shown) if as_json else f"{effect}\nPlan: {plan}")
        return ExitCode.DONE
    print_progress("up", effect)
    report_unknown(require_secrets(stack_settings(stack), read(stack), width=width_of(sys.stderr)))
    if not yes:
        confirm(
            f"Restart the server of stack {stack}?",
            without_terminal="A restart needs a confirmation, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Cancelled. Nothing was changed.",
        )
    try:
        reason = restart(found)
    except KeyboardInterrupt:
        print_progress("up", f"interrupted. The requested restart continues: `gemma status {stack}` shows it.")
        return ExitCode.INTERRUPTED
    if as_json:
        print_text(
            json.dumps({"schema_version": 2, "dry_run": False, **look, "outcome": "restarted", "reason": reason})
        )
    else:
        print_result(f"{stack}: restarted. {reason}")
    return ExitCode.DONE
