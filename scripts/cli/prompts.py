"""Prompt the user before a change."""

import sys

from contracts.errors import CommandRefusedError


def confirm(question: str, *, without_terminal: str, declined: str) -> None:
    """Prompt on stderr and return if the answer is yes.

    Raises CommandRefusedError: with `without_terminal` if stdin is not a terminal, with `declined` for any other answer.
    """
    if not sys.stdin.isatty():
        raise CommandRefusedError(without_terminal)
    print(f"{question} Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise CommandRefusedError(declined)
