"""Cost of the agent's deployments, from the audit file. Every server reads the lines of all earlier servers.

A line with the outcome `counted` records the time from which a stack costs a price per hour; 0 stops it. Prices are upper bounds, see
docs/agent.md.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from contracts.errors import CommandRefusedError, ScriptError
from contracts.fields import as_mapping
from engine.atomic_file import locked
from scripts.agent.audit import COUNTED, AuditEntry, AuditFile

WINDOW_S: Final = 24 * 3600.0
_HOUR_S: Final = 3600.0
_TOOL: Final = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A stack's price in USD per hour, from a time (seconds since 1970) on."""

    at_s: float
    stack: str
    usd_per_hour: float


class _NoRecordError(ValueError):
    """The line is not an audit record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditBook:
    """The counts in the audit file and in its rotated predecessor."""

    audit: AuditFile

    def read(self) -> Sequence[Count]:
        """Return the counts of both files, oldest first. Together they cover at least the last 24 hours.

        Raises CommandRefusedError if they cannot be read, because the amount spent is then unknown.
        """
        lines = [*self._lines(self.audit.older), *self._lines(self.audit.path)]
        try:
            counts = [_count(line) for line in lines if line.get("outcome") == COUNTED]
        except (TypeError, ValueError):
            raise self._unknown("a line with the outcome counted has no time, stack or price") from None
        return sorted(counts, key=lambda count: count.at_s)

    def add(self, count: Count) -> None:
        """Write a line. Raises ScriptError if it cannot be stored."""
        self.audit.write(
            AuditEntry(
                call="",
                tool=_TOOL,
                arguments={},
                outcome=COUNTED,
                stack=count.stack,
                usd_per_hour=count.usd_per_hour,
                at=datetime.fromtimestamp(count.at_s, UTC).isoformat(timespec="milliseconds"),
            )
        )

    @contextmanager
    def alone(self) -> Generator[None]:
        """Lock a file next to the audit file, so that no other server counts between a check and its count.

        Raises ScriptError if that fails.
        """
        path = self.audit.path.with_name(f"{self.audit.path.name}.lock")
        with ExitStack() as held:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(locked(path))
            except OSError as error:
                raise ScriptError(
                    f"Cannot write {path} ({error.strerror}), so nothing was done. Start the agent with --audit FILE."
                ) from None
            yield

    def _lines(self, path: Path) -> Sequence[Mapping[str, object]]:
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            return list(_parsed(text))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise self._unknown(f"{path.name} {why}") from None

    def _unknown(self, why: str) -> CommandRefusedError:
        path = self.audit.path
        return CommandRefusedError(
            f"No paid resource was started, because the amount spent in the last 24 hours is unknown: {why}. The user can inspect {path}. To count "
            "from zero, move it and its .1 file away or start the agent with another --audit FILE."
        )


def spent_usd(counts: Sequence[Count], now_s: float) -> float:
    """Return the cost of the counted stacks in the last 24 hours."""
    begin_s, total = now_s - WINDOW_S, 0.0
    for stack in {count.stack for count in counts}:
        own = [count for count in counts if count.stack == stack]
        ends = [*(count.at_s for count in own[1:]), now_s]
        for count, end_s in zip(own, ends, strict=True):
            total += count.usd_per_hour * max(0.0, min(end_s, now_s) - max(count.at_s, begin_s)) / _HOUR_S
    return total


def running(counts: Sequence[Count]) -> Mapping[str, Count]:
    """Return the last count of each stack that is still counted."""
    last = {count.stack: count for count in counts}
    return {stack: count for stack, count in last.items() if count.usd_per_hour > 0}


def _parsed(text: str) -> Iterator[Mapping[str, object]]:
    """Yield the lines. A truncated line, for example from a full disk, is skipped: its call did not start."""
    # splitlines also splits at separators within an argument, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found: object = json.loads(line)
        except ValueError:
            if line.startswith("{"):
                continue
            found = None
        if not isinstance(found, dict):
            raise _NoRecordError(f"has no record in line {number}")
        yield as_mapping(cast("object", found))


def _count(line: Mapping[str, object]) -> Count:
    stack, rate = line.get("stack"), line.get("usd_per_hour")
    if not isinstance(stack, str) or not stack or not isinstance(rate, int | float) or not rate >= 0:
        raise ValueError
    return Count(at_s=_moment(line), stack=stack, usd_per_hour=float(rate))


def _moment(line: Mapping[str, object]) -> float:
    return datetime.fromisoformat(str(line.get("at") or "")).timestamp()
