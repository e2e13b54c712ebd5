"""A deployment: preview, effect and cost, the engine with its progress, and the next commands."""

import asyncio
import contextlib
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.progress import Progress, TextColumn, TimeElapsedColumn

from cloud.guard import limits_line
from contracts.answers import Present, Unknown
from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.outputs import StackOutputs
from contracts.plain_text import for_terminal
from engine import runner
from engine.atomic_file import private_folder
from engine.events import VARIABLES, EventLog
from engine.locks import end_dead_locks, is_lock_error, parse_locks
from engine.previewed import diagnostics, previewed
from engine.state import SERVER_TYPES, read, stack_outputs
from engine.steps import ResourceChange, changes_of
from scripts.cli.command import say, tell
from scripts.cli.prompts import confirm
from scripts.cli.settings import stack_settings
from scripts.cli.tables import console
from scripts.preview.face import upcoming
from scripts.status.face import served
from stacks.settings import Settings

_OPERATIONS: Final = ("create", "update", "replace", "delete", "read")
_STARTS: Final = frozenset({"create", "update", "replace"})
_LONGEST_LINE: Final = 300
_GOOGLE_LIMIT_S: Final = 60.0
"""Timeout of Google's answer about the server."""
_NOTES: Final = ("Published vulnerabilities that apply: ", "Notes: ", "Accepted findings: ")
_FINDING: Final = re.compile(r"[A-Z]{3}\d\d: ")


def deploy(stack: str, *, yes: bool, refreshes: bool) -> ExitCode:
    """Preview a stack, confirm, and deploy it. Raises ScriptError."""
    settings = stack_settings(stack)
    serves = served(read(stack), limit_s=_GOOGLE_LIMIT_S)
    # The state of a server that is gone, or that may be, is not what exists.
    refresh = ["--refresh"] if refreshes or serves.word in {"ended", "unknown"} else []
    used = _require_within_limits(settings, stack, serves.word)
    if serves.word == "unknown":
        say("up", serves.why)
    say("up", f"previewing stack {stack}{', comparing every resource with Google' if refresh else ''}")
    with moving("previewing"):
        document = previewed(stack, *refresh)
        changes, unchanged, warnings = changes_of(document)
        if any(change.type in SERVER_TYPES and change.op in _STARTS for change in changes):
            _require_weights(settings, stack)
        sentences, cost = upcoming(stack, document, changes) if changes else ((), "")
    shown = [
        *told(stack, diagnostics(document, "info"), warnings),
        *filter(None, [serves.why if serves.word == "ended" else "", used]),
    ]
    if not changes:
        compared = "are as Google reports them" if refresh else "are up to date"
        tell("\n".join([*shown, f"{stack}: no changes; {unchanged} resources {compared}."]))
        return ExitCode.DONE
    limits = limits_line(settings.limits, settings.project)
    tell("\n".join([*shown, *sentences, counted(changes, unchanged), f"Cost: {cost}", *([limits] if limits else [])]))
    if not yes:
        confirm(
            f"Deploy stack {stack}?",
            without_terminal=f"Deploying stack {stack} changes resources, and stdin is not a terminal. Pass --yes to confirm.",
            declined="Nothing was changed.",
        )
    try:
        done = engine_up(stack, refresh, steps=len(changes))
    except KeyboardInterrupt:
        price = cost.partition(". ")[0].rstrip(".")
        kept = f"interrupted. The created resources stay, including capacity and its request, and cost {price}."
        say("up", f"{kept} Run `gemma up {stack}` again to continue, or `gemma teardown {stack}` to delete it.")
        return ExitCode.INTERRUPTED
    tell("\n".join([done, *next_lines(stack, stack_outputs(stack))]))
    return ExitCode.DONE


def _require_within_limits(settings: Settings, stack: str, word: str) -> str:
    """Return a line if the use of the limits is unknown. Raises CommandRefusedError if nothing runs and a limit is exceeded."""
    from stacks.hooks.run_keeper import stack_keeper  # noqa: PLC0415 - loads Pulumi's SDK

    if word not in {"ended", "unknown"}:
        return ""
    match stack_keeper(settings, stack).past_limits():
        case Present(value=refusal):
            raise CommandRefusedError(refusal)
        case Unknown(why=why):
            return f"Limits: {why}."
        case _:
            return ""


