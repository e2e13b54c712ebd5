"""Lines for a terminal: its width, and text that is wrapped at blanks only. Without rich, which takes long to load."""

import os
import re
import shutil
import stat
import sys
import textwrap
from collections.abc import Sequence
from typing import Final, TextIO

_GLUE: Final = "\ue000"
"""Stands for a blank at which no line ends. Private use, so no text has it."""
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|[KMGT]?i?B|GiB/s|tok/s|tokens(?:/s)?|chips?|%)(?![\w-]))")
_COMMAND: Final = re.compile(r"`[^`\n]+`")


def glued(text: str) -> str:
    """Return a text in which a number with its unit, and a command, are one word."""
    return _COMMAND.sub(lambda found: found[0].replace(" ", _GLUE), _UNIT.sub(_GLUE, text))


def wrapped(text: str, width: int, indent: str = "") -> Sequence[str]:
    """Return the lines of a text. What is `glued`, and a word that is longer than a line, stays whole."""
    lines = textwrap.wrap(
        glued(text),
        width,
        subsequent_indent=indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


def for_stream(text: str, stream: TextIO) -> str:
    """Return a text as a stream shows it: on a terminal, each line wrapped at its width and as far to the right as it begins."""
    if not stream.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return "\n".join(
        "\n".join(wrapped(line, columns, " " * (len(line) - len(line.lstrip())))) for line in text.split("\n")
    )


class WrappedStream:
    """Text that arrives in parts, such as a model's answer. A terminal gets it by words, and new lines between words only."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`."""
        self._stream, self._is_terminal = stream, stream.isatty()
        self._column, self._blank, self._word = 0, "", ""

    def write(self, text: str) -> None:
        """Write the words that are complete. The rest waits for the next part."""
        if not self._is_terminal:
            print(text, end="", file=self._stream, flush=True)
            return
        for piece in re.findall(r"\s|\S+", text):
            if not piece.isspace():
                self._word += piece
                continue
            self.end()
            if piece == "\n":
                print(file=self._stream)
                self._column, self._blank = 0, ""
            else:
                self._blank += piece

    def end(self) -> None:
        """Write the word that waits."""
        if not self._word:
            return
        width = len(self._blank) + len(self._word)
        if self._column and self._column + width > shutil.get_terminal_size().columns:
            self._column, self._blank, width = 0, "", len(self._word)
            print(file=self._stream)
        print(self._blank + self._word, end="", file=self._stream, flush=True)
        self._column += width
        self._blank = self._word = ""


def piped_columns(stream: TextIO) -> int | None:
    """Return the columns of the terminal behind a pipe: that of stderr, else COLUMNS; None for a file, or if neither is known."""
    named = os.environ.get("COLUMNS", "")
    columns = int(named) if named.isdecimal() and int(named) > 0 else None
    try:
        if not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            return None
        return os.get_terminal_size(sys.stderr.fileno()).columns if sys.stderr.isatty() else columns
    except (OSError, ValueError):  # no descriptor
        return None
