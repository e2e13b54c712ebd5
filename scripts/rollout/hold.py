"""The hold of one run on a service: every change is checked against the record, so that two runs never move the same requests."""

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
"""Outcomes after which the record's revision gets all requests. After any other the refusal of a revision is still true."""


class LostHoldError(ScriptError):
    """Another run, or `pulumi up`, changed the service since this run changed it last. This run has to stop."""


def utc_now() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


def this_run(now: datetime) -> RolloutHolder:
    """Return this process as the holder of a roll-out."""
    return RolloutHolder(
        id=uuid.uuid4().hex[:_ID_DIGITS],
        user=_user(),
        host=socket.gethostname(),
        process=os.getpid(),
        since=_stamp(now),
    )


@dataclass(slots=True, kw_only=True)
class Hold:
    """This run's hold. It begins with the first `shift`, and ends with an outcome in the record."""

    service: ServiceAtGoogle
    record: RolloutRecord
    """What this run wrote last, or wants to write first."""
    now: Clock
    seen: Service
    """The service as Google answered last."""
    owned: bool = False
    """Whether the record at Google was this run's once."""
    _wished: Sequence[Sequence[TrafficTarget]] = ()
    """The traffic that this run asked for last, and that of a change whose answer was lost."""
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
        """Give the service this traffic, and write down the share and how the roll-out ended.

        The first shift takes the hold, from the state that `seen` is. Raises LostHoldError if it is no longer this run's, and ScriptError
        otherwise; a shift that failed can be tried again.
        """
        with self._lock:
            if self.owned:
                self._reread()
                found = self._mine(self.seen)
                if outcome is not None and found.outcome == outcome and has_traffic(self.seen, targets):
                    self.record = found  # Google made the change, and its answer was lost
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

    def look(self) -> None:
        """Read the service again before a change that must not wait for another run. Raises ScriptError."""
        with self._lock:
            if not self.owned:
                self.seen = self.service.read()

    def _refused(self, outcome: RecordedOutcome | None) -> RefusedRevision | None:
        """Return what stays known against a revision: nothing against one that gets all requests with this outcome."""
        is_good = outcome in _ALL_REQUESTS and self.record.refusal_of(self.record.revision) is not None
        return None if is_good else self.record.refused

    def renew(self) -> None:
        """Write down that this run goes on. Raises as `shift` does."""
        with self._lock:
            if self.record.runs and self.owned:
                self._reread()
                self._note(replace(self.record, renewed_at=_stamp(self.now())))

    def interrupted(self, reason: str, refused: RefusedRevision | None = None) -> None:
        """Write down, if the record is still this run's, that it ended without an outcome. Nothing is tried for long, and no request moves."""
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
        """Renew the record every two minutes while something runs."""
        stop = threading.Event()

        def keep() -> None:
            while not stop.wait(RENEWAL_S):
                try:
                    self.renew()
                except LostHoldError:
                    return  # the next shift says it
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
        """Make a change; once more if another client was faster and left the roll-out as it was."""
        for is_last in (False, True):
            try:
                return change()
            except ServiceChangedError as error:
                if self.owned:
                    self._reread()
                if is_last or not self.owned:
                    raise ServiceChangedError(
                        f"{error} Run the same command again when the other change has ended."
                    ) from None
        raise AssertionError("the second change returned or raised")

    def _reread(self) -> None:
        """Read the service. Raises LostHoldError unless it is as this run left it: its record, its traffic and its latest revision."""
        seen, name = self.service.read(), short_name(self.service.name)
        self._mine(seen)
        latest = short_name(seen.get("latestCreatedRevision"))
        if latest != short_name(self.seen.get("latestCreatedRevision")):
            raise LostHoldError(f"Revision {latest} of {name} was made in the meantime, so that this roll-out stopped.")
        if not any({*targets_of(seen)} == {*wished} for wished in self._wished):
            raise LostHoldError(
                f"Another client moved the requests of {name} in the meantime, so that this roll-out stopped."
            )
        self.seen = seen

    def _mine(self, seen: Service) -> RolloutRecord:
        """Return the record of a service. Raises LostHoldError unless this run wrote it."""
        found, mine = read_record(seen), self.record.holder
        if isinstance(found, UnreadableRecord) or found.holder is None or mine is None or found.holder.id != mine.id:
            raise LostHoldError(_taken_by(found, short_name(self.service.name)))
        return found


def refusal(revision: str, reason: str, now: datetime) -> RefusedRevision:
    """Return what the record keeps of a revision that was refused."""
    return RefusedRevision(revision=revision, at=_stamp(now), reason=_kept(reason))


def _taken_by(found: RolloutRecord | UnreadableRecord, name: str) -> str:
    if isinstance(found, UnreadableRecord) or found.holder is None:
        return f"The record of the roll-out of {name} was changed in the meantime, so that this roll-out stopped."
    did = f": {found.reason.rstrip('.')}" if found.reason else f" and rolls out {found.revision}"
    return f"{who(found.holder)} took over the roll-out of {name}{did}. This roll-out stopped."


def _kept(reason: str) -> str:
    """Return a reason for the record: without secrets, in one line, and bounded."""
    return " ".join(masked(reason).split())[:LONGEST_REASON]


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
