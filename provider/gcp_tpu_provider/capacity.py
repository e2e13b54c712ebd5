"""TPU capacity: request it in one zone after the other, wait for it, and delete what did not succeed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from uuid import uuid4

from gcp_tpu_provider.desired_state import DesiredState
from gcp_tpu_provider.durations import for_people
from gcp_tpu_provider.errors import (
    CannotWaitError,
    ForeignError,
    GoogleError,
    NoAnswerError,
    ProjectError,
    TpuProviderError,
)
from gcp_tpu_provider.operation import PollTimer, ResourceOperation
from gcp_tpu_provider.refusals import ADVICE, kind
from gcp_tpu_provider.resource_record import ResourceRecord
from gcp_tpu_provider.tpu_api import (
    ACCEPTED_OR_LATER,
    ACTIVE,
    DEAD,
    DELETING,
    PROVISIONING_MODELS,
    TRIED_WITHOUT_FORCE,
    LongRunningOperation,
    QueuedResourceInfo,
)

PROVISIONING_S = 1800
"""Extra wait, in seconds, for capacity that is already in PROVISIONING when `waitPerZoneS` ends."""
UNFIT_STATE = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED})
"""Google's answers to a deletion that does not fit the state: it needs `force`, or it changed after the provider read it."""
FAILED_PRECONDITION = 9
"""The google.rpc.Code of the same refusal in an operation: "DeleteQueuedResource is not supported when state is ..."."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A zone gave no capacity, and why. Nothing exists there."""

    zone: str
    answer: str


@dataclass(frozen=True, slots=True)
class Asked:
    """The request exists. `long_running` is None if an earlier operation made it."""

    long_running: LongRunningOperation | None


async def acquire(
    operation: ResourceOperation, zones: Sequence[str], earlier: Sequence[Refused] = ()
) -> QueuedResourceInfo:
    """Return the queued resource in the first zone that gives capacity.

    Raises TpuProviderError with a table of each zone's answer if none does. Nothing exists then, and `operation.record` is None.
    """
    refusals = list(earlier)
    for zone in await _existing_first(operation, zones):
        asked = await _ask(operation, zone)
        result = asked if isinstance(asked, Refused) else await await_capacity(operation, asked.long_running)
        if isinstance(result, QueuedResourceInfo):
            return result
        refusals.append(result)
        await operation.report_progress(f"{zone}: {result.answer}")
    raise TpuProviderError(_table(operation.desired, refusals))


def _table(desired: DesiredState, refusals: Sequence[Refused]) -> str:
    width = max((len(item.zone) for item in refusals), default=0)
    kinds = [kind(item.answer) for item in refusals]
    lines = [
        f"  {item.zone:<{width}}  {why}{': ' if why else ''}{item.answer}"
        for item, why in zip(refusals, kinds, strict=True)
    ]
    lines += [f"{why}: {text.format(project=desired.project)}." for why, text in ADVICE.items() if why in kinds]
    model, accelerator = desired.inputs["provisioningModel"], desired.inputs["acceleratorType"]
    return "\n".join([f"No zone gave {accelerator} as {model}. Nothing was left behind.", *lines])


async def _existing_first(operation: ResourceOperation, zones: Sequence[str]) -> list[str]:
    """Return the zones, first the one that already has this resource. A creation that was killed leaves one behind."""
    held: list[str] = []
    for zone in zones:
        try:
            found = await operation.api.find_queued_resource(operation.desired.name(zone))
        except GoogleError as error:
            _require_zonal(error)
            continue  # the request in this zone gets the same error and reports it
        if found is not None and operation.owns(found):
            held.append(zone)
    for zone in held[1:]:
        operation.record = ResourceRecord(zone=zone, name=operation.desired.name(zone))
        await remove(operation)
    return [*held[:1], *(zone for zone in zones if zone not in held[:1])]


