"""Uniform tables: titles on the left, no frame, as wide as the terminal. Lines are not wrapped if the output is not a terminal."""

from collections.abc import Sequence
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table

UNFOLDED: Final = 100_000
"""Columns if the output is not a terminal. A table is as wide as its text, so each row is one line for grep and awk."""


def console(stream: TextIO) -> Console:
    """Return a console that renders text on a stream."""
    return Console(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else UNFOLDED)


def table(title: str, headings: Sequence[str], *, whole: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """Return an empty table. Columns in `whole` and `numbers` are never wrapped; those in `numbers` are right-aligned."""
    made = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    for heading in headings:
        justify = "right" if heading in numbers else "left"
        made.add_column(heading, justify=justify, no_wrap=heading in {*whole, *numbers}, overflow="fold")
    return made
