"""Read Google's offers: catalogs and queued resources of each zone, services of each region, and quotas. Read-only.

All calls are independent and concurrent, in at most two rounds: the list of zones, then the calls for each zone. A call that is rejected
or times out does not affect the others; its location reports the unknown value.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gemma_serving.cloud import quotas
from gemma_serving.cloud.caller import GoogleCaller
from gemma_serving.cloud.google_api import GoogleListError
from gemma_serving.cloud.google_session import CONNECTIONS, MachineWideError
from gemma_serving.cloud.kinds import LOCATIONS, SERVICE, Item, by_name
from gemma_serving.cloud.quotas import Quota
from gemma_serving.contracts.errors import ScriptError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.parallel import each_within
from gemma_serving.planning.machine.hardware import CLOUD_RUN_GPUS, Accelerator, known_places
from gemma_serving.planning.settings.capacity_form import ProvisioningModel

LIMIT_S: Final = 20.0
TPU_VIEWER: Final = "roles/tpu.viewer"
RUN_VIEWER: Final = "roles/run.viewer"
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleResponse:
    """Result of one call: items, or the reason for none."""

    what: str = ""
    items: Sequence[Item] = ()
    problem: str = ""
    """Reason that it could not be read; empty if it was."""
    fix: str = ""
    is_shared: bool = False
    """True if every call of this machine fails for this reason."""

    @property
    def is_read(self) -> bool:
        """True if Google responded."""
        return not self.problem

    @property
    def unread(self) -> str:
        """Failed reads, with their reasons; empty without any. Without a connection or a login, all have the same text."""
        if self.is_shared:
            return self.problem
        return f"{self.what}: {self.problem}" if self.problem else ""


NOT_READ: Final = GoogleResponse(what="the catalog", problem="not queried")


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """Accelerators and locations to compare."""

    project: str
    accelerators: Sequence[Accelerator]
    provisioning: ProvisioningModel = "flex-start"
    forms: Sequence[ProvisioningModel] = ()
    """Other provisioning models whose quotas to read."""
    zonal_redundancy: bool = False
    """GPU quota that a service uses."""
    places: Sequence[str] = ()
    """Zones or region of a stack, which are queried even if no list or page has them."""
    everywhere: bool = True
    """False: only `places`."""
    region: str = ""
    """Only the zones of this region, and `places`; empty for all zones."""
    quotas: Sequence[Quota] = ()
    catalog: bool = True
    """False: read requests, nodes and quotas only, not what a zone offers."""

    def of_kind(self, *, is_tpu: bool) -> Sequence[Accelerator]:
        """Return the TPUs, or the Cloud Run GPUs, among the accelerators."""
        return [one for one in self.accelerators if one.is_tpu == is_tpu]

    def own_places(self, *, is_tpu: bool) -> Sequence[str]:
        """Return the zones among `places`, as us-east5-a, or the regions, as us-east5."""
        return [place for place in self.places if (place.count("-") > 1) == is_tpu]

    def regions_of(self, gpu: Accelerator) -> Sequence[str]:
        """Return the regions to query for a Cloud Run GPU."""
        known = gpu.cloud_run.regions if self.everywhere else ()
        return tuple(dict.fromkeys((*known, *self.own_places(is_tpu=False))))

    def quota_of(self, accelerator: Accelerator, form: ProvisioningModel | None = None) -> Quota | None:
        """Return the quota of a slice with a provisioning model, by default the one in question, or of an instance."""
        if accelerator.is_tpu:
            return quotas.tpu_quota(accelerator.name, form or self.provisioning)
        return quotas.gpu_quota(CLOUD_RUN_GPUS[accelerator.name], zonal_redundancy=self.zonal_redundancy)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleResponses:
    """Google's responses by their kind and place: `zones`, `services`, `limits` by metric, or a catalog of a zone."""

    responses: Mapping[_Key, GoogleResponse]

    def get(self, what: str, place: str = "") -> GoogleResponse:
        """Return a reply, or one that was not read if the call was not made."""
        return self.responses.get((what, place), NOT_READ)

    @property
    def problems(self) -> Sequence[GoogleResponse]:
        """Failed calls, in order."""
        return [response for response in self.responses.values() if not response.is_read]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CapacityCall:
    """A list to read, with the role that may."""

    what: str
    api: str
    role: str
    path: str
    key: str
    """Key of the items in the response."""
    about: str = ""
    """API that the answer is about, if another one answers."""


def deadline(limit_s: float = LIMIT_S) -> Callable[[], float]:
    """Return a function that returns the seconds that remain from now on."""
    end_s = time.monotonic() + limit_s
    return lambda: end_s - time.monotonic()


