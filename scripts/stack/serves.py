"""What a stack serves now, and the outputs of one that serves."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.cloud.kinds import SERVICE
from gemma_serving.cloud.service_traffic import shares_text
from gemma_serving.contracts.capacity_states import WITHOUT_MACHINE
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.guest_attributes import FAILED, READY, reason_of
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import MISSING, CloudFacts, ServesNow, ServingWord, StackFacts, StatedResource
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.exported_state import StackDeployment, read_deployment
from gemma_serving.engine.locks import stack_locks
from gemma_serving.engine.runner import no_such_stack, running_up
from gemma_serving.engine.state import NO_CAPACITY, after_no_capacity, of_deployment, outputs_in
from gemma_serving.planning.units import number_of
from gemma_serving.scripts.stack.costs import without_server
from gemma_serving.scripts.stack.facts import NOT_COMPLETE, read_facts
from gemma_serving.scripts.stack.own_runs import is_interrupted
from gemma_serving.scripts.stack.unfinished_teardown import is_unfinished

UNRECORDED: Final = "Google has a server of this stack that the stack's state does not have."
GOOGLE_LIMIT_S: Final = 10.0
"""Timeout of Google's answer for a command that only uses the server."""
WAITING_STATES: Final = WITHOUT_MACHINE | {"DEPLOYING"}
"""States in which Google is still creating the server."""
_WITHOUT_SERVER: Final = frozenset({"no server", "not deployed"})
_HASH_DIGITS: Final = 12
Stamp = Callable[[float], str]
"""Formats a time in seconds since 1970."""


def serves_now(facts: StackFacts) -> ServesNow:
    """Return what a stack serves: by Google's report, or as of its last `up` if Google was not asked."""
    match facts.state:
        case Absent():
            return ServesNow(word="not deployed", why="It is not deployed.")
        case Unknown(why=why):
            return ServesNow(word="unknown", why=why)
        case Present():
            return _by_google(facts)


def _by_google(facts: StackFacts) -> ServesNow:
    has_server = facts.recorded is not None and bool(facts.recorded.outputs)
    match facts.server:
        case Present(value=cloud) if not cloud.has_ended:
            return ServesNow(word="waiting" if cloud.state in WAITING_STATES else "deployed")
        case Present(value=cloud) if has_server:
            is_granted = cloud.state != MISSING or recorded_state(facts) not in WITHOUT_MACHINE
            if not is_granted:
                return _not_granted(facts, "ended")
            return ServesNow(word="ended", why=_end_of(facts.stack, cloud))
        case Unknown(why=why):
            return ServesNow(word="unknown", why=f"Cannot check whether the server exists: {why.rstrip('.')}.")
        case None if has_server:
            return _recorded(facts.outputs)
        case _:
            return _without_server(facts)


def _end_of(stack: str, cloud: CloudFacts) -> str:
    """Return since when and why a server that ended does not serve, with what this folder's records know of one that no longer exists."""
    why = run_end(cloud, utc)
    if cloud.state != MISSING or cloud.planned_end is not None:
        return why
    if is_unfinished(stack):
        return f"{why} A teardown of this folder has not ended."
    return f"{why} The last `gemma up` of this folder has not ended." if is_interrupted(stack) else why


def recorded_state(facts: StackFacts) -> str:
    """Return the state of the queued resource after the last `gemma up`; empty without one."""
    return str(facts.recorded.outputs.get("state") or "") if facts.recorded else ""


def _recorded(outputs: Answer[StackOutputs]) -> ServesNow:
    """Return what a stack with a server serves, as of its last `up`."""
    if not isinstance(outputs, Present):
        return ServesNow(word="unknown", why=f"{NOT_COMPLETE}.")
    found = outputs.value
    if found.target == "tpu" and found.state in WITHOUT_MACHINE:
        return ServesNow(word="waiting", why=f"The capacity was {found.state}.")
    if found.deadline and (end := datetime.fromisoformat(found.deadline)) <= GOOGLE_CLOCK.now():
        return ServesNow(word="ended", why=_planned(utc(end.timestamp())))
    return ServesNow(word="deployed")


