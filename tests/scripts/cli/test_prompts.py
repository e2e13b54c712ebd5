"""A question before a change: what counts as yes, what is asked again, and what was typed too early."""

import os
import sys
from pathlib import Path

import pytest

from tests.engine.terminal import Terminal

ROOT = Path(__file__).parents[3]
PROGRAM = (
    "import sys, time\n"
    "from gemma_serving.contracts.errors import CommandRefusedError\n"
    "from gemma_serving.scripts.cli.prompts import confirm\n"
    "print('working', flush=True)\n"
    "time.sleep(float(sys.argv[1]))\n"
    "try: confirm('Go?', without_terminal='no terminal', declined='declined')\n"
    "except CommandRefusedError as error: sys.exit(f'{error}')\n"
    "print('went')\n"
)


@pytest.fixture
def asked():
    """Start a program that asks after some seconds, in a terminal."""
    opened = []

    def start(after_s):
        command = [sys.executable, "-c", PROGRAM, str(after_s)]
        opened.append(Terminal(command, columns=80, lines=24, folder=ROOT, environment=os.environ))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def questions(terminal):
    return terminal.text.count("Go? (yes/no)")


@pytest.mark.parametrize("answer", ["yes", "y", "Y", " YES "])
def test_yes_and_y_are_yes_in_any_case(asked, answer):
    terminal = asked(0)
    terminal.until(questions, "the question")
    assert terminal.type(f"{answer}\n") == 0
    assert "went" in terminal.text


@pytest.mark.parametrize("answer", ["no\n", "N\n", "\x04"])
def test_no_ends_it_at_once(asked, answer):
    terminal = asked(0)
    terminal.until(questions, "the question")
    assert terminal.type(answer) == 1
    assert (questions(terminal), "declined" in terminal.text, "went" in terminal.text) == (1, True, False)
