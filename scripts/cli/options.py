"""Command-line options as frozen dataclasses: the load tester's framework with this project's words (docs/decisions/0012)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final

from contracts.spelling import did_you_mean
from loadtest import command_line
from loadtest.command_line import (
    DescribedOption,
    JsonSwitch,
    Option,
    OptionField,
    add_options,
    described_options,
    option_fields,
    positional_names,
    read_options,
)

__all__ = [
    "DescribedOption",
    "JsonSwitch",
    "Option",
    "OptionField",
    "Parser",
    "StackName",
    "add_options",
    "described_options",
    "option_fields",
    "positional_names",
    "read_options",
]
StackName = Annotated[str, Option("Name of the stack.", metavar="NAME")]
_SYNONYMS: Final[Mapping[str, str]] = {
    "--tail": "--lines", "-n": "--lines", "-f": "--follow", "-y": "--yes", "--users": "--workload", "--cost": "--costs",
}  # fmt: skip


class Parser(command_line.Parser):
    """The parser of a command."""

    hint: Callable[[str, Iterable[str]], str] = staticmethod(did_you_mean)
    synonyms: Mapping[str, str] = _SYNONYMS
