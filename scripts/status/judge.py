"""Interpretation of a stack's facts: drift, waits and the next command; for a gateway, also from its backends."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from gemma_serving.contracts.capacity_states import ACTIVE, WITHOUT_MACHINE
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.guest_attributes import FAILED, READY, RETRYING, WAITING
from gemma_serving.engine.locks import StackLock
from gemma_serving.engine.state import StackState
from gemma_serving.planning.units import duration
from gemma_serving.scripts.stack.unfinished_teardown import is_unfinished
from gemma_serving.scripts.status.cloud import serving
from gemma_serving.scripts.status.report import HEALTHY, CloudFacts, StackStatus
from gemma_serving.scripts.status.serves import WAITING_STATES, up_command

_HASH_DIGITS: Final = 12


def short_identity(identity: str) -> str:
    """Return the first 12 digits of a document's hash, or the name of a revision."""
    return identity[:_HASH_DIGITS] if len(identity) == 64 else identity  # noqa: PLR2004 - digits of SHA-256


def drift_of(cloud: CloudFacts | None, target: str | None) -> Sequence[str]:
    """Return the differences between the deployed server and the state, one sentence each."""
    if cloud is None or cloud.has_ended:
        return ()
    kind = "document" if target == "tpu" else "revision"
    declared = cloud.declared
    stored = cloud.stored
    running = cloud.running
    found: list[str] = []
    if declared and stored and declared != stored:
        found.append(
            f"The {kind} was changed outside Pulumi: {short_identity(stored)} instead of {short_identity(declared)}."
        )
    elif stored and running and stored != running and cloud.phase == FAILED:
        back = f"The TPU VM rolled back to the last known good {kind}, {short_identity(running)}."
        found.append(f"{kind.capitalize()} {short_identity(stored)} failed. {back}")
    elif stored and running and stored != running:
        found.append(f"{kind.capitalize()} {short_identity(running)} is serving instead of {short_identity(stored)}.")
    return found


def document_that_serves(cloud: CloudFacts) -> str:
    """Return the document that a TPU VM serves, as text; empty without a machine."""
    if cloud.state != ACTIVE or cloud.has_ended or not cloud.phase:
        return ""
    if not cloud.running:
        return f"none (TPU VM is {cloud.phase})"
    same = ", as declared" if cloud.running == cloud.stored == cloud.declared else ""
    former = (
        f"; on probation, rolls back to document {short_identity(cloud.former)} if it fails" if cloud.former else ""
    )
    return f"document {short_identity(cloud.running)}{same}{former}"


def waits_of(state: StackState, locks: Sequence[StackLock], cloud: CloudFacts | None, now: datetime) -> Sequence[str]:
    """Return the pending operations, one sentence each."""
    found: list[str] = []
    if cloud is not None and cloud.state in WAITING_STATES:
        found.append(f"{cloud.place or 'Google'}: {cloud.state}{_since(cloud.state_since, now)}.")
    if cloud is not None and cloud.state == ACTIVE and _recorded(state) in WITHOUT_MACHINE:
        found.append("The capacity became active after the last `gemma up`. The next one continues with it.")
    other = _renewal(state)
    if other:
        found.append(f"A renewal is not finished: {other}. The next `gemma up` continues it.")
    found += [lock_sentence(lock, now) for lock in locks]
    if state.pending and not locks:
        names = ", ".join(sorted({str(item.get("urn")).rpartition("::")[2] for item in state.pending}))
        found.append(f"An interrupted run may have created these resources: {names}.")
    return found


def lock_sentence(lock: StackLock, now: datetime) -> str:
    """Return who holds a lock, or that its holder was killed."""
    if lock.is_dead:
        return f"A killed command left a lock: {lock.holder} is no longer running."
    return f"The stack is {lock.held(now)}."


def after_locks(stack: str, locks: Sequence[StackLock]) -> str:
    """Return the command for a locked stack: wait for a holder that runs, or import what a killed one has created."""
    return f"gemma recover {stack}" if all(lock.is_dead for lock in locks) else f"gemma status {stack} --watch"


def _recorded(state: StackState) -> str:
    """Return the state of the queued resource after the last `gemma up`; empty without one."""
    found = serving(state)
    return str(found.outputs.get("state") or "") if found else ""