def read_all(caller: GoogleCaller, question: CapacityQuestion, *, remaining_s: Callable[[], float]) -> GoogleResponses:
    """Return all responses; for each that did not arrive in time, a reply that states so."""
    first = _responses(caller, dict(_first_calls(question)), remaining_s)
    listed = first.get(("zones", ""), GoogleResponse())
    later = dict(_zone_calls(question, zones_of(question, listed), listed))
    return GoogleResponses(responses={**first, **_responses(caller, later, remaining_s)})


def zones_of(question: CapacityQuestion, zones: GoogleResponse) -> Sequence[str]:
    """Return the zones to query: the API's list or else the known ones, and the stack's."""
    slices = question.of_kind(is_tpu=True)
    own = question.own_places(is_tpu=True) if slices else ()
    if not question.everywhere or not slices:
        return tuple(own)
    listed = [str(item.get("locationId") or str(item.get("name")).rpartition("/")[2]) for item in zones.items]
    known = () if zones.is_read else (zone for one in slices for zone in known_places(one))
    found = [
        zone for zone in (*sorted(listed), *known) if zone.startswith(f"{question.region}-" if question.region else "")
    ]
    return tuple(dict.fromkeys((*found, *own)))


def _responses(
    caller: GoogleCaller, calls: Mapping[_Key, _CapacityCall], remaining_s: Callable[[], float]
) -> dict[_Key, GoogleResponse]:
    tasks = [partial(_response, caller, call) for call in calls.values()]
    responses = each_within(tasks, workers=CONNECTIONS, limit_s=max(remaining_s(), 0.0))
    for _, error in responses:
        if error is not None and not isinstance(error, TimeoutError):
            raise error
    return {
        key: response or GoogleResponse(what=call.what, problem=str(error))
        for (key, call), (response, error) in zip(calls.items(), responses, strict=True)
    }


def _response(caller: GoogleCaller, call: _CapacityCall) -> GoogleResponse:
    try:
        pages = list(caller.google.pages(call.api, call.path))
    except GoogleListError as error:
        detail, command = caller.refusal(call.api, call.role, error, about=call.about)
        return GoogleResponse(what=call.what, problem=detail.rstrip("."), fix=command)
    except ScriptError as error:
        return GoogleResponse(what=call.what, problem=str(error), is_shared=isinstance(error, MachineWideError))
    items = [as_mapping(item) for page in pages for item in as_sequence(page.get(call.key))]
    missing = [str(name) for page in pages for name in as_sequence(page.get("unreachable"))]
    unread = f"{', '.join(missing)} could not be reached" if missing else ""
    return GoogleResponse(what=call.what, items=items, problem=unread)


def _first_calls(question: CapacityQuestion) -> Iterator[tuple[_Key, _CapacityCall]]:
    project = question.project
    if question.everywhere and question.of_kind(is_tpu=True):
        path = LOCATIONS["tpu"].format(p=project)
        yield (
            ("zones", ""),
            _CapacityCall(what="the list of zones", api="tpu", role=TPU_VIEWER, path=path, key="locations"),
        )
    forms = (question.provisioning, *question.forms)
    used = [question.quota_of(accelerator, form) for accelerator in question.accelerators for form in forms]
    for quota in dict.fromkeys((*question.quotas, *filter(None, used))):
        yield (
            ("limits", quota.metric),
            _CapacityCall(
                what=f"the quota {quota.metric}",
                api="serviceusage",
                role=quotas.VIEWER,
                path=quota.path(project),
                key="consumerQuotaLimits",
                about=quota.service,
            ),
        )
    kind, gpus = by_name(SERVICE), question.of_kind(is_tpu=False)
    for region in dict.fromkeys(region for gpu in gpus for region in question.regions_of(gpu)):
        path = kind.path.format(p=project, l=region)
        what = f"the services in {region}"
        yield ("services", region), _CapacityCall(what=what, api="run", role=RUN_VIEWER, path=path, key=kind.items)


def _zone_calls(
    question: CapacityQuestion, zones: Sequence[str], listed: GoogleResponse
) -> Iterator[tuple[_Key, _CapacityCall]]:
    """Yield the calls for each zone. An API that is off returns nothing anywhere, so it is not called again."""
    if "services enable" in listed.fix:
        return
    catalogs = ("acceleratorTypes", "runtimeVersions") if question.catalog else ()
    reserved = ("reservations",) if question.provisioning == "reservation" else ()
    for zone in zones:
        for key in (*catalogs, "queuedResources", "nodes", *reserved):
            path = f"v2alpha1/projects/{question.project}/locations/{zone}/{key}?pageSize=500"
            yield (key, zone), _CapacityCall(what=f"{key} in {zone}", api="tpu", role=TPU_VIEWER, path=path, key=key)
