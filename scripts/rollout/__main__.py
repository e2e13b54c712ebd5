"""Shift the traffic of a Cloud Run stack to its new revision in steps.

  gemma rollout NAME --dry-run
  gemma rollout NAME
  gemma rollout NAME --to gemma-NAME-00003-abc

Each step checks the new revision and rolls back if a check fails. For stacks with cloudRun.rollout, where `pulumi up` creates a new revision
without traffic. docs/rollout.md describes the steps.
"""

import json
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.plain_text import for_terminal
from scripts.cli.command import Command, run_command, say, tell
from scripts.cli.looked import require_looked
from scripts.cli.options import JsonSwitch, Option, StackName

if TYPE_CHECKING:
    from scripts.rollout.look import RolloutLook
    from scripts.rollout.run import Rollout


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """Options of the command."""

    stack: StackName
    to: Annotated[
        str | None,
        Option("Route all traffic to this revision immediately, without checks.", metavar="REVISION"),
    ] = None
    again: Annotated[
        bool,
        Option("Roll out the latest revision even if it was refused or the record is unreadable."),
    ] = False
    dry_run: Annotated[bool, Option("Show the steps and their maximum cost without changing anything.")] = False
    plan: Annotated[str | None, Option("Run only if --dry-run still shows the plan with this id.", metavar="ID")] = None
    yes: Annotated[bool, Option("Accepted as everywhere; a rollout asks nothing.")] = False
    as_json: JsonSwitch = False


def _rollout(options: RolloutOptions) -> ExitCode:
    if options.again and options.to is not None:
        raise CommandRefusedError("--again and --to cannot be combined.")
    rollout = _of_stack(options.stack)
    if options.dry_run or options.plan is not None:
        look = rollout.look(options.to, again=options.again)
        require_looked(options.plan, look.plan, command=f"gemma rollout {options.stack}")
        if options.dry_run:
            print(json.dumps(look.to_json()) if options.as_json else _text_of(look))
            return ExitCode.DONE
    report = rollout.to_latest(again=options.again) if options.to is None else rollout.to_revision(options.to)
    if options.as_json:
        print(json.dumps(report.to_json()))
    else:
        from stacks.hooks.rollout_state import shares_text

        tell(f"{report.stack}: {report.outcome}. {for_terminal(report.reason)}\nTraffic: {shares_text(report.traffic)}")
    return report.exit_code


def _text_of(look: "RolloutLook") -> str:
    from stacks.hooks.rollout_state import shares_text

    steps = ", ".join(f"{step} %" for step in look.steps)
    summary = {
        "roll out": f"{look.revision} will get {steps} of the traffic, each step after its checks.",
        "roll back": f"{look.revision} will get all traffic immediately, without checks.",
        "finish": f"{look.revision} has all traffic. Only its tags and stale revisions will be removed.",
        "not ready": f"{look.revision} did not start and will get no traffic.",
        "nothing serves": "No revision serves yet. No revision to roll out.",
    }[look.phase]
    cost = "unknown" if look.usd_per_hour is None else f"${look.usd_per_hour:.2f}"
    lines = [
        f"{look.stack}: {summary}",
        f"Traffic now: {shares_text(look.traffic)}",
        f"Maximum cost during the rollout: {cost} per hour",
    ]
    return "\n".join([*lines, *([look.sentence] if look.sentence else []), f"Plan: {look.plan}"])


def _of_stack(stack: str) -> "Rollout":
    from cloud.google_api import connect
    from contracts.resource_types import SERVICE_TYPE
    from engine import runner
    from engine.deployment import read_deployment
    from engine.locks import past_dead_locks
    from engine.stack import outputs_in, require_server
    from scripts.rollout.gates import TagGates
    from scripts.rollout.run import Rollout
    from scripts.rollout.service import IMAGE_PULL_S, ServiceAtGoogle

    resources = read_deployment(stack).resources
    outputs = outputs_in(stack, resources)
    require_server(stack, outputs, what="roll out")
    if outputs.rollout is None:
        raise CommandRefusedError(
            f"Stack {stack} has no cloudRun.rollout, so `pulumi up` shifts its traffic. To use rollouts, set it in Pulumi.{stack}.yaml, "
            f"such as cloudRun.rollout: {{ steps: [10, 50, 100] }}, then run `gemma up {stack}`."
        )
    if outputs.rollout.traffic is not None:
        shares = ", ".join(f"{revision}: {percent}" for revision, percent in outputs.rollout.traffic.items())
        raise CommandRefusedError(
            f"The settings of stack {stack} fix the traffic split (cloudRun.rollout.traffic: {{ {shares} }}), so `pulumi up` would revert "
            f"changes of this command. Change the split there, or remove it and run `gemma up {stack}` first."
        )
    report = partial(say, "rollout")
    service = ServiceAtGoogle(
        api=connect(outputs.project),
        name=outputs.rollout.service,
        limit_s=outputs.smoke.startup_budget_s + IMAGE_PULL_S,
    )
    urns = [resource.urn for resource in resources if resource.type == SERVICE_TYPE and not resource.delete]
    targets = [word for urn in urns for word in ("--target", urn)]
    hint = f"The traffic is as reported above. Run `pulumi refresh --stack {stack}` when no other operation is running."

    def refresh() -> None:
        report("refreshing the traffic in the stack's state")
        past_dead_locks(stack, lambda: runner.change(stack, "refresh", *targets, after_failure=hint), report=report)

    return Rollout(
        stack=stack,
        plan=outputs.rollout,
        service=service,
        gates=TagGates(stack=stack, outputs=outputs, service_url=str(service.read().get("uri")), say=report),
        refresh=refresh,
        say=report,
    )


COMMAND: Final = Command(
    name="rollout",
    help=__doc__,
    options=RolloutOptions,
    run=_rollout,
    after_interrupt=(
        "The traffic split stays as it is. `gemma status` shows it. "
        "Run the same command again to continue, or with --to REVISION to roll back."
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
