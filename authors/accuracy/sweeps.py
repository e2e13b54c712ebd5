"""Measured sweep points: tokens per second, TPOT and TTFT at N users and a context, read from sweeps.csv.

The clients of every sweep are closed loops: `users` requests are in flight, and a new one starts when one finishes.
"""

import csv
import datetime as dt
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Final, Literal, cast, get_args

from authors.accuracy.corpus.measured import load

FILE: Final = Path(__file__).with_name("sweeps.csv")

REPEATING_DATE: Final = dt.date(2026, 7, 25)
"""Day of the sweep that draws the same prompts for each number of users."""

Split = Literal["fit", "band", "held-out"]
"""`fit`: constants were fitted to points of this server. `band`: the bands are learned from it. `held-out`: it only checks both."""
SPLITS: Final[tuple[str, ...]] = get_args(Split)
Note = Literal["", "mean-tpot", "means", "prefix-cache", "prefix-cache-suspected"]
NOTES: Final[tuple[str, ...]] = get_args(Note)


class SweepFileError(ValueError):
    """sweeps.csv is invalid. The message is one sentence that names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One measured point. The field names are the columns of the file."""

    deployment: str
    """An id of `[deployments]` in the corpus."""
    input_tokens: int
    output_tokens: int
    users: int
    requests: int | None
    """Requests of the point. With few, the ramp-down has more weight than in a long run."""
    failed: int
    output_tok_per_s: float
    ttft_ms: float | None
    """Median time to the first token, in milliseconds (mean if stated in `note`); empty if the source has none."""
    tpot_ms: float | None
    """Median time per output token of one request, in milliseconds (mean if stated in `note`)."""
    date: dt.date
    split: Split
    note: Note
    """`mean-tpot`, `means`: the time per output token, or both times, are means.
    `prefix-cache`: the source shows that the prompts came from the prefix cache; `-suspected`: the source suspects it."""
    source: str
    """An id of `[sources]` in the corpus, which has the URL, the path and the commit."""

    @property
    def is_unseen(self) -> bool:
        """True if nothing in the planner was set from the point's source."""
        return load().sources[self.source].unseen

    @property
    def is_comparable(self) -> bool:
        """True if the point measures prefill and decoding, not the prefix cache."""
        return not self.note.startswith("prefix-cache")


def load_points() -> tuple[SweepPoint, ...]:
    """Return the points that constants and bands may be fitted to: those of known sources. Raises SweepFileError."""
    return tuple(point for point in all_points() if not point.is_unseen)


def load_unseen_points() -> tuple[SweepPoint, ...]:
    """Return the points of unseen sources, which nothing may be fitted to. Raises SweepFileError."""
    return tuple(point for point in all_points() if point.is_unseen)


@cache
def all_points() -> tuple[SweepPoint, ...]:
    """Return the points of the project. Raises SweepFileError."""
    return parse_points(FILE.read_text(encoding="utf-8"))


def parse_points(text: str) -> tuple[SweepPoint, ...]:
    """Return the points in a CSV text. Raises SweepFileError for the first invalid line."""
    lines = csv.DictReader(text.splitlines())
    columns = [field.name for field in fields(SweepPoint)]
    if lines.fieldnames != columns:
        raise SweepFileError(f"{FILE.name}: the columns are {lines.fieldnames}, but must be {','.join(columns)}.")
    return tuple(_point(number, row) for number, row in enumerate(lines, start=2))


def _point(number: int, row: dict[str, str]) -> SweepPoint:
    try:
        date = dt.date.fromisoformat(row["date"])
        point = SweepPoint(
            deployment=row["deployment"],
            input_tokens=int(row["input_tokens"]),
            output_tokens=int(row["output_tokens"]),
            users=int(row["users"]),
            requests=int(row["requests"]) if row["requests"] else None,
            failed=int(row["failed"]),
            output_tok_per_s=float(row["output_tok_per_s"]),
            ttft_ms=float(row["ttft_ms"]) if row["ttft_ms"] else None,
            tpot_ms=float(row["tpot_ms"]) if row["tpot_ms"] else None,
            date=date,
            split=cast("Split", row["split"]),
            note=cast("Note", row["note"]),
            source=row["source"],
        )
    except (TypeError, ValueError) as error:
        raise SweepFileError(f"{FILE.name}: line {number}: {error}.") from None
    if row["split"] not in SPLITS:
        raise SweepFileError(f"{FILE.name}: line {number}: split is {row['split']}. Known: {', '.join(SPLITS)}.")
    if row["note"] not in NOTES:
        raise SweepFileError(f"{FILE.name}: line {number}: note is {row['note']}. Known notes: {', '.join(NOTES)}.")
    return point
