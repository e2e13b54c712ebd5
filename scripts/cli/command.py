"""Run a command: parse its options, do its work, and finish with one sentence and an exit code.

A command's module has only light imports at the top and imports its work after the options are parsed. So `--help` and errors respond
immediately, and Ctrl-C stops a command with one sentence at any time.
"""

import argparse
import errno
import inspect
import json
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import groupby
from textwrap import wrap
from typing import Any, Final, Generic, Literal, TextIO, TypeVar

from gemma_serving.cloud.troubles import TROUBLES
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import with_pages
from gemma_serving.contracts.naming import NamingError
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.engine.children import interruptible
from gemma_serving.planning.errors import PlanningError
from gemma_serving.scripts.cli.command_line import UsageError
from gemma_serving.scripts.cli.lines import for_stream
from gemma_serving.scripts.cli.options import CommandParser, add_options, parted, read_options, usage_words

T = TypeVar("T")

_CALLED: ContextVar[Sequence[str]] = ContextVar("called", default=())
_HAS_OUTPUT: ContextVar[bool] = ContextVar("has_output", default=False)
"""True if the command has printed on stdout."""
_SIGPIPE: Final = 128 + 13  # as shells report a program whose reader has gone
_WIDTH: Final = 80
"""Columns of a help text; the options follow the terminal's width."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
_NO_PLACE: Final = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
"""Errors of a file or folder that cannot be written."""
_LAST_LINE: Final = "Exit codes: docs/reference/commands.md"


def _wrapped(text: str) -> str:
    """Return a description with its paragraphs wrapped. Indented lines stay."""
    lines: list[str] = []
    for is_prose, found in groupby(text.splitlines(), lambda line: bool(line) and not line[0].isspace()):
        group = list(found)
        lines += wrap(" ".join(group), _WIDTH, break_long_words=False, break_on_hyphens=False) if is_prose else group
    return "\n".join(lines)


class Effect(Enum):
    """The largest effect that a command can have."""

    READS = "reads files of this computer"
    ASKS = "queries Google or a server, without changes"
    SENDS = "sends requests to a server, which can start an instance that costs money"
    CHANGES = "creates or changes resources, settings or secrets"
    DELETES = "deletes resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[T]):
    """One command, or one subcommand."""

    name: str
    help: str | None
    """Description, usually a docstring. Its first line appears in the list of subcommands."""
    options: type[T]
    run: Callable[[T], ExitCode] | None
    """Does the work. None if a subcommand is required."""
    after_interrupt: str = ""
    subcommands: "tuple[Command[Any], ...]" = ()
    label: str = ""
    """Name in messages of a subcommand that `gemma` has as a command, such as `chat`. Default: the command's name."""
    exit_codes: Mapping[ExitCode, str] = field(default_factory=dict[ExitCode, str])
    """Meanings that are more exact than those of `ExitCode`, for docs/reference/commands.md."""
    effect: Effect = Effect.ASKS
    needs: Literal["", "settings", "state"] = ""
    """What its stack must have: a settings file, or a state. Without it the command is refused before its work loads."""
    refusals: tuple[type[Exception], ...] = ()
    """Errors of a library that refuse the command, with one sentence."""
    room: str = ""
    """Package of a command that `gemma` does not start: `python -m ROOM.NAME`."""

    @property
    def changes(self) -> bool:
        """True if it changes something: its stack is always named."""
        return self.effect in {Effect.CHANGES, Effect.DELETES}

    @property
    def program(self) -> str:
        """Command line without arguments."""
        return f"python -m {self.room}.{self.name}" if self.room else f"gemma {self.name}"


def chosen_of(command: Command[Any], words: Sequence[str]) -> tuple[Command[Any], Sequence[str]]:
    """Return the command, or the subcommand that its first word by position names, and the other words, options last."""
    positional, rest = parted(words, command.options, *(sub.options for sub in command.subcommands))
    for sub in command.subcommands:
        if sub.name in positional[:1]:
            return sub, [*positional[1:], *rest]
    return command, [*positional, *rest]


def last_command() -> Sequence[str]:
    """Return the words that start the last command again: `gemma NAME STACK ...`."""
    return _CALLED.get()


