"""TPU capacity: request it zone by zone, wait for it, and delete requests that did not succeed."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from uuid import uuid4

from gcp_tpu_provider.compute_request import is_instance
from gcp_tpu_provider.desired_state import DesiredState
from gcp_tpu_provider.durations import readable
from gcp_tpu_provider.errors import (
    CannotWaitError,
    ForeignError,
    GoogleError,
    NoAnswerError,
    ProjectError,
    TpuProviderError,
)
from gcp_tpu_provider.forms import Form
from gcp_tpu_provider.operation import PollTimer, ResourceOperation
from gcp_tpu_provider.refusals import Refusal, kind, meanings
from gcp_tpu_provider.resource_record import UNOBSERVED, ResourceRecord
from gcp_tpu_provider.tpu_api import (
    ACCEPTED_OR_LATER,
    ACTIVE,
    DEAD,
    DELETING,
    TRIED_WITHOUT_FORCE,
    LongRunningOperation,
    OwnCapacity,
    QueuedResourceInfo,
)

PROVISIONING_S = 1800
"""Extra wait, in seconds, for capacity that is already in PROVISIONING when `waitPerZoneS` expires."""
UNFIT_STATE = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED})
"""Statuses of a deletion that does not fit the state, which needs `force` or changed after the provider read it."""
CONCURRENT_ZONES = 8
"""Zones searched concurrently."""
MAY_APPEAR = "It is kept in the state. Run `pulumi up` to check again, or `pulumi destroy` to delete it."
REQUEST_FOLDERS = ("queuedResources/", "/instances/")
"""Paths in a 409 if the request itself exists. Any other path is a node or a disk, so Google rejected the request."""
LIST_ZONES = "locations.list"
"""Suffix of a permission that a custom role may lack. Only the zones in use are then searched."""
_EVENT = re.compile(r" ?\[EID: \w+\]")
"""Number of one refusal, which Google adds to the words of Cloud TPU."""
FAILED_PRECONDITION = 9
"""google.rpc.Code of the same rejection in an operation: "DeleteQueuedResource is not supported when state is ..."."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A zone that did not grant a form of capacity, and the reason. Nothing exists there."""

    zone: str
    answer: str
    model: str

    @property
    def kind(self) -> str:
        """Why the zone did not grant it: unknown for a request that waited, because Google names no cause."""
        return kind(self.answer)

    @property
    def names_no_zone(self) -> bool:
        """True if Google refused the request itself in words that may be about the project, and names neither zone nor region."""
        is_repeated = self.answer.startswith("Google returned ") and Refusal(meaning=self.kind).is_repeated
        return is_repeated and self.zone.rpartition("-")[0] not in self.answer


@dataclass(frozen=True, slots=True)
class RequestSent:
    """A request that exists. `long_running` is None if an earlier operation created it."""

    long_running: LongRunningOperation | None


async def acquire(
    operation: ResourceOperation, zones: Sequence[str], earlier: Sequence[Refused] = ()
) -> QueuedResourceInfo:
    """Return the queued resource in the first of these zones that grants capacity: all zones for one form, then all for the next.

    `earlier`: responses to this operation's first request. The order continues with its form.
    If no zone grants any form, raises TpuProviderError with a table of each response. Nothing exists then, and `operation.record` is None.
    """
    refusals = list(earlier)
    order = _order(operation.desired, zones, earlier)
    kept = await _kept(operation, order, zones)
    for form, zone in [kept, *_after(order, kept)] if kept else order:
        operation.begin(form)
        why_not = "" if (form, zone) == kept else _not_requested(operation, refusals)
        if why_not:
            refusals.append(Refused(zone, why_not, form.model))
            continue
        sent = await _request_or_adopt(operation, form, zone)
        result = sent if isinstance(sent, Refused) else await await_capacity(operation, form, sent.long_running)
        if isinstance(result, QueuedResourceInfo):
            return result
        refusals.append(result)
        await operation.report_progress(f"{_place(operation.desired, result)}: not granted: {result.answer}")
    raise TpuProviderError(_table(operation.desired, refusals))


