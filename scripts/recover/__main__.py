"""Take over what an interrupted `pulumi up` left, so that the next one goes on.

Resources that exist, carry the stack's labels and stand in no state are put into the state. Operations whose resource never came into being are
cleared. Resources of others with the same name are named and never touched. Nothing at Google is created, changed or deleted.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from cloud.simulated import is_simulated
from contracts.exit_codes import ExitCode
from scripts.cli.command import Command, run_command, say
from scripts.cli.looked import look_id, require_looked
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.cli.prompts import confirm

if TYPE_CHECKING:
    from scripts.recover.run import Examined, Recovery


@dataclass(frozen=True, kw_only=True)
class RecoverOptions:
    """Options of the command."""

    stack: StackName
    dry_run: Annotated[bool, Option("Say what would be taken over, and change nothing.")] = False
    plan: Annotated[
        str | None, Option("Do it only if --dry-run still shows what it showed with this id.", metavar="ID")
    ] = None
    yes: Annotated[bool, Option("Do not ask for confirmation.")] = False
    as_json: JsonSwitch = False


def _recover(options: RecoverOptions) -> ExitCode:
    from cloud import google_api
    from scripts.cli.settings import stack_settings
    from scripts.recover import run

    started_s = time.monotonic()
    stack = options.stack
    api = google_api.connect(stack_settings(stack).project)
    if options.dry_run or options.plan is not None:
        found = _grouped(run.look(stack, api))
        shown = {key: [finding.to_json() for finding in group] for key, group in found.items()}
        # Independent resources come in any order.
        plan = look_id({"stack": stack, **{key: sorted(map(json.dumps, group)) for key, group in shown.items()}})
        require_looked(options.plan, plan, command=f"python -m scripts.recover --stack {stack}")
        if options.dry_run:
            _show_findings(options, found, {"stack": stack, "dry_run": True, **shown, "plan": plan})
            return ExitCode.DONE

    def confirm_findings(findings: "Sequence[Examined]") -> None:
        if not options.yes:
            _confirm(stack, findings)

    recovery = run.recover(stack, api, report=lambda text: say("recover", text), confirm=confirm_findings)
    if options.as_json:
        print(json.dumps({**_to_json(recovery), "elapsed_s": round(time.monotonic() - started_s, 1)}))
    else:
        _show(recovery)
    return ExitCode.DONE if recovery.clean else ExitCode.FAILED


def _confirm(stack: str, findings: "Sequence[Examined]") -> None:
    """Ask a person. Raises CommandRefusedError unless the answer is yes."""
    for finding in findings:
        print(f"  {finding.noun}  {finding.name}", file=sys.stderr)
    question = f"Take these {len(findings)} resources into" if findings else "Start a new"
    confirm(
        f"{question} state of stack {stack}?",
        without_terminal=f"The state of stack {stack} has to change and stdin is no terminal; pass --yes.",
        declined="Nothing was changed; type yes, or pass --yes.",
    )


def _grouped(findings: "Sequence[Examined]") -> Mapping[str, "Sequence[Examined]"]:
    from scripts.recover.lookup import Owner

    return {
        "ours": [finding for finding in findings if finding.owner is Owner.OURS],
        "foreign": [finding for finding in findings if finding.owner is Owner.FOREIGN],
        "absent": [finding for finding in findings if finding.owner is Owner.NOBODY],
        "unknown": [finding for finding in findings if finding.owner is Owner.UNKNOWN],
        "later": [finding for finding in findings if finding.owner is None],
    }


def _show_findings(
    options: RecoverOptions, named: Mapping[str, "Sequence[Examined]"], document: Mapping[str, object]
) -> None:
    if options.as_json:
        print(json.dumps(document))
        return
    meanings = {
        "ours": "would be taken over",
        "foreign": "belongs to somebody else",
        "absent": "does not exist",
        "unknown": "unknown, its API is off",
    }
    for key, meaning in meanings.items():
        for finding in named[key]:
            print(f"{meaning}: {finding.noun} {finding.name}")
    if named["later"]:
        print(f"{len(named['later'])} more can be looked up when the others are in the state.")
    if not named["ours"]:
        print(f"recover: {options.stack}: there is nothing to take over.")
    print(f"Plan: {document['plan']}")


def _to_json(recovery: "Recovery") -> dict[str, object]:
    return {
        "stack": recovery.stack,
        "state_was": recovery.state_was,
        "taken": [finding.to_json() for finding in recovery.taken],
        "cleared": list(recovery.cleared),
        "foreign": [finding.to_json() for finding in recovery.foreign],
        "open": list(recovery.open),
        "unknown": [finding.to_json() for finding in recovery.hidden],
        "backups": [str(path) for path in recovery.backups],
        "clean": recovery.clean,
        "simulated": is_simulated(),
    }


def _show(recovery: "Recovery") -> None:
    stack = recovery.stack
    for finding in recovery.foreign:
        print(
            f"recover: {stack}: the {finding.noun} {finding.name} exists and does not carry the labels of this stack. It was not touched. "
            "Delete it if it is yours, or give the stack another name."
        )
    for text in recovery.open:
        print(f"recover: {stack}: {text}")
    if recovery.hidden:
        print(
            f"recover: {stack}: whether {len(recovery.hidden)} resources exist is unknown, because their APIs are off. `pulumi up` enables them; "
            "if it stops at something that exists already, run recover again."
        )
    again = f"Settle what is named above, then run `python -m scripts.recover --stack {stack}` again."
    next_step = f"Run `pulumi up --stack {stack}`." if recovery.clean else again
    print(
        f"recover: {stack}: {len(recovery.taken)} resources taken over, {len(recovery.cleared)} interrupted operations cleared. {next_step}"
    )


COMMAND: Final = Command(
    name="recover",
    help=__doc__,
    options=RecoverOptions,
    run=_recover,
    after_interrupt="The state is whole; run recover again to continue.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
