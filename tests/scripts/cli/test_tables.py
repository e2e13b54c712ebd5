"""Tables look alike in every command, and nothing is folded where no terminal reads."""

import ast
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from scripts.cli.tables import FittedTable, console, paragraph, table

ROOT = Path(__file__).parents[3]
WORDS = " ".join(["word"] * 60)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(stream):
    shown = table("A table", ("name", "found", "note"), whole=("name",))
    shown.add_row("first", WORDS, WORDS)
    shown.add_row("second", WORDS, "")
    console(stream).print(shown)
    console(stream).print(WORDS)
    return stream.getvalue().splitlines()


def test_each_row_is_one_line_where_no_terminal_reads(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(io.StringIO())
    assert len(lines) == 6
    assert [sum(line.count(WORDS) for line in lines)] == [4]


def test_a_terminal_has_its_own_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    lines = printed(Terminal())
    assert len(lines) > 6
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 80


WIDTHS = (60, 80, 100, 120, 200)
ROWS = (
    ("google/gemma-4-12B-it-qat-w4a16-ct", "L4", "1.05", "986", "4,742,113", "cheapest, memory, some words about it"),
    ("google/gemma-4-31B-it", "RTX PRO 6000", "3.19", "27", "2,113,280", ""),
)
HEADINGS = ("model", "on", "$/h", "tok/s", "KV tokens", "note")


def rendered(monkeypatch, width, **options):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    shown, stream = table("Deployments", HEADINGS, numbers=HEADINGS[2:5], **options), Terminal()
    for row in ROWS:
        shown.add_row(*row)
    console(stream).print(shown)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def missing(text):
    """Return the words and numbers of the rows that a text lacks and does not name as left out."""
    left_out = re.search(r"Not shown at \d+ columns: (.*)\. A wider", " ".join(text.split()))
    names = left_out[1].split(", ") if left_out else []
    words = set(re.split(r"[\s│]+", text))
    return [
        word
        for row in ROWS
        for heading, cell in zip(HEADINGS, row, strict=True)
        if heading not in names
        for word in cell.split()
        if word not in words
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("least", [(), ("note",), ("note", "KV tokens", "tok/s")])
@pytest.mark.parametrize("whole", [(), ("model",), ("model", "on", "note")])
def test_no_digit_and_no_name_is_cropped_at_any_width(monkeypatch, width, least, whole):
    text = rendered(monkeypatch, width, least=least, whole=whole)
    assert missing(text) == []
    assert max(map(len, text.splitlines())) <= width


def test_the_check_sees_a_table_that_crops(monkeypatch):
    monkeypatch.setattr(FittedTable, "_fits", lambda *_: True)
    assert missing(rendered(monkeypatch, 60, whole=HEADINGS)) != []


def test_a_narrow_terminal_loses_the_least_important_columns_first_and_says_so(monkeypatch):
    assert "Not shown" not in rendered(monkeypatch, 200, least=("note", "KV tokens"))
    text = rendered(monkeypatch, 80, least=("note", "KV tokens"))
    assert "Not shown at 80 columns: note. A wider terminal or --json shows them." in text
    assert "986" in text


def test_a_terminal_too_narrow_for_any_table_gets_a_block_for_each_row(monkeypatch):
    lines = rendered(monkeypatch, 40).splitlines()
    assert "google/gemma-4-12B-it-qat-w4a16-ct" in lines
    assert "  on: L4   $/h: 1.05   tok/s: 986" in lines


def test_a_heading_wraps_before_a_column_is_left_out(monkeypatch):
    headings = ("model", "tokens per second", "USD per million tokens")
    monkeypatch.setenv("COLUMNS", "40")
    stream, shown = Terminal(), table("t", headings, whole=headings[:1], numbers=headings[1:], least=headings[1:2])
    shown.add_row("google/gemma-4-E2B-it", "986", "0.145")
    console(stream).print(shown)
    assert "Not shown" not in stream.getvalue()
    assert "986 │" in re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def test_short_text_wraps_and_its_lines_keep_their_indent(monkeypatch):
    monkeypatch.setenv("COLUMNS", "29")
    monkeypatch.setenv("NO_COLOR", "1")
    stream, shown = Terminal(), table("t", ("on", "n"), numbers=("n",))
    shown.add_row("L4x2\n  TP 2, bound", "1,234,567,890,123")
    console(stream).print(shown)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()
    assert [line.rstrip() for line in lines[-3:]] == ["L4x2      │ 1,234,567,890,123", "  TP 2,   │", "  bound   │"]


class TestParagraph:
    @pytest.fixture
    def lines(self, monkeypatch):
        def printed(text, **options):
            monkeypatch.setenv("COLUMNS", "30")
            stream = Terminal()
            paragraph(console(stream), text, **options)
            return stream.getvalue().splitlines()

        return printed

    def test_it_is_wrapped_at_blanks_beside_its_prefix(self, lines):
        assert lines("one two three four five", prefix="FIT01 warn  ") == [
            "FIT01 warn  one two three four",
            "            five",
        ]

    def test_a_word_that_is_longer_than_a_line_stays_whole(self, lines):
        url = f"https://example.com/{'x' * 40}"
        assert lines(f"See {url} first.") == ["See", url, "first."]

    def test_text_of_others_is_not_read_as_markup_and_keeps_its_lines(self, lines):
        assert lines("[red]x[/red]\n- y") == ["[red]x[/red]", "- y"]

    def test_each_line_keeps_its_styles(self, lines, monkeypatch):
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        shown = lines(Text.assemble("plain words here and then ", ("bold to the end of it", "bold")))
        assert shown[-1].startswith("\x1b[1m")


def test_text_of_others_is_not_read_as_markup(monkeypatch):
    shown, stream = table("t", ("a",)), Terminal()
    shown.add_row("[red]x[/red]")
    console(stream).print(shown)
    assert "[red]x[/red]" in stream.getvalue()


def test_no_command_makes_a_console_of_its_own():
    """A second one would fold its tables at 80 columns of a log."""
    makers = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "scripts").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Console", "get_console"}
    ]
    assert makers == ["scripts/cli/tables.py"]


@pytest.mark.parametrize("words", [("--stack", "tpu-v6e4"), ("--stack", "l4-qat", "--costs")])
def test_a_piped_plan_is_the_same_at_any_width(words):
    def run(columns):
        environment = {**os.environ, "GOOGLE_CLOUD_PROJECT": "my-project", "COLUMNS": columns}
        command = [sys.executable, "-m", "scripts.plan", *words]
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    assert run("40") == run("300")
