"""What a stack's machines and services have used, kept where their end does not reach: in the description of its service account.

Every stack has that account, `pulumi up` never replaces it, the guard lists it anyway, and a teardown deletes it. The program writes the record
(`stacks.hooks.run_keeper`), the guard and `scripts.status` read it. One word holds it, because a description has 256 bytes:
`gemma-serving-runs=SINCE/SPENT/START:RATE:LONGEST,...`, times in seconds since 1970, money in millionths of a dollar, rounded up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from contracts.labels import PRODUCT, words_of

RUNS_WORD: Final = f"{PRODUCT}-runs"
MOST_OPEN: Final = 3
"""Runs whose end is not known yet, in one record: the one that serves, the one that renews it, and one more. Others are added to what is spent."""
MOST_BYTES: Final = 256
"""Longest description of a service account (discovery: iam.v1, ServiceAccount.description)."""
MICROS: Final = 1_000_000
"""Millionths of a dollar in a dollar."""
_HOUR_S: Final = 3600
_TEXT: Final = re.compile(r"(\d+)/(\d+)/((?:\d+:\d+:(?:\d*|s))(?:,\d+:\d+:(?:\d*|s))*|)")


class RecordError(ValueError):
    """A record that is there and cannot be read. The message is its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One machine, from its start until its end is known; or the service, from its first creation on."""

    start_s: int
    micros_per_hour: int
    """List price: of the machine, or of one instance of the service."""
    longest_s: int | None = None
    """After how many seconds Google ends the machine; None if it does not."""
    is_service: bool = False
    """Whether use decides its cost (Cloud Monitoring), not time."""

    def text(self) -> str:
        """Return the run as the record holds it."""
        last = "s" if self.is_service else "" if self.longest_s is None else str(self.longest_s)
        return f"{self.start_s}:{self.micros_per_hour}:{last}"

    def end_s(self, now_s: int) -> int:
        """Return the latest end of a machine that is gone: now, or when Google would have ended it."""
        return now_s if self.longest_s is None else min(now_s, self.start_s + self.longest_s)

    def micros(self, end_s: int) -> int:
        """Return what the machine has cost until then, rounded up."""
        return 0 if self.is_service else -(-self.micros_per_hour * max(0, end_s - self.start_s) // _HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A machine or service as Google shows it now."""

    name: str
    requested_s: int
    """When the request for it was made: it started then or later."""
    started_s: int | None
    """None if Google no longer says: the machine is gone, its request is not."""
    stopped_s: int | None = None
    """When it stopped, for one that can start again."""
    micros_per_hour: int
    longest_s: int | None = None
    is_service: bool = False

    @property
    def run(self) -> RecordedRun:
        """Return it as a run. One whose start is not known counts from its request on."""
        start_s = self.requested_s if self.started_s is None else self.started_s
        return RecordedRun(
            start_s=start_s,
            micros_per_hour=self.micros_per_hour,
            longest_s=self.longest_s,
            is_service=self.is_service,
        )

    def end_s(self, run: RecordedRun, now_s: int) -> int:
        """Return until when a run of this machine counts."""
        if self.started_s is None:
            return run.end_s(now_s)
        return now_s if self.stopped_s is None else self.stopped_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one run has cost, and where that was read."""

    run: RecordedRun
    end_s: int
    seen: Seen | None
    """The machine as it is now; None if only the record knows it."""
    recorded: bool

    @property
    def micros(self) -> int:
        """What it has cost; 0 for a service."""
        return self.run.micros(self.end_s)

    @property
    def is_bound(self) -> bool:
        """Whether the end is not known, so that the most it can be counts."""
        return not self.run.is_service and (self.seen is None or self.seen.started_s is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The first start of a stack, what its past machines have cost, and the runs whose end is not known yet."""

    since_s: int | None = None
    spent_micros: int = 0
    runs: Sequence[RecordedRun] = ()

    @classmethod
    def of(cls, description: str) -> "RunRecord | None":
        """Return the record in a description; None if it has none. Raises RecordError if it cannot be read."""
        text = words_of(description).get(RUNS_WORD)
        if text is None:
            return None
        found = _TEXT.fullmatch(text)
        if found is None:
            raise RecordError(text)
        runs = tuple(_run(part) for part in found[3].split(",") if part)
        return cls(since_s=int(found[1]), spent_micros=int(found[2]), runs=runs)

    def written_into(self, description: str) -> str:
        """Return the description with this record in place of the one that it holds."""
        others = [word for word in description.split() if not word.startswith(f"{RUNS_WORD}=")]
        if self.since_s is None:
            return " ".join(others)
        runs = ",".join(run.text() for run in self.runs)
        return " ".join([*others, f"{RUNS_WORD}={self.since_s}/{self.spent_micros}/{runs}"])

    def uses(self, seen: Sequence[Seen], now_s: int) -> Sequence[Use]:
        """Return what each run has cost: those of the record, then those that only Google shows."""
        pairs, left = _matched(self.runs, seen)
        known = [Use(run=run, end_s=_end_s(run, one, now_s), seen=one, recorded=True) for run, one in pairs]
        return (*known, *(Use(run=one.run, end_s=one.end_s(one.run, now_s), seen=one, recorded=False) for one in left))

    def first_start_s(self, seen: Sequence[Seen]) -> int | None:
        """Return when the first machine or service of the stack started; None if none has."""
        starts = [] if self.since_s is None else [self.since_s]
        return min([*starts, *(one.run.start_s for one in seen)], default=None)

    def after(self, seen: Sequence[Seen], now_s: int, *, complete: bool) -> "RunRecord":
        """Return the record with what Google shows now: new runs are added, those that are gone are added to what is spent.

        Args:
            seen: the stack's machines, and its service.
            now_s: seconds since 1970.
            complete: whether all could be read. If not, no run counts as ended.
        """
        pairs, left = _matched(self.runs, seen)
        gone = [one is None and complete and not run.is_service for run, one in pairs]
        ended = [run for (run, _), is_gone in zip(pairs, gone, strict=True) if is_gone]
        kept = [_dearer(*pair) for pair, is_gone in zip(pairs, gone, strict=True) if not is_gone]
        spent = self.spent_micros + sum(run.micros(run.end_s(now_s)) for run in ended)
        runs = sorted([*kept, *(one.run for one in left)], key=lambda run: (not run.is_service, run.start_s))
        for run in [run for run in runs if not run.is_service][:-MOST_OPEN]:
            spent += run.micros(run.end_s(now_s))
            runs.remove(run)
        return RunRecord(since_s=self.first_start_s(seen), spent_micros=spent, runs=tuple(runs))


