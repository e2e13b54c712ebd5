"""Import the resources of an interrupted `pulumi up` into the state.

Imports existing resources that have the stack's labels. Clears pending operations whose resource was never created. Lists resources with the same
name and another owner, and never modifies them. Creates, changes and deletes nothing in Google Cloud.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cloud.simulated import is_simulated
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say, tell
from scripts.cli.looked import look_id, require_looked
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.cli.prompts import confirm

if TYPE_CHECKING:
    from scripts.recover.run import Examined, Recovery


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Options of the command."""

    stack: StackName
    dry_run: Annotated[bool, Option("List the resources to import without changing the state.")] = False
    plan: Annotated[str | None, Option("Run only if --dry-run still shows the plan with this id.", metavar="ID")] = None
    yes: Annotated[bool, Option("Skip the confirmation.")] = False
    as_json: JsonSwitch = False


def _recover(options: RecoverOptions) -> ExitCode:
    from cloud import google_api
    from scripts.cli.settings import stack_project
    from scripts.recover import run

    started_s = time.monotonic()
    stack = options.stack
    api = google_api.connect(stack_project(stack))
    if options.dry_run or options.plan is not None:
        found = _grouped(run.look(stack, api))
        shown = {key: [finding.to_json() for finding in group] for key, group in found.items()}
        # Independent resources come in any order.
        plan = look_id({"stack": stack, **{key: sorted(map(json.dumps, group)) for key, group in shown.items()}})
        require_looked(options.plan, plan, command=f"gemma recover {stack}")
        if options.dry_run:
            _show_findings(options, found, {"stack": stack, "dry_run": True, **shown, "plan": plan})
            return ExitCode.DONE

    def confirm_findings(findings: "Sequence[Examined]") -> None:
        if not options.yes:
            _confirm(stack, findings)

    recovery = run.recover(stack, api, report=lambda text: say("recover", text), confirm=confirm_findings)
    if options.as_json:
        report = {**_to_json(recovery), "elapsed_s": round(time.monotonic() - started_s, 1)}
        print(json.dumps(report))
    else:
        _show(recovery)
    return ExitCode.DONE if recovery.clean else ExitCode.FAILED


def _confirm(stack: str, findings: "Sequence[Examined]") -> None:
    """Prompt for a yes. Raises CommandRefusedError unless the answer is yes."""
    for finding in findings:
        print(f"  {finding.noun}  {finding.name}", file=sys.stderr)
    question = f"Import these {len(findings)} resources into the" if findings else "Start a new"
    confirm(
        f"{question} state of stack {stack}?",
        without_terminal=f"Recovering stack {stack} changes its state, and stdin is not a terminal. Pass --yes to confirm.",
        declined="Nothing was changed. Type yes or pass --yes.",
    )


def _grouped(findings: "Sequence[Examined]") -> Mapping[str, "Sequence[Examined]"]:
    from scripts.recover.lookup import Owner

    return {
        "owned": [finding for finding in findings if finding.owner is Owner.OWNED],
        "not_owned": [finding for finding in findings if finding.owner is Owner.NOT_OWNED],
        "missing": [finding for finding in findings if finding.owner is Owner.MISSING],
        "unknown": [finding for finding in findings if finding.owner is Owner.UNKNOWN],
        "pending": [finding for finding in findings if finding.owner is None],
    }


def _show_findings(
    options: RecoverOptions, named: Mapping[str, "Sequence[Examined]"], document: Mapping[str, object]
) -> None:
    if options.as_json:
        print(json.dumps(document))
        return
    meanings = {
        "owned": "to import",
        "not_owned": "has another owner",
        "missing": "does not exist",
        "unknown": "unknown, its API is off",
    }
    for key, meaning in meanings.items():
        for finding in named[key]:
            tell(f"{meaning}: {finding.noun} {finding.name}")
    if named["pending"]:
        tell(f"{len(named['pending'])} more can be checked after the others are imported.")
    if not named["owned"]:
        tell(f"recover: {options.stack}: no resources to import.")
    tell(f"Plan: {document['plan']}")


def _to_json(recovery: "Recovery") -> dict[str, object]:
    return {
        "stack": recovery.stack,
        "state_was": recovery.state_was,
        "imported": [finding.to_json() for finding in recovery.imported],
        "cleared": list(recovery.cleared),
        "not_owned": [finding.to_json() for finding in recovery.not_owned],
        "open": list(recovery.open),
        "unknown": [finding.to_json() for finding in recovery.unknown],
        "backups": [str(path) for path in recovery.backups],
        "clean": recovery.clean,
        "simulated": is_simulated(),
    }


def _show(recovery: "Recovery") -> None:
    stack = recovery.stack
    for finding in recovery.not_owned:
        tell(
            f"recover: {stack}: {finding.noun} {finding.name} exists but does not have the labels of this stack. It was not modified. "
            "Delete it if it is yours, or use another stack name."
        )
    for text in recovery.open:
        tell(f"recover: {stack}: {text}")
    if recovery.unknown:
        tell(
            f"recover: {stack}: could not check {len(recovery.unknown)} resources because their APIs are off. "
            "`pulumi up` prints the command that enables them. If it fails because a resource already exists, run recover again."
        )
    again = f"Resolve the problems above, then run `gemma recover {stack}` again."
    next_step = f"Run `pulumi up --stack {stack}`." if recovery.clean else again
    tell(
        f"recover: {stack}: imported {len(recovery.imported)} resources, cleared {len(recovery.cleared)} interrupted operations. {next_step}"
    )


COMMAND: Final = Command(
    name="recover",
    help=__doc__,
    options=RecoverOptions,
    run=_recover,
    after_interrupt="The state is consistent. Run recover again to continue.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
