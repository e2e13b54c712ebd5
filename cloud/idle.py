"""Idle time of a stack's TPU machines, by their own report. Unknown never counts as idle."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from cloud.tpu_machine import TpuMachine
from contracts.answers import Absent, Answer, Present, Unknown
from contracts.errors import ScriptError
from contracts.guest_attributes import (
    ENDING,
    FAILED,
    IDLE_SINCE_KEY,
    NOT_IDLE,
    PHASE_KEY,
    PHASES,
    READY,
    UPDATED_AT_KEY,
)
from planning.units import age

LATEST_REPORT: Final = timedelta(minutes=10)
"""Age from which a report proves nothing. The agent writes one each minute."""
_STARTS: Final = PHASES.keys() - {READY, ENDING, FAILED}


def idle_since(machines: Sequence[TpuMachine], now: datetime) -> Answer[datetime]:
    """Return the time since which all machines are idle, Absent if one is busy, and Unknown if one may be."""
    answers = [_of_machine(machine, now) for machine in machines]
    if any(isinstance(answer, Absent) for answer in answers):
        return Absent()
    unknown = next((answer for answer in answers if isinstance(answer, Unknown)), None)
    return unknown or Present(max(answer.value for answer in answers if isinstance(answer, Present)))


def _of_machine(machine: TpuMachine, now: datetime) -> Answer[datetime]:
    name = machine.name.rpartition("/")[2]
    try:
        answer = reported(machine.published(), now)
    except ScriptError as error:
        return Unknown(f"the guest attributes of {name} could not be read ({error})")
    return Unknown(f"{name} {answer.why}") if isinstance(answer, Unknown) else answer


def reported(published: Mapping[str, str], now: datetime) -> Answer[datetime]:
    """Return the idle time in a machine's guest  Unknown continues a sentence about it."""
    phase = published.get(PHASE_KEY, "")
    if not phase:
        return Unknown("has published no phase")
    updated = _time(published.get(UPDATED_AT_KEY, ""))
    if updated is None:
        return Unknown("last reported at an unknown time")
    if now - updated > LATEST_REPORT:
        return Unknown(f"last reported {age((now - updated).total_seconds())} ago")
    if phase in _STARTS or (phase == READY and published.get(IDLE_SINCE_KEY) == NOT_IDLE):
        return Absent()
    if phase != READY:
        return Unknown(f"is {phase}")
    since = _time(published.get(IDLE_SINCE_KEY, ""))
    return Unknown("does not report whether requests are running") if since is None else Present(since)


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