def _run(part: str) -> RecordedRun:
    start, rate, last = part.split(":")
    longest_s = int(last) if last.isdecimal() else None
    return RecordedRun(start_s=int(start), micros_per_hour=int(rate), longest_s=longest_s, is_service=last == "s")


def _end_s(run: RecordedRun, seen: Seen | None, now_s: int) -> int:
    return run.end_s(now_s) if seen is None else seen.end_s(run, now_s)


def _dearer(run: RecordedRun, seen: Seen | None) -> RecordedRun:
    """Return the run of a service at its highest price: Cloud Monitoring does not say which revision was billed at which price."""
    if seen is None or not run.is_service:
        return run
    return replace(run, micros_per_hour=max(run.micros_per_hour, seen.micros_per_hour))


def _matched(
    runs: Sequence[RecordedRun], seen: Sequence[Seen]
) -> tuple[Sequence[tuple[RecordedRun, Seen | None]], Sequence[Seen]]:
    """Return each run with the machine that it is, and the machines that are no run yet.

    A machine is the run that has its start; else the newest run that is not older than its request. A stack has one service.
    """
    left = list(seen)
    found: dict[int, Seen] = {}
    order = sorted(range(len(runs)), key=lambda at: -runs[at].start_s)
    for fits in (_exactly, _later):
        for at in (at for at in order if at not in found):
            fitting = [one for one in left if fits(runs[at], one)]
            if fitting:
                found[at] = max(fitting, key=lambda one: one.requested_s)
                left.remove(found[at])
    return [(run, found.get(at)) for at, run in enumerate(runs)], left


def _exactly(run: RecordedRun, seen: Seen) -> bool:
    return run.is_service == seen.is_service and (seen.is_service or seen.started_s == run.start_s)


def _later(run: RecordedRun, seen: Seen) -> bool:
    return run.is_service == seen.is_service and seen.requested_s <= run.start_s
