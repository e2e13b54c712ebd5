"""Run any command of this project by one word.

  gemma                              list the commands by task
  gemma plan tpu-v6e1                the stack is a word
  gemma chat tpu-v6e1 "Say hello."   short for `gemma connect chat`
  gemma smoke                        the stack that is selected, or the only one deployed
  gemma up tpu-v6e4                  preview, confirm, deploy
  gemma completion bash              completion for bash, zsh or fish

`gemma NAME` is `python -m scripts.NAME`; `gemma NAME --help` lists its options.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Final

from contracts.dropped_words import COMMANDS, answer
from contracts.errors import CommandRefusedError, ScriptError
from contracts.exit_codes import ExitCode
from contracts.spelling import did_you_mean
from scripts.cli.command import launched_as, run_command, say, written
from scripts.gemma.arguments import GemmaCall
from scripts.gemma.catalog import ENTRIES, GROUPS, Entry, entry_of
from scripts.gemma.completion import COMPLETE, candidates, script

_COLUMNS: Final = 80
_HELP: Final = frozenset({"-h", "--help", "help"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gemma` with these arguments, by default those of the process, and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _drop_own_path()
    try:
        return written("gemma", lambda: _run(words))
    except ScriptError as error:
        say("gemma", str(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        say("gemma", "interrupted.")
        return int(ExitCode.INTERRUPTED)


def overview() -> str:
    """Return the list of commands by task."""
    width = max(map(len, ENTRIES)) + 4
    lines = ["usage: gemma COMMAND [STACK] [OPTIONS]", ""]
    for title, entries in GROUPS.items():
        lines += [f"{title}:"]
        for entry in entries:
            lines += wrap(f"{f'  {entry.name}':<{width}}{entry.line()}", _COLUMNS, subsequent_indent=" " * width)
        lines += [""]
    lines += [
        "`gemma COMMAND --help` lists the options.",
        "`gemma completion bash` prints the completion for bash, zsh or fish.",
    ]
    return "\n".join(lines) + "\n"


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in _HELP:
        print(overview(), end="")
        return int(ExitCode.DONE)
    word, rest = words[0], words[1:]
    if word == "completion":
        print(script(rest), end="")
        return int(ExitCode.DONE)
    if word == COMPLETE:
        print("\n".join(candidates(rest)))
        return int(ExitCode.DONE)
    for old in (word, " ".join(words[:2])):
        if instead := answer(COMMANDS, old):
            raise CommandRefusedError(f"`gemma {old}` does not exist since 0.4.0. {instead}")
    entry = entry_of(word)
    if entry is None:
        raise CommandRefusedError(
            f"{word} is not a command.{did_you_mean(word, [*ENTRIES, 'completion'])} Run `gemma` to list the commands."
        )
    return _start(entry, rest)


def _start(entry: Entry, rest: Sequence[str]) -> int:
    """Run a command with the stack as an option."""
    from scripts.gemma.stacks import default_stack, require_known

    def default() -> str:
        stack, why = default_stack(entry.name)
        say("gemma", f"stack {stack} ({why})")
        return stack

    whole = entry.whole()
    lead, call = GemmaCall(name=entry.name, command=whole, words=rest).split(entry.subcommand)
    arguments = [*lead, *call.with_stack(default, require_known)]
    main_of = getattr(import_module(entry.imported_from), "main", None)
    with launched_as("gemma "):
        return main_of(arguments) if main_of else run_command(whole, arguments)


def _drop_own_path() -> None:
    """Remove the launcher's entry from PYTHONPATH: programs that a command starts do not inherit it."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.pop("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


if __name__ == "__main__":
    sys.exit(main())
