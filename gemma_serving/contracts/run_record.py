"""Usage of a stack's machines, as one word in the description of its service account, which outlives them.

`gemma-serving-runs=SINCE/SPENT/START:RATE:LONGEST,...`: times in seconds since 1970, money in millionths of a dollar, rounded up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemma_serving.contracts.labels import PRODUCT, words_of

RUNS_WORD: Final = f"{PRODUCT}-runs"
MOST_OPEN: Final = 3
"""Unfinished runs: the serving one, and two whose end is unknown. Others are added to the spent amount."""
MOST_BYTES: Final = 256
"""Maximum length of a service account's description (discovery: iam.v1, ServiceAccount.description)."""
MICROS: Final = 1_000_000
_HOUR_S: Final = 3600
_TEXT: Final = re.compile(r"(\d+)/(\d+)/((?:\d+:\d+:(?:\d*|s))(?:,\d+:\d+:(?:\d*|s))*|)")


class RecordError(ValueError):
    """A record exists but is invalid. The message is its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A machine from its start until its end is known, or the service from its first creation."""

    start_s: int
    micros_per_hour: int
    """Price of the TPU VM, or of one instance of the service, when it was recorded."""
    longest_s: int | None = None
    """Seconds after which Google deletes the TPU VM, or None."""
    is_service: bool = False
    """True if its cost depends on use (Cloud Monitoring), not on time."""

    @classmethod
    def of(cls, text: str) -> "RecordedRun":
        """Return a run from the text of `text`."""
        start, rate, last = text.split(":")
        longest_s = int(last) if last.isdecimal() else None
        return cls(start_s=int(start), micros_per_hour=int(rate), longest_s=longest_s, is_service=last == "s")

    def text(self) -> str:
        """Return the run as text for the record."""
        last = "s" if self.is_service else "" if self.longest_s is None else str(self.longest_s)
        return f"{self.start_s}:{self.micros_per_hour}:{last}"

    def end_s(self, now_s: int) -> int:
        """Return the latest possible end of a deleted machine: now, or the end of its longest run."""
        return now_s if self.longest_s is None else min(now_s, self.start_s + self.longest_s)

    def micros(self, end_s: int) -> int:
        """Return the cost of the TPU VM until then, rounded up."""
        return 0 if self.is_service else -(-self.micros_per_hour * max(0, end_s - self.start_s) // _HOUR_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A machine or service as Google currently shows it."""

    name: str
    requested_s: int
    """Time of the request for it. It started then or later."""
    started_s: int | None
    """None if Google no longer returns it. The TPU VM is then gone, but its request is not."""
    stopped_s: int | None = None
    """Time at which it stopped, if it can start again."""
    micros_per_hour: int
    longest_s: int | None = None
    is_service: bool = False

    @property
    def run(self) -> RecordedRun:
        """Return it as a run. If its start is unknown, the run starts with its request."""
        return RecordedRun(
            start_s=self.started_s or self.requested_s,
            micros_per_hour=self.micros_per_hour,
            longest_s=self.longest_s,
            is_service=self.is_service,
        )

    def end_s(self, run: RecordedRun, now_s: int) -> int:
        """Return the time until which a run of this machine is billed."""
        return run.end_s(now_s) if self.started_s is None else self.stopped_s or now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUse:
    """Cost of one run, and its source."""

    run: RecordedRun
    end_s: int
    seen: Seen | None
    """The TPU VM as it is now, or None if only the record has it."""

    @property
    def micros(self) -> int:
        """Cost so far; 0 for a service."""
        return self.run.micros(self.end_s)

    def micros_since(self, start_s: int) -> int:
        """Return the cost of the TPU VM after a time; 0 for a service."""
        return self.micros - self.run.micros(min(start_s, self.end_s))

    @property
    def is_bound(self) -> bool:
        """True if the end is unknown, so the maximum cost is used."""
        return not self.run.is_service and (self.seen is None or self.seen.started_s is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """First start of a stack, cost of its past TPU VMs, and the unfinished runs."""

    since_s: int | None = None
    spent_micros: int = 0
    runs: Sequence[RecordedRun] = ()

    @classmethod
    def of(cls, description: str) -> "RunRecord | None":
        """Return the record in a description, or None. Raises RecordError if it is invalid."""
        text = words_of(description).get(RUNS_WORD)
        if text is None:
            return None
        found = _TEXT.fullmatch(text)
        if found is None:
            raise RecordError(text)
        runs = tuple(RecordedRun.of(part) for part in found[3].split(",") if part)
        return cls(since_s=int(found[1]), spent_micros=int(found[2]), runs=runs)

    def written_into(self, description: str) -> str:
        """Return the description with this record in place of the existing one."""
        others = [word for word in description.split() if not word.startswith(f"{RUNS_WORD}=")]
        if self.since_s is None:
            return " ".join(others)
        runs = ",".join(run.text() for run in self.runs)
        return " ".join([*others, f"{RUNS_WORD}={self.since_s}/{self.spent_micros}/{runs}"])

    def uses(self, seen: Sequence[Seen], now_s: int) -> Sequence[RunUse]:
        """Return the cost of each run: those in the record, then those that only Google shows."""
        pairs, left = _matched(self.runs, seen)
        every = [*pairs, *((one.run, one) for one in left)]
        ends = [run.end_s(now_s) if one is None else one.end_s(run, now_s) for run, one in every]
        return [RunUse(run=run, end_s=end_s, seen=one) for (run, one), end_s in zip(every, ends, strict=True)]

    def first_start_s(self, seen: Sequence[Seen]) -> int | None:
        """Return the start of the stack's first machine or service, or None."""
        starts = [self.since_s, *(one.run.start_s for one in seen)]
        return min((start for start in starts if start is not None), default=None)

    def after(self, seen: Sequence[Seen], now_s: int, *, complete: bool) -> "RunRecord":
        """Return the record with Google's current data: new runs are added, and finished runs move to the spent amount.

        `seen` are the stack's TPU VMs and its service, `now_s` is in seconds since 1970. Unless `complete`, some could not be read, so no run
        is treated as finished.
        """
        pairs, left = _matched(self.runs, seen)
        every = [*pairs, *((one.run, one) for one in left)]
        # Those that were not found end first: a machine that exists must keep its run, or it takes the run of another one.
        every.sort(key=lambda pair: (pair[1] is not None, pair[0].start_s))
        services = [_dearer(run, one) for run, one in every if run.is_service]
        machines = [run for run, _ in every if not run.is_service]
        gone = sum(one is None and complete and not run.is_service for run, one in pairs)
        ended = max(gone, len(machines) - MOST_OPEN)
        spent = self.spent_micros + sum(run.micros(run.end_s(now_s)) for run in machines[:ended])
        return RunRecord(since_s=self.first_start_s(seen), spent_micros=spent, runs=(*services, *machines[ended:]))


def _dearer(run: RecordedRun, seen: Seen | None) -> RecordedRun:
    """Return a service's run at its highest price: Cloud Monitoring does not tell revisions apart."""
    least = 0 if seen is None else seen.micros_per_hour
    return replace(run, micros_per_hour=max(run.micros_per_hour, least))


def _matched(
    runs: Sequence[RecordedRun], seen: Sequence[Seen]
) -> tuple[Sequence[tuple[RecordedRun, Seen | None]], Sequence[Seen]]:
    """Return each run with its TPU VM, and the TPU VMs without a run.

    A machine belongs to the run with its start, otherwise to the newest run that is not older than its request.
    """
    left, found = list(seen), dict[int, Seen]()
    order = sorted(range(len(runs)), key=lambda at: -runs[at].start_s)
    for is_exact in (True, False):
        for at in (at for at in order if at not in found):
            run = runs[at]
            fitting = [one for one in left if one.is_service == run.is_service and _fits(run, one, is_exact=is_exact)]
            if fitting:
                found[at] = max(fitting, key=lambda one: one.requested_s)
                left.remove(found[at])
    return [(run, found.get(at)) for at, run in enumerate(runs)], left


def _fits(run: RecordedRun, seen: Seen, *, is_exact: bool) -> bool:
    return (run.is_service or seen.started_s == run.start_s) if is_exact else seen.requested_s <= run.start_s