def told(stack: str, messages: Sequence[str], warnings: Sequence[str]) -> Sequence[str]:
    """Return the program's messages: other programs' warnings, one line for all notes, then the plan."""
    findings = [text.partition(":")[0] for text in warnings if _FINDING.match(text)]
    notes = [text.partition(". To ")[0] for text in messages if text.startswith(_NOTES)]
    notes += [f"Warnings: {', '.join(findings)}"] if findings else []
    return [
        *(f"Warning: {line}" for line in _lines([text for text in warnings if not _FINDING.match(text)])),
        *([f"{'; '.join(notes)}. To read them, run `gemma plan {stack} --explain`."] if notes else []),
        *_lines([text for text in messages if not text.startswith(_NOTES)]),
    ]


def _require_weights(settings: Settings, stack: str) -> None:
    from stacks.hooks.staged_weights import staged_weights  # noqa: PLC0415 - loads Pulumi's SDK

    for check in staged_weights(settings, stack):
        fault = asyncio.run(check.fault())
        if fault is not None and fault.blocks:
            raise CommandRefusedError(fault.text)


def counted(changes: Sequence[ResourceChange], unchanged: int) -> str:
    """Return the number of changes by operation."""
    counts = Counter(change.op for change in changes)
    found = [*(f"{counts[op]} to {op}" for op in _OPERATIONS if counts[op]), f"{unchanged} unchanged"]
    return f"Resources: {', '.join(found)}."


def engine_up(stack: str, options: Sequence[str], *, steps: int) -> str:
    """Deploy a previewed stack, and return one sentence with the time that it took. Raises ScriptError."""
    started_s = time.monotonic()
    code, output = _updated(stack, options, steps=steps)
    if code != 0 and is_lock_error(output):
        end_dead_locks(stack, parse_locks(output), report=lambda line: say("up", line))
        code, output = _updated(stack, options, steps=steps)
    if code == 0:
        return f"{stack} deployed in {time.monotonic() - started_s:.0f} s."
    reason = runner.first_error(output, code).rstrip(".")
    hint = runner.recover_hint(stack, output)
    then = "Then run" if hint else "The created resources are in the state: fix the cause and run"
    raise ScriptError(f"{hint}Stack {stack} was not deployed completely: {reason}. {then} `gemma up {stack}` again.")


def _updated(stack: str, options: Sequence[str], *, steps: int) -> tuple[int, str]:
    """Deploy without a preview. Return the engine's exit code and its output."""
    with private_folder() as folder, moving("starting") as show:
        # A message is one line that cannot steer the terminal.
        log = EventLog(path=folder / "events", plain=lambda text: for_terminal(text)[:_LONGEST_LINE], steps=steps)

        def watch() -> None:
            for one in log.fresh():
                step = one.step or "finishing"
                show(step, "" if one.text == step else one.text)

        words = ["up", "--yes", "--skip-preview", "--suppress-outputs", "--event-log", str(log.path), "--stack", stack]
        return runner.attended(*words, *options, variables=VARIABLES, watch=watch)


@contextlib.contextmanager
def moving(step: str) -> Generator[Callable[[str, str], None]]:
    """Show a step and its time until the body ends. Yield a function that shows another step and its detail."""
    is_terminal = sys.stderr.isatty()
    text = TextColumn("{task.description}", markup=False)
    progress = Progress(TimeElapsedColumn(), text, console=console(sys.stderr), transient=True, disable=not is_terminal)
    task = progress.add_task(step, total=None)

    def show(step: str, detail: str) -> None:
        progress.update(task, description=f"{step}\n{detail}".rstrip())
        if not is_terminal:
            print(detail or step, file=sys.stderr, flush=True)

    with progress:
        yield show


def next_lines(stack: str, outputs: StackOutputs) -> Sequence[str]:
    """Return the server's location, and the commands to use it."""
    if outputs.state not in {None, "ACTIVE"}:
        return [
            f"The capacity is {outputs.state}, so nothing serves yet.",
            f"Run `gemma status {stack} --watch` to follow the request.",
        ]
    lines = [f"Endpoint: {outputs.endpoint}" if outputs.tunnel is None else f"Zone: {outputs.location}"]
    if outputs.deadline:
        end = datetime.fromisoformat(outputs.deadline).astimezone(UTC)
        lines.append(f"Google deletes the machine at {end:%Y-%m-%d %H:%M} UTC.")
    return [
        *lines,
        "Next:",
        f'  gemma chat {stack} "Say hello."',
        f"  gemma connect {stack}",
        f"  gemma smoke {stack}",
    ]


def _lines(messages: Sequence[str]) -> Sequence[str]:
    return [line for message in messages for line in message.splitlines() if line.strip()]
