"""Lines for a terminal, wrapped at blanks only. Without rich, which takes long to load."""

import os
import re
import stat
import sys
from collections.abc import Sequence
from typing import Final, TextIO

GLUE: Final = "\ue000"
"""Stands for a blank at which no line ends. A text from outside that has it shows a blank."""
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|[KMGT]?i?B|GiB/s|tok/s|tokens(?:/s)?|chips?|%)(?![\w-]))")
_COMMAND: Final = re.compile(r"`[^`\n]+`")


def keep_units_together(text: str) -> str:
    """Return a text in which a number with its unit, and a command, are one word."""
    return _COMMAND.sub(lambda found: found[0].replace(" ", GLUE), _UNIT.sub(GLUE, text))


def wrapped(text: str, width: int, indent: str = "") -> Sequence[str]:
    """Return the lines of a text. Text from `keep_units_together`, and a word that is longer than a line, stays whole."""
    import textwrap  # noqa: PLC0415 - 1 ms, and only text for a person is wrapped

    lines = textwrap.wrap(
        keep_units_together(text),
        width,
        subsequent_indent=indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(GLUE, " ") for line in lines]


def for_stream(text: str, stream: TextIO) -> str:
    """Return a text as a stream shows it: on a terminal, each line wrapped and indented as its start."""
    if not stream.isatty():
        return text
    import shutil  # noqa: PLC0415 - 4 ms, and only a terminal has a width

    columns = shutil.get_terminal_size().columns
    return "\n".join(
        "\n".join(wrapped(line, columns, " " * (len(line) - len(line.lstrip())))) for line in text.split("\n")
    )


def piped_columns(stream: TextIO) -> int | None:
    """Return the columns of the terminal behind a pipe: stderr's, else COLUMNS; None if unknown."""
    named = os.environ.get("COLUMNS", "")
    columns = int(named) if named.isdecimal() and int(named) > 0 else None
    try:
        if not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            return None
        return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else columns
    except (OSError, ValueError):  # no descriptor
        return None
