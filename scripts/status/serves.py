"""What a stack serves now: one answer for `gemma`, `status`, `up`, `chat` and `connect`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from gemma_serving.cloud.clock import GOOGLE_CLOCK
from gemma_serving.contracts.capacity_states import WITHOUT_MACHINE
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.engine.state import NO_CAPACITY, StackState, after_no_capacity
from gemma_serving.scripts.status.cloud import MISSING, facts_within, serving
from gemma_serving.scripts.status.report import CloudFacts, ServesNow

WAITING_STATES: Final = WITHOUT_MACHINE | {"DEPLOYING"}
"""States in which Google is still creating the server."""
Stamp = Callable[[float], str]
"""Formats a time in seconds since 1970."""


def serves_now(state: StackState, cloud: CloudFacts | None = None, *, why_unknown: str = "") -> ServesNow:
    """Return what a stack serves: by Google's facts, or as of its last `up` if Google was not queried.

    `why_unknown`: reason why Google, which was asked, did not answer.
    """
    if state.status != "read" and not state.raw:
        return ServesNow(word="not deployed" if state.status == "missing" else "unknown", why=state.detail)
    found = serving(state)
    if cloud is not None and not cloud.has_ended:
        return ServesNow(word="waiting" if cloud.state in WAITING_STATES else "deployed")
    if found is None or not found.outputs:
        return _without_server(state)
    if cloud is not None:
        return ServesNow(word="ended", why=run_end(cloud, utc))
    if why_unknown:
        return ServesNow(word="unknown", why=f"Cannot check whether the server exists: {why_unknown.rstrip('.')}.")
    return _recorded(state.outputs)


def _recorded(outputs: StackOutputs | None) -> ServesNow:
    """Return what a stack with a server serves, as of its last `up`."""
    if outputs is None:
        why = "The last `up` was not complete, or another version of the project deployed the stack."
        return ServesNow(word="unknown", why=why)
    if outputs.target == "tpu" and outputs.state in WITHOUT_MACHINE:
        return ServesNow(word="waiting", why=f"The capacity was {outputs.state}.")
    if outputs.deadline and (end := datetime.fromisoformat(outputs.deadline)) <= GOOGLE_CLOCK.now():
        return ServesNow(word="ended", why=_planned(utc(end.timestamp())))
    return ServesNow(word="deployed")


def read_served(state: StackState, *, limit_s: float) -> ServesNow:
    """Return what a stack serves, by Google's answer within `limit_s` seconds."""
    found = serving(state)
    if found is None:
        return serves_now(state)
    facts, error = facts_within(found, state.stack, limit_s=limit_s, costs=False)
    return serves_now(state, facts, why_unknown="" if error is None else reason_of(error))


def reason_of(error: BaseException) -> str:
    """Return why a source did not respond."""
    return str(error) if isinstance(error, ScriptError | TimeoutError) else f"{type(error).__name__}: {error}"


def run_end(cloud: CloudFacts, stamp: Stamp) -> str:
    """Return since when and why a server that ended does not serve, as a sentence; empty if it has not ended."""
    if not cloud.has_ended:
        return ""
    if cloud.planned_end is None and cloud.state == MISSING:
        return "Nothing serves. A teardown, a guard or an interrupted `up` deleted the server."
    if cloud.run_end == "preempted":
        return "Nothing serves. Google preempted the TPU VM (spot)."
    if cloud.planned_end is None:
        return f"Nothing serves. Google reports the server as {cloud.phase or cloud.state}."
    at = stamp(datetime.fromisoformat(cloud.planned_end).timestamp())
    if cloud.run_end == "planned":
        return _planned(at)
    return f"Nothing serves. The TPU VM was preempted or deleted before the planned end of its run at {at}."


def _planned(at: str) -> str:
    return f"Nothing serves since the planned end of the run at {at}."


def _without_server(state: StackState) -> ServesNow:
    count = len(state.resources)
    if state.pending:
        return ServesNow(
            word="no server", why="An interrupted `up` may have created resources that are not in the state."
        )
    if not count:
        return ServesNow(word="not deployed")
    if state.lacks_capacity:
        why = f"{NO_CAPACITY[0].upper()}{NO_CAPACITY[1:]} {after_no_capacity(state.stack)}"
        return ServesNow(word="no server", why=f"Nothing serves. {why}")
    return ServesNow(word="no server", why=f"The state has only {count} other resource{'s' if count > 1 else ''}.")


def utc(at_s: float) -> str:
    """Return a time in UTC, in minutes."""
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M} UTC"


def up_command(stack: str, *, is_gateway: bool) -> str:
    """Return the command that brings back a server that ended."""
    return f"gemma up {stack} --refresh" if is_gateway else f"gemma up {stack}"