def _order(desired: DesiredState, zones: Sequence[str], earlier: Sequence[Refused]) -> list[tuple[Form, str]]:
    """Return the requests to make, in order, without those that were refused and without the forms before theirs.

    The order of `zones` is that of the first form. The later forms have the order of the inputs.
    """
    refused = {(item.model, item.zone) for item in earlier}
    models = [form.model for form in desired.forms]
    first = max((models.index(item.model) for item in earlier if item.model in models), default=0)
    forms = desired.forms[first:]
    return [
        (form, zone)
        for form in forms
        for zone in (zones if form == forms[0] else form.zones)
        if zone in zones and zone in form.zones and (form.model, zone) not in refused
    ]


def _after(order: Sequence[tuple[Form, str]], kept: tuple[Form, str]) -> list[tuple[Form, str]]:
    """Return the requests that follow an existing one: other zones of its form, then the later forms."""
    forms = list(dict.fromkeys(form for form, _ in order))
    first = forms.index(kept[0]) if kept[0] in forms else 0
    return [item for item in order if item != kept and forms.index(item[0]) >= first]


def _place(desired: DesiredState, refused: Refused) -> str:
    """Return the zone of a response, with the form if the inputs name several."""
    return f"{refused.zone} {refused.model}" if len(desired.forms) > 1 else refused.zone


def _not_requested(operation: ResourceOperation, refusals: Sequence[Refused]) -> str:
    """Return why the next zone of the current form is not requested; empty if it is."""
    total_s, form = operation.desired.wait_total_s, operation.form
    if total_s is not None and operation.total_left_s() <= 0:
        return f"the total wait of {readable(total_s)} expired before this zone was requested."
    if form is not None and form.wait_s is not None and operation.form_left_s() <= 0:
        return f"the wait of {readable(form.wait_s)} for {form.model} expired before this zone was requested."
    said = Counter(
        _EVENT.sub("", item.answer) for item in refusals if form and item.model == form.model and item.names_no_zone
    )
    return "not requested: two zones refused in the same words." if max(said.values(), default=0) > 1 else ""


def _table(desired: DesiredState, refusals: Sequence[Refused]) -> str:
    places = [_place(desired, item) for item in refusals]
    width = max(map(len, places), default=0)
    kinds = {item.kind for item in refusals}
    lines = [f"  {place:<{width}}  {item.kind}: {item.answer}" for place, item in zip(places, refusals, strict=True)]
    lines += [f"{why}: {Refusal(meaning=why).advice(project=desired.project)}." for why in meanings() if why in kinds]
    models = ", then ".join(form.model for form in desired.forms)
    headline = f"No zone granted {desired.inputs['acceleratorType']} ({models}). All capacity requests were deleted."
    return "\n".join([headline, *lines, *desired.next_steps])


async def _kept(
    operation: ResourceOperation, order: Sequence[tuple[Form, str]], zones: Sequence[str]
) -> tuple[Form, str] | None:
    """Return the form and the zone of this resource if it already exists, and delete the resource elsewhere.

    A killed creation can leave one in any zone.
    """
    held = await find_all(operation, [*zones, *operation.tried], everywhere=True)
    operation.tried |= dict.fromkeys(found.zone for found in held)
    places = [(found, _place_in(operation.desired, found, order, zones)) for found in held]
    usable = [(found, place) for found, place in places if place is not None]
    serving = [one for one in usable if one[0].state == ACTIVE and fitting_form(operation.desired, one[0])]
    kept, place = next(iter([*serving, *usable]), (None, None))
    for found in held:
        if found is not kept:
            _require_expendable(operation.desired, found, zones)
            operation.record = ResourceRecord(zone=found.zone, name=found.name)
            operation.record.observe(found)
            await remove(operation)
    return place


def _place_in(
    desired: DesiredState, found: QueuedResourceInfo, order: Sequence[tuple[Form, str]], zones: Sequence[str]
) -> tuple[Form, str] | None:
    """Return the form and the zone with which to continue an existing resource; None if the order has neither.

    Running capacity keeps its form, even if the order no longer has it in this zone.
    """
    same = next((form for form in desired.forms if form.is_of(found.provisioning_model)), None)
    if same is not None and (same, found.zone) in order:
        return same, found.zone
    if found.state == ACTIVE and found.zone in zones:
        return same or desired.forms[0], found.zone
    return next((item for item in order if item[1] == found.zone), None)


