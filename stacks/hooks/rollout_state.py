"""What a service says of its roll-out: who gets the requests, who moves them, and what to run next. One sentence for every command."""

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
"""Pause between two renewals of the record by the run that holds it."""
LEASE_S: Final = 600.0
"""A record that was not renewed for so long has no holder any more: five renewals were missed."""

RolloutPhase = Literal["none", "waits", "under way", "interrupted", "refused", "unknown"]
"""`none`: the latest revision has all requests. `waits`: it has not, and no roll-out of it began. `unknown`: the record or the shares cannot be
read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Where the roll-out of a service is."""

    phase: RolloutPhase
    sentence: str
    """What to know and what to run, whole sentences; empty if there is nothing to say."""
    shares: Mapping[str, int] | None
    """Percent of the requests by revision; None is unknown."""
    record: RolloutRecord | UnreadableRecord


def holder_is_gone(record: RolloutRecord, now: datetime) -> str:
    """Return why the run that holds the record does not go on, such as "its process is gone"; empty if it may."""
    if record.holder is None:
        return "there is none"
    silent_s = _since(record.renewed_at, now)
    if record.holder.host == socket.gethostname() and not is_alive(record.holder.process, record.holder.since):
        return "its process is gone"
    if silent_s is None:
        return "its record has no time"
    return f"it has not renewed its record for {age(silent_s)}" if silent_s > LEASE_S else ""


def who(holder: RolloutHolder) -> str:
    """Return who holds a roll-out, for people."""
    return f"{holder.user}@{holder.host} (process {holder.process}, since {_clock(holder.since)})"


def shares_text(shares: Mapping[str, int] | None) -> str:
    """Return shares for people, the largest first, such as `90 % a, 10 % b`."""
    if shares is None:
        return "unknown"
    return ", ".join(f"{percent} % {revision}" for revision, percent in shares.items()) or "none"


def command(stack: str, *options: str) -> str:
    """Return the command that moves the requests of a stack."""
    return " ".join(["`python -m scripts.rollout --stack", stack, *options]) + "`"


def refusal_text(refused: RefusedRevision, stack: str, now: datetime) -> str:
    """Return why a revision is not offered again."""
    return (
        f"Revision {refused.revision} was refused {_ago(refused.at, now)}: {refused.reason.rstrip('.')}. "
        f"Change the settings and run `pulumi up --stack {stack}`; {command(stack, '--again')} rolls it out anyway."
    )


def view_of(service: Service, stack: str, now: datetime, *, fixed: bool = False) -> RolloutView:
    """Return where the roll-out of a service is. `fixed`: the settings say who gets the requests, so that nothing waits for a roll-out."""
    shares, record = known_shares(service), read_record(service)
    phase, sentence = _phase(service, stack, now, shares, record)
    if fixed and phase in {"waits", "refused"}:
        phase, sentence = "none", ""
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
            f"Requests: {shares_text(shares)}. Who moves them is unknown, because the record of the roll-out cannot be read: {record.why}. "
            f"{command(stack, '--again')} writes a new one and rolls out the latest revision."
        )
    latest, ready = (short_name(service.get(key)) for key in ("latestCreatedRevision", "latestReadyRevision"))
    new = ready if ready == latest or not latest else ""
    if record.runs or record.outcome == "interrupted":
        return _running(stack, now, shares, record, new)
    if shares is None:
        return "unknown", "Who gets the requests is unknown: Google does not name the revisions of all of them."
    return _settled(stack, now, shares, record.refusal_of(latest), new)


def _settled(
    stack: str, now: datetime, shares: Mapping[str, int], refused: RefusedRevision | None, new: str
) -> tuple[RolloutPhase, str]:
    """Return the phase while no roll-out runs."""
    if refused is not None and len(shares) == 1 and refused.revision not in shares:
        return "refused", refusal_text(refused, stack, now)
    if len(shares) > 1:
        ways = _ways(stack, new, [*shares], back=next(iter(shares)))
        return "waits", f"Requests: {shares_text(shares)}, and no roll-out is under way. {ways}"
    if new and shares and new not in shares:
        return (
            "waits",
            f"Revision {new} has no requests yet: {command(stack)} checks it and gives it the requests in steps.",
        )
    return "none", ""


def _running(
    stack: str, now: datetime, shares: Mapping[str, int] | None, record: RolloutRecord, new: str
) -> tuple[RolloutPhase, str]:
    assert record.holder is not None  # noqa: S101 - a record that runs has a holder
    divided, holder = f"Requests: {shares_text(shares)}.", who(record.holder)
    known = [record.revision, record.serving, *(shares or {})]
    gone = holder_is_gone(record, now)
    if record.runs and not gone:
        beside = f" Revision {new} was made since and has no requests." if new and new not in known else ""
        return "under way", f"{divided} {holder} rolls out {record.revision}.{beside}"
    cause = record.reason.rstrip(".") or f"{holder}, {gone}"
    return "interrupted", (
        f"{divided} The roll-out of {record.revision} was interrupted {_ago(record.renewed_at, now)}: {cause}. "
        f"{_ways(stack, new, known, back=record.serving, refused=record.refusal_of(new) is not None)}"
    )


def _ways(stack: str, new: str, known: Sequence[str], *, back: str, refused: bool = False) -> str:
    """Return how to go on and how to go back. A revision that was made on top of a division is the one that the next roll-out checks."""
    on = f"{command(stack, '--again')} continues anyway" if refused else f"{command(stack)} continues"
    if new and new not in known:
        on = f"Revision {new} was made since and has no requests: {command(stack)} rolls that one out"
    return f"{on}, {command(stack, '--to', back)} goes back."


def _ago(moment: str, now: datetime) -> str:
    since_s = _since(moment, now)
    return "at an unknown time" if since_s is None else f"{age(since_s)} ago"


def _since(moment: str, now: datetime) -> float | None:
    """Return the seconds since an RFC 3339 time; None if it cannot be read."""
    try:
        return (now - datetime.fromisoformat(moment)).total_seconds()
    except (ValueError, TypeError):
        return None


def _clock(moment: str) -> str:
    try:
        return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return "an unknown time"
