"""What the facts of a stack mean: what differs, what is waited for, and which command comes next."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from contracts.guest_attributes import FAILED, READY, RETRYING
from planning.units import duration
from scripts.pulumi.locks import StackLock
from scripts.pulumi.state import StackState
from scripts.status.cloud import MISSING
from scripts.status.report import CloudFacts, StackStatus

WAITING_STATES: Final = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "DEPLOYING"})
"""States in which Google still makes what serves."""
DEAD_STATES: Final = frozenset({MISSING, "FAILED", "SUSPENDED", "SUSPENDING"})
"""States that no waiting changes: the next `up` makes it again."""
_HASH_DIGITS: Final = 12


def short(identity: str) -> str:
    """Return a document's hash in 12 digits; a revision as it is."""
    return identity[:_HASH_DIGITS] if len(identity) == 64 else identity  # noqa: PLR2004 - digits of SHA-256


def drift_of(cloud: CloudFacts | None, target: str | None) -> Sequence[str]:
    """Return how what runs differs from the state, each a sentence."""
    if cloud is None:
        return ()
    if cloud.state in DEAD_STATES:
        return (f"What serves is {cloud.state} in Google's word, and the state has it.",)
    what = "document" if target == "tpu" else "revision"
    found: list[str] = []
    if cloud.declared and cloud.stored and cloud.declared != cloud.stored:
        found.append(f"The {what} was changed outside of Pulumi: {short(cloud.stored)}, not {short(cloud.declared)}.")
    elif cloud.stored and cloud.running and cloud.stored != cloud.running:
        found.append(f"The {what} {short(cloud.running)} serves, not yet {short(cloud.stored)}.")
    return found


def waits_of(state: StackState, locks: Sequence[StackLock], cloud: CloudFacts | None, now: datetime) -> Sequence[str]:
    """Return what is waited for, each a sentence."""
    found: list[str] = []
    if cloud is not None and cloud.state in WAITING_STATES:
        found.append(f"{cloud.place or 'Google'}: {cloud.state}{_since(cloud.state_since, now)}.")
    for lock in locks:
        gone = ", whose process is gone" if lock.is_dead else ""
        found.append(f"An operation of {lock.holder} holds the lock{gone}.")
    if state.pending and not locks:
        names = ", ".join(sorted({str(item.get("urn")).rpartition("::")[2] for item in state.pending}))
        found.append(f"An interrupted run began to make and did not record: {names}.")
    return found


def _since(moment: str | None, now: datetime) -> str:
    if not moment:
        return ""
    begun = datetime.fromisoformat(moment).astimezone(UTC)
    return f" since {begun:%H:%M} UTC ({duration(max(0.0, (now - begun).total_seconds()))})"


def next_command(status: StackStatus, state: StackState, locks: Sequence[StackLock]) -> str:
    """Return the command to run next."""
    choices = (*_by_state(status, state, locks), *_by_cloud(status, state))
    return next(command for applies, command in choices if applies).format(
        run="python -m scripts", stack=f"--stack {status.stack}", name=status.stack
    )


def _by_state(status: StackStatus, state: StackState, locks: Sequence[StackLock]) -> Iterator[tuple[bool, str]]:
    """Yield commands for what the state says, each with whether it applies. The first one counts."""
    yield any(not lock.is_dead for lock in locks), "{run}.status {stack} --watch"
    yield bool(locks) or state.status == "unreadable", "{run}.recover {stack}"
    yield state.status == "missing", "pulumi stack init {name} && pulumi up {stack}"
    yield not status.deployed and not state.pending and status.cloud is None, "pulumi up {stack}"


def _by_cloud(status: StackStatus, state: StackState) -> Iterator[tuple[bool, str]]:
    """Yield commands for what Google says, each with whether it applies. The first one counts; the last one always applies."""
    cloud = status.cloud
    google, phase = (cloud.state, cloud.phase) if cloud else ("", None)
    yield google == "FAILED" and status.target == "cloud-run", "{run}.logs {stack}"
    yield google in DEAD_STATES, "pulumi up --refresh {stack}"
    yield phase in {FAILED, RETRYING}, "{run}.logs {stack}"
    yield bool(state.pending), "{run}.recover {stack}"
    yield google in WAITING_STATES or (cloud is not None and not status.deployed), "pulumi up {stack}"
    yield bool(status.drift), "pulumi preview {stack}"
    yield cloud is None, "{run}.doctor {stack}"
    yield status.target == "tpu" and phase != READY, "{run}.logs {stack} --follow"
    yield True, "{run}.connect {stack}"
