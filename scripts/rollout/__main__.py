"""Check the new revision of a service, then move all traffic to it.

  gemma rollout l4-qat --dry-run
  gemma rollout l4-qat
  gemma rollout l4-qat --to gemma-l4-qat-00003-abc

The smoke checks run while the revision has no traffic. If one fails, the old
revision keeps all traffic. Needs cloudRun.rollout: docs/rollout.md.
"""

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

from contracts.errors import CommandRefusedError
from contracts.exit_codes import ExitCode
from contracts.plain_text import for_terminal
from contracts.service_traffic import shares_text
from scripts.cli.command import Command, print_progress, print_result, run_command
from scripts.cli.dry_run_id import require_same_dry_run
from scripts.cli.options import JsonSwitch, Option, StackName

if TYPE_CHECKING:
    from scripts.rollout.run import Rollout, RolloutDryRun


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """Options of the command."""

    stack: StackName
    to: Annotated[
        str | None,
        Option("Route all traffic to this revision immediately, without checks.", metavar="REVISION"),
    ] = None
    dry_run: Annotated[bool, Option("Show the change and its maximum cost without changing anything.")] = False
    plan: Annotated[str | None, Option("Run only if --dry-run still shows the plan with this id.", metavar="ID")] = None
    yes: Annotated[bool, Option("Accepted as everywhere; a rollout has no prompt.")] = False
    as_json: JsonSwitch = False


def _rollout(options: RolloutOptions) -> ExitCode:
    rollout = _of_stack(options.stack)
    look, service = rollout.look(options.to)
    require_same_dry_run(options.plan, look.plan, command=f"gemma rollout {options.stack}")
    if options.dry_run:
        shown = {"schema_version": 3, "dry_run": True, **asdict(look), "plan": look.plan}
        print(json.dumps(shown) if options.as_json else _text_of(look))
        return ExitCode.DONE
    report = rollout.run(look, service)
    if options.as_json:
        print(json.dumps({"schema_version": 3, **asdict(report)}))
    else:
        print_result(
            f"{report.stack}: {report.outcome}. {for_terminal(report.reason)}\nTraffic: {shares_text(report.traffic)}"
        )
    return ExitCode.FAILED if report.outcome == "rolled back" or report.state_is_behind else ExitCode.DONE


def _text_of(look: "RolloutDryRun") -> str:
    does = {
        "roll out": "will get all traffic after its checks",
        "roll back": "will get all traffic immediately, without checks",
        "finish": "has all traffic, so nothing will change",
    }[look.phase]
    cost = "unknown" if look.usd_per_hour is None else f"${look.usd_per_hour:.2f}"
    return (
        f"{look.stack}: {look.revision} {does}.\nTraffic now: {shares_text(look.traffic)}\n"
        f"Maximum cost during the rollout: {cost} per hour\nPlan: {look.plan}"
    )


def _of_stack(stack: str) -> "Rollout":
    from cloud.google_api import connect
    from contracts.resource_types import SERVICE_TYPE
    from engine import runner
    from engine.deployment import read_deployment
    from engine.locks import past_dead_locks
    from engine.state import outputs_in, require_server
    from scripts.rollout.run import Rollout, smoke_fault

    resources = read_deployment(stack).resources
    outputs = outputs_in(stack, resources)
    require_server(stack, outputs, what="roll out")
    if outputs.target == "tpu":
        raise CommandRefusedError(
            f"Stack {stack} is a TPU stack, which has no revisions. To roll back, restore the settings in Pulumi.{stack}.yaml, then run "
            f"`gemma up {stack}`, which restarts the server in place."
        )
    if outputs.rollout is None:
        raise CommandRefusedError(
            f"Stack {stack} has no cloudRun.rollout, so `gemma up` shifts its traffic. Set it in Pulumi.{stack}.yaml, "
            f"such as cloudRun.rollout: {{}}, then run `gemma up {stack}`."
        )
    if outputs.rollout.traffic is not None:
        shares = ", ".join(f"{name}: {percent}" for name, percent in outputs.rollout.traffic.items())
        raise CommandRefusedError(
            f"The settings of stack {stack} fix the traffic (cloudRun.rollout.traffic: {{ {shares} }}). "
            f"Change it there, or remove it and run `gemma up {stack}` first."
        )
    report = partial(print_progress, "rollout")
    services = [each for each in resources if each.type == SERVICE_TYPE and not each.delete]
    targets = [word for each in services for word in ("--target", each.urn)]
    hint = f"Run `pulumi refresh --stack {stack}` when no other operation is running."

    def refresh() -> None:
        report("refreshing the traffic in the stack's state")
        past_dead_locks(stack, lambda: runner.change(stack, "refresh", *targets, after_failure=hint), report=report)

    return Rollout(
        stack=stack,
        name=outputs.rollout.service,
        api=connect(outputs.project),
        start_s=outputs.smoke.startup_budget_s,
        smoke=partial(smoke_fault, stack, outputs, report),
        refresh=refresh,
        say=report,
    )


COMMAND: Final = Command(
    name="rollout",
    help=__doc__,
    options=RolloutOptions,
    run=_rollout,
    exit_codes={ExitCode.FAILED: "failed, rolled back, or the stack's state does not show the new traffic"},
    after_interrupt="The traffic stays as `gemma status` shows it. Run the same command again.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
