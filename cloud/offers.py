"""Read Google's offers: catalogs and queued resources of each zone, services of each region, and quotas. Read-only.

All calls are independent and concurrent, in at most two rounds: the list of zones, then the calls for each zone. A call that is rejected
or times out does not affect the others; its location reports the unknown value.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from cloud import quotas
from cloud.caller import CALLS, GoogleCaller
from cloud.google_api import GoogleApi, GoogleListError
from cloud.kinds import LOCATIONS, SERVICE, Item, by_name
from cloud.quotas import Quota
from contracts.errors import ScriptError
from contracts.fields import as_mapping, as_sequence
from contracts.parallel import each_in_time
from planning.machine.hardware import CLOUD_RUN_GPUS, Accelerator, gpu_regions, known_places
from planning.question.types import ProvisioningModel

LIMIT_S: Final = 20.0
"""Timeout of all calls together."""
_TPU: Final = "v2alpha1/projects/{p}/locations/{l}/"
_CATALOGS: Final = ("acceleratorTypes", "runtimeVersions")
TPU_VIEWER: Final = "roles/tpu.viewer"
RUN_VIEWER: Final = "roles/run.viewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Result of one call: items, or why there are none."""

    items: Sequence[Item] = ()
    problem: str = ""
    """Reason that it could not be read; empty if it was."""
    fix: str = ""
    """Command that enables the read; empty if there is none."""

    @property
    def is_read(self) -> bool:
        """True if Google responded."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """Accelerators and locations to compare."""

    project: str
    accelerators: Sequence[Accelerator]
    provisioning: ProvisioningModel = "flex-start"
    """Provisioning model of slices."""
    zonal_redundancy: bool = False
    """GPU quota that a service uses."""
    zones: Sequence[str] = ()
    """Zones of a stack, which are queried even if the API does not list them."""
    regions: Sequence[str] = ()
    """Region of a stack, which is queried even if no page lists it."""

    @property
    def slices(self) -> Sequence[Accelerator]:
        """The TPUs among the accelerators."""
        return [one for one in self.accelerators if one.is_tpu]

    @property
    def gpus(self) -> Sequence[Accelerator]:
        """The Cloud Run GPUs among the accelerators."""
        return [one for one in self.accelerators if not one.is_tpu]

    def regions_of(self, gpu: Accelerator) -> Sequence[str]:
        """Return the Cloud Run regions of a GPU, and the stack's."""
        return tuple(dict.fromkeys((*gpu_regions(gpu), *self.regions)))

    def quota_of(self, accelerator: Accelerator) -> Quota | None:
        """Return the quota of a slice or an instance."""
        if accelerator.is_tpu:
            return quotas.tpu_quota(accelerator.name, self.provisioning)
        return quotas.gpu_quota(CLOUD_RUN_GPUS[accelerator.name], zonal_redundancy=self.zonal_redundancy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Google's responses by call. Calls without an entry were not made."""

    zones: Reply
    """Locations of the Cloud TPU API."""
    catalogs: Mapping[tuple[str, str], Reply] = field(default_factory=dict[tuple[str, str], Reply])
    """Items by zone and `acceleratorTypes`, `runtimeVersions`, `queuedResources` or `reservations`."""
    services: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    """Cloud Run services by region."""
    limits: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    """Limits from Service Usage by metric of a quota."""

    @property
    def problems(self) -> Sequence[Reply]:
        """Failed calls, in order."""
        replies = (self.zones, *self.catalogs.values(), *self.services.values(), *self.limits.values())
        return [reply for reply in replies if not reply.is_read]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call with its description, API and role."""

    what: str
    api: str
    role: str
    read: Callable[[], tuple[Sequence[Item], Sequence[object]]]
    """Returns items, and the locations that the response omits."""
    about: str = ""
    """API that the answer is about, if another one answers."""


_Calls: TypeAlias = Mapping[tuple[str, ...], _Call]


def deadline(limit_s: float = LIMIT_S) -> Callable[[], float]:
    """Return a function that returns the seconds that remain from now on."""
    end_s = time.monotonic() + limit_s
    return lambda: end_s - time.monotonic()


def read_all(caller: GoogleCaller, question: CapacityQuestion, *, remaining_s: Callable[[], float]) -> Answers:
    """Return all responses; for each that did not arrive in time, a reply that states so."""
    replies = _replies(caller, dict(_first_calls(caller, question)), remaining_s)
    zones = replies.get(("zones",), Reply())
    more = _replies(caller, dict(_zone_calls(caller, question, zones)) if question.slices else {}, remaining_s)
    return Answers(
        zones=zones,
        catalogs={(key[1], key[2]): reply for key, reply in more.items()},
        services={key[1]: reply for key, reply in replies.items() if key[0] == "services"},
        limits={key[1]: reply for key, reply in replies.items() if key[0] == "limits"},
    )


def zones_of(question: CapacityQuestion, zones: Reply) -> Sequence[str]:
    """Return the zones to query: the API's list or else the known ones, and the stack's."""
    listed = [str(item.get("locationId") or str(item.get("name")).rpartition("/")[2]) for item in zones.items]
    known = () if zones.is_read else (zone for one in question.slices for zone in known_places(one))
    return tuple(dict.fromkeys((*sorted(listed), *known, *question.zones)))


def _replies(caller: GoogleCaller, calls: _Calls, remaining_s: Callable[[], float]) -> dict[tuple[str, ...], Reply]:
    tasks = [partial(_reply, caller, call) for call in calls.values()]
    replies = each_in_time(tasks, workers=CALLS, remaining_s=remaining_s)
    late = (Reply(problem=f"{call.what}: no response in time") for call in calls.values())
    return {key: reply or other for key, reply, other in zip(calls, replies, late, strict=True)}


def _reply(caller: GoogleCaller, call: _Call) -> Reply:
    try:
        items, missing = call.read()
    except GoogleListError as error:
        detail, command = caller.refusal(call.api, call.role, error, about=call.about)
        return Reply(problem=f"{call.what}: {detail.rstrip('.')}", fix=command)
    except ScriptError as error:
        return Reply(problem=f"{call.what}: {error}")
    unread = f"{call.what}: {', '.join(map(str, missing))} could not be reached" if missing else ""
    return Reply(items=items, problem=unread)


def _first_calls(caller: GoogleCaller, question: CapacityQuestion) -> Iterator[tuple[tuple[str, ...], _Call]]:
    """Yield the calls that need no list of zones."""
    if question.slices:
        read = partial(_listed, caller.google, "tpu", LOCATIONS["tpu"].format(p=question.project), "locations")
        yield ("zones",), _Call(what="the list of zones", api="tpu", role=TPU_VIEWER, read=read)
    for quota in {question.quota_of(one) for one in question.accelerators}:
        if quota is not None:
            read = partial(_limits, caller, quota)
            what = f"the quota {quota.metric}"
            call = _Call(what=what, api="serviceusage", role=quotas.VIEWER, read=read, about=quota.service)
            yield ("limits", quota.metric), call
    services = by_name(SERVICE)
    for region in dict.fromkeys(region for gpu in question.gpus for region in question.regions_of(gpu)):
        read = partial(
            _listed, caller.google, "run", services.path.format(p=question.project, l=region), services.items
        )
        yield ("services", region), _Call(what=f"the services in {region}", api="run", role=RUN_VIEWER, read=read)


def _zone_calls(
    caller: GoogleCaller, question: CapacityQuestion, zones: Reply
) -> Iterator[tuple[tuple[str, ...], _Call]]:
    """Yield the calls for each zone. An API that is off returns nothing anywhere, so it is not called again."""
    if "services enable" in zones.fix:
        return
    reserved = ("reservations",) if question.provisioning == "reservation" else ()
    for zone in zones_of(question, zones):
        for key in (*_CATALOGS, "queuedResources", *reserved):
            path = f"{_TPU.format(p=question.project, l=zone)}{key}?pageSize=500"
            read = partial(_listed, caller.google, "tpu", path, key)
            yield ("zone", zone, key), _Call(what=f"{key} in {zone}", api="tpu", role=TPU_VIEWER, read=read)


def _listed(google: GoogleApi, api: str, path: str, key: str) -> tuple[Sequence[Item], Sequence[object]]:
    """Return the items of all pages, and the locations that they omit."""
    pages = list(google.pages(api, path))
    items = [as_mapping(item) for page in pages for item in as_sequence(page.get(key))]
    return items, [name for page in pages for name in as_sequence(page.get("unreachable"))]


def _limits(caller: GoogleCaller, quota: Quota) -> tuple[Sequence[Item], Sequence[object]]:
    return quotas.read_limits(caller.google, caller.project, quota), ()
