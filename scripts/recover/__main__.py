"""Import the resources of an interrupted `gemma up` into the state.

  gemma recover tpu-v6e1 --dry-run
  gemma recover tpu-v6e1

Imports existing resources that have the stack's labels. Clears pending operations
whose resource was never created. Lists resources with the same name and another
owner. Creates, changes and deletes nothing in Google Cloud.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.scripts.cli.command import Command, print_progress, print_result, print_text, run_command
from gemma_serving.scripts.cli.options import JsonSwitch, Option, StackName
from gemma_serving.scripts.cli.prompts import confirm
from gemma_serving.scripts.stack.dry_run_id import dry_run_id, require_same_dry_run

if TYPE_CHECKING:
    from gemma_serving.scripts.recover.rounds import Examined


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Options of the command."""

    stack: StackName
    dry_run: Annotated[bool, Option("List the resources to import without changing the state.")] = False
    plan: Annotated[str | None, Option("Run only if --dry-run still shows the plan with this id.", metavar="ID")] = None
    yes: Annotated[bool, Option("Skip the confirmation.")] = False
    as_json: JsonSwitch = False


def _recover(options: RecoverOptions) -> ExitCode:
    from gemma_serving.cloud import google_api
    from gemma_serving.cloud.simulated import is_simulated
    from gemma_serving.scripts.recover import rounds
    from gemma_serving.scripts.stack.settings import stack_project

    started_s = time.monotonic()
    stack = options.stack
    api = google_api.connect(stack_project(stack))
    if options.dry_run or options.plan is not None:
        findings = rounds.inspect_stack(stack, api, report=lambda text: print_progress("recover", text))
        shown = {key: [one.to_json() for one in findings if one.group == key] for key in rounds.GROUPS}
        # Independent resources come in any order.
        plan = dry_run_id({"stack": stack, **{key: sorted(map(json.dumps, group)) for key, group in shown.items()}})
        require_same_dry_run(options.plan, plan, command=f"gemma recover {stack}")
        if options.dry_run:
            document = {"stack": stack, "dry_run": True, **shown, "plan": plan}
            lines = [*filter(None, [rounds.deletion_of(stack)]), *rounds.as_lines(findings), f"Plan: {plan}"]
            print_text(json.dumps(document) if options.as_json else "\n".join(lines))
            return ExitCode.DONE

    def confirm_findings(findings: "Sequence[Examined]") -> None:
        if options.yes:
            return
        for finding in findings:
            print_text(f"  {finding.text}", sys.stderr)
        question = f"Import these {len(findings)} resources into the" if findings else "Create a new"
        confirm(
            f"{question} state of stack {stack}?",
            without_terminal="Recovering changes the state, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Cancelled. Nothing was changed.",
        )

    recovery = rounds.recover(stack, api, report=lambda text: print_progress("recover", text), confirm=confirm_findings)
    if options.as_json:
        elapsed_s = round(time.monotonic() - started_s, 1)
        print_text(json.dumps({**recovery.to_json(), "simulated": is_simulated(), "elapsed_s": elapsed_s}))
        return ExitCode.FAILED if recovery.not_owned else ExitCode.DONE
    for finding in recovery.not_owned:
        print_result(
            f"recover: {stack}: {finding.noun} {finding.name} exists but does not have the labels of this stack. It was not modified. "
            "Delete it if it is yours, or use another stack name."
        )
    done = f"imported {len(recovery.imported)} resources, cleared {len(recovery.cleared)} interrupted operations"
    if recovery.not_owned:
        print_result(f"recover: {stack}: {done}. Resolve the problems above, then run `gemma recover {stack}` again.")
        return ExitCode.FAILED
    print_result(f"recover: {stack}: {done}. {rounds.deletion_of(stack) or f'Run `gemma up {stack}`.'}")
    return ExitCode.DONE


COMMAND: Final = Command(
    name="recover",
    help=__doc__,
    options=RecoverOptions,
    run=_recover,
    changes=True,
    after_interrupt="The state is consistent. Run recover again to continue.",
    exit_codes={ExitCode.FAILED: "failed, or a resource with the same name has another owner"},
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