def _without_server(facts: StackFacts) -> ServesNow:
    count = facts.resources
    if count == 0 and not facts.pending:
        return ServesNow(word="not deployed")
    if facts.pending:
        return ServesNow(
            word="no server", why="An interrupted `up` may have created resources that are not in the state."
        )
    if facts.teardown_began:
        why = teardown_sentence(facts)
    elif facts.is_without_capacity:
        return _not_granted(facts, "no server", after_no_capacity(facts.stack))
    else:
        why = without_server(facts.parts, len(facts.parts) or count)
    return ServesNow(word="no server", why=why)


def differs(facts: StackFacts) -> Sequence[str]:
    """Return what differs, or may differ, between Google and the state, one sentence each. `up` then compares them first, and undoes it."""
    serves = serves_now(facts)
    found = [serves.why] if serves.word in {"ended", "unknown"} else changed_by_hand(facts)
    # Without a refresh, the engine tries again only what failed in its own last run.
    failed = "" if facts.recorded is not None and facts.recorded.has_failed else failure_of(facts)
    return [*found, *filter(None, [failed]), *facts.losses]


def next_start(stack: str) -> str:
    """Return how the server of a stack that failed starts again, as a sentence."""
    return f"If its cause is fixed, run `gemma up {stack}`, which starts it once more."


def failure_of(facts: StackFacts) -> str:
    """Return that the newest revision or document failed, and why, as sentences; empty if it did not, or if that is unknown."""
    cloud, server = facts.cloud, facts.recorded
    if cloud is None or server is None or cloud.has_ended or FAILED not in {cloud.state.lower(), cloud.phase_now}:
        return ""
    # A TPU VM that has just received a new document still reports the result of the previous one.
    is_newest = cloud.ready != cloud.stored if server.kind == SERVICE else cloud.reported == cloud.stored
    if not is_newest:
        return ""
    what = f"Revision {cloud.stored} did not start" if server.kind == SERVICE else "The server failed"
    why = masked(reason_of(cloud.phase_detail or "")).rstrip(".") or "no reason reported"
    is_other = cloud.running not in {None, cloud.stored}
    return f"{what}: {why}." + (f" {short_identity(str(cloud.running))} still serves." if is_other else "")


def old_report(facts: StackFacts) -> str:
    """Return since when the agent on the TPU VM has not reported, with the next command; empty if its report holds now."""
    match facts.cloud:
        case CloudFacts(phase=Unknown(why=why)):
            return f"{why} Run `gemma logs {facts.stack}`."
        case _:
            return ""


def start_in_progress(facts: StackFacts) -> str:
    """Return that the agent on the TPU VM starts the server, with the next command; empty if another document serves, or if it does not."""
    match facts.cloud:
        case CloudFacts(state="ACTIVE", has_ended=False, running=None, phase=Present(value=phase)):
            is_over = phase in {READY, FAILED} or phase.startswith("node ")
        case _:
            return ""
    return "" if is_over else f"Nothing serves now: the TPU VM is {phase}. Run `gemma status {facts.stack} --watch`."


def dead_server(facts: StackFacts) -> str:
    """Return why a server will not become ready without an `up`, with the next commands; empty if it can, or if that is unknown."""
    if facts.cloud is None or not facts.cloud.serves_nothing or not (failure := failure_of(facts)):
        return ""
    return f"{failure} `gemma logs {facts.stack}` has its log, `gemma up {facts.stack}` starts it again."


def changed_by_hand(facts: StackFacts) -> Sequence[str]:
    """Return what was changed about a running server outside Pulumi, or by an interrupted `up`, one sentence each."""
    cloud, server, found = facts.cloud, facts.recorded, list[str]()
    if cloud is None or server is None:
        return ()
    if cloud.declared and cloud.stored and cloud.declared != cloud.stored and not server.has_failed:
        kind = "revision" if server.kind == SERVICE else "document"
        stored, declared = short_identity(cloud.stored), short_identity(cloud.declared)
        how = "by an interrupted `up`" if facts.is_interrupted else "outside Pulumi"
        found.append(f"The {kind} was changed {how}: {stored} instead of {declared}.")
    if cloud.scaling:
        scaling = ", ".join(f"{key} {value}" for key, value in cloud.scaling.items())
        found.append(f"The scaling of the service was changed outside Pulumi: {scaling}.")
    return found


