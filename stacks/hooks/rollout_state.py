"""State of a service's rollout: traffic split, the run that moves traffic, and the next command. All commands use this text."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from contracts.processes import is_alive
from contracts.rollout_record import RefusedRevision, RolloutHolder, RolloutRecord, UnreadableRecord, read_record
from contracts.service_traffic import Service, known_shares, short_name
from planning.units import age

RENEWAL_S: Final = 120.0
"""Pause between two renewals of the record by its holder."""
LEASE_S: Final = 600.0
"""A record that was not renewed for this time has no holder: five renewals were missed."""

RolloutPhase = Literal["none", "waits", "under way", "interrupted", "refused", "unknown"]
"""`none`: the latest revision has all traffic. `waits`: it has not, and its rollout has not started. `unknown`: the record or the traffic
split cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Progress of a service's rollout."""

    phase: RolloutPhase
    sentence: str
    """State and next command in whole sentences, or empty."""
    shares: Mapping[str, int] | None
    """Traffic percentage by revision, or None if unknown."""
    record: RolloutRecord | UnreadableRecord


def holder_is_gone(record: RolloutRecord, now: datetime) -> str:
    """Return why the holder of the record is no longer running, such as "its process is gone", or empty if it may be running."""
    if record.holder is None:
        return "it has no holder"
    silent_s = _since(record.renewed_at, now)
    if record.holder.host == socket.gethostname() and not is_alive(record.holder.process, record.holder.since):
        return "its process is gone"
    if silent_s is None:
        return "its record has no time"
    return f"it has not renewed its record for {age(silent_s)}" if silent_s > LEASE_S else ""


def who(holder: RolloutHolder) -> str:
    """Return the holder of a rollout for display."""
    return f"{holder.user}@{holder.host} (process {holder.process}, since {_clock(holder.since)})"


def shares_text(shares: Mapping[str, int] | None) -> str:
    """Return the traffic split for display, largest share first, such as `90 % a, 10 % b`."""
    if shares is None:
        return "unknown"
    return ", ".join(f"{percent} % {revision}" for revision, percent in shares.items()) or "none"


def command(stack: str, *options: str) -> str:
    """Return the command that moves the traffic of a stack."""
    return " ".join(["`gemma rollout", stack, *options]) + "`"


def refusal_text(refused: RefusedRevision, stack: str, now: datetime) -> str:
    """Return why a revision is not rolled out again."""
    return (
        f"Revision {refused.revision} was refused {_ago(refused.at, now)}: {refused.reason.rstrip('.')}. "
        f"Change the settings and run `pulumi up --stack {stack}`. To roll it out anyway, run {command(stack, '--again')}."
    )


def view_of(service: Service, stack: str, now: datetime) -> RolloutView:
    """Return the progress of a service's rollout."""
    shares, record = known_shares(service), read_record(service)
    phase, sentence = _phase(service, stack, now, shares, record)
    return RolloutView(phase=phase, sentence=sentence, shares=shares, record=record)


def _phase(
    service: Service,
    stack: str,
    now: datetime,
    shares: Mapping[str, int] | None,
    record: RolloutRecord | UnreadableRecord,
) -> tuple[RolloutPhase, str]:
    if isinstance(record, UnreadableRecord):
        return "unknown", (
            f"Traffic: {shares_text(shares)}. The run that moves it is unknown, because the record of the rollout cannot be read: {record.why}. "
            f"To write a new record and roll out the latest revision, run {command(stack, '--again')}."
        )
    latest, ready = (short_name(service.get(key)) for key in ("latestCreatedRevision", "latestReadyRevision"))
    new = ready if ready == latest or not latest else ""
    if record.runs or record.outcome == "interrupted":
        return _running(stack, now, shares, record, new)
    if shares is None:
        return "unknown", "The traffic split is unknown, because Google does not name every revision in it."
    return _settled(stack, now, shares, record.refusal_of(latest), new)


def _settled(
    stack: str, now: datetime, shares: Mapping[str, int], refused: RefusedRevision | None, new: str
) -> tuple[RolloutPhase, str]:
    """Return the phase while no rollout is running."""
    if refused is not None and len(shares) == 1 and refused.revision not in shares:
        return "refused", refusal_text(refused, stack, now)
    if len(shares) > 1:
        options = _options(stack, new, [*shares], back=next(iter(shares)))
        return "waits", f"Traffic: {shares_text(shares)}. No rollout is running. {options}"
    if new and shares and new not in shares:
        return (
            "waits",
            f"Revision {new} has no traffic yet. To check it and move traffic to it in steps, run {command(stack)}.",
        )
    return "none", ""


def _running(
    stack: str, now: datetime, shares: Mapping[str, int] | None, record: RolloutRecord, new: str
) -> tuple[RolloutPhase, str]:
    assert record.holder is not None  # noqa: S101 - a running record has a holder
    divided, holder = f"Traffic: {shares_text(shares)}.", who(record.holder)
    known = [record.revision, record.serving, *(shares or {})]
    gone = holder_is_gone(record, now)
    if record.runs and not gone:
        newer = f" Revision {new} was created since and has no traffic." if new and new not in known else ""
        return "under way", f"{divided} {holder} is rolling out {record.revision}.{newer}"
    cause = record.reason.rstrip(".") or f"{holder}, {gone}"
    return "interrupted", (
        f"{divided} The rollout of {record.revision} was interrupted {_ago(record.renewed_at, now)}: {cause}. "
        f"{_options(stack, new, known, back=record.serving, refused=record.refusal_of(new) is not None)}"
    )


def _options(stack: str, new: str, known: Sequence[str], *, back: str, refused: bool = False) -> str:
    """Return how to continue and how to roll back. The next rollout checks the newest revision, even if it is newer than the interrupted one."""
    on = f"To continue anyway, run {command(stack, '--again')}" if refused else f"To continue, run {command(stack)}"
    if new and new not in known:
        on = f"Revision {new} was created since and has no traffic. To roll it out, run {command(stack)}"
    return f"{on}. To roll back, run {command(stack, '--to', back)}."


def _ago(moment: str, now: datetime) -> str:
    since_s = _since(moment, now)
    return "at an unknown time" if since_s is None else f"{age(since_s)} ago"


def _since(moment: str, now: datetime) -> float | None:
    """Return the seconds since an RFC 3339 time, or None if it is invalid."""
    try:
        return (now - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return None


def _clock(moment: str) -> str:
    try:
        return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return "an unknown time"
