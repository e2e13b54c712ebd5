"""docs/grow.md: each figure of a table is printed by the command above it."""

import re
import shlex
from pathlib import Path

import pytest

from gemma_serving.scripts.gemma.__main__ import main

PAGE = (Path(__file__).parents[2] / "docs" / "grow.md").read_text()
NUMBER = re.compile(r"(?<![\w-])\d[\d,]*(?:\.\d+)?(?![\w-])")
TABLE = re.compile(r"```sh\n(?P<commands>(?:gemma .*\n)+)```\n\n\|.*\n\| ---.*\n(?P<rows>(?:\|.*\n)+)")


def tables():
    """Yield the commands of each block, and the rows of figures of the table below it."""
    for found in TABLE.finditer(PAGE):
        rows = [row.strip("| ").split(" | ") for row in found["rows"].splitlines()]
        yield found["commands"].splitlines(), rows


@pytest.fixture
def printed(capsys):
    """Return the numbers that a command prints."""

    def numbers(command):
        assert main(shlex.split(command)[1:]) == 0
        return set(NUMBER.findall(capsys.readouterr().out))

    return numbers


def test_each_command_of_the_page_is_above_a_table():
    assert sum(len(commands) for commands, _ in tables()) == len(re.findall(r"^gemma ", PAGE, flags=re.MULTILINE)) == 8


@pytest.mark.parametrize("number", range(4))
def test_the_figures_of_a_table_are_those_of_its_commands(printed, number):
    commands, rows = [*tables()][number]
    answers = [printed(command) for command in commands]
    if len(answers) == 1:
        answers *= len(rows)
    for (_, *figures), answer in zip(rows, answers, strict=True):
        assert [figure for figure in figures if figure not in answer] == []


def test_figures_in_prose_are_printed_too(capsys):
    assert main(["plan", "l4-12b-qat", "--workload", "in=700,out=300,users=16"]) == 0
    shown = capsys.readouterr().out
    (start,) = re.findall(r"planned start-up, (\d+ min \d+ s) for this stack", PAGE)
    (limit,) = re.findall(r"`(Limit per instance: [^`]+)`", PAGE)
    assert [text for text in (start, limit) if text not in " ".join(shown.split())] == []


def test_columns_in_code_are_those_of_the_command(capsys):
    (command,) = re.findall(r"^gemma (plan --solve .*)$", PAGE, flags=re.MULTILINE)
    assert main(shlex.split(command)) == 0
    heading = capsys.readouterr().out.splitlines()[1]
    (columns,) = re.findall(r"^\| model on \|.*$", PAGE, flags=re.MULTILINE)
    named = re.findall(r"`([^`]+)`", columns)
    assert named
    assert [name for name in named if name not in [column.strip() for column in heading.split("┃")]] == []
