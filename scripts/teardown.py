"""`python -m scripts.teardown --stack NAME`: destroy a stack, then prove that nothing with its labels is left."""

import json
import os
import subprocess
import sys
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from scripts.cloud import google_api, inventory
from scripts.errors import DONE, FAILED, INTERRUPTED, REFUSED, ScriptError
from scripts.pulumi import engine
from scripts.pulumi.stack import StateResource, stack_resources
from stacks.loading import SettingsError, from_file

PULUMI_PROJECT = "gemma-serving"
_SHOWN_LINES = 40

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
_console = Console(stderr=True, highlight=False, soft_wrap=True)


@app.command()
def main(
    stack: Annotated[str, typer.Option(help="The stack to take down.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Destroy a stack and prove that nothing of it is left. Exit code 0 nothing left, 1 something left or unknown, 2 refused, 130 interrupted."""
    started_s = time.monotonic()
    try:
        scope = _scope(stack)
        before = stack_resources(stack)
        if before and not yes:
            _confirm(stack, before)
        if before:
            _destroy(stack)
        after = stack_resources(stack)
        left = list(inventory.search(google_api.connect(), scope))
    except ScriptError as error:
        _console.print(f"teardown: {error}", markup=False)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        _console.print("teardown: interrupted; what is left stands in the state, run it again to go on", markup=False)
        raise typer.Exit(INTERRUPTED) from None
    elapsed_s = time.monotonic() - started_s
    if as_json:
        print(json.dumps(_report(stack, before, after, left, elapsed_s)))
    else:
        _show(stack, before, after, left, elapsed_s)
    raise typer.Exit(FAILED if after or left else DONE)


def _scope(stack: str) -> inventory.Scope:
    """Take the places to search from the stack's settings: they name every zone that may have been tried, not only the last one."""
    try:
        settings = from_file(engine.project_folder() / f"Pulumi.{stack}.yaml")
    except SettingsError as error:
        raise ScriptError(str(error), exit_code=REFUSED) from None
    return inventory.Scope(
        project=settings.project,
        regions=settings.regions,
        zones=settings.tpu.zones if settings.tpu else (),
        pulumi_project=PULUMI_PROJECT,
        stack=stack,
    )


def _confirm(stack: str, resources: tuple[StateResource, ...]) -> None:
    """Ask a person; raises ScriptError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise ScriptError(
            f"Stack {stack} holds {len(resources)} resources and there is nobody to ask; pass --yes.", exit_code=REFUSED
        )
    for resource in resources[:_SHOWN_LINES]:
        _console.print(f"  {resource.type}  {resource.id}", markup=False)
    answer = str(
        typer.prompt(f"Destroy these {len(resources)} resources of stack {stack}? Type yes", default="no", err=True)
    )
    if answer != "yes":
        raise ScriptError("Nothing was destroyed; type yes, or pass --yes.", exit_code=REFUSED)


def _destroy(stack: str) -> None:
    """Run `pulumi destroy`; its progress goes to stderr. Raises ScriptError when it fails: the state then still holds what is left."""
    command = [engine.pulumi(), "destroy", "--yes", "--non-interactive", "--skip-preview", "--stack", stack]
    process = subprocess.Popen(
        command, cwd=engine.project_folder(), env=engine.environment(), stdout=sys.stderr, stdin=subprocess.DEVNULL
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.wait()  # the engine has had the same signal and writes its state before it ends
        raise
    if code != 0:
        raise ScriptError(
            f"`pulumi destroy --stack {stack}` ended with exit code {code}; what is left stands in the state, see above, then run teardown again."
        )


def _report(
    stack: str,
    before: tuple[StateResource, ...],
    after: tuple[StateResource, ...],
    left: list[inventory.Found],
    elapsed_s: float,
) -> dict[str, object]:
    return {
        "stack": stack,
        "destroyed": len(before) - len(after),
        "state": [{"type": resource.type, "id": resource.id} for resource in after],
        "left": [{"kind": found.kind, "name": found.name, "command": found.command} for found in left],
        "clean": not after and not left,
        "simulated": "LOCALCLOUD_URL" in os.environ,
        "elapsed_s": round(elapsed_s, 1),
    }


def _show(
    stack: str,
    before: tuple[StateResource, ...],
    after: tuple[StateResource, ...],
    left: list[inventory.Found],
    elapsed_s: float,
) -> None:
    where = " (on the local cloud, simulated)" if "LOCALCLOUD_URL" in os.environ else ""
    if not after and not left:
        searched = len({kind.kind for kind in inventory.KINDS})
        print(
            f"teardown: {stack}: {len(before)} resources destroyed in {elapsed_s:.0f} s; the state is empty and a search of "
            f"{searched} kinds of resources found nothing with its labels{where}"
        )
        return
    table = Table(title=f"Left of stack {stack}{where}", title_justify="left")
    for heading in ("kind", "name", "delete it by hand with"):
        table.add_column(heading, overflow="fold")
    for resource in after:
        table.add_row("in the state", resource.id or resource.urn, f"pulumi destroy --stack {stack}")
    for found in left:
        table.add_row(found.kind, found.name, found.command)
    Console().print(table)


if __name__ == "__main__":
    app()