def _renewal(state: StackState) -> str:
    """Return the second queued resource of a renewal and its state after the last `gemma up`; empty without one."""
    found = serving(state)
    name = str(found.outputs.get("renewalName") or "") if found else ""
    if found is None or not name:
        return ""
    return f"{name.rpartition('/')[2]} in {name.split('/')[3]} was {found.outputs.get('renewalState')}"


def _since(moment: str | None, now: datetime) -> str:
    if not moment:
        return ""
    start = datetime.fromisoformat(moment).astimezone(UTC)
    return f" since {start:%H:%M} UTC ({duration(max(0.0, (now - start).total_seconds()))})"


def next_command(
    status: StackStatus, state: StackState, locks: Sequence[StackLock], *, lost_bucket: bool = False
) -> str:
    """Return the command to run next. `lost_bucket`: a bucket of the state no longer exists."""
    up = f"gemma up {status.stack}"
    choices = _commands(status, state, locks, lost_bucket=lost_bucket)
    return next(command for applies, command in choices if applies).format(stack=status.stack, up=up)


def _commands(
    status: StackStatus, state: StackState, locks: Sequence[StackLock], *, lost_bucket: bool
) -> Iterator[tuple[bool, str]]:
    """Yield commands, each with its condition. The first that applies is used; the last always applies."""
    cloud = status.cloud
    google, phase = (cloud.state, cloud.phase) if cloud else ("", None)
    yield bool(locks), after_locks(status.stack, locks)
    yield state.status == "unreadable", "gemma recover {stack}"
    has_server = status.deployed and cloud is not None and not cloud.has_ended
    yield not has_server and is_unfinished(status.stack), "gemma teardown {stack}"
    yield state.status == "missing", "{up}"
    yield not status.deployed and not state.pending and cloud is None, "{up}"
    yield google == "FAILED" and status.target != "tpu", "gemma logs {stack}"
    yield cloud is not None and cloud.has_ended, up_command(status.stack, is_gateway=state.is_gateway)
    yield phase in {FAILED, RETRYING, *WAITING}, "gemma logs {stack}"
    yield bool(state.pending), "gemma recover {stack}"
    yield google in WAITING_STATES or (cloud is not None and not status.deployed), "{up}"
    yield google == ACTIVE and (_recorded(state) in WITHOUT_MACHINE or bool(_renewal(state))), "{up}"
    yield lost_bucket, "gemma up {stack} --refresh"
    yield bool(status.drift), "gemma preview {stack}"
    yield cloud is None, "gemma doctor {stack}"
    yield status.server is not None and status.server.health != HEALTHY, "gemma logs {stack}"
    yield status.target == "tpu" and phase != READY, "gemma logs {stack} --follow"
    yield True, "gemma connect {stack}"


def backends_of(state: StackState) -> Sequence[str]:
    """Return the stacks behind a gateway, as its last `gemma up` found them; empty for other stacks."""
    return [str(as_mapping(one).get("stack")) for one in as_sequence(state.printed.get("backends"))]


def judged_gateway(status: StackStatus, state: StackState, rows: Sequence[StackStatus]) -> StackStatus:
    """Return the status of a gateway with what follows from its backends, which are among `rows`."""
    by_name = {row.stack: row for row in rows}
    found = [by_name[stack] for stack in backends_of(state) if stack in by_name]
    moved = list(_moved(state, by_name))
    waits, next_command = status.waits, status.next_command
    if status.is_down:
        health = status.server.health if status.server else ""
        waits = [*waits, f"No server behind the gateway answers, so its callers get {health}."]
        asleep = [row.next_command for row in found if row.health != HEALTHY]
        next_command = [*asleep, f"gemma logs {status.stack}"][0]
    elif not status.deployed and status.cloud is None:
        waits = [*waits, "No backend had an address at the last `gemma up`, so the gateway has no service."]
        next_command = found[0].next_command if found else next_command
    if moved:
        next_command = f"gemma up {status.stack}"
    return replace(status, drift=[*status.drift, *moved], waits=waits, next_command=next_command)


def _moved(state: StackState, rows: Mapping[str, StackStatus]) -> Iterator[str]:
    for one in map(as_mapping, as_sequence(state.printed.get("backends"))):
        stack = str(one.get("stack"))
        used = str(one.get("address") or "")
        now = rows[stack].address if stack in rows else used
        if now != used:
            uses = f"sends its requests to {used}" if used else "sends it no requests"
            yield f"Backend {stack} has {f'address {now}' if now else 'no address'}, but the gateway {uses}."
