"""Write the pictures of terminals in docs/images: `make pictures`, about a minute.

A stack is deployed on the local cloud, answers and is torn down, in terminals that pyte reads. Nothing is drawn by hand: each picture shows the
rows that stood on the screen; rows above the effect of an update are left out, and counted. A test compares their figures with the stack.
"""

import html
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from pyte.graphics import FG_BG_256

from tests.engine.conftest import Workspace, open_workspace
from tests.engine.terminal import Terminal
from tests.engine.warm import pytest_sessionfinish as stop_warm_programs

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "images"
STACK = "tpu-v6e1"
COLUMNS = 95
"""Columns of the terminals: a picture of them is as wide as a page of text, 830 pixels."""
PLAN_COLUMNS = 80
"""Columns of the picture of a plan: at these it has no gap, and fits a screen."""
TEARDOWN_COLUMNS = 64
"""Columns of the terminal of a teardown, which a phone shows at 0.6 of its size."""
CHAT_COLUMNS = 59
"""Columns of the terminal of a chat, which breaks rows inside words: its rows fit."""
CHAT = ("chat", STACK, "Say exactly: Hello from your own project.")
TEARDOWN = ("teardown", STACK, "--yes")
REFUSED = ("plan", "--model", "google/gemma-4-12B-it", "--accelerator", "L4")
"""A deployment that the plan stops."""
CELL, ROW, MARGIN, BAR = 8.4, 18, 14, 30
"""Width of a character, height of a row, margin and height of the title bar, in pixels at a font size of 14."""

FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
COLOURS = {
    "default": "#d8dee9",
    "black": "#98a2b3",
    "red": "#f0717f",
    "green": "#8fd18b",
    "brown": "#e5c07b",
    "blue": "#7fb4f0",
    "magenta": "#d49be8",
    "cyan": "#6fcfd8",
    "white": "#eceff4",
}
"""Each is readable on the dark ground (contrast of 4.5 or more); the ground is the same on light and dark pages."""

_NAMED = {FG_BG_256[at]: name for at, name in enumerate(tuple(COLOURS)[1:])}
"""The first colours of the palette of 256, which the engine uses, by pyte's names for them."""

_WORDS = re.compile(r"\S+(?: \S+)*")
"""Words with single spaces between them: renderers of SVG fold wider gaps."""

_OWNER = re.compile(r"\S+@\S+ \(process \d+")
_NOBODY = "you@laptop"
_PRIVATE = re.compile(r"(?<![\w.:/-])/\w[\w./-]*|[\w.-]+@(?!sha256:)[\w.-]+")
"""An absolute path, and an account on a machine."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Characters of one style beside each other; `data`, `fg` and `bold` as pyte names them."""

    column: int
    data: str
    fg: str = "default"
    bold: bool = False


Rows = Sequence[Sequence[Run]]


@dataclass(frozen=True, kw_only=True)
class Screen:
    """A command, the rows of its picture, and all words that it printed."""

    command: str
    rows: Rows
    printed: str


def read_rows(terminal: Terminal) -> Rows:
    """Return the rows of a terminal's screen down to the last that is not empty, with their colours."""
    screen = terminal.screen
    rows = []
    for line in range(screen.lines):
        cells = [(column, screen.buffer[line][column]) for column in range(screen.columns)]
        runs = []
        for (colour, bold), group in groupby(cells, key=lambda cell: (cell[1].fg, cell[1].bold)):
            found = list(group)
            text = "".join(cell.data for _, cell in found)
            runs += [
                Run(column=found[0][0] + match.start(), data=match[0], fg=colour, bold=bold)
                for match in _WORDS.finditer(text)
            ]
        rows.append(runs)
    while rows and not rows[-1]:
        rows.pop()
    return [[_without_owner(run) for run in row] for row in rows]


def draw(screens: Sequence[Screen]) -> str:
    """Return an SVG image of a terminal that shows commands, each with its rows."""
    shown = [row for screen in screens for row in (_prompt(screen.command), *screen.rows)]
    command = "; ".join(screen.command for screen in screens)
    printed = " ".join(f"$ {screen.command} {screen.printed}" for screen in screens)
    columns = max(run.column + len(run.data) for row in shown for run in row)
    width, height = round(columns * CELL + 2 * MARGIN), BAR + len(shown) * ROW + MARGIN
    texts = [_text(run, BAR + at * ROW + 14) for at, row in enumerate(shown) for run in row]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
            f"<title>{html.escape(command, quote=False)}</title>",
            f"<desc>{html.escape(printed, quote=False)}</desc>",
            f"<style>text{{font:14px {FONTS}}} .b{{font-weight:bold}} .w{{font-size:11px;fill:#9aa4b5}}</style>",
            f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8" fill="#1e222a" stroke="#7b8494"/>',
            *(f'<circle cx="{MARGIN + 4 + 14 * at}" cy="14" r="4" fill="#4b5363"/>' for at in range(3)),
            f'<text x="{width - MARGIN}" y="18" class="w" text-anchor="end">local cloud, simulated</text>',
            *texts,
            "</svg>\n",
        )
    )


