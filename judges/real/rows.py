"""Results of the real parts: one row for each judged claim, and the table of a run."""

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

WAIT_LIMIT_S: Final = 300.0
_POLL_S: Final = 0.5


def print_progress(text: str) -> None:
    """Print a line of progress."""
    print(f"real: {text}", file=sys.stderr, flush=True)


class RowVerdict(StrEnum):
    """Result of one claim. A judge that is missing never counts as passed."""

    PASSED = "passed"
    FAILED = "FAILED"
    NOT_JUDGED = "not judged"


class DifferenceError(Exception):
    """The real part differs from the claim. The message is one sentence with what it did and what was claimed."""


class NotJudgedError(Exception):
    """This machine cannot judge a claim. The message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `version` is empty and `took_s` 0 for a judge that is missing."""

    judge: str
    version: str
    judged: str
    verdict: RowVerdict
    note: str = ""
    took_s: float = 0.0


class JudgeReport:
    """The rows of one judge."""

    def __init__(self, judge: str, version: str = "") -> None:
        self.judge = judge
        self.version = version
        self.rows: list[Row] = []

    @contextmanager
    def judging(self, claim: str) -> Generator[list[str]]:
        """Add the row of one claim: passed, unless DifferenceError or NotJudgedError is raised. The yielded list gets the row's notes."""
        began_s, notes = time.monotonic(), list[str]()
        try:
            yield notes
        except NotJudgedError as reason:
            self.not_judged(claim, str(reason))
        except DifferenceError as difference:
            self._add(claim, RowVerdict.FAILED, str(difference), began_s)
        else:
            self._add(claim, RowVerdict.PASSED, "; ".join(notes), began_s)

    def not_judged(self, claim: str, reason: str) -> None:
        """Add the row of a claim that this machine cannot judge."""
        self._add(claim, RowVerdict.NOT_JUDGED, reason, time.monotonic())

    def _add(self, claim: str, verdict: RowVerdict, note: str, began_s: float) -> None:
        took_s = round(time.monotonic() - began_s, 1)
        print_progress(f"{verdict}: {self.judge}: {claim}{f' ({note})' if note else ''}")
        row = Row(judge=self.judge, version=self.version, judged=claim, verdict=verdict, note=note, took_s=took_s)
        self.rows.append(row)


def require(holds: bool, difference: str) -> None:
    """Raise DifferenceError unless the claim holds."""
    if not holds:
        raise DifferenceError(difference)


def wait_until(condition: Callable[[], object], what: str, limit_s: float = WAIT_LIMIT_S) -> float:
    """Wait for a condition and return the seconds. Raises DifferenceError after the limit."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > limit_s:
            raise DifferenceError(f"{what} did not happen within {limit_s:.0f} s")
        time.sleep(_POLL_S)
    return time.monotonic() - began_s


HEADINGS: Final = ("judge", "version", "what was judged", "result", "note", "s")


def documents(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows for `--json`."""
    return [asdict(row) for row in rows]


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{' --- |' * len(HEADINGS)}"]
    for row in rows:
        took = f"{row.took_s:.0f}" if row.took_s else ""
        cells = (row.judge, row.version, row.judged, str(row.verdict), row.note, took)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |")
    return "\n".join(lines)
