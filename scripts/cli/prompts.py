"""Prompt the user before a change."""

import contextlib
import sys
import termios
from typing import Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.scripts.cli.command import print_text
from gemma_serving.scripts.cli.lines import for_stream

YES: Final = frozenset({"y", "yes"})
_NO: Final = frozenset({"n", "no"})
_TIMES_ASKED: Final = 2


def confirm(question: str, *, without_terminal: str, declined: str) -> None:
    """Prompt on stderr and return if the answer is yes or y. Earlier input does not count.

    Raises CommandRefusedError: with `without_terminal` if stdin is not a terminal, with `declined` for any other answer.
    """
    is_agreed = agreed(question)
    if not is_agreed:
        raise CommandRefusedError(without_terminal if is_agreed is None else declined)


def agreed(question: str) -> bool | None:
    """Prompt on stderr and return whether the answer is yes or y; None if stdin is not a terminal. Earlier input does not count."""
    if not sys.stdin.isatty():
        return None
    for _ in range(_TIMES_ASKED):
        with contextlib.suppress(termios.error, OSError, ValueError):
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        print_text(for_stream(f"{question} (yes/no)", sys.stderr), sys.stderr, end=" ")
        answer = sys.stdin.readline()
        if answer.strip().lower() in YES:
            return True
        if not answer or answer.strip().lower() in _NO:
            break
    return False


def answered(question: str, default: str, *, without_terminal: str) -> str:
    """Prompt on stderr and return the answer, or the default for an empty one. Raises CommandRefusedError if stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise CommandRefusedError(without_terminal)
    print_text(for_stream(f"{question} [{default}]:", sys.stderr), sys.stderr, end=" ")
    return sys.stdin.readline().strip() or default
