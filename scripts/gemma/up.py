"""Preview a stack, confirm the effect and the cost, and deploy it.

  gemma up tpu-v6e1
  gemma up tpu-v6e1 --yes

Before anything changes it states what happens to the server, how long that takes and what it costs. While the engine works it shows
two lines, at any width of the terminal. `pulumi up --stack NAME` deploys the same.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from engine import runner
from engine.changes import ResourceChange, changes_of
from engine.events import EventLog
from engine.previewed import diagnostics, previewed
from engine.private_folders import private_folder
from engine.update import UpdateResult, update
from scripts.cli.command import Command, say
from scripts.cli.options import Option
from scripts.cli.prompts import confirm
from scripts.gemma.progress import TwoLines, for_line
from scripts.gemma.stacks import listed
from scripts.preview.face import deployed_usd_per_hour, headline, planned

_OPERATIONS: Final[Mapping[str, str]] = {
    "create": "create", "update": "update", "replace": "replace", "delete": "delete", "read": "read",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """Options of the command."""

    stack: Annotated[str, Option("Name of the stack.", metavar="NAME")]
    yes: Annotated[bool, Option("Deploy without a question.")] = False
    refresh: Annotated[bool, Option("Compare the state with Google first.")] = False


def _up(options: UpOptions) -> ExitCode:

    _require_stack(options.stack)
    refresh = ["--refresh"] if options.refresh else []
    _say(f"previewing stack {options.stack}")
    document = previewed(options.stack, *refresh)
    changes, unchanged, warnings = changes_of(document)
    for line in (*_program_lines(diagnostics(document, "info")), *warnings):
        print(line)
    if not changes:
        print(f"{options.stack}: no changes; {unchanged} resources are up to date.")
        return ExitCode.DONE
    print("\n".join(effect(options.stack, changes)))
    if not options.yes:
        confirm(
            f"Deploy stack {options.stack}?",
            without_terminal=f"Deploying stack {options.stack} changes resources, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Nothing was changed.",
        )
    return _deploy(options.stack, refresh, steps=len(changes))


def _require_stack(stack: str) -> None:
    """Raise CommandRefusedError if the stack has no settings, or if the backend does not know it."""
    runner.require_stacks([stack])
    if stack not in {one.name for one in listed()}:
        raise CommandRefusedError(f"Stack {stack} has settings but no state. Run `pulumi stack init {stack}`.")


def effect(stack: str, changes: Sequence[ResourceChange]) -> Sequence[str]:
    """Return what a deployment does to the server, in counts and in dollars: the words of the comment on a pull request."""
    counts = Counter(change.op for change in changes)
    counted = ", ".join(f"{counts[op]} to {word}" for op, word in _OPERATIONS.items() if counts[op])
    described = planned(stack)
    lines = [f"{headline(stack, changes)}.", *described.sentences(changes), f"Resources: {counted}."]
    before = deployed_usd_per_hour(stack)
    now = f", now ${before:.2f}/h" if before is not None and abs(before - described.usd_per_hour) >= 0.005 else ""  # noqa: PLR2004 - half a cent
    return [*lines, f"Cost: ${described.usd_per_hour:.2f}/h maximum{now}."]


def _deploy(stack: str, options: Sequence[str], *, steps: int) -> ExitCode:

    with private_folder() as folder, TwoLines() as lines:
        log = EventLog(path=folder / "events", plain=for_line, steps=steps)

        def watch() -> None:
            for progress in log.fresh():
                lines.note(progress)
            lines.draw()

        result = update(stack, *options, log=log.path, watch=watch)
        elapsed_s = lines.elapsed_s
    return _report(stack, result, elapsed_s)


def _report(stack: str, result: UpdateResult, elapsed_s: float) -> ExitCode:

    if result.exit_code == 0:
        print(f"up: {stack} deployed in {elapsed_s:.0f} s.")
        print(f"Next: gemma smoke {stack}, gemma chat {stack}, gemma status {stack}.")
        return ExitCode.DONE
    reason = runner.first_error(result.output, result.exit_code).rstrip(".")
    raise ScriptError(
        f"Stack {stack} was not deployed completely: {reason}. What was created is in the state: fix the cause and run "
        f"`gemma up {stack}` again.{runner.recover_hint(stack, result.output)}"
    )


def _program_lines(messages: Sequence[str]) -> Sequence[str]:
    return [line for message in messages for line in message.strip().splitlines() if line.strip()]


def _say(text: str) -> None:
    say("up", text)


COMMAND: Final = Command(
    name="up",
    help=__doc__,
    options=UpOptions,
    run=_up,
    after_interrupt="The engine wrote its state; run `gemma up` again to continue, or `gemma teardown` to delete.",
)