def _prompt(command: str) -> Sequence[Run]:
    return [Run(column=0, data="$", fg="green", bold=True), Run(column=2, data=command, bold=True)]


def words_of(picture: str) -> str:
    """Return the text of a picture, one row a line, with its columns."""
    rows: dict[int, str] = {}
    for x, y, text in re.findall(r'<text x="([\d.]+)" y="(\d+)"[^>]*>([^<]*)</text>', picture):
        column = round((float(x) - MARGIN) / CELL)
        rows[int(y)] = rows.get(int(y), "").ljust(column) + html.unescape(text)
    return "\n".join(rows[y] for y in sorted(rows))


def broken_words(picture: str) -> Sequence[str]:
    """Return the words of a picture that its commands did not print: parts of a word that the end of a row broke."""
    (printed,) = re.findall(r"<desc>([^<]*)<", picture)
    known = {*html.unescape(printed).split(), "...", "rows", "local", "cloud,", "simulated"}
    return [word for word in words_of(picture).split() if word not in known and not word.isdigit()]


def private_words(text: str) -> Sequence[str]:
    """Return what a picture must not show: folders of a machine, and accounts on it."""
    return [found for found in _PRIVATE.findall(text) if found != _NOBODY]


def _without_owner(run: Run) -> Run:
    return Run(column=run.column, data=_OWNER.sub(f"{_NOBODY} (process 4321", run.data), fg=run.fg, bold=run.bold)


def _text(run: Run, y: int) -> str:
    name = _NAMED.get(run.fg, run.fg).removeprefix("bright")
    colour = COLOURS.get(name, COLOURS["default"])
    bold = ' class="b"' if run.bold else ""
    place = f'x="{run.column * CELL + MARGIN:.1f}" y="{y}"'
    width = f'textLength="{len(run.data) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text {place}{bold} fill="{colour}" {width}>{html.escape(run.data, quote=False)}</text>'


def _write(name: str, *screens: Screen) -> None:
    picture, path = draw(screens), FOLDER / name
    if found := [*private_words(words_of(picture)), *broken_words(picture)]:
        raise SystemExit(f"pictures: {name} would show {found[0]!r}; nothing was written.")
    path.write_text(picture, encoding="utf-8")
    print(f"pictures: {name} written.")


def _terminal(workspace: Workspace, columns: int, words: Sequence[object]) -> Terminal:
    folder = workspace.folder / "project"
    return Terminal(words, columns=columns, lines=80, folder=folder, environment=workspace.environment)


def _gemma(workspace: Workspace, *words: str, columns: int = COLUMNS) -> Terminal:
    return _terminal(workspace, columns, (sys.executable, "-m", "scripts.gemma", *words))


def _without_rows(rows: Rows, begin: int, end: int) -> Rows:
    """Return the rows without those from `begin` to before `end`; the gap is counted, at the column of its first row."""
    gap = Run(column=rows[begin][0].column if rows[begin] else 0, data=f"... {end - begin} rows ...", fg="black")
    return [*rows[:begin], [gap], *rows[end:]]


def _places(rows: Rows, words: str) -> Sequence[int]:
    """Return the positions of the rows that start with these words."""
    return [at for at, row in enumerate(rows) if row and row[0].data.startswith(words)]


def _from_row(screen: Screen, words: str) -> Screen:
    """Return the screen without the rows above the last one that starts with these words: the notes of a plan, the rows of the engine."""
    return replace(screen, rows=_without_rows(screen.rows, 0, _places(screen.rows, words)[-1]))


def _shown(workspace: Workspace, *words: str, columns: int = COLUMNS) -> Screen:
    """Return the screen of a command that exits."""
    terminal = _gemma(workspace, *words, columns=columns)
    try:
        if terminal.end() not in {0, 2}:
            raise SystemExit(f"pictures: `gemma {' '.join(words)}` failed:\n{terminal.text}")
        printed = _OWNER.sub(f"{_NOBODY} (process 4321", terminal.printed)
        return Screen(command=f"gemma {shlex.join(words)}", rows=read_rows(terminal), printed=printed)
    finally:
        terminal.close()


def _real_speed(folder: str) -> AbstractContextManager[Workspace]:
    """Return a workspace whose server streams as fast as the planned one."""
    return open_workspace(Path(folder) / "pictures", serving_speed="1")


def main() -> None:
    """Take a stack through its life and write the pictures."""
    with tempfile.TemporaryDirectory() as folder, _real_speed(folder) as workspace:
        _write("plan-refused.svg", _shown(workspace, *REFUSED, columns=PLAN_COLUMNS))
        workspace.pulumi("stack", "init", STACK)
        _write("up-ready.svg", _from_row(_shown(workspace, "up", STACK, "--yes"), "Resources:"))
        _write("status-ready.svg", _shown(workspace, "status", STACK))
        chat = _shown(workspace, *CHAT, columns=CHAT_COLUMNS)
        _write("served.svg", chat, _from_row(_shown(workspace, *TEARDOWN, columns=TEARDOWN_COLUMNS), "teardown:"))


if __name__ == "__main__":
    try:
        main()
    finally:
        stop_warm_programs()
