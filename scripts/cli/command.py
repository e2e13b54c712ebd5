"""Run a command: read its options, do its work, and end with one sentence and an exit code.

A command's module imports at its top only what is light, and its work when the options are read: `--help` and mistakes answer at
once, and Ctrl-C ends a command with one sentence from its beginning.
"""

import argparse
import inspect
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from contracts.errors import ScriptError
from contracts.exit_codes import ExitCode
from contracts.plain_text import for_terminal
from engine.children import interruptible
from planning.errors import PlanningError
from scripts.cli.options import Parser, add_options, positional_names, read_options

T = TypeVar("T")

_LAUNCHER: ContextVar[str] = ContextVar("launcher", default="")
_ENDINGS = "exit codes:\n" + "\n".join(f"  {int(code):<4} {code.meaning}" for code in ExitCode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[T]):
    """One command, or one subcommand."""

    name: str
    help: str | None
    """What it does; the first line stands in the list of subcommands. Usually a docstring."""
    options: type[T]
    run: Callable[[T], ExitCode] | None
    """Does the work. None where a subcommand is required."""
    after_interrupt: str = ""
    """What to know after Ctrl-C, a sentence."""
    subcommands: "tuple[Command[Any], ...]" = ()
    room: str = "scripts"
    """Package that it is run from: `python -m scripts.NAME`."""

    @property
    def program(self) -> str:
        """How it is called."""
        return f"{_LAUNCHER.get()}{self.name}" if _LAUNCHER.get() else f"python -m {self.room}.{self.name}"


@contextmanager
def launched_as(prefix: str) -> Generator[None]:
    """Show commands with this prefix instead of `python -m PACKAGE.`, such as `gemma `."""
    token = _LAUNCHER.set(prefix)
    try:
        yield
    finally:
        _LAUNCHER.reset(token)


def run_command(command: Command[Any], arguments: Sequence[str] | None = None) -> int:
    """Run a command with these arguments, by default those of the process, and return its exit code. Errors become one sentence on stderr."""
    chosen = command
    try:
        with interruptible():
            chosen, options = _read(command, arguments)
            assert chosen.run is not None  # noqa: S101 - argparse requires a subcommand where there is none
            return int(chosen.run(options))
    except (ScriptError, PlanningError) as error:
        code = error.exit_code if isinstance(error, ScriptError) else ExitCode.REFUSED
        say(command.name, str(error))
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        say(command.name, f"interrupted. {chosen.after_interrupt}".strip())
    return int(code)


def say(name: str, text: str) -> None:
    """Print one line of a command's progress, or its last sentence, on stderr. What others wrote in it cannot steer the terminal."""
    print(f"{name}: {for_terminal(text)}", file=sys.stderr, flush=True)


def _read(command: Command[Any], arguments: Sequence[str] | None) -> tuple[Command[Any], Any]:
    parser = _parser(command, command.program)
    parsed = parser.parse_args(arguments)
    chosen = next((sub for sub in command.subcommands if sub.name == getattr(parsed, "subcommand", None)), command)
    return chosen, read_options(chosen.options, parsed)


def _parser(command: Command[Any], program: str) -> Parser:
    commands = " [COMMAND]" if command.run else " COMMAND"
    parser = Parser(**_words(command, f"{program}{commands if command.subcommands else ''}"))
    add_options(parser, command.options)
    if command.subcommands:
        group = parser.add_subparsers(
            dest="subcommand", metavar="COMMAND", title="commands", required=command.run is None
        )
        for sub in command.subcommands:
            line = (sub.help or "").partition("\n")[0]
            add_options(group.add_parser(sub.name, help=line, **_words(sub, f"{program} {sub.name}")), sub.options)
    return parser


def _words(command: Command[Any], program: str) -> dict[str, Any]:
    return {
        "usage": " ".join([program, *positional_names(command.options), "[OPTIONS]"]),
        "description": inspect.cleandoc(command.help or ""),
        "epilog": _ENDINGS,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }
