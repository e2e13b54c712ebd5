"""The hold of one run on a service. Every change is checked against the record so that two runs never move the same traffic."""

import getpass
import os
import socket
import threading
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from contracts.errors import ScriptError
from contracts.masking import masked
from contracts.rollout_record import (
    LONGEST_REASON,
    RecordedOutcome,
    RefusedRevision,
    RolloutHolder,
    RolloutRecord,
    UnreadableRecord,
    read_record,
)
from contracts.service_traffic import Service, TrafficTarget, short_name, targets_of
from scripts.rollout.decisions import has_traffic
from scripts.rollout.service import ServiceAtGoogle, ServiceChangedError
from stacks.hooks.rollout_state import RENEWAL_S, who

Clock = Callable[[], datetime]
_ID_DIGITS: Final = 12
_ALL_REQUESTS: Final[frozenset[RecordedOutcome]] = frozenset(("rolled out", "rolled back manually", "nothing to do"))
"""Outcomes after which the record's revision has all traffic. After other outcomes, the refusal of a revision remains."""


class LostHoldError(ScriptError):
    """Another run or `pulumi up` changed the service since this run last changed it, so this run must stop."""


def this_run(now: datetime) -> RolloutHolder:
    """Return this process as the holder of a rollout. `now` is this machine's time, with which `is_alive` compares the process's start."""
    return RolloutHolder(
        id=uuid.uuid4().hex[:_ID_DIGITS],
        user=_user(),
        host=socket.gethostname(),
        process=os.getpid(),
        since=_stamp(now),
    )


@dataclass(slots=True, kw_only=True)
class Hold:
    """This run's hold. It starts with the first `shift` and finishes with an outcome in the record."""

    service: ServiceAtGoogle
    record: RolloutRecord
    """The record that this run wrote last or will write first."""
    now: Clock
    seen: Service
    """The service as Google last returned it."""
    owned: bool = False
    """True if the record in Google Cloud has been this run's."""
    _wished: Sequence[Sequence[TrafficTarget]] = ()
    """The traffic that this run last requested, and the traffic of a change whose response was lost."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def shift(
        self,
        targets: Sequence[TrafficTarget],
        *,
        share: int,
        outcome: RecordedOutcome | None = None,
        reason: str = "",
        refused: RefusedRevision | None = None,
    ) -> Service:
        """Set the traffic of the service, and record the percentage and the outcome of the rollout.

        The first shift takes the hold, based on `seen`. Raises LostHoldError if another run has the hold, and ScriptError for other failures.
        A failed shift can be retried.
        """
        with self._lock:
            if self.owned:
                self._reread()
                found = self._mine(self.seen)
                if outcome is not None and found.outcome == outcome and has_traffic(self.seen, targets):
                    self.record = found  # Google made the change, but its response was lost
                    return self.seen
            record = replace(
                self.record,
                share=share,
                renewed_at=_stamp(self.now()),
                outcome=outcome,
                reason=_kept(reason),
                refused=refused or self._refused(outcome),
            )
            self._wished = (*self._wished[:1], targets)
            self.seen = self._changed(lambda: self.service.shift(self.seen, targets, record))
            self.record, self._wished, self.owned = record, (targets,), True
            return self.seen

    def reread(self) -> None:
        """Read the service again before a change that must not wait for another run. Raises ScriptError."""
        with self._lock:
            if not self.owned:
                self.seen = self.service.read()

    def _refused(self, outcome: RecordedOutcome | None) -> RefusedRevision | None:
        """Return the refusal to keep in the record; None if the refused revision has all traffic with this outcome."""
        is_good = outcome in _ALL_REQUESTS and self.record.refusal_of(self.record.revision) is not None
        return None if is_good else self.record.refused

    def renew(self) -> None:
        """Record that this run is still active. Raises as `shift` does."""
        with self._lock:
            if self.record.runs and self.owned:
                self._reread()
                self._note(replace(self.record, renewed_at=_stamp(self.now())))

    def interrupted(self, reason: str, refused: RefusedRevision | None = None) -> None:
        """Record, if the record is still this run's, that it was interrupted. Moves no traffic and does not retry."""
        with self._lock, suppress(ScriptError):
            if not self._wished:
                return
            self.seen = self.service.read()
            found = self._mine(self.seen)
            if found.runs:
                self._note(
                    replace(
                        found,
                        renewed_at=_stamp(self.now()),
                        outcome="interrupted",
                        reason=_kept(reason),
                        refused=refused or found.refused,
                    )
                )

    @contextmanager
    def renewed(self) -> Generator[None]:
        """Renew the record every two minutes while the block runs."""
        stop = threading.Event()

        def keep() -> None:
            while not stop.wait(RENEWAL_S):
                try:
                    self.renew()
                except LostHoldError:
                    return  # the next shift raises it
                except ScriptError:
                    continue

        thread = threading.Thread(target=keep, name="rollout-record", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()

    def _note(self, record: RolloutRecord) -> None:
        self.seen = self._changed(lambda: self.service.note(self.seen, record))
        self.record = record

    def _changed(self, change: Callable[[], Service]) -> Service:
        """Make a change. Retry once if another client changed the service but not the rollout."""
        for is_last in (False, True):
            try:
                return change()
            except ServiceChangedError as error:
                if self.owned:
                    self._reread()
                if is_last or not self.owned:
                    raise ServiceChangedError(
                        f"{error} Run the same command again when the other change has finished."
                    ) from None
        raise AssertionError("the second change returned or raised")

    def _reread(self) -> None:
        """Read the service. Raises LostHoldError if its record, traffic or latest revision changed since this run's last change."""
        seen, name = self.service.read(), short_name(self.service.name)
        self._mine(seen)
        latest = short_name(seen.get("latestCreatedRevision"))
        if latest != short_name(self.seen.get("latestCreatedRevision")):
            raise LostHoldError(f"Revision {latest} of {name} was created during the rollout, so this rollout stopped.")
        if not any({*targets_of(seen)} == {*wished} for wished in self._wished):
            raise LostHoldError(
                f"Another client changed the traffic of {name} during the rollout, so this rollout stopped."
            )
        self.seen = seen

    def _mine(self, seen: Service) -> RolloutRecord:
        """Return the record of a service. Raises LostHoldError unless this run wrote it."""
        found, mine = read_record(seen), self.record.holder
        if isinstance(found, UnreadableRecord) or found.holder is None or mine is None or found.holder.id != mine.id:
            raise LostHoldError(_taken_by(found, short_name(self.service.name)))
        return found


def refusal(revision: str, reason: str, now: datetime) -> RefusedRevision:
    """Return the record entry for a refused revision."""
    return RefusedRevision(revision=revision, at=_stamp(now), reason=_kept(reason))


def _taken_by(found: RolloutRecord | UnreadableRecord, name: str) -> str:
    if isinstance(found, UnreadableRecord) or found.holder is None:
        return f"The rollout record of {name} was changed during the rollout, so this rollout stopped."
    did = f": {found.reason.rstrip('.')}" if found.reason else f" and is rolling out {found.revision}"
    return f"{who(found.holder)} took over the rollout of {name}{did}. This rollout stopped."


def _kept(reason: str) -> str:
    """Return a reason for the record: one line, without secrets, truncated."""
    return " ".join(masked(reason).split())[:LONGEST_REASON]


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
