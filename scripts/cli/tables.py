"""Tables that crop nothing: titles on the left, no frame, as wide as the terminal. Nothing is folded in a file.

A table that is too wide for its terminal loses its least important columns, in the caller's order, and names them. If that is not
enough, each row becomes a block of lines. A number or a name is never shortened.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Final, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from gemma_serving.contracts.installation import with_pages
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.scripts.cli.lines import GLUE, keep_units_together, piped_columns, wrapped

if TYPE_CHECKING:
    from rich.table import Table

UNFOLDED: Final = 100_000
"""Columns without a terminal: a table is as wide as its text, so each row is one line for grep and awk."""
_BETWEEN: Final = 3
"""Columns of a terminal between two columns of a table: a blank, the line, a blank."""
_NARROWEST: Final = 12
"""Narrower columns of long text are hard to read. Columns of short text keep two thirds of their width."""


def console(stream: TextIO) -> Console:
    """Return a console. A pipe is as wide as the terminal behind it, a file as wide as the text."""
    width = None if stream.isatty() else piped_columns(stream) or UNFOLDED
    return _Console(file=stream, emoji=False, highlight=False, soft_wrap=False, width=width)


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the parts of what is printed, their text as `for_terminal`."""
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=for_terminal(with_pages(part.text)))

    def on_broken_pipe(self) -> None:
        """Exit as a command whose reader has gone."""
        raise BrokenPipeError


def paragraph(out: Console, text: str | Text, *, prefix: str | Text = "") -> None:
    """Print text next to its prefix, wrapped at blanks. A word that is longer than a line stays whole."""
    first = Text(prefix) if isinstance(prefix, str) else prefix
    rest = Text(" " * first.cell_len)
    width = max(out.width - first.cell_len, _NARROWEST)
    for number, line in enumerate(_lines(Text(text) if isinstance(text, str) else text, width)):
        out.print((rest if number else first) + line, soft_wrap=True)


def _lines(text: Text, width: int) -> Iterator[Text]:
    """Yield the lines of a text, wrapped at blanks and indented as their first, with its styles."""
    for given in text.split(allow_blank=True):
        plain = given.plain.replace(GLUE, " ")
        indent, end = _indent_of(plain), 0
        for line in wrapped(plain, width, indent):
            start = plain.index(line.lstrip(), end)
            end = start + len(line.lstrip())
            yield Text(indent) + given[start:end]


@dataclass(slots=True)
class FittedTable:
    """A table that omits columns if it does not fit."""

    title: str
    headings: Sequence[str]
    _: KW_ONLY
    whole: Sequence[str] = ()
    numbers: Sequence[str] = ()
    """Aligned to the right and, as the columns of `whole`, never wrapped. Those in `least` are left out first."""
    least: Sequence[str] = ()
    _rows: list[tuple[list[Text], str]] = field(default_factory=list[tuple[list[Text], str]])

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row; strings are plain text, not markup."""
        self._rows.append(
            ([Text(for_terminal(with_pages(cell))) if isinstance(cell, str) else cell for cell in cells], style)
        )

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the columns that fit, and the names of the others; or a block for each row."""
        width = options.max_width
        left_out = next(
            (self.least[:count] for count in range(len(self.least) + 1) if self._fits(self.least[:count], width)), None
        )
        yield from (Text(line, style="italic") for line in wrapped(self.title, width))
        if left_out is None:
            yield from self._blocks(width)
            return
        yield self._table(left_out, width)
        if left_out:
            names = "; ".join(heading for heading in self.headings if heading in left_out)
            yield Text(f"Not shown at {width} columns: {names}. A wider terminal or --json shows them.", style="dim")

    def _fits(self, left_out: Sequence[str], width: int) -> bool:
        shown = [at for at, heading in enumerate(self.headings) if heading not in left_out]
        return sum(map(self._least_width, shown)) + _BETWEEN * (len(shown) - 1) <= width

    def _least_width(self, at: int) -> int:
        """Return the width that a column needs, so no word of it is cut."""
        heading, cells = self.headings[at], self._cells(at)
        longest = _widest(cells)
        can_wrap = heading not in {*self.whole, *self.numbers}
        needed = max(min((longest * 2 + 2) // 3, _NARROWEST), _width_of_words(cells)) if can_wrap else longest
        return max(needed, _width_of_words([heading]))

    def _cells(self, at: int) -> Sequence[str]:
        return [cells[at].plain for cells, _ in self._rows]

    def _widths(self, shown: Sequence[int], width: int) -> Sequence[int]:
        """Return each column's required width, and of the rest a share in proportion to its wrapped text."""
        least = [self._least_width(at) for at in shown]
        whole = [_widest([self.headings[at], *self._cells(at)]) for at in shown]
        wanted = [longest - needed for longest, needed in zip(whole, least, strict=True)]
        rest = max(min(width - sum(least) - _BETWEEN * (len(shown) - 1), sum(wanted)), 0)
        return [
            needed + (more * rest // sum(wanted) if more else 0) for needed, more in zip(least, wanted, strict=True)
        ]

    def _table(self, left_out: Sequence[str], width: int) -> "Table":
        from rich.table import Table  # noqa: PLC0415 - 4 ms, and a plan without a workload has no table

        made = Table(show_edge=False, pad_edge=False)
        shown = [at for at, heading in enumerate(self.headings) if heading not in left_out]
        widths = dict(zip(shown, self._widths(shown, width), strict=True))
        for at, columns in widths.items():
            heading = self.headings[at]
            made.add_column(
                heading, justify="right" if heading in self.numbers else "left", width=columns, overflow="fold"
            )
        for cells, style in self._rows:
            made.add_row(*(Text("\n").join(_lines(cells[at], columns)) for at, columns in widths.items()), style=style)
        return made

    def _blocks(self, width: int) -> Iterator[Text]:
        for (first, *rest), style in self._rows:
            yield Text("\n").append(first.plain, style=style or "bold")
            named = [
                f"{heading}: {' '.join(cell.plain.split())}"
                for heading, cell in zip(self.headings[1:], rest, strict=True)
                if cell.plain
            ]
            yield from (Text(line) for line in _filled(named, width))


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _width_of_words(texts: Iterable[str]) -> int:
    return _widest(word for text in texts for word in keep_units_together(text).split())


def _indent_of(line: str) -> str:
    return " " * (len(line) - len(line.lstrip()))


def _filled(items: Sequence[str], width: int) -> Iterator[str]:
    """Yield lines with as many items as fit; an item that is longer than a line is wrapped at blanks."""
    line = ""
    for item in items:
        joined = f"{line}   {item}" if line else f"  {item}"
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        *lines, line = wrapped(f"  {item}", width, indent="    ")
        yield from lines
    if line:
        yield line