def run_command(command: Command[Any], arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Errors become one sentence on stderr."""
    return report_failed_writes(command.name, lambda: _exit_code_of(command, arguments))


def report_failed_writes(name: str, work: Callable[[], int]) -> int:
    """Return the exit code of `work`. A failed write, and a path that is too long, become one sentence on stderr.

    The output is flushed here, because the interpreter reports the error without a sentence.
    """
    _HAS_OUTPUT.set(False)
    try:
        code = work()
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            path = str(error.filename)
            sentence = f"{path[:60]}... has {len(path):,} characters, too many for a file. Pass a shorter path."
            print_error(name, sentence, ExitCode.REFUSED, sys.argv)
            return int(ExitCode.REFUSED)
        if error.errno not in _FULL and not isinstance(error, _NO_PLACE):
            raise
        _drop_output()
        fix = "Free space or choose another place" if error.errno in _FULL else "Choose another place"
        print_error(name, f"{not_written(error)} {fix}, then run the command again.", ExitCode.FAILED, sys.argv)
        return int(ExitCode.FAILED)
    return code


def not_written(error: OSError, place: str = "") -> str:
    """Return one sentence for a file, or for the output, that cannot be written."""
    return f"Cannot write {place or error.filename or 'output'}: {error.strerror}."


def _drop_output() -> None:
    """Drop output that stdout does not take, because the interpreter writes it again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_code_of(command: Command[Any], arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    chosen, _ = chosen_of(command, words)
    _CALLED.set((*command.program.split(), *(words[1:] if words[:1] == ["--stack"] else words)))
    try:
        with interruptible():
            chosen, options = _read(command, words)
            assert chosen.run is not None  # noqa: S101 - checked with the options
            TROUBLES.say = partial(print_progress, chosen.label or command.name)
            code = chosen.run(options)
            sys.stdout.flush()
    except (ScriptError, PlanningError, NamingError, UsageError, *chosen.refusals) as error:
        code = error.exit_code if isinstance(error, ScriptError) else ExitCode.REFUSED
        print_error(chosen.label or command.name, without_tokens(str(error)), code, words)
    except BrokenPipeError:
        if not _has_lost_its_reader(sys.stdout):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for buffered text
        return _SIGPIPE
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        print_error(command.name, f"interrupted. {chosen.after_interrupt}".strip(), code, words)
    return int(code)


def print_error(name: str, sentence: str, code: ExitCode, words: Sequence[str]) -> None:
    """Print the last sentence of a command that failed on stderr; with `--json` among its words, also as an object on stdout, unless that has one."""
    print_progress(name, sentence)
    if "--json" in words and not _HAS_OUTPUT.get():
        print_text(json.dumps({"error": sentence, "exit_code": int(code)}))


def _has_lost_its_reader(stream: TextIO) -> bool:
    """Return whether a stream is a pipe whose reader has gone, such as `head`."""
    pipe = select.poll()
    pipe.register(stream.fileno(), 0)
    return any(event & select.POLLERR for _, event in pipe.poll(0))


def without_tokens(text: str) -> str:
    """Return an error about words of the command line without tokens of known forms."""
    from gemma_serving.contracts.masking import MASK, TOKEN_FORM  # noqa: PLC0415 - only an error needs it

    shown = TOKEN_FORM.sub(MASK, text)
    advice = " Revoke this secret, because shells and process lists keep command lines."
    return shown if shown == text else f"{shown}{advice}"


def print_text(text: str, stream: TextIO | None = None, *, end: str = "\n", dim: bool = False) -> None:
    """Print a text on stdout or a stream, as `for_terminal`. What a command prints passes here, or through `tables.console`."""
    target = stream or sys.stdout
    if target is sys.stdout:
        _HAS_OUTPUT.set(True)
    shown = for_terminal(with_pages(text + end))
    if dim and target.isatty():
        shown = f"\033[2m{shown}\033[0m"
    print(shown, end="", file=target, flush=True)  # one write, because threads report too


def print_progress(name: str, text: str) -> None:
    """Print one line of progress, or the last sentence, on stderr."""
    print_text(for_stream(f"{name}: {text}", sys.stderr), sys.stderr)


def print_result(text: str) -> None:
    """Print sentences of the result on stdout, on a terminal wrapped between words."""
    print_text(for_stream(text, sys.stdout))


def _read(command: Command[Any], arguments: Sequence[str]) -> tuple[Command[Any], Any]:
    chosen, words = chosen_of(command, arguments)
    program = chosen.program if chosen is command or chosen.label else f"{command.program} {chosen.name}"
    options = read_options(chosen.options, _parser(chosen, program).parse_args(words))
    stack = getattr(options, "stack", None)
    if isinstance(stack, str) and "/" in stack:
        raise UsageError(f"--stack is {stack!r}; it must be the name alone: {stack.rpartition('/')[2]}.")
    if chosen.run is None:
        raise UsageError("The following arguments are required: COMMAND. See --help.")
    return chosen, options


def is_readable(command: Command[Any], arguments: Sequence[str]) -> bool:
    """Return whether the command has these options, with such values."""
    try:
        _read(command, arguments)
    except UsageError:
        return False
    return True


def _parser(command: Command[Any], program: str) -> CommandParser:
    is_run_by_stack = any(sub.name == "run" for sub in command.subcommands)
    commands = " [COMMAND]" if command.run else " STACK | COMMAND" if is_run_by_stack else " COMMAND"
    parser = CommandParser(**_words(command, f"{program}{commands if command.subcommands else ''}"))
    add_options(parser, command.options)
    parser.subcommand_names = [sub.name for sub in command.subcommands]
    if command.subcommands:
        lines = (f"  {sub.name:<9} {(sub.help or '').partition(chr(10))[0]}" for sub in command.subcommands)
        parser.add_argument_group("commands", "\n".join(lines))
    return parser


def _words(command: Command[Any], program: str) -> dict[str, Any]:
    return {
        "usage": " ".join([program, *usage_words(command.options), "[OPTIONS]"]),
        "description": _wrapped(inspect.cleandoc(command.help or "")),
        "epilog": _LAST_LINE,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
        "allow_abbrev": False,
    }