async def _listed(operation: ResourceOperation) -> Sequence[str]:
    try:
        return await operation.api.zones_to_search(operation.desired.project, operation.desired.identifier)
    except GoogleError as error:
        if LIST_ZONES not in error.message:
            _require_zonal(error)
        await operation.report_progress(f"searching only known zones because the API does not list its zones: {error}")
        return ()


async def _ours_in(operation: ResourceOperation, zones: Sequence[str]) -> list[QueuedResourceInfo]:
    """Return our queued resources in these zones. Raises the first error that cannot be specific to a zone."""
    gate = asyncio.Semaphore(CONCURRENT_ZONES)

    async def find(zone: str) -> QueuedResourceInfo | None:
        async with gate:
            return await operation.api.find_queued_resource(operation.desired.name(zone))

    answers = await asyncio.gather(*(find(zone) for zone in zones), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, GoogleError):
            _require_zonal(answer)  # otherwise the request in this zone gets the same error and reports it
        elif isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, QueuedResourceInfo) and operation.owns(answer)]


def _require_expendable(desired: DesiredState, found: QueuedResourceInfo, zones: Sequence[str]) -> None:
    """Raise TpuProviderError for running capacity in a zone that is no longer listed, unless its deletion is allowed."""
    if found.state == ACTIVE and found.zone not in zones and not desired.allow_replace_active:
        raise TpuProviderError(
            f"{found.name} is ACTIVE. An interrupted Pulumi run created it, but `zones` no longer lists its zone. "
            f"Add {found.zone} to `zones`, or set `allowReplaceActive` to true to delete the capacity."
        )


async def remove_elsewhere(operation: ResourceOperation, zones: Iterable[str], *, everywhere: bool = False) -> None:
    """Delete our queued resources in these zones, except the one in `operation.record`. Their responses came too late.

    With `everywhere`, also search every zone that the API lists, because a killed replacement left no zone in the state.
    """
    kept = operation.record
    try:
        for found in await find_all(operation, zones, everywhere=everywhere):
            if kept is not None and found.zone == kept.zone:
                continue
            operation.record = ResourceRecord(zone=found.zone, name=found.name)
            await remove(operation)
    finally:
        operation.record = kept


async def find_recorded(operation: ResourceOperation, record: ResourceRecord) -> QueuedResourceInfo | None:
    """Return the queued resource of a record, or our request in another zone that was tried.

    A creation whose response was lost gets time to become visible.
    """
    late_s = operation.pacing.late_s if record.state == UNOBSERVED else 0.0
    found = await _find_within(operation, record.name, late_s)
    if found is not None:
        return found
    others = await _ours_in(operation, [zone for zone in operation.tried if zone != record.zone])
    return next(iter(others), None)


async def _find_within(operation: ResourceOperation, name: str, limit_s: float) -> QueuedResourceInfo | None:
    """Return the queued resource as soon as it is visible, or None after `limit_s` seconds."""
    timer = PollTimer(operation.pacing)
    while True:
        found = await operation.api.find_queued_resource(name)
        if found is not None or timer.seconds() >= limit_s:
            return found
        await operation.report_progress(
            f"{readable(timer.seconds())}/{readable(limit_s)} {name.split('/')[3]} response lost, searching for the request"
        )
        await timer.pause()


async def _request_or_adopt(operation: ResourceOperation, form: Form, zone: str) -> RequestSent | Refused:
    """Request a form of capacity in a zone, or adopt the request of an interrupted operation."""
    try:
        existing = await operation.api.find_queued_resource(operation.desired.name(zone))
    except GoogleError as error:
        _require_zonal(error)
        return Refused(zone, str(error), form.model)
    if existing is not None and await _adopt(operation, form, existing):
        return RequestSent(None)
    return await _request(operation, form, zone)


