"""Options of the former release: accepted, not shown, and the same option."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from contracts.errors import CommandRefusedError
from loadtest import command_line
from loadtest.options import LimitOptions
from scripts.cli.options import Option, Parser, add_options, described_options, read_options


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a command."""

    ready_timeout_s: Annotated[float, Option("Limit.", flag="--ready-timeout", former="--ready-limit", least=0)] = 5.0
    conservative: Annotated[bool, Option("Switch.", former="--sure")] = False


def parsed(*argv):
    parser = Parser()
    add_options(parser, Options)
    return read_options(Options, parser.parse_args(argv))


def test_a_former_name_is_the_same_option():
    assert parsed("--ready-limit", "7", "--sure") == parsed("--ready-timeout", "7", "--conservative")
    assert parsed() == Options()


def test_a_former_name_is_not_shown():
    parser = Parser()
    add_options(parser, Options)
    assert "--ready-limit" not in parser.format_help()
    assert "--sure" not in parser.format_help()
    assert all("--sure" not in option.words for option in described_options(Options))


def test_a_wrong_value_names_the_current_option():
    with pytest.raises(CommandRefusedError, match=r"^--ready-timeout is '-1'"):
        parsed("--ready-limit", "-1")


def test_the_load_tester_accepts_the_former_names():
    parser = command_line.Parser()
    command_line.add_options(parser, LimitOptions)
    former = ("--request-limit", "9", "--stall-limit", "8", "--point-limit", "7", "--honour-retry-after")
    current = ("--request-timeout", "9", "--stall-timeout", "8", "--point-timeout", "7", "--respect-retry-after")
    read = [command_line.read_options(LimitOptions, parser.parse_args(argv)) for argv in (former, current)]
    assert read[0] == read[1] != LimitOptions()
    assert "limit" not in " ".join(word for word in parser.format_help().split() if word.startswith("--"))
