"""Destroy a stack, then search Google Cloud for resources with its labels.

Exit code 0 proves that nothing is left. Exit code 1 means that something is left, or that the search could not read everything.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from contracts.exit_codes import ExitCode
from contracts.labels import PRODUCT, Ownership
from scripts.cli.command import Command, run_command
from scripts.cli.options import JsonSwitch, Option, StackName
from scripts.errors import CommandRefusedError
from scripts.pulumi import engine
from scripts.pulumi.settings import stack_settings
from scripts.pulumi.stack import StateResource, stack_resources

if TYPE_CHECKING:
    from scripts.cloud.inventory import FoundResource, SearchScope

SHOWN_RESOURCES: Final = 40


@dataclass(frozen=True, kw_only=True)
class TeardownOptions:
    """Options of the command."""

    stack: StackName
    yes: Annotated[bool, Option("Do not ask for confirmation.")] = False
    as_json: JsonSwitch = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownReport:
    """Result of a teardown: the resources that were in the state, those still in it, and those found in the cloud."""

    stack: str
    before: Sequence[StateResource]
    after: Sequence[StateResource]
    left: "Sequence[FoundResource]"
    elapsed_s: float

    @property
    def clean(self) -> bool:
        """Whether nothing is left."""
        return not self.after and not self.left

    def to_json(self) -> dict[str, object]:
        """Return the report as `--json` prints it."""
        return {
            "stack": self.stack,
            "destroyed": len(self.before) - len(self.after),
            "state": [{"type": resource.type, "id": resource.id} for resource in self.after],
            "left": [{"kind": found.kind, "name": found.name, "command": found.command} for found in self.left],
            "clean": self.clean,
            "simulated": _is_simulated(),
            "elapsed_s": round(self.elapsed_s, 1),
        }


def _teardown(options: TeardownOptions) -> ExitCode:
    from scripts.cloud import google_api, inventory

    started_s = time.monotonic()
    stack = options.stack
    scope = _scope(stack)
    before = stack_resources(stack)
    if before:
        if not options.yes:
            _confirm(stack, before)
        engine.change(
            stack, "destroy", after_failure="The state still holds the remaining resources; run teardown again."
        )
    report = TeardownReport(
        stack=stack,
        before=before,
        after=stack_resources(stack),
        left=tuple(inventory.search(google_api.connect(), scope)),
        elapsed_s=time.monotonic() - started_s,
    )
    if options.as_json:
        print(json.dumps(report.to_json()))
    else:
        _show(report)
    return ExitCode.DONE if report.clean else ExitCode.FAILED


def _scope(stack: str) -> "SearchScope":
    """Return where to search. The settings name every zone that the stack may have tried, the state only the last one."""
    from scripts.cloud.inventory import SearchScope

    settings = stack_settings(stack)
    return SearchScope(
        project=settings.project,
        regions=settings.regions,
        zones=settings.tpu.zones if settings.tpu else (),
        owner=Ownership(project=PRODUCT, stack=stack),
    )


def _confirm(stack: str, resources: Sequence[StateResource]) -> None:
    """Ask a person. Raises CommandRefusedError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise CommandRefusedError(f"Stack {stack} has {len(resources)} resources and stdin is no terminal; pass --yes.")
    for resource in resources[:SHOWN_RESOURCES]:
        print(f"  {resource.type}  {resource.id}", file=sys.stderr)
    print(f"Destroy these {len(resources)} resources of stack {stack}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise CommandRefusedError("Nothing was destroyed; type yes, or pass --yes.")


def _is_simulated() -> bool:
    return "LOCALCLOUD_URL" in os.environ


def _show(report: TeardownReport) -> None:
    from scripts.cli.tables import console, table
    from scripts.cloud.inventory import KINDS

    stack, where = report.stack, " (local cloud, simulated)" if _is_simulated() else ""
    if report.clean:
        kinds = len({kind.kind for kind in KINDS})
        print(
            f"teardown: {stack}: {len(report.before)} resources destroyed in {report.elapsed_s:.0f} s. The state is empty, and "
            f"a search of {kinds} kinds of resources found nothing with its labels{where}."
        )
        return
    shown = table(f"Left of stack {stack}{where}", ("kind", "name", "command that deletes it"))
    for resource in report.after:
        shown.add_row("in the state", resource.id or resource.urn, f"pulumi destroy --stack {stack}")
    for found in report.left:
        shown.add_row(found.kind, found.name, found.command)
    console(sys.stdout).print(shown)


COMMAND: Final = Command(
    name="teardown",
    help=__doc__,
    options=TeardownOptions,
    run=_teardown,
    after_interrupt="The state holds what is left; run it again to continue.",
)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND))