def moved_traffic(facts: StackFacts) -> str:
    """Return that traffic was moved outside Pulumi, and until when that stays; empty if the latest revision has all of it."""
    cloud, server = facts.cloud, facts.recorded
    if cloud is None or server is None or not cloud.traffic or list(cloud.traffic) == [cloud.stored]:
        return ""
    # A revision that does not start leaves the traffic to the previous one.
    if cloud.state == "FAILED" and cloud.ready != cloud.stored:
        return ""
    if cloud.state not in {"READY", "FAILED"}:
        return ""
    stays = f"It stays until `gemma up {facts.stack}` changes the service; --refresh moves it back now."
    return f"Traffic was moved outside Pulumi: {shares_text(cloud.traffic)}. {stays}"


def short_identity(identity: str) -> str:
    """Return the first 12 digits of a document's hash, or the name of a revision."""
    return identity[:_HASH_DIGITS] if len(identity) == 64 else identity  # noqa: PLR2004 - digits of SHA-256


def _not_granted(facts: StackFacts, word: ServingWord, after: str = "") -> ServesNow:
    """Return that the last request for capacity was refused, and what each zone answered if that is known."""
    said, *zones = facts.refusal or [NO_CAPACITY]
    return ServesNow(word=word, why=f"Nothing serves. {said} {after}".rstrip(), cause=" ".join(zones))


def is_being_deleted(facts: StackFacts, serves: ServesNow) -> bool:
    """Return whether `gemma teardown` continues a deletion that began: no server of a complete `up` is known to exist."""
    is_complete = facts.recorded is not None and facts.deployed is not None
    has_server = is_complete and serves.word in {"deployed", "waiting"}
    return facts.teardown_began and not has_server


def teardown_sentence(facts: StackFacts) -> str:
    """Return that a deletion of a stack did not finish, and what is left, as a sentence."""
    left = f": the state still has {number_of(facts.resources, 'resource')}" if facts.resources else ""
    return facts.held or f"A teardown did not finish{left}."


def unfinished_teardown(facts: StackFacts, serves: ServesNow) -> str:
    """Return that `gemma teardown` continues a deletion that began, in sentences; empty if there is none."""
    continues = f"`gemma teardown {facts.stack}` continues it; `up` creates again what it deleted."
    continues = "`up` uses it again." if facts.held else continues
    return f"{teardown_sentence(facts)} {continues}" if is_being_deleted(facts, serves) else ""


def require_deployed(facts: StackFacts) -> None:
    """Raise CommandRefusedError for a stack that was never deployed, is only staged, or was torn down.

    If Google has its server or does not tell, if its state cannot be read, or while it is locked, it may be deployed.
    """
    match facts.state:
        case Unknown():
            return
        case Absent():
            raise CommandRefusedError(no_such_stack(facts.stack))
        case Present() as state:
            found = serves_now(facts)
    has_server = facts.recorded is not None or facts.deployed is not None
    if not has_server and found.word in _WITHOUT_SERVER and not stack_locks(facts.stack):
        raise _no_server(facts, found, state)


def _no_server(facts: StackFacts, found: ServesNow, _state: Present[str]) -> CommandRefusedError:
    """Return the refusal of a stack whose state has no server, as `gemma status` reports it, with the next command."""
    if deploying := running_up(facts.stack):
        return CommandRefusedError(deploying)
    why = found.why or f"Stack {facts.stack} is not deployed."
    command = f" Run `gemma {'teardown' if facts.teardown_began else 'up'} {facts.stack}`."
    return CommandRefusedError(f"{why}{'' if facts.is_without_capacity else command}")


def serving_outputs(stack: str) -> StackOutputs:
    """Return the outputs of a stack, like `serving_facts`."""
    return serving_facts(stack)[1]


def serving_facts(stack: str) -> tuple[StackFacts, StackOutputs]:
    """Return the facts of a stack with its server, and its outputs. Raises as `facts_of_server`, and CommandRefusedError if it is not deployed."""
    deployment, facts = facts_of_server(stack)
    return facts, outputs_to_use(deployment, facts)


