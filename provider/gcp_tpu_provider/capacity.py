"""Capacity: asking zone after zone, waiting, leaving nothing behind where it did not come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from uuid import uuid4

from gcp_tpu_provider.durations import for_people
from gcp_tpu_provider.errors import CannotWaitError, ForeignError, GoogleError, NoAnswerError, ProviderError
from gcp_tpu_provider.flow import Flow, Pace, Stopwatch
from gcp_tpu_provider.record import Record
from gcp_tpu_provider.request import Wish
from gcp_tpu_provider.tpu_api import (
    ACCEPTED_OR_LATER,
    ACTIVE,
    DEAD,
    DELETABLE_WITHOUT_FORCE,
    DELETING,
    MODELS,
    Operation,
    QueuedResource,
)

PROVISIONING_S = 1800
"""Capacity that is being set up is not given up when the wait in the queue is spent, but it has to come within this time."""
STATE_MOVED_ON = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED})
"""How Google refuses a deletion that does not fit the state, which may have changed since it was read."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What a zone answered instead of giving capacity. Nothing is left there."""

    zone: str
    answer: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The request stands; `operation` is absent where it was made earlier."""

    operation: Operation | None


async def acquire(flow: Flow, wish: Wish, zones: Sequence[str], spent: Sequence[Refused] = ()) -> QueuedResource:
    """Get the queued resource to the wished state in the first zone that allows it.

    Raises ProviderError with a table of what each zone answered when none does; nothing is left behind then (`flow.record` is None).
    """
    refusals = list(spent)
    for zone in await _leftovers_first(flow, wish, zones):
        asked = await _ask(flow, wish, zone)
        result = asked if isinstance(asked, Refused) else await await_capacity(flow, wish, asked.operation)
        if isinstance(result, QueuedResource):
            return result
        refusals.append(result)
        await flow.say(f"{zone}: {result.answer}")
    raise ProviderError(_table(wish, refusals))


def _table(wish: Wish, refusals: Sequence[Refused]) -> str:
    width = max((len(item.zone) for item in refusals), default=0)
    lines = [f"  {item.zone:<{width}}  {item.answer}" for item in refusals]
    model, accelerator = wish.inputs["provisioningModel"], wish.inputs["acceleratorType"]
    return "\n".join([f"No zone gave {accelerator} as {model}; nothing was left behind.", *lines])


async def _leftovers_first(flow: Flow, wish: Wish, zones: Sequence[str]) -> list[str]:
    """Put a zone first that already holds this resource: an earlier creation was cut off before it could report."""
    held: list[str] = []
    for zone in zones:
        try:
            found = await flow.api.find_queued_resource(wish.name(zone))
        except GoogleError as error:
            _require_zonal(error)
            continue  # the zone says why again when it is its turn
        if found is not None and flow.owns(found):
            held.append(zone)
    for zone in held[1:]:
        flow.record = Record(zone=zone, name=wish.name(zone))
        await remove(flow)
    return [*held[:1], *(zone for zone in zones if zone not in held[:1])]


async def _ask(flow: Flow, wish: Wish, zone: str) -> Asked | Refused:
    """Make the request in a zone, or take over what an earlier, interrupted one made."""
    name, request_id = wish.name(zone), str(uuid4())
    try:
        existing = await flow.api.find_queued_resource(name)
    except GoogleError as error:
        _require_zonal(error)
        return Refused(zone, str(error))
    if existing is not None and await _take_over(flow, wish, existing):
        return Asked(None)
    flow.record = Record(zone=zone, name=name)  # from here on something may exist
    try:
        return Asked(await flow.api.create_queued_resource(name, wish.body(zone), request_id))
    except GoogleError as error:
        certain = error.status < HTTPStatus.INTERNAL_SERVER_ERROR and error.status != HTTPStatus.CONFLICT
        if certain:
            flow.record = None
            _require_zonal(error)
        return Refused(zone, str(error)) if certain else await _resolve(flow, wish, zone, error)
    except NoAnswerError as error:
        if not error.sent:
            flow.record = None
            raise
        return await _resolve(flow, wish, zone, error)


def _require_zonal(error: GoogleError) -> None:
    """Raise the error again unless it may be about this zone only. Wrong credentials and an unavailable API are not."""
    if error.status == HTTPStatus.UNAUTHORIZED or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error


async def _resolve(flow: Flow, wish: Wish, zone: str, error: ProviderError) -> Asked | Refused:
    """The answer was lost, or says that the name is taken: look what is there."""
    pace = Pace(flow.timing)
    for _ in range(3):
        found = await flow.api.find_queued_resource(wish.name(zone))
        if found is not None:
            if await _take_over(flow, wish, found):
                return Asked(None)
            return Refused(zone, f"{error} What was found there could not be used and was deleted.")
        await pace.pause()  # what was asked for may take a moment to be seen
    flow.record = None
    return Refused(zone, f"{error} Nothing was created.")


async def _take_over(flow: Flow, wish: Wish, found: QueuedResource) -> bool:
    """Make an existing queued resource of ours the one of this operation; delete it and return False where it is of no use."""
    if not flow.owns(found):
        flow.record = None
    flow.require_ours(found)
    fits = _fits(wish, found)
    if found.state == ACTIVE and not fits and not wish.allow_replace_active:
        raise ProviderError(
            f"{found.name} is ACTIVE and was asked for by a run of Pulumi that was cut off, with other properties than now; "
            "set `allowReplaceActive` to true to give it up, or take the change back."
        )
    flow.record = Record(zone=found.zone, name=found.name)
    flow.record.see(found)
    if fits and found.state not in DEAD and found.state != DELETING:
        return True
    await remove(flow)
    return False


def _fits(wish: Wish, found: QueuedResource) -> bool:
    return (
        all(found.config.get(name) == wish.inputs[name] for name in ("acceleratorType", "runtimeVersion"))
        and found.provisioning_model == MODELS[str(wish.inputs["provisioningModel"])]
        and found.max_run_duration_s == wish.inputs.get("maxRunDurationS")
    )


async def await_capacity(flow: Flow, wish: Wish, operation: Operation | None = None) -> QueuedResource | Refused:
    """Wait for the queued resource in `flow.record`; give it up, and see it gone, when it fails or its wait is spent."""
    record = flow.owned_record()
    wanted = ACCEPTED_OR_LATER if wish.wait_for == "accepted" else frozenset({ACTIVE})
    pace, watch = Pace(flow.timing), Stopwatch()
    while True:
        found = await flow.api.find_queued_resource(record.name)
        refusal = await _absence(flow, operation, watch) if found is None else ""
        if found is not None:
            record.see(found)
            if found.state in wanted:
                return found
            if found.state in DEAD or found.state == DELETING:
                refusal = f"{found.state}{f': {found.error}' if found.error else ''}."
        if refusal:
            await remove(flow)
            return Refused(record.zone, refusal)
        if _spent(record.state, wish, watch):
            refusal = f"{record.state} for {for_people(watch.seconds())}: the wait for this zone is spent."
            if await remove(flow, spare_coming=record.state != "PROVISIONING"):
                return Refused(record.zone, refusal)
        await flow.say(
            f"{record.zone}: {record.state}, {for_people(watch.seconds())} of {for_people(wish.wait_per_zone_s)}"
        )
        await pace.pause()


def _spent(state: str, wish: Wish, watch: Stopwatch) -> bool:
    extra_s = PROVISIONING_S if state in {"PROVISIONING", ACTIVE} else 0
    return watch.seconds() > wish.wait_per_zone_s + extra_s


async def _absence(flow: Flow, operation: Operation | None, watch: Stopwatch) -> str:
    """A queued resource that was asked for and is not to be seen: return why it never will be, or nothing while it may yet."""
    if operation is not None and operation.name:
        operation = await flow.api.operation(operation.name)
        if operation.error:
            return f"{operation.error}."
    return (
        "It was accepted and then never seen, or deleted by somebody else."
        if watch.seconds() > flow.timing.appear_s
        else ""
    )


async def remove(flow: Flow, *, spare_coming: bool = False) -> bool:
    """Delete the queued resource in `flow.record` and see it gone; `flow.record` is None then.

    With `spare_coming`, capacity that has come meanwhile is kept and False is returned. Raises CannotWaitError when it does not go within its time.
    """
    record = flow.owned_record()
    pace, watch = Pace(flow.timing), Stopwatch()
    operation: Operation | None = None
    problem = ""
    while True:
        found = await flow.api.find_queued_resource(record.name)
        if found is None:
            flow.record = None
            return True
        record.see(found)
        if spare_coming and operation is None and found.state in {"PROVISIONING", ACTIVE}:
            return False
        if watch.seconds() > flow.timing.delete_s:
            raise CannotWaitError(
                f"{record.name} is still {found.state} {for_people(watch.seconds())} after its deletion was asked for"
                f"{f' ({problem})' if problem else ''}; run `pulumi destroy` or `pulumi up` again."
            )
        if operation is not None:
            operation = await _deleting(flow, operation, found)
        elif found.state != DELETING:
            operation, problem = await _ask_deletion(flow, found)
        await flow.say(f"{record.zone}: deleting, {found.state}, {for_people(watch.seconds())}")
        await pace.pause()


async def _ask_deletion(flow: Flow, found: QueuedResource) -> tuple[Operation | None, str]:
    force = found.state not in DELETABLE_WITHOUT_FORCE
    try:
        return await flow.api.delete_queued_resource(found.name, force=force, request_id=str(uuid4())), ""
    except GoogleError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None, ""
        if error.status in STATE_MOVED_ON:
            return None, str(error)
        raise


async def _deleting(flow: Flow, operation: Operation, found: QueuedResource) -> Operation | None:
    """Follow the deletion; return None when it has to be asked for again."""
    if not operation.name:
        return operation
    seen = await flow.api.operation(operation.name)
    if seen.error:
        raise CannotWaitError(f"The deletion of {found.name} failed: {seen.error}.")
    return None if seen.done and found.state != DELETING else operation


async def delete(flow: Flow, name: str, owner: Mapping[str, str], create_time: str) -> None:
    """Delete a queued resource of ours by its full name; absent is done. Raises ForeignError when it is not ours.

    `owner` is the label that it should carry, `create_time` when the one that the state holds was created.
    """
    found = await flow.api.find_queued_resource(name)
    if found is None:
        return
    names = found.node_names()
    node = await flow.api.find_node(names[0]) if names else None
    recorded = bool(flow.owners) and bool(create_time) and found.create_time == create_time and node is None
    if not flow.owns(found, node) and not recorded:
        raise ForeignError(_unlabelled(found, owner))
    flow.record = Record(zone=found.zone, name=name)
    await remove(flow)


def _unlabelled(found: QueuedResource, owner: Mapping[str, str]) -> str:
    labels = ",".join(f"{key}={value}" for key, value in owner.items())
    node = found.nodes[0].node_id if found.nodes else "NODE"
    return (
        f"{found.name} does not carry the label that ties it to this resource and is left alone. If it is yours, label its node "
        f"(`gcloud alpha compute tpus tpu-vm update {node} --zone={found.zone} --add-labels={labels}`) and destroy again; "
        "if it is not, run `pulumi state delete`."
    )
