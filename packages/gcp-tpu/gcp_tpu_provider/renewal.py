"""Renewal: before the deadline, request a second queued resource that takes over when it is ready.

The two ids, `ID` and `ID-b`, alternate. Their creation times decide which one is newer, so crashes in any order
cannot swap them. Only zones in the state are queried, and later operations search there for lost requests.
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
"""States from which a queued resource cannot recover."""


def due(outputs: Mapping[str, Any], renew_before_s: object, now: datetime) -> bool:
    """Return whether the deadline in the outputs is near enough to request a second queued resource."""
    deadline = outputs.get("deadline")
    if not isinstance(renew_before_s, int) or not deadline or outputs.get("state") != ACTIVE:
        return False
    return now >= datetime.fromisoformat(str(deadline)) - timedelta(seconds=renew_before_s)


def known_zones(operation: ResourceOperation, state: Mapping[str, Any]) -> list[str]:
    """Return the zones in the state: the zones of its inputs and zones with an earlier request."""
    plain = cast("wire.Properties", wire.reveal(dict(state)))
    given = cast("list[str]", plain.get("zones") or [])
    return list(dict.fromkeys([*operation.tried, *given, *([str(plain["zone"])] if plain.get("zone") else [])]))


async def look(operation: ResourceOperation, state: Mapping[str, Any]) -> QueuedResourceInfo | None:
    """Return the resource with the other id, the newest if several exist, and record it in `operation.second`."""
    second = operation.other()
    recorded = ResourceRecord.of_renewal(cast("wire.Properties", wire.reveal(dict(state))))
    if recorded is not None and operation.desired.named(recorded.name).second == second.desired.second:
        second.record = recorded
    found = await capacity.find_all(second, known_zones(operation, state))
    newest = max(found, key=_age, default=None)
    if newest is not None:
        _record(second, newest)
    elif recorded is not None and recorded.observed:
        second.record = None  # it was visible before and is gone now
    return newest


def _record(operation: ResourceOperation, found: QueuedResourceInfo) -> None:
    operation.record = ResourceRecord(zone=found.zone, name=found.name)
    operation.record.observe(found)
    operation.tried[found.zone] = None


def _age(found: QueuedResourceInfo) -> tuple[bool, datetime]:
    """Return a sort key that puts the one to keep last: able to serve, then newest."""
    return found.state not in GONE, _created(found.create_time)


def _created(time: str) -> datetime:
    return datetime.fromisoformat(time or "1970-01-01T00:00:00Z")


def is_newer(found: QueuedResourceInfo, record: ResourceRecord) -> bool:
    """Return whether it was requested after the recorded one and must take over."""
    return _created(found.create_time) > _created(str(record.observed.get("createTime") or ""))


async def is_lost(operation: ResourceOperation, found: QueuedResourceInfo | None) -> bool:
    """Return whether a queued resource can no longer serve because it is gone or expired, or its node is."""
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
    """Return whether the other one replaces `found`, which can no longer serve."""
    record = operation.owned_record()
    if other is None or other.state in GONE or (found is not None and not is_newer(other, record)):
        return False
    if not await is_lost(operation, found):
        return False
    if found is not None:
        record.observe(found)
    return True


async def _late(operation: ResourceOperation) -> QueuedResourceInfo | None:
    """Return the resource with the other id once it is visible, if its request got no response; None without such a request."""
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
    """Return the resource for the state: `found`, or the one with the other id if that replaces it or is the only one left."""
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
    """Delete the resource with the other id in every zone in the state."""
    await look(operation, state)
    await capacity.remove_all(operation.other(), known_zones(operation, state))


async def choose(operation: ResourceOperation) -> None:
    """Before a creation, find out which of the two ids a lost state left behind, use it, and delete the other."""
    zones, second = operation.desired.zones, operation.other()
    seconds = await capacity.find_all(second, zones, everywhere=True)
    if not seconds:
        return
    firsts = await capacity.find_all(operation, zones, everywhere=True)
    best = max([*firsts, *seconds], key=lambda found: (found.state == ACTIVE, *_age(found)))
    for mine, found in ((operation, firsts), (second, seconds)):  # from here on, a failure keeps both in the state
        operation.tried |= dict.fromkeys(item.zone for item in found)
        if found:
            _record(mine, max(found, key=_age))
    others = seconds
    if best in seconds:
        operation.take_over()
        others = firsts
    await capacity.remove_all(second, [found.zone for found in others])
    operation.record = None


async def renew(
    operation: ResourceOperation, state: Mapping[str, Any], found: QueuedResourceInfo | None
) -> QueuedResourceInfo | None:
    """Return the successor to wait for, or None. Delete an unusable one.

    `found` is the resource with the other id. Raises TpuProviderError if the renewal failed with an existing request, recorded in `operation.second`.
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
            f"The renewal got no capacity. {record.name} keeps serving until {until}. The next `pulumi up` tries again. {error}"
        )
        return None


async def _serves_no_more(operation: ResourceOperation) -> bool:
    record = operation.owned_record()
    found = await operation.api.find_queued_resource(record.name)
    if found is not None:
        record.observe(found)
    return await is_lost(operation, found)
