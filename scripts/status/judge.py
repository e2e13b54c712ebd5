"""Interpretation of a stack's facts: drift, waits and the next command."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from gemma_serving.contracts.capacity_states import ACTIVE, WITHOUT_MACHINE
from gemma_serving.contracts.guest_attributes import FAILED, READY, RETRYING, WAITING
from gemma_serving.contracts.stack_facts import CloudFacts, StackFacts
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.units import duration
from gemma_serving.scripts.stack.serves import (
    UNRECORDED,
    WAITING_STATES,
    after_locks,
    changed_by_hand,
    is_being_deleted,
    lock_sentence,
    moved_traffic,
    recorded_state,
    serves_now,
    short_identity,
)
from gemma_serving.scripts.status.report import HEALTHY, StackStatus


def drift_of(facts: StackFacts, target: str | None) -> Sequence[str]:
    """Return the differences between the deployed server and the state, one sentence each."""
    cloud = facts.cloud
    if cloud is None or cloud.has_ended:
        return ()
    if facts.recorded is None:
        return [UNRECORDED]
    kind = "document" if target == "tpu" else "revision"
    stored, running = cloud.stored, cloud.running
    found = [text for text in (*changed_by_hand(facts), moved_traffic(facts)) if text]
    if found or not stored or not running or stored == running:
        return found
    if cloud.phase_now == FAILED:
        back = f"The TPU VM rolled back to the last known good {kind}, {short_identity(running)}."
        return [f"{kind.capitalize()} {short_identity(stored)} failed. {back}"]
    return [f"{kind.capitalize()} {short_identity(running)} is serving instead of {short_identity(stored)}."]


def document_that_serves(cloud: CloudFacts, phase: Present[str]) -> str:
    """Return the document that a TPU VM serves, as text; empty without a machine."""
    if cloud.state != ACTIVE or cloud.has_ended:
        return ""
    if not cloud.running:
        return f"none (TPU VM is {phase.value})"
    same = ", as declared" if cloud.running == cloud.stored == cloud.declared else ""
    former = (
        f"; on probation, rolls back to document {short_identity(cloud.former)} if it fails" if cloud.former else ""
    )
    return f"document {short_identity(cloud.running)}{same}{former}"


def waits_of(facts: StackFacts, now: datetime) -> Sequence[str]:
    """Return the pending operations, one sentence each."""
    found: list[str] = []
    cloud, locks = facts.cloud, facts.locks or ()
    if cloud is not None and cloud.state in WAITING_STATES:
        found.append(f"{cloud.place or 'Google'}: {cloud.state}{_since(cloud.state_since, now)}.")
    if cloud is not None and cloud.state == ACTIVE and recorded_state(facts) in WITHOUT_MACHINE:
        found.append("The capacity became active after the last `gemma up`. The next one continues with it.")
    found += [lock_sentence(lock, now) for lock in locks]
    if facts.pending and not locks:
        found.append(f"An interrupted run may have created these resources: {', '.join(facts.pending)}.")
    if facts.teardown_began and not locks and not is_being_deleted(facts, serves_now(facts)):
        ends = f"`gemma teardown {facts.stack}` continues it; `gemma up {facts.stack}` keeps the stack."
        found.append(f"A teardown was interrupted before it deleted the server. {ends}")
    return found


def _since(moment: str | None, now: datetime) -> str:
    if not moment:
        return ""
    start = datetime.fromisoformat(moment).astimezone(UTC)
    return f" since {start:%H:%M} UTC ({duration(max(0.0, (now - start).total_seconds()))})"


def next_command(status: StackStatus, facts: StackFacts) -> str:
    """Return the command to run next."""
    up = f"gemma up {status.stack}"
    command = next(command for applies, command in _commands(status, facts) if applies)
    return command.format(stack=status.stack, up=up)


def _commands(status: StackStatus, facts: StackFacts) -> Iterator[tuple[bool, str]]:
    """Yield commands, each with its condition. The first that applies is used; the last always applies."""
    cloud, pending = status.cloud, bool(facts.pending)
    google, phase = (cloud.state, cloud.phase_now) if cloud else ("", None)
    is_silent = cloud is not None and isinstance(cloud.phase, Unknown)
    yield bool(facts.locks), after_locks(facts, status.serves)
    if isinstance(facts.state, Unknown):
        yield True, facts.state.fix
    yield is_being_deleted(facts, status.serves), "gemma teardown {stack}"
    yield facts.is_unrecorded or (not status.deployed and not pending and cloud is None), "{up}"
    yield google == "FAILED" and bool(moved_traffic(facts)), "gemma up {stack} --refresh"
    yield google == "FAILED" and status.target != "tpu", "gemma logs {stack}"
    yield cloud is not None and cloud.has_ended and bool(cloud.exceeded), "gemma teardown {stack}"
    yield (cloud is not None and cloud.has_ended) or bool(changed_by_hand(facts)), "{up}"
    yield is_silent or phase in {FAILED, RETRYING, *WAITING}, "gemma logs {stack}"
    yield pending, "{up}"
    yield google in WAITING_STATES or (cloud is not None and not status.deployed), "{up}"
    yield google == ACTIVE and recorded_state(facts) in WITHOUT_MACHINE, "{up}"
    yield bool(facts.fix_of_loss), facts.fix_of_loss
    yield bool({*status.drift} - {moved_traffic(facts)}), "gemma up {stack} --refresh"
    yield cloud is None, "gemma doctor {stack}"
    yield status.server is not None and status.server.health != HEALTHY, "gemma logs {stack}"
    yield status.target == "tpu" and phase != READY, "gemma logs {stack} --follow"
    yield True, "gemma connect {stack}"
