"""Command-line options with this project's words."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final

from gemma_serving.contracts.installation import with_pages
from gemma_serving.contracts.spelling import did_you_mean
from gemma_serving.scripts.cli import command_line
from gemma_serving.scripts.cli.command_line import (
    OPTION_WORD,
    JsonSwitch,
    Option,
    OptionField,
    Rare,
    add_options,
    option_fields,
    positional_names,
    read_options,
)

__all__ = [
    "CheckedProject",
    "CommandParser",
    "JsonSwitch",
    "Option",
    "OptionField",
    "Rare",
    "StackName",
    "add_options",
    "option_fields",
    "parted",
    "parted_at_dashes",
    "project_id",
    "read_options",
    "usage_words",
]
StackName = Annotated[str, Option("Name of the stack.", metavar="STACK")]
_ASKS: Final = "--allow up asks you first, with the price. maxAge and maxUsd in the file of a stack limit its cost."
_SYNONYMS: Final[Mapping[str, str]] = {
    "--tail": "--lines", "-n": "--lines", "-f": "--follow", "-y": "--yes", "--users": "--workload", "--cost": "--costs",
    **dict.fromkeys(("--max-hours", "--max-usd", "--max-usd-per-hour"), _ASKS),
    "--toolsets": "--allow names what an assistant may do; your client can hide tools.",
    "--conservative": "--max-ttft-s and --max-tpot-s limit typical times; set them lower.",
}  # fmt: skip

_PROJECT: Final = re.compile(r"([a-z][a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
"""Source: https://cloud.google.com/resource-manager/docs/creating-managing-projects. Old domain-scoped projects have the domain as a prefix."""


def usage_words(kind: type[object]) -> Sequence[str]:
    """Return the words that follow a command, with the stack as the launcher takes it: `STACK KEY` or `[STACK]`."""
    stack = option_fields(kind).get("stack")
    words = positional_names(kind)
    if stack is None:
        return words
    return ["STACK" if stack.is_required else "[STACK]", *words]


def parted(words: Sequence[str], *kinds: type[object]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words by position, and the rest: options of `kinds` with their values, and everything from `--` on."""
    options = {flag: one for kind in kinds for one in option_fields(kind).values() for flag in one.flags}
    positional: list[str] = []
    rest: list[str] = []
    values = 0.0  # of the next words, unless they are options
    for at, word in enumerate(words):
        if word == "--":
            return positional, [*rest, *words[at:]]
        is_option = bool(OPTION_WORD.match(word))
        if is_option:
            one = options.get(word)
            values = 0 if one is None or one.kind is bool else math.inf if one.option.many else 1
        else:
            values -= 1
        (rest if is_option or values >= 0 else positional).append(word)
    return positional, rest


def parted_at_dashes(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the command line before the first `--`, and the words after it."""
    if "--" not in words:
        return words, ()
    at = list(words).index("--")
    return words[:at], words[at + 1 :]


def project_id(text: str) -> str:
    """Return a Google Cloud project id. Raises ValueError with the allowed form."""
    if not _PROJECT.fullmatch(text):
        raise ValueError("a project id: 6 to 30 of a-z, 0-9 and -, a letter first")
    return text


CheckedProject = Annotated[
    str | None,
    Option(
        "Project to check. Default: gcp:project of the stack, then GOOGLE_CLOUD_PROJECT.",
        metavar="ID",
        parse=project_id,
        person=True,
    ),
]


class CommandParser(command_line.OptionParser):
    """The parser of a command."""

    def format_help(self) -> str:
        """Return the help, with the addresses of its pages."""
        return with_pages(super().format_help())

    hint: Callable[[str, Iterable[str]], str] = staticmethod(did_you_mean)
    synonyms: Mapping[str, str] = _SYNONYMS
