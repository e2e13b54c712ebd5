"""Read what exists of one stack: the state, Google's report on its server and its other resources, and its locks."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from gemma_serving.cloud.google_api import connect
from gemma_serving.contracts.errors import CommandRefusedError, ScriptError
from gemma_serving.contracts.naming import NamingError
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.parallel import each_within
from gemma_serving.contracts.search_results import FoundResource
from gemma_serving.contracts.stack_facts import MISSING, CloudFacts, Part, StackFacts, StatedResource
from gemma_serving.contracts.stack_lock import StackLock
from gemma_serving.contracts.three_answers import Absent, Answer, Present, Unknown
from gemma_serving.engine.locks import stack_locks
from gemma_serving.engine.state import StackState
from gemma_serving.scripts.stack.deployed_server import (
    cloud_facts,
    has_server_component,
    named_server,
    serving,
    stated_parts,
)
from gemma_serving.scripts.stack.held_networks import NOT_ASKED, held_network, is_held
from gemma_serving.scripts.stack.labelled import search_stacks, searched_stacks
from gemma_serving.scripts.stack.lost_parts import lost_parts
from gemma_serving.scripts.stack.own_runs import is_destroyed, is_interrupted, remembered_refusal
from gemma_serving.scripts.stack.unfinished_teardown import is_unfinished

NOT_COMPLETE: Final = "The last `up` was not complete, or another version of the project deployed the stack"


def facts_of(state: StackState, *, locks: Sequence[StackLock] | None = None) -> StackFacts:
    """Return what the state of a stack tells by itself. Google was not asked."""
    declared, outputs = serving(state), _outputs(state)
    has_component = has_server_component(state)
    is_complete = isinstance(outputs, Present)
    # Only a deletion removes the server of a complete `up` from the state with its component.
    is_deleted = is_complete and declared is None and not has_component
    held = held_network(state) if is_deleted or is_destroyed(state.stack) else None
    return StackFacts(
        stack=state.stack,
        state=_state(state),
        outputs=outputs,
        declared=declared,
        resources=len(state.resources),
        parts=stated_parts(state),
        pending=sorted({str(item.get("urn")).rpartition("::")[2] for item in state.pending}),
        has_server_component=has_component,
        is_without_capacity=state.lacks_capacity,
        refusal=remembered_refusal(state.stack),
        is_interrupted=is_interrupted(state.stack),
        teardown_began=is_deleted or held is not None or is_unfinished(state.stack),
        held=held.sentence(NOT_ASKED) if held else "",
        locks=locks,
    )


def _state(state: StackState) -> Answer[str]:
    if state.status == "missing":
        return Absent()
    # Without an engine, the file of a local backend is the state itself.
    if state.status == "read" or state.raw:
        return Present(state.written)
    # Only a state that is cut off can be replaced; the backend or the passphrase of another one needs a repair first.
    return Unknown(state.detail, fix=f"gemma {'up' if state.is_cut_off else 'doctor'} {state.stack}")


def _outputs(state: StackState) -> Answer[StackOutputs]:
    if not state.printed:
        return Absent()
    found = state.outputs
    return Unknown(NOT_COMPLETE) if found is None else Present(found)


def read_facts(state: StackState, *parts: Part, limit_s: float) -> StackFacts:
    """Return what exists of a stack, with the named parts. A part without an answer within `limit_s` seconds is unknown.

    Without a state, Google is asked only for the `labels`.
    """
    facts, costs = facts_of(state), "cost" in parts
    asks_server = costs or "server" in parts
    if asks_server and facts.declared is None and facts.has_server_component:
        facts = _with_named_server(facts, state)
    found, queries = facts.declared, dict[str, Callable[[], Answer[object]]]()
    if found is not None and asks_server:
        queries["server"] = lambda: _report(found, state.former_name or state.stack, costs=costs)
    if found is not None and "lost" in parts:
        queries["lost"] = lambda: lost_parts(state)
    if "labels" in parts:
        queries["labels"] = lambda: _labelled(state)
    if facts.held:
        facts = replace(facts, held=held_sentence(state))
    answers = each_within([*queries.values()], workers=len(queries) or 1, limit_s=limit_s)
    for part, (answer, error) in zip(queries, answers, strict=True):
        facts = replace(facts, **{part: answer or Unknown(reason_of(error))})
    return replace(facts, locks=stack_locks(state.stack)) if "locks" in parts else facts


def held_sentence(state: StackState) -> str:
    """Return what Google holds of a deleted stack, or has released, after asking it; empty if its state has more than that."""
    network = held_network(state)
    return "" if network is None else network.sentence(is_held(network))


def _with_named_server(facts: StackFacts, state: StackState) -> StackFacts:
    """Return the facts with the server that the stack's settings name: Google may have created it without an answer."""
    try:
        return replace(facts, declared=named_server(state))
    except (CommandRefusedError, NamingError) as error:
        return replace(facts, server=Unknown(f"the name of its server is unknown: {str(error).splitlines()[0]}"))


def _report(found: StatedResource, stack: str, *, costs: bool) -> Answer[CloudFacts]:
    """Return Google's report. Raises ScriptError."""
    report = cloud_facts(connect(found.project), found, stack=stack, costs=costs)
    return Present(report) if found.is_recorded or report.state != MISSING else Absent()


def _labelled(state: StackState) -> Answer[Sequence[FoundResource]]:
    """Return what Google has of a stack. Raises ScriptError."""
    stacks = searched_stacks(state.stack, [state])
    inventory = search_stacks(connect(*stacks.projects), stacks)
    return inventory.answer_about(inventory.found)


def reason_of(error: BaseException | None) -> str:
    """Return why a source did not respond."""
    return str(error) if isinstance(error, ScriptError | TimeoutError) else f"{type(error).__name__}: {error}"
