"""Give the requests of a Cloud Run stack to its new revision, step by step, and back to the old one if a check fails.

  python -m scripts.rollout --stack NAME --dry-run
  python -m scripts.rollout --stack NAME
  python -m scripts.rollout --stack NAME --to gemma-NAME-00003-abc

It is for stacks with cloudRun.rollout: there `pulumi up` makes a new revision without requests. docs/cloud-run.md describes the steps.
"""

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.plain_text import for_terminal
from scripts.cli.command import Command, run_command, say
from scripts.cli.looked import require_looked
from scripts.cli.options import JsonSwitch, Option, StackName

if TYPE_CHECKING:
    from scripts.rollout.look import RolloutLook
    from scripts.rollout.run import Rollout

IMAGE_PULL_S: Final = 15 * 60
"""For the import of an image and what Cloud Run does around a start, beside the start-up budget; assumed, on the safe side."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """Options of the command."""

    stack: StackName
    to: Annotated[
        str | None,
        Option("Give all requests to this revision at once, without checks: back to an older one.", metavar="REVISION"),
    ] = None
    again: Annotated[
        bool,
        Option(
            "Roll out the latest revision although it was refused before, or although the record of the last roll-out cannot be read."
        ),
    ] = False
    dry_run: Annotated[bool, Option("Show what would be done and what it can cost, and change nothing.")] = False
    plan: Annotated[
        str | None, Option("Do it only if --dry-run still shows what it showed with this id.", metavar="ID")
    ] = None
    as_json: JsonSwitch = False


def _rollout(options: RolloutOptions) -> ExitCode:
    if options.again and options.to is not None:
        raise CommandRefusedError(
            "--again rolls out the latest revision, and --to goes back to another one; give one of them."
        )
    rollout = _of_stack(options.stack)
    if options.dry_run or options.plan is not None:
        look = rollout.look(options.to, again=options.again)
        require_looked(options.plan, look.plan, command=f"python -m scripts.rollout --stack {options.stack}")
        if options.dry_run:
            print(json.dumps(look.to_json()) if options.as_json else _text_of(look))
            return ExitCode.DONE
    report = rollout.to_latest(again=options.again) if options.to is None else rollout.to_revision(options.to)
    if options.as_json:
        print(json.dumps(report.to_json()))
    else:
        from stacks.hooks.rollout_state import shares_text

        print(
            f"{report.stack}: {report.outcome}. {for_terminal(report.reason)}\nRequests: {shares_text(report.traffic)}"
        )
    return report.exit_code


def _text_of(look: "RolloutLook") -> str:
    from stacks.hooks.rollout_state import shares_text

    steps = ", ".join(f"{step} %" for step in look.steps)
    what = {
        "roll out": f"{look.revision} would get {steps} of the requests, each step behind its checks.",
        "roll back": f"{look.revision} would get all requests at once, without checks.",
        "finish": f"{look.revision} has all requests; only its tags and stale revisions would be cleared.",
        "not ready": f"{look.revision} did not start, so that it would get no requests.",
        "nothing serves": "No revision serves yet, so that there is nothing to roll out.",
    }[look.phase]
    cost = "unknown" if look.usd_per_hour is None else f"${look.usd_per_hour:.2f}"
    lines = [
        f"{look.stack}: {what}",
        f"Requests now: {shares_text(look.traffic)}",
        f"Cost at most meanwhile: {cost} an hour",
    ]
    return "\n".join([*lines, *([look.sentence] if look.sentence else []), f"Plan: {look.plan}"])


def _of_stack(stack: str) -> "Rollout":
    from cloud.google_api import connect
    from contracts.resource_types import SERVICE_TYPE
    from engine import runner
    from engine.deployment import read_deployment
    from engine.locks import past_dead_locks
    from engine.stack import outputs_in
    from scripts.rollout.gates import TagGates
    from scripts.rollout.run import Rollout
    from scripts.rollout.service import ServiceAtGoogle

    resources = read_deployment(stack).resources
    outputs = outputs_in(stack, resources)
    if outputs.rollout is None:
        raise CommandRefusedError(
            f"Stack {stack} has no cloudRun.rollout, so that `pulumi up` moves its requests; set it in Pulumi.{stack}.yaml, "
            f"such as cloudRun.rollout: {{ steps: [10, 50, 100] }}, and run `pulumi up --stack {stack}`."
        )
    if outputs.rollout.traffic is not None:
        shares = ", ".join(f"{revision}: {percent}" for revision, percent in outputs.rollout.traffic.items())
        raise CommandRefusedError(
            f"The settings of stack {stack} say who gets the requests (cloudRun.rollout.traffic: {{ {shares} }}), and `pulumi up` would take back "
            f"what this command moves; change them there, or take them out and run `pulumi up --stack {stack}` first."
        )
    tell = partial(say, "rollout")
    service = ServiceAtGoogle(
        api=connect(outputs.project),
        name=outputs.rollout.service,
        limit_s=outputs.smoke.startup_budget_s + IMAGE_PULL_S,
    )
    urns = [resource.urn for resource in resources if resource.type == SERVICE_TYPE and not resource.delete]
    targets = [word for urn in urns for word in ("--target", urn)]
    hint = f"The requests go where this command said. Run `pulumi refresh --stack {stack}` when nothing else runs."

    def refresh() -> None:
        tell("letting the stack's state take over the traffic")
        past_dead_locks(stack, lambda: runner.change(stack, "refresh", *targets, after_failure=hint), report=tell)

    return Rollout(
        stack=stack,
        plan=outputs.rollout,
        service=service,
        gates=TagGates(stack=stack, outputs=outputs, service_url=str(service.read().get("uri")), say=tell),
        refresh=refresh,
        say=tell,
    )


COMMAND: Final = Command(
    name="rollout",
    help=__doc__,
    options=RolloutOptions,
    run=_rollout,
    after_interrupt=(
        "The requests stay as they were divided last. `python -m scripts.status` shows the shares. "
        "Run the same command again to go on, or with --to REVISION to go back."
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