async def _request(operation: ResourceOperation, form: Form, zone: str) -> RequestSent | Refused:
    """Request a form of capacity in a zone."""
    name, request_id = operation.desired.name(zone), str(uuid4())
    operation.record = ResourceRecord(zone=zone, name=name)  # something may exist from this point
    operation.tried[zone] = None
    body = operation.desired.body(zone, form)
    try:
        return RequestSent(await operation.api.create_queued_resource(name, body, request_id))
    except GoogleError as error:
        if (
            error.may_have_acted
            or error.status == HTTPStatus.CONFLICT
            or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        ):
            return await _resolve(operation, form, zone, error)
        operation.record = None
        _require_zonal(error)
        return Refused(zone, str(error), form.model)
    except NoAnswerError as error:
        if not error.sent:
            operation.record = None
            raise
        return await _resolve(operation, form, zone, error)


def _require_zonal(error: GoogleError) -> None:
    """Raise the error if it cannot be specific to one zone, such as wrong credentials or a disabled or unavailable API."""
    if (
        isinstance(error, ProjectError)
        or error.status == HTTPStatus.UNAUTHORIZED
        or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    ):
        raise error


async def _resolve(
    operation: ResourceOperation, form: Form, zone: str, error: TpuProviderError
) -> RequestSent | Refused:
    """Find the request after a lost response, a name conflict, or a rejected second attempt.

    Raises TpuProviderError and keeps the record if the request may still be created.
    """
    found = await _find_within(operation, operation.desired.name(zone), operation.pacing.appear_s)
    if found is not None:
        if await _adopt(operation, form, found):
            return RequestSent(None)
        return Refused(zone, f"{error} The existing request was not usable and was deleted.", form.model)
    if isinstance(error, GoogleError) and _is_refusal(error):
        operation.record = None
        _require_zonal(error)
        return Refused(zone, f"{error} No request was created.", form.model)
    raise TpuProviderError(
        f"{error} No queued resource is visible in {zone} after {readable(operation.pacing.appear_s)}, "
        f"but the request may still take effect. {MAY_APPEAR}"
    )


def _is_refusal(error: GoogleError) -> bool:
    """Return whether Google rejected the request. If so, it does not exist, because every attempt had the same request id."""
    if error.status == HTTPStatus.CONFLICT:
        return not any(folder in error.message for folder in REQUEST_FOLDERS)
    return error.status < HTTPStatus.INTERNAL_SERVER_ERROR


async def _adopt(operation: ResourceOperation, form: Form, found: QueuedResourceInfo) -> bool:
    """Return True if this operation can use our existing queued resource. Otherwise delete it and return False.

    A request that still waits must have the form that is to be requested. Running capacity may have any form of the order.
    """
    if not operation.owns(found):
        operation.record = None
    operation.require_owned(found)
    fits = fitting_form(operation.desired, found)
    if found.state == ACTIVE and fits is None and not operation.desired.allow_replace_active:
        raise TpuProviderError(
            f"{found.name} is ACTIVE. An interrupted Pulumi run created it with different properties. "
            "Revert the change, or set `allowReplaceActive` to true to delete the capacity."
        )
    operation.record = ResourceRecord(zone=found.zone, name=found.name)
    operation.record.observe(found)
    is_usable = found.state == ACTIVE or fits == form
    if fits is not None and is_usable and found.state not in DEAD and found.state != DELETING:
        return True
    await remove(operation)
    return False


def fitting_form(desired: DesiredState, found: QueuedResourceInfo) -> Form | None:
    """Return the form of the order that an existing queued resource has, with the desired accelerator and image; None if none."""
    is_same = all(found.config.get(name) == desired.inputs[name] for name in ("acceleratorType", "runtimeVersion"))
    return next((form for form in desired.forms if is_same and _has_form(desired, found, form)), None)


def form_to_continue(desired: DesiredState, found: QueuedResourceInfo) -> Form | None:
    """Return the form with which an update continues waiting for its request; None if the order no longer has its form in its zone.

    Capacity that is granted or about to be keeps its form.
    """
    if "forms" not in desired.inputs:
        return desired.forms[0]  # another `provisioningModel` replaces the resource
    same = next((form for form in desired.forms if form.is_of(found.provisioning_model)), None)
    if found.state in {"PROVISIONING", ACTIVE}:
        return same or desired.forms[0]
    return same if same is not None and found.zone in same.zones else None


