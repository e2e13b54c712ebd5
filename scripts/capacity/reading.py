"""Ask Google what the command compares: catalogs and queued resources of each zone, services of each region, and quotas. It only reads.

All calls are independent and run at the same time, two rounds at most: the list of zones, then what each zone says. A call that is refused,
or has no answer in time, leaves the others alone: its place says what is not known.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from cloud import quotas
from cloud.google_api import GoogleListError
from cloud.inventory.kinds import LOCATIONS, Item, by_name
from cloud.quotas import Quota
from contracts.errors import ScriptError
from contracts.parallel import each_in_time
from planning.machine.hardware import CLOUD_RUN_GPUS, Accelerator, gpu_regions, known_places
from planning.question.types import ProvisioningModel
from scripts.doctor.diagnosis import Checkup
from scripts.doctor.run import CONNECTIONS

LIMIT_S: Final = 20.0
"""Longest wait for all answers together."""
_TPU: Final = "v2alpha1/projects/{p}/locations/{l}/"
_CATALOGS: Final = ("acceleratorTypes", "runtimeVersions")
_TPU_VIEWER: Final = "roles/tpu.viewer"
_RUN_VIEWER: Final = "roles/run.viewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one call answered: items, or why there are none."""

    items: Sequence[Item] = ()
    problem: str = ""
    """Why it could not be read; empty if it was."""
    mend: str = ""
    """The command that lets it be read; empty if there is none."""

    @property
    def is_read(self) -> bool:
        """Whether Google answered."""
        return not self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """What is compared."""

    project: str
    accelerators: Sequence[Accelerator]
    provisioning: ProvisioningModel = "flex-start"
    """How slices would be bought."""
    zonal_redundancy: bool = False
    """Which quota of GPUs a service would use."""
    zones: Sequence[str] = ()
    """Zones to ask even if the API does not list them: those of a stack."""
    regions: Sequence[str] = ()
    """Regions to ask even if no page names them: that of a stack."""

    @property
    def slices(self) -> Sequence[Accelerator]:
        """The TPUs among the accelerators."""
        return [one for one in self.accelerators if one.is_tpu]

    @property
    def gpus(self) -> Sequence[Accelerator]:
        """The GPUs of Cloud Run among the accelerators."""
        return [one for one in self.accelerators if not one.is_tpu]

    def regions_of(self, gpu: Accelerator) -> Sequence[str]:
        """Return where Cloud Run has a GPU, and where the stack is."""
        return tuple(dict.fromkeys((*gpu_regions(gpu), *self.regions)))

    def quota_of(self, accelerator: Accelerator) -> Quota | None:
        """Return the quota that a slice or an instance would use."""
        if accelerator.is_tpu:
            return quotas.tpu_quota(accelerator.name, self.provisioning)
        return quotas.gpu_quota(CLOUD_RUN_GPUS[accelerator.name], zonal_redundancy=self.zonal_redundancy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What Google said, by call. A call that is missing was not made."""

    zones: Reply
    """Locations of the Cloud TPU API."""
    catalogs: Mapping[tuple[str, str], Reply] = field(default_factory=dict[tuple[str, str], Reply])
    """Zone, and `acceleratorTypes`, `runtimeVersions`, `queuedResources` or `reservations` -> its items."""
    services: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    """Region -> services of Cloud Run."""
    limits: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    """Metric of a quota -> its limits, as Service Usage answers them."""

    @property
    def problems(self) -> Sequence[Reply]:
        """Every call that was not answered, in order."""
        replies = (self.zones, *self.catalogs.values(), *self.services.values(), *self.limits.values())
        return [reply for reply in replies if not reply.is_read]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """One list to read."""

    api: str
    path: str
    key: str
    """Key of the answer that holds the items."""
    what: str
    role: str
    """The role that reads it."""


def deadline(limit_s: float = LIMIT_S) -> Callable[[], float]:
    """Return a function that says how many seconds remain from now on."""
    end_s = time.monotonic() + limit_s
    return lambda: end_s - time.monotonic()


def read_all(checkup: Checkup, asked: CapacityQuestion, *, remaining_s: Callable[[], float]) -> Answers:
    """Return all answers, and in the place of each that did not come in time that it did not."""
    first: dict[tuple[str, ...], Callable[[], Reply]] = dict(_first_calls(checkup, asked))
    replies = _ask(first, remaining_s)
    zones = replies.get(("zones",), Reply())
    second = dict(_zone_calls(checkup, asked, zones)) if asked.slices else {}
    more = _ask(second, remaining_s)
    return Answers(
        zones=zones,
        catalogs={(key[1], key[2]): reply for key, reply in more.items()},
        services={key[1]: reply for key, reply in replies.items() if key[0] == "services"},
        limits={key[1]: reply for key, reply in replies.items() if key[0] == "limits"},
    )


def zones_of(asked: CapacityQuestion, zones: Reply) -> Sequence[str]:
    """Return the zones to ask: those that the API lists, else those that are known, and those of the stack."""
    listed = [str(item.get("locationId") or str(item.get("name")).rpartition("/")[2]) for item in zones.items]
    known = () if zones.is_read else (zone for one in asked.slices for zone in known_places(one))
    return tuple(dict.fromkeys((*sorted(listed), *known, *asked.zones)))


def _ask(
    calls: Mapping[tuple[str, ...], Callable[[], Reply]], remaining_s: Callable[[], float]
) -> dict[tuple[str, ...], Reply]:
    replies = each_in_time(list(calls.values()), workers=CONNECTIONS, remaining_s=remaining_s)
    late = (_late(key) for key in calls)
    return {key: reply or other for key, reply, other in zip(calls, replies, late, strict=True)}


def _late(key: tuple[str, ...]) -> Reply:
    kind, *rest = key
    what = {
        "zones": "the list of zones",
        "limits": f"the quota {rest[0] if rest else ''}",
        "services": f"the services in {rest[0] if rest else ''}",
    }.get(kind) or f"{rest[-1]} in {rest[0]}"
    return Reply(problem=f"{what}: no answer in time")


def _first_calls(checkup: Checkup, asked: CapacityQuestion) -> Iterator[tuple[tuple[str, ...], Callable[[], Reply]]]:
    """Yield what needs no list of zones."""
    if asked.slices:
        path = LOCATIONS["tpu"].format(p=asked.project)
        listing = _Listing(api="tpu", path=path, key="locations", what="the list of zones", role=_TPU_VIEWER)
        yield ("zones",), partial(_items, checkup, listing)
    for quota in {asked.quota_of(one) for one in asked.accelerators}:
        if quota is not None:
            yield ("limits", quota.metric), partial(_limits, checkup, quota)
    services = by_name("Cloud Run service")
    for region in dict.fromkeys(region for gpu in asked.gpus for region in asked.regions_of(gpu)):
        path = services.path.format(p=asked.project, l=region)
        what = f"the services in {region}"
        listing = _Listing(api="run", path=path, key=services.items, what=what, role=_RUN_VIEWER)
        yield ("services", region), partial(_items, checkup, listing)


def _zone_calls(
    checkup: Checkup, asked: CapacityQuestion, zones: Reply
) -> Iterator[tuple[tuple[str, ...], Callable[[], Reply]]]:
    """Yield what each zone is asked. An API that is off answers nothing anywhere, so it is not asked again."""
    if "services enable" in zones.mend:
        return
    reserved = ("reservations",) if asked.provisioning == "reservation" else ()
    for zone in zones_of(asked, zones):
        for key in (*_CATALOGS, "queuedResources", *reserved):
            path = f"{_TPU.format(p=asked.project, l=zone)}{key}?pageSize=500"
            listing = _Listing(api="tpu", path=path, key=key, what=f"{key} in {zone}", role=_TPU_VIEWER)
            yield ("zone", zone, key), partial(_items, checkup, listing)


def _items(checkup: Checkup, listing: _Listing) -> Reply:
    """Return the items of all pages."""
    what = listing.what
    try:
        pages = list(checkup.google.pages(listing.api, listing.path))
    except (GoogleListError, ScriptError) as error:
        return _problem(checkup, what, listing.api, listing.role, error)
    missing = [name for page in pages for name in cast("Sequence[str]", page.get("unreachable") or ())]
    items = [item for page in pages for item in cast("Sequence[Item]", page.get(listing.key) or ())]
    return Reply(items=items, problem=f"{what}: {', '.join(missing)} could not be reached" if missing else "")


def _limits(checkup: Checkup, quota: Quota) -> Reply:
    try:
        return Reply(items=quotas.read_limits(checkup.google, checkup.project, quota))
    except (GoogleListError, ScriptError) as error:
        return _problem(checkup, f"the quota {quota.metric}", "serviceusage", quotas.VIEWER, error)


def _problem(checkup: Checkup, what: str, api: str, role: str, error: GoogleListError | ScriptError) -> Reply:
    if isinstance(error, ScriptError):
        return Reply(problem=f"{what}: {error}")
    line = checkup.refused(what, api, role, error)
    return Reply(problem=f"{what}: {line.detail.rstrip('.')}", mend=line.mend)
