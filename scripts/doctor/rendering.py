"""The report as text at 80 columns: a summary, one entry per cause, and the commands that fix the problems."""

import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from scripts.doctor.diagnosis import Diagnosis, State

WIDTH: Final = 80
"""Columns if the output is not a terminal."""
_ORDER: Final[tuple[State, ...]] = ("missing", "unknown", "ok")
_INDENT: Final = max(len(state) for state in _ORDER) + 2
_ENABLE: Final = re.compile(r"gcloud services enable (?P<apis>\S+) --project=(?P<project>\S+)")
_SHARED: Final = ("API ", "permissions of ", "policy ")
"""Prefixes of checks that are grouped into one line if they are ok."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Checks with the same state and cause."""

    state: State
    lines: Sequence[Diagnosis]


def width_of(stream: TextIO) -> int:
    """Return the columns of a stream."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if stream.isatty() else WIDTH


def report(title: str, lines: Sequence[Diagnosis], *, width: int) -> str:
    """Return the report. Commands are not wrapped so that they can be pasted."""
    blocks = [textwrap.fill(f"{title}: {counted(lines)}.", width)]
    blocks += ["\n".join(_text(entry, width) for entry in found) for found in _by_state(lines) if found]
    fixes = commands(lines)
    if fixes:
        blocks.append("\n".join(["Fix, in this order:", *(f"  {fix}" for fix in fixes)]))
    waiting = [line for line in lines if _ENABLE.fullmatch(line.fix) and line.state == "unknown"]
    if waiting:
        plural = "check needs" if len(waiting) == 1 else "checks need"
        blocks.append(
            textwrap.fill(f"{len(waiting)} {plural} an API that is off. Enable it, then run doctor again.", width)
        )
    return "\n\n".join(blocks)


def counted(lines: Sequence[Diagnosis]) -> str:
    """Return the number of checks in each state as text."""
    states = [line.state for line in lines]
    return ", ".join(f"{states.count(state)} {state}" for state in ("ok", "missing", "unknown"))


def commands(lines: Sequence[Diagnosis]) -> Sequence[str]:
    """Return the commands and changes to make, each once. One command, the first, enables all APIs."""
    fixes = list(dict.fromkeys(line.fix for line in lines if line.state != "ok" and line.fix))
    enabling = [found for found in map(_ENABLE.fullmatch, fixes) if found]
    if not enabling:
        return fixes
    apis = " ".join(found["apis"] for found in enabling)
    together = f"gcloud services enable {apis} --project={enabling[0]['project']}"
    # First, because a grant needs the API of projects and most checks need some API.
    return [together, *(fix for fix in fixes if not _ENABLE.fullmatch(fix))]


def _by_state(lines: Sequence[Diagnosis]) -> Iterator[Sequence[_Entry]]:
    for state in _ORDER:
        causes: dict[str, list[Diagnosis]] = {}
        for line in lines:
            if line.state == state:
                causes.setdefault(_cause(line), []).append(line)
        yield [_Entry(state=state, lines=found) for found in causes.values()]


def _cause(line: Diagnosis) -> str:
    """Return the key that groups lines with the same cause."""
    if line.state == "ok":
        return next((start for start in _SHARED if line.check.startswith(start)), f"{line.check}: {line.detail}")
    if line.state == "unknown" and line.fix:
        return line.fix
    return f"{line.detail} {_ENABLE.sub('', line.fix)}"


def _text(entry: _Entry, width: int) -> str:
    word, first = entry.state, entry.lines[0]
    names = [line.check for line in entry.lines]
    if len(set(names)) == 1:
        text = f"{names[0]}: {first.detail}"
    elif entry.state == "ok":
        text = f"{len(names)} {_noun(names)}"
    else:
        text = f"{first.detail.rstrip('.')}; {len(names)} checks: {_joined(names)}"
    return textwrap.fill(
        text,
        width,
        initial_indent=f"{word:<{_INDENT}}",
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _joined(names: Sequence[str]) -> str:
    """Join names, with each common prefix only once."""
    groups: dict[str, list[str]] = {}
    for name in names:
        start = next((start for start in _SHARED if name.startswith(start)), "")
        groups.setdefault(start, []).append(name.removeprefix(start))
    return "; ".join(f"{start}{', '.join(found)}" for start, found in groups.items())


def _noun(names: Sequence[str]) -> str:
    start = next(start for start in _SHARED if names[0].startswith(start))
    return {
        "API ": "APIs are enabled",
        "permissions of ": "roles: all permissions are granted",
        "policy ": "organization policies allow everything the stack needs",
    }[start]