def _has_form(desired: DesiredState, found: QueuedResourceInfo, form: Form) -> bool:
    run_s = desired.request_inputs(form).get("maxRunDurationS")
    return form.is_of(found.provisioning_model) and found.max_run_duration_s == run_s


async def await_capacity(
    operation: ResourceOperation, form: Form, long_running: LongRunningOperation | None = None
) -> QueuedResourceInfo | Refused:
    """Wait for the queued resource in `operation.record`. Delete it if it fails or the wait for its zone or form times out."""
    record = operation.owned_record()
    accepted_states = ACCEPTED_OR_LATER if operation.desired.wait_for == "accepted" else frozenset({ACTIVE})
    timer = PollTimer(operation.pacing)
    limit_s, over = _limit(operation, form)
    while True:
        found = await operation.api.find_queued_resource(record.name)
        if found is not None and not _is_awaited(operation, found):
            found = None
        refusal = await _absence(operation, long_running, timer) if found is None else ""
        if found is not None:
            record.observe(found)
            if found.state in accepted_states:
                return found
            if found.state in DEAD or found.state == DELETING:
                why = found.error or await _failure(operation, long_running)
                text = f"{found.state}: {why}" if why else found.state
                refusal = f"{text.rstrip('.')}."
        if refusal:
            await remove(operation)
            return Refused(record.zone, refusal, form.model)
        if _wait_is_over(record.state, limit_s, timer):
            state = record.state
            refusal = f"{state} for {readable(timer.seconds())}: {over}."
            if await remove(operation, keep_capacity=state != "PROVISIONING"):
                return Refused(record.zone, refusal, form.model)
        waited = f"{readable(timer.seconds())}/{readable(limit_s)}"
        await operation.report_progress(f"{waited} {record.zone} {_short(record.state)}{_position(operation, form)}")
        await timer.pause()


def _limit(operation: ResourceOperation, form: Form) -> tuple[float, str]:
    """Return the seconds to wait in the current zone, and the words for the end of that wait."""
    limits = (
        (float(operation.desired.wait_per_zone_s), "the wait for this zone timed out"),
        (operation.form_left_s(), f"the wait for {form.model} timed out"),
        (operation.total_left_s(), "the total wait timed out"),
    )
    limit_s, over = min(limits, key=lambda limit: limit[0])
    return max(0.0, limit_s), over


def _short(state: str) -> str:
    """Return the first word of a state, which fits a narrow terminal."""
    return state.partition("_")[0]


def _position(operation: ResourceOperation, form: Form) -> str:
    """Return the position of the current zone, such as " (zone 2 of 4)" or " (spot, zone 2 of 4)", or "" for a single request."""
    zone, parts = operation.owned_record().zone, list[str]()
    if len(operation.desired.forms) > 1:
        parts.append(form.model)
    if len(form.zones) > 1 and zone in form.zones:
        parts.append(f"zone {form.zones.index(zone) + 1} of {len(form.zones)}")
    return f" ({', '.join(parts)})" if parts else ""


def _wait_is_over(state: str, limit_s: float, timer: PollTimer) -> bool:
    extra_s = PROVISIONING_S if state in {"PROVISIONING", ACTIVE} else 0
    return timer.seconds() > limit_s + extra_s


def _is_awaited(operation: ResourceOperation, found: QueuedResourceInfo) -> bool:
    """Return whether it is the requested resource. Compute Engine can detect late that another owner's instance has the name."""
    record = operation.owned_record()
    is_new = not record.observed.get("createTime")
    return (is_new and not is_instance(found.name)) or operation.is_recorded(found, record)


async def _failure(operation: ResourceOperation, long_running: LongRunningOperation | None) -> str:
    """Return the error message of the request's operation. Empty if it has not failed or the reason is unknown."""
    if long_running is None or not long_running.name:
        return ""
    return (await operation.api.get_operation(long_running.name)).error


async def _absence(operation: ResourceOperation, long_running: LongRunningOperation | None, timer: PollTimer) -> str:
    """Return why a requested queued resource will never be visible, or an empty string while it still might.

    Raises CannotWaitError if it was never visible and Google reports no error.
    """
    error = await _failure(operation, long_running)
    if error:
        return f"{error}."
    if timer.seconds() <= operation.pacing.appear_s:
        return ""
    record = operation.owned_record()
    if record.state != UNOBSERVED:
        return operation.api.vanished
    raise CannotWaitError(
        f"Google accepted the request in {record.zone}, but it is not visible after {readable(operation.pacing.appear_s)}. {MAY_APPEAR}"
    )


