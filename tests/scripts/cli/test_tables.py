"""Tables look alike in every command, and nothing is folded where no terminal reads."""

import ast
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.cli.tables import console, table

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
