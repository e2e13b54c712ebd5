"""The report as text at 80 columns: a summary, one entry per cause, and the commands that fix the problems."""

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TextIO

from gemma_serving.cloud.google_session import NO_CONNECTION
from gemma_serving.scripts.doctor.diagnosis import WORDS, Diagnosis

WIDTH: Final = 80
"""Columns if the output is not a terminal."""
_INDENT: Final = max(map(len, WORDS.values())) + 2
_ENABLE: Final = re.compile(r"gcloud services enable (?P<apis>\S+) --project=(?P<project>\S+)")
_QUOTA: Final = re.compile(r"--service=\S+ (?P<quota>--quota-id=\S+)")
_SHARED: Final[Mapping[str, str]] = {
    "API ": "APIs are enabled",
    "permissions of ": "roles: all permissions are granted",
    "policy ": "organization policies allow everything the stack needs",
}
"""Text of several checks that are ok, by the prefix of their names."""


def width_of(stream: TextIO) -> int:
    """Return the columns of a stream."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if stream.isatty() else WIDTH


def report(title: str, lines: Sequence[Diagnosis], *, width: int) -> str:
    """Return the report. Commands are not wrapped so they can be pasted."""
    words = [line.word for line in lines]
    counted = ", ".join(f"{words.count(word)} {word}" for word in ("ok", "missing", "unknown"))
    return "\n\n".join([textwrap.fill(f"{title}: {counted}.", width), report_entries(lines, width=width)])


def report_entries(lines: Sequence[Diagnosis], *, width: int) -> str:
    """Return the entries of a report and the commands, without the summary."""
    words = {line.word for line in lines}
    blocks = ["\n".join(_entries(word, lines, width)) for word in WORDS.values() if word in words]
    fixes = _commands(lines)
    if fixes:
        blocks.append("\n".join(["Fix, in this order:", *(f"  {line}" for fix in fixes for line in fix.splitlines())]))
    return "\n\n".join(blocks)


def _commands(lines: Sequence[Diagnosis]) -> Sequence[str]:
    """Return the commands and changes to make, each once. One command, the first, enables all APIs.

    Of the requests for one quota in several zones only the first is returned: capacity in one zone is enough.
    """
    first: dict[str, str] = {}
    for line in lines:
        if line.word != "ok" and line.fix:
            first.setdefault(_quota_of(line.fix), line.fix)
    fixes = list(first.values())
    enabling = [found for found in map(_ENABLE.fullmatch, fixes) if found]
    if not enabling:
        return fixes
    apis = " ".join(found["apis"] for found in enabling)
    together = f"gcloud services enable {apis} --project={enabling[0]['project']}"
    # First, because a grant needs the API of projects and most checks need some API.
    return [together, *(fix for fix in fixes if not _ENABLE.fullmatch(fix))]


def _quota_of(fix: str) -> str:
    """Return the quota that a command requests, or any other fix itself."""
    found = _QUOTA.search(fix)
    return found["quota"] if found else fix


def _entries(word: str, lines: Sequence[Diagnosis], width: int) -> Iterator[str]:
    """Yield the text of each cause of an answer."""
    causes: dict[str, list[Diagnosis]] = {}
    for line in lines:
        if line.word == word:
            causes.setdefault(_cause(line), []).append(line)
    for cause, found in causes.items():
        names = [line.check for line in found]
        if len(set(names)) == 1:
            text = f"{names[0]}: {found[0].detail}"
        elif word == "ok":
            text = f"{len(names)} {_SHARED[cause]}"
        else:
            which = "" if found[0].detail.startswith(NO_CONNECTION) else f": {_joined(names)}"
            text = f"{found[0].detail.rstrip('.')}; {len(names)} checks{which}"
        first, rest = f"{word:<{_INDENT}}", " " * _INDENT
        yield textwrap.fill(
            text, width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )


def _cause(line: Diagnosis) -> str:
    """Return the key that groups lines with the same cause."""
    if line.word == "ok":
        return _prefix(line.check) or f"{line.check}: {line.detail}"
    if line.is_unknown and line.fix:
        return line.fix
    return f"{line.detail} {_ENABLE.sub('', line.fix)}"


def _prefix(name: str) -> str:
    return next((start for start in _SHARED if name.startswith(start)), "")


def _joined(names: Sequence[str]) -> str:
    """Join names, with each common prefix only once."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_prefix(name), []).append(name.removeprefix(_prefix(name)))
    return "; ".join(f"{start}{', '.join(found)}" for start, found in groups.items())