async def remove(operation: ResourceOperation, *, keep_capacity: bool = False) -> bool:
    """Delete the queued resource in `operation.record`, wait until it is gone, and set `operation.record` to None.

    A resource with the same name but neither the owner label nor the recorded creation time belongs to another owner, so ours is gone.
    If Google rejects a deletion without `force` and the state does not change, the next request has `force`.
    With `keep_capacity`, keeps a queued resource that has become PROVISIONING or ACTIVE, and returns False.
    Raises CannotWaitError if the deletion does not finish in time.
    """
    record = operation.owned_record()
    timer = PollTimer(operation.pacing)
    long_running: LongRunningOperation | None = None
    problem = refused_in = ""
    while True:
        found = await operation.api.find_queued_resource(record.name)
        own = None if found is None else operation.own(found, record)
        if found is None or own is None:
            operation.record = None
            return True
        record.observe(found)
        if keep_capacity and long_running is None and found.state in {"PROVISIONING", ACTIVE}:
            return False
        if timer.seconds() > operation.pacing.delete_s:
            raise CannotWaitError(
                f"{record.name} is still {found.state} {readable(timer.seconds())} after its deletion was requested"
                f"{f' ({problem})' if problem else ''}. Run `pulumi destroy` or `pulumi up` again."
            )
        if long_running is not None:
            long_running, problem = await _deletion_in_progress(operation, long_running, found)
        elif found.state != DELETING:
            force = found.state not in TRIED_WITHOUT_FORCE or found.state == refused_in
            refused_in = found.state
            long_running, problem = await _request_deletion(operation, own, force=force)
        await operation.report_progress(f"{readable(timer.seconds())} {record.zone} deleting, {_short(found.state)}")
        await timer.pause()


async def _request_deletion(
    operation: ResourceOperation, own: OwnCapacity, *, force: bool
) -> tuple[LongRunningOperation | None, str]:
    """Return the deletion, or None and Google's message if the deletion does not fit the state."""
    try:
        return await operation.api.delete_queued_resource(own, force=force, request_id=str(uuid4())), ""
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


async def delete(operation: ResourceOperation, name: str, create_time: str, *, late_s: float = 0.0) -> None:
    """Delete our queued resource by its full name. Treat one that is not visible within `late_s` seconds as deleted.

    `create_time` is the creation time in the state. Raises ForeignError if another owner has the resource.
    """
    found = await _find_within(operation, name, late_s)
    if found is None:
        return
    names = found.node_names()
    node = await operation.api.find_node(names[0]) if names else None
    recorded = bool(operation.owners) and bool(create_time) and found.create_time == create_time and node is None
    if not operation.owns(found, node) and not recorded:
        raise ForeignError(_not_labelled(found, operation.desired.owner_labels))
    operation.record = ResourceRecord(zone=found.zone, name=name)
    operation.record.observe(found)
    await remove(operation)


def _not_labelled(found: QueuedResourceInfo, owner: Mapping[str, str]) -> str:
    labels = ",".join(f"{key}={value}" for key, value in owner.items())
    node = found.nodes[0].node_id if found.nodes else "NODE"
    command = f"compute tpus tpu-vm update {node} --zone={found.zone} --update-labels={labels}"
    if is_instance(found.name):
        command = f"compute instances add-labels {node} --zone={found.zone} --labels={labels}"
    return (
        f"{found.name} does not have the owner label of this resource and was not deleted. If it is yours, label its node: "
        f"run `gcloud {command}`, then `pulumi destroy`. "
        "If it is not yours, run `pulumi state delete`."
    )


async def find_all(
    operation: ResourceOperation, zones: Iterable[str], *, everywhere: bool = False
) -> list[QueuedResourceInfo]:
    """Return our queued resources with the operation's id in these zones; with `everywhere`, in every zone that the API lists."""
    listed = await _listed(operation) if everywhere else ()
    return await _ours_in(operation, list(dict.fromkeys([*zones, *listed])))
