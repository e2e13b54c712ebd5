"""Run any command of this project by one word.

  gemma                              deployed stacks, costs, and the next command
  gemma plan tpu-v6e1                the stack is a word
  gemma chat tpu-v6e1 "Say hello."   one prompt, or a conversation
  gemma smoke                        the stack that is selected, or the only one deployed
  gemma up tpu-v6e4                  preview, confirm, deploy
  gemma completion bash              completion for bash, zsh or fish
  gemma help up                      the help of a command; `gemma help` lists all

`gemma NAME --help` lists the options of a command.
"""

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from itertools import dropwhile
from pathlib import Path
from typing import Final

from gemma_serving import VERSION
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.exit_codes import ExitCode
from gemma_serving.contracts.installation import install_sentence
from gemma_serving.contracts.settings_files import stack_of_file
from gemma_serving.contracts.spelling import did_you_mean, meant
from gemma_serving.scripts.cli.command import (
    print_error,
    print_progress,
    print_text,
    report_failed_writes,
    run_command,
    without_tokens,
)
from gemma_serving.scripts.cli.lines import for_stream
from gemma_serving.scripts.gemma.arguments import call_of, has_settings, stacks_meant, with_stack
from gemma_serving.scripts.gemma.catalog import (
    COMPLETE,
    ENTRIES,
    GROUPS,
    SYNONYMS,
    CommandEntry,
    command_rows,
    entry_of,
)

_HELP: Final = frozenset({"-h", "--help", "help"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `gemma` and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # ascii has no drawings
    try:
        return report_failed_writes("gemma", lambda: _run(words))
    except ScriptError as error:
        print_error("gemma", without_tokens(str(error)), error.exit_code, words)
        return int(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "gemma_serving":
            raise
        print_progress("gemma", f"The package {error.name} is not installed. {install_sentence('deploy')}")
        return int(ExitCode.REFUSED)
    except KeyboardInterrupt:
        print_progress("gemma", "interrupted.")
        return int(ExitCode.INTERRUPTED)


def overview() -> str:
    """Return the list of commands by task."""
    width = max(map(len, ENTRIES)) + 4
    lines = ["usage: gemma COMMAND [STACK] [OPTIONS]", ""]
    for title, entries in GROUPS.items():
        lines += [f"{title}:", *command_rows(entries, width), ""]
    lines.append("`gemma COMMAND --help` lists the options.")
    lines.append("`gemma completion bash` prints the completion for bash, zsh or fish.")
    return "\n".join([*lines, ""])


def _run(words: Sequence[str]) -> int:
    named = [*dropwhile(_HELP.__contains__, words)]
    if len(named) < len(words):
        words = [*named, "--help"]
    word = words[0] if words else ""
    rest = words[1:]
    without_command = {"": _first, "--version": _version, **dict.fromkeys(_HELP, overview)}
    without_command |= {"completion": lambda: _completion(rest), COMPLETE: lambda: _candidates(rest)}
    if word in without_command:
        print_text(without_command[word](), end="")
        return int(ExitCode.DONE)
    entry = entry_of(word)
    if entry is None:
        raise CommandRefusedError(_unknown(word, rest))
    arguments = with_stack(call_of(entry, rest))
    stack = arguments[arguments.index("--stack") + 1 :][:1] if "--stack" in arguments else ()
    if stack and not has_settings(stack[0]) and (refusal := _refusal(entry, stack[0])):
        print_error(entry.name, without_tokens(refusal), ExitCode.REFUSED, arguments)
        return int(ExitCode.REFUSED)
    main_of = getattr(import_module(entry.module), "main", None)
    return main_of(arguments) if main_of else run_command(entry.whole(), arguments)


def _refusal(entry: CommandEntry, stack: str) -> str:
    """Return why a command cannot use a stack without a settings file, before its work loads; empty if it can."""
    from gemma_serving.engine import runner
    from gemma_serving.engine.state import renamed

    named = stack_of_file(stack) or stack.rpartition("/")[2]
    if has_settings(named):
        return f"{stack} is not the name of a stack. Run `gemma {entry.name} {named}`."
    needs = entry.whole().needs
    if not needs or (needs == "state" and stack.rpartition("/")[2] in runner.listed_stacks()):
        return ""
    with suppress(ScriptError):  # the backend is reported by the command that needs it
        if sentence := renamed(stack):
            return sentence
    return runner.no_settings(stack) if needs == "settings" else runner.no_such_stack(stack)


def _completion(words: Sequence[str]) -> str:
    from gemma_serving.scripts.gemma.completion import script

    return script(words)


def _candidates(words: Sequence[str]) -> str:
    from gemma_serving.scripts.gemma.completion import candidates

    return "\n".join([*candidates(words), ""])


def _version() -> str:
    return f"gemma-serving {VERSION}\n"


def _first() -> str:
    from gemma_serving.scripts.gemma.first import first_lines

    lines = first_lines()
    if shutil.which("gemma") is None:
        lines = [*lines, f'`gemma` is not on PATH here. Run `export PATH="{Path(sys.executable).parent}:$PATH"`.']
    return for_stream("\n".join(lines), sys.stdout) + "\n"


def _unknown(word: str, rest: Sequence[str]) -> str:
    known = [*ENTRIES, "completion", "help"]
    synonym = next((SYNONYMS[one] for one in meant(word, [*known, *SYNONYMS]) if one in SYNONYMS), "")
    near = did_you_mean(word, known)
    stacks = [word] if has_settings(word) else [] if synonym or near else stacks_meant(word)
    if stacks:
        command = rest[0] if rest and not rest[0].startswith("-") else "COMMAND"
        instead = f" The command comes first: {' or '.join(f'`gemma {command} {stack}`' for stack in stacks)}."
    elif word.startswith("-"):
        instead = " The command comes first: `gemma COMMAND STACK`."
    elif synonym:
        instead = f" {synonym.replace('STACK', rest[0] if rest and has_settings(rest[0]) else 'STACK')}"
    else:
        instead = f"{near} Run `gemma help` to list the commands."
    return f"{word} is not a command.{instead}"


if __name__ == "__main__":
    sys.exit(main())