def outputs_to_use(deployment: StackDeployment, facts: StackFacts) -> StackOutputs:
    """Return the outputs of a stack with a server. Raises CommandRefusedError."""
    stack = facts.stack
    found = serves_now(facts)
    if facts.recorded is not None and is_being_deleted(facts, found):
        raise CommandRefusedError(f"{teardown_sentence(facts)} Run `gemma teardown {stack}`.")
    if isinstance(facts.state, Present) and found.word in _WITHOUT_SERVER:
        raise _no_server(facts, found, facts.state)
    return outputs_in(stack, deployment.resources)


def facts_of_server(stack: str) -> tuple[StackDeployment, StackFacts]:
    """Return the state of a stack, and its facts with its server.

    Raises CommandRefusedError if Google reports that its server is gone. Without Google's response, the caller tries to reach the server.
    """
    deployment = read_deployment(stack)
    state = of_deployment(stack, deployment)
    facts = read_facts(state, "server", limit_s=GOOGLE_LIMIT_S)
    if facts.is_unrecorded:
        raise CommandRefusedError(f"{UNRECORDED} Run `gemma up {stack}`, which imports it.")
    if facts.recorded is None and isinstance(facts.server, Unknown):
        raise ScriptError(serves_now(facts).why)
    if (found := serves_now(facts)).word == "ended":
        if is_being_deleted(facts, found):
            raise CommandRefusedError(f"{teardown_sentence(facts)} Run `gemma teardown {stack}`.")
        raise CommandRefusedError(f"{found.why} {after_end(read_facts(state, 'cost', limit_s=GOOGLE_LIMIT_S))}")
    return deployment, facts


def after_end(facts: StackFacts) -> str:
    """Return how a stack whose server ended continues, as a sentence: `up` refuses one that used up a limit."""
    if facts.cloud is not None and facts.cloud.exceeded:
        return (
            f"It exceeds {' and '.join(facts.cloud.exceeded)}. Raise the limit, or run `gemma teardown {facts.stack}`."
        )
    return f"To serve again, run `gemma up {facts.stack}`."


def run_end(cloud: CloudFacts, stamp: Stamp) -> str:
    """Return since when and why a server that ended does not serve, as a sentence; empty if it has not ended."""
    if not cloud.has_ended:
        return ""
    if cloud.planned_end is None and cloud.state == MISSING:
        return "Nothing serves. The server no longer exists."
    if cloud.run_end == "preempted":
        return "Nothing serves. Google preempted the TPU VM (spot)."
    if cloud.planned_end is None:
        return f"Nothing serves. Google reports the server as {cloud.phase_now or cloud.state}."
    at = stamp(datetime.fromisoformat(cloud.planned_end).timestamp())
    if cloud.run_end == "planned":
        return _planned(at)
    return f"Nothing serves. The TPU VM was preempted or deleted before the planned end of its run at {at}."


def _planned(at: str) -> str:
    return f"Nothing serves since the planned end of the run at {at}."


def utc(at_s: float) -> str:
    """Return a time in UTC, in minutes."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def lock_sentence(lock: StackLock, now: datetime) -> str:
    """Return who holds a lock, or that its holder was killed."""
    if lock.is_left:
        return f"A killed command left a lock: {lock.holder} is no longer running."
    return f"The stack is {lock.held(now)}."


def after_locks(facts: StackFacts, serves: ServesNow) -> str:
    """Return the command for a locked stack: wait for a holder that runs, or continue what a killed one did."""
    if not all(lock.is_left for lock in facts.locks or ()):
        return f"gemma status {facts.stack} --watch"
    return f"gemma {'teardown' if is_being_deleted(facts, serves) else 'up'} {facts.stack}"


def why_not_asked(outputs: StackOutputs, found: StatedResource | None, *, tunnel: bool, wake: bool) -> str | None:
    """Return why the server is not queried, as a sentence; None if it is."""
    if outputs.auth == "tunnel" and not tunnel:
        return "Not checked: the server is behind a tunnel. Pass --tunnel to open it."
    scaling = as_mapping(as_mapping(found.inputs.get("template") if found else None).get("scaling"))
    if outputs.target != "tpu" and not wake and not scaling.get("minInstanceCount"):
        return "Not checked: a request may start an instance. Pass --wake to check anyway."
    return None
