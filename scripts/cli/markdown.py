"""Escape untrusted text for a Markdown comment, so it never becomes markup, a mention, a link or HTML."""

import re
from collections.abc import Iterable, Sequence

_MARKUP = {ord(one): f"&#{ord(one)};" for one in "@|*_`[]~#\\"} | str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
)
_LINKED = re.compile(r"://|\bwww\.|\bGH-\d|:[a-z+-][\w+-]*:|\b[0-9a-f]{7,40}\b", re.IGNORECASE)
"""What GitHub turns into a link or an icon without markup: an address, an issue, an emoji, a commit. In code it does not."""
_AROUND = "\"'().,;!?"


def plain(text: str) -> str:
    """Return text that Markdown shows literally, on one line."""
    return _escaped(" ".join(text.split()))


def _escaped(line: str) -> str:
    return " ".join(_word(word) for word in line.split(" "))


def _word(word: str) -> str:
    """Return a word, as code if GitHub would link it, without the punctuation around it: a reader pastes what is in the code."""
    stripped = (word.strip(_AROUND + ":"), word.strip(_AROUND))  # an emoji has colons of its own
    linked = next((one for one in stripped if _LINKED.search(one)), None)
    if linked is None:
        return word.translate(_MARKUP)
    before, _, after = word.partition(linked)
    return f"{before.translate(_MARKUP)}{code(linked)}{after.translate(_MARKUP)}"


def prose(text: str) -> str:
    """Return text like `plain`, with the parts in backticks as code."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without its pair
        return plain(text)
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def code(text: str) -> str:
    """Return text as code on one line, even within a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ""


def fenced(text: str, language: str = "text") -> Sequence[str]:
    """Return the lines of a code block that no line of the text can close."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return (f"{fence}{language}", *text.strip().splitlines(), fence)


def row(cells: Iterable[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(cells)} |"


def stack_names(stacks: Iterable[str]) -> str:
    """Return the names of stacks as code, with commas."""
    return ", ".join(code(stack) for stack in stacks)