async def _ask(operation: ResourceOperation, zone: str) -> Asked | Refused:
    """Make the request in a zone, or adopt the one that an interrupted operation made."""
    name, request_id = operation.desired.name(zone), str(uuid4())
    try:
        existing = await operation.api.find_queued_resource(name)
    except GoogleError as error:
        _require_zonal(error)
        return Refused(zone, str(error))
    if existing is not None and await _adopt(operation, existing):
        return Asked(None)
    operation.record = ResourceRecord(zone=zone, name=name)  # from here on something may exist
    try:
        return Asked(await operation.api.create_queued_resource(name, operation.desired.body(zone), request_id))
    except GoogleError as error:
        certain = error.status < HTTPStatus.INTERNAL_SERVER_ERROR and error.status != HTTPStatus.CONFLICT
        if certain:
            operation.record = None
            _require_zonal(error)
        return Refused(zone, str(error)) if certain else await _resolve(operation, zone, error)
    except NoAnswerError as error:
        if not error.sent:
            operation.record = None
            raise
        return await _resolve(operation, zone, error)


def _require_zonal(error: GoogleError) -> None:
    """Raise the error again if it cannot be specific to one zone, such as wrong credentials or a disabled or unavailable API."""
    if (
        isinstance(error, ProjectError)
        or error.status == HTTPStatus.UNAUTHORIZED
        or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        raise error


async def _resolve(operation: ResourceOperation, zone: str, error: TpuProviderError) -> Asked | Refused:
    """Look up what exists after an answer that was lost, or that says the name is taken."""
    timer = PollTimer(operation.pacing)
    for _ in range(3):
        found = await operation.api.find_queued_resource(operation.desired.name(zone))
        if found is not None:
            if await _adopt(operation, found):
                return Asked(None)
            return Refused(zone, f"{error} The provider could not use the existing one and deleted it.")
        await timer.pause()  # a new request may take a moment to become visible
    operation.record = None
    return Refused(zone, f"{error} Nothing was created.")


async def _adopt(operation: ResourceOperation, found: QueuedResourceInfo) -> bool:
    """Return True if this operation can use an existing queued resource of ours; else delete it and return False."""
    if not operation.owns(found):
        operation.record = None
    operation.require_owned(found)
    fits = _fits(operation.desired, found)
    if found.state == ACTIVE and not fits and not operation.desired.allow_replace_active:
        raise TpuProviderError(
            f"{found.name} is ACTIVE. An interrupted run of Pulumi created it with other properties. "
            "Undo the change, or set `allowReplaceActive` to true to delete that capacity."
        )
    operation.record = ResourceRecord(zone=found.zone, name=found.name)
    operation.record.observe(found)
    if fits and found.state not in DEAD and found.state != DELETING:
        return True
    await remove(operation)
    return False


def _fits(desired: DesiredState, found: QueuedResourceInfo) -> bool:
    return (
        all(found.config.get(name) == desired.inputs[name] for name in ("acceleratorType", "runtimeVersion"))
        and found.provisioning_model == PROVISIONING_MODELS[str(desired.inputs["provisioningModel"])]
        and found.max_run_duration_s == desired.inputs.get("maxRunDurationS")
    )


async def await_capacity(
    operation: ResourceOperation, long_running: LongRunningOperation | None = None
) -> QueuedResourceInfo | Refused:
    """Wait for the queued resource in `operation.record`. If it fails, or the wait for its zone ends, delete it."""
    record = operation.owned_record()
    accepted_states = ACCEPTED_OR_LATER if operation.desired.wait_for == "accepted" else frozenset({ACTIVE})
    timer = PollTimer(operation.pacing)
    while True:
        found = await operation.api.find_queued_resource(record.name)
        refusal = await _absence(operation, long_running, timer) if found is None else ""
        if found is not None:
            record.observe(found)
            if found.state in accepted_states:
                return found
            if found.state in DEAD or found.state == DELETING:
                refusal = f"{found.state}{f': {found.error}' if found.error else ''}."
        if refusal:
            await remove(operation)
            return Refused(record.zone, refusal)
        if _wait_is_over(record.state, operation.desired, timer):
            refusal = f"{record.state} for {for_people(timer.seconds())}: the wait for this zone is over."
            if await remove(operation, keep_capacity=record.state != "PROVISIONING"):
                return Refused(record.zone, refusal)
        waited = f"{for_people(timer.seconds())} of {for_people(operation.desired.wait_per_zone_s)}"
        await operation.report_progress(f"{record.zone}: {record.state}, {waited}")
        await timer.pause()


def _wait_is_over(state: str, desired: DesiredState, timer: PollTimer) -> bool:
    extra_s = PROVISIONING_S if state in {"PROVISIONING", ACTIVE} else 0
    return timer.seconds() > desired.wait_per_zone_s + extra_s


async def _absence(operation: ResourceOperation, long_running: LongRunningOperation | None, timer: PollTimer) -> str:
    """Return why a requested queued resource will never be visible, or an empty string while it still may be."""
    if long_running is not None and long_running.name:
        current = await operation.api.get_operation(long_running.name)
        if current.error:
            return f"{current.error}."
    if timer.seconds() > operation.pacing.appear_s:
        return "Google accepted the request, but it never became visible, or someone else deleted it."
    return ""


async def remove(operation: ResourceOperation, *, keep_capacity: bool = False) -> bool:
    """Delete the queued resource in `operation.record` and wait until it is gone. `operation.record` is None then.

    If Google refuses a deletion without `force` and the state stays the same, the next one has `force`.
    With `keep_capacity`, a queued resource that turned PROVISIONING or ACTIVE meanwhile is kept, and False is returned.
    Raises CannotWaitError if the deletion does not finish in time.
    """
    record = operation.owned_record()
    timer = PollTimer(operation.pacing)
    long_running: LongRunningOperation | None = None
    problem = refused_in = ""
    while True:
        found = await operation.api.find_queued_resource(record.name)
        if found is None:
            operation.record = None
            return True
        record.observe(found)
        if keep_capacity and long_running is None and found.state in {"PROVISIONING", ACTIVE}:
            return False
        if timer.seconds() > operation.pacing.delete_s:
            raise CannotWaitError(
                f"{record.name} is still {found.state} {for_people(timer.seconds())} after the provider asked Google to delete it"
                f"{f' ({problem})' if problem else ''}. Run `pulumi destroy` or `pulumi up` again."
            )
        if long_running is not None:
            long_running, problem = await _deletion_in_progress(operation, long_running, found)
        elif found.state != DELETING:
            force = found.state not in TRIED_WITHOUT_FORCE or found.state == refused_in
            refused_in = found.state
            long_running, problem = await _request_deletion(operation, found, force=force)
        await operation.report_progress(f"{record.zone}: deleting, {found.state}, {for_people(timer.seconds())}")
        await timer.pause()


async def _request_deletion(
    operation: ResourceOperation, found: QueuedResourceInfo, *, force: bool
) -> tuple[LongRunningOperation | None, str]:
    """Return the deletion, or None and Google's message if the deletion does not fit the state."""
    try:
        return await operation.api.delete_queued_resource(found.name, force=force, request_id=str(uuid4())), ""
    except GoogleError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None, ""
        if error.status in UNFIT_STATE:
            return None, str(error)
        raise


async def _deletion_in_progress(
    operation: ResourceOperation, long_running: LongRunningOperation, found: QueuedResourceInfo
) -> tuple[LongRunningOperation | None, str]:
    """Return the deletion while it is in progress, or None and the reason if it has to be requested again."""
    if not long_running.name:
        return long_running, ""
    current = await operation.api.get_operation(long_running.name)
    if current.error_code == FAILED_PRECONDITION:
        return None, current.error
    if current.error:
        raise CannotWaitError(f"The deletion of {found.name} failed: {current.error}.")
    return None if current.done and found.state != DELETING else long_running, ""


async def delete(operation: ResourceOperation, name: str, create_time: str) -> None:
    """Delete a queued resource of ours by its full name. One that does not exist counts as deleted.

    `create_time` is the creation time in the state. Raises ForeignError if it is not ours.
    """
    found = await operation.api.find_queued_resource(name)
    if found is None:
        return
    names = found.node_names()
    node = await operation.api.find_node(names[0]) if names else None
    recorded = bool(operation.owners) and bool(create_time) and found.create_time == create_time and node is None
    if not operation.owns(found, node) and not recorded:
        raise ForeignError(_not_labelled(found, operation.desired.owner_labels))
    operation.record = ResourceRecord(zone=found.zone, name=name)
    await remove(operation)


def _not_labelled(found: QueuedResourceInfo, owner: Mapping[str, str]) -> str:
    labels = ",".join(f"{key}={value}" for key, value in owner.items())
    node = found.nodes[0].node_id if found.nodes else "NODE"
    return (
        f"{found.name} does not have the owner label of this resource. The provider does not delete it. If it is yours, label its node "
        f"(`gcloud compute tpus tpu-vm update {node} --zone={found.zone} --update-labels={labels}`) and destroy again. "
        "If it is not yours, run `pulumi state delete`."
    )
