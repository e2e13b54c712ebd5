"""Renewal: a second queued resource, requested before the deadline of the one that serves, takes over when it is ready.

The two ids take turns, `ID` and `ID-b`. Which of two is the newer one follows from their creation times, so that no order of crashes
can make them change places. Only zones that the state knows are asked: whatever is lost, a later operation looks there.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from gcp_tpu_provider import capacity, wire
from gcp_tpu_provider.errors import CannotWaitError, GoogleError, NoAnswerError, TpuProviderError
from gcp_tpu_provider.operation import ResourceOperation
from gcp_tpu_provider.resource_record import UNOBSERVED, ResourceRecord
from gcp_tpu_provider.tpu_api import ACTIVE, DEAD, DELETING, QueuedResourceInfo

GONE = DEAD | {DELETING}
"""States from which a queued resource never comes back."""


def due(outputs: Mapping[str, Any], renew_before_s: object, now: datetime) -> bool:
    """Return whether the deadline in the outputs is so near that a second queued resource is to be requested."""
    deadline = outputs.get("deadline")
    if not isinstance(renew_before_s, int) or not deadline or outputs.get("state") != ACTIVE:
        return False
    return now >= datetime.fromisoformat(str(deadline)) - timedelta(seconds=renew_before_s)


def known_zones(operation: ResourceOperation, state: Mapping[str, Any]) -> list[str]:
    """Return the zones that the state names: those of its inputs, and those in which there was a request."""
    plain = cast("wire.Properties", wire.reveal(dict(state)))
    given = cast("list[str]", plain.get("zones") or [])
    return list(dict.fromkeys([*operation.tried, *given, *([str(plain["zone"])] if plain.get("zone") else [])]))


async def look(operation: ResourceOperation, state: Mapping[str, Any]) -> QueuedResourceInfo | None:
    """Return what exists under the other id, the newest if there are several, and record it in `operation.second`."""
    second = operation.other()
    recorded = ResourceRecord.of_renewal(cast("wire.Properties", wire.reveal(dict(state))))
    if recorded is not None and operation.desired.named(recorded.name).second == second.desired.second:
        second.record = recorded
    found = await capacity.find_all(second, known_zones(operation, state))
    newest = max(found, key=_age, default=None)
    if newest is not None:
        _record(second, newest)
    elif recorded is not None and recorded.observed:
        second.record = None  # it was seen, and it is gone
    return newest


def _record(operation: ResourceOperation, found: QueuedResourceInfo) -> None:
    operation.record = ResourceRecord(zone=found.zone, name=found.name)
    operation.record.observe(found)
    operation.tried[found.zone] = None


def _age(found: QueuedResourceInfo) -> tuple[bool, datetime]:
    """Return what sorts the one that is to be kept last: those that can still serve, and the newest of them."""
    return found.state not in GONE, _created(found.create_time)


def _created(time: str) -> datetime:
    return datetime.fromisoformat(time or "1970-01-01T00:00:00Z")


def is_newer(found: QueuedResourceInfo, record: ResourceRecord) -> bool:
    """Return whether it was requested after the one in the record: then it is to take over."""
    return _created(found.create_time) > _created(str(record.observed.get("createTime") or ""))


async def is_lost(operation: ResourceOperation, found: QueuedResourceInfo | None) -> bool:
    """Return whether a queued resource cannot serve any more: it is gone, or at its end, or its node is."""
    if found is None or found.state in GONE:
        return True
    if found.state != ACTIVE:
        return False
    names = found.node_names()
    node = await operation.api.find_node(names[0]) if names else None
    return node is None or not node.alive


async def is_heir(
    operation: ResourceOperation, other: QueuedResourceInfo | None, found: QueuedResourceInfo | None
) -> bool:
    """Return whether the other one takes the place of `found`, which served so far and cannot any more."""
    record = operation.owned_record()
    if other is None or other.state in GONE or (found is not None and not is_newer(other, record)):
        return False
    if not await is_lost(operation, found):
        return False
    if found is not None:
        record.observe(found)
    return True


async def _late(operation: ResourceOperation) -> QueuedResourceInfo | None:
    """Return what has the other id once it is visible, if its request got no answer; None if there is no such request."""
    second = operation.other()
    if second.record is None or second.record.state != UNOBSERVED:
        return None
    found = await capacity.find_recorded(second, second.record)
    if found is not None:
        _record(second, found)
    return found


async def inherit(
    operation: ResourceOperation, state: Mapping[str, Any], found: QueuedResourceInfo | None
) -> QueuedResourceInfo | None:
    """Return what the state is to name: `found`, or what has the other id, if that takes its place or is all that is left."""
    other = await look(operation, state)
    if found is None and other is None:
        other = await _late(operation)
    if other is None or (found is not None and not await is_heir(operation, other, found)):
        return found
    operation.take_over()
    if found is None:
        operation.other().record = None
    return other


async def remove_other(operation: ResourceOperation, state: Mapping[str, Any]) -> None:
    """Delete what has the other id, in every zone that the state names."""
    await look(operation, state)
    await capacity.remove_all(operation.other(), known_zones(operation, state))


async def choose(operation: ResourceOperation) -> None:
    """Before a creation: find out which of the two ids a lost state left behind, work on that one, and delete the other."""
    zones, second = operation.desired.zones, operation.other()
    seconds = await capacity.find_all(second, zones, everywhere=True)
    if not seconds:
        return
    firsts = await capacity.find_all(operation, zones, everywhere=True)
    best = max([*firsts, *seconds], key=lambda found: (found.state == ACTIVE, *_age(found)))
    for mine, found in ((operation, firsts), (second, seconds)):  # an end from here on leaves both in the state
        operation.tried |= dict.fromkeys(item.zone for item in found)
        if found:
            _record(mine, max(found, key=_age))
    others = seconds
    if best in seconds and best.state not in GONE:
        operation.take_over()
        others = firsts
    await capacity.remove_all(second, [found.zone for found in others])
    operation.record = None


async def renew(
    operation: ResourceOperation, state: Mapping[str, Any], found: QueuedResourceInfo | None
) -> QueuedResourceInfo | None:
    """Return the successor that is to take over; None if there is none to wait for. What has no use is deleted.

    `found` is what has the other id. Raises TpuProviderError if the renewal broke off with a request that exists: `operation.second` records it.
    """
    second, record = operation.other(), operation.owned_record()
    is_due = due(record.observed, operation.desired.renew_before_s, operation.now())
    zones = known_zones(operation, state)
    if second.record is not None and (not is_due or (found is not None and not is_newer(found, record))):
        await capacity.remove_all(second, zones)
    if not is_due:
        return None
    try:
        return await capacity.acquire(second, [zone for zone in operation.desired.zones if zone in zones])
    except (GoogleError, NoAnswerError, CannotWaitError):
        raise
    except TpuProviderError as error:
        if second.record is not None or await _serves_no_more(operation):
            raise
        warn = operation.warn or operation.report_progress
        until = record.observed.get("deadline")
        await warn(
            f"The renewal got no capacity, and {record.name} goes on serving until {until}. The next `pulumi up` tries again. {error}"
        )
        return None


async def _serves_no_more(operation: ResourceOperation) -> bool:
    record = operation.owned_record()
    found = await operation.api.find_queued_resource(record.name)
    if found is not None:
        record.observe(found)
    return await is_lost(operation, found)
