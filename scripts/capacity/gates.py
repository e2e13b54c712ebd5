"""The three gates of each location, its pending requests, past grants and sort order."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cloud import quotas
from cloud.capacity import QueuedResource
from cloud.kinds import Item, by_name
from cloud.offers import Answers, CapacityQuestion, Reply, zones_of
from contracts.fields import as_mapping
from planning.cost.provisioning import PROVISIONING_MODELS, Acceptance, Answer, acceptance, run_acceptance
from planning.data.prices import LIST_PRICES, PriceBook, instance_parts, slice_parts
from planning.machine.hardware import (
    CLOUD_RUN_GPUS,
    RUNTIME_VERSIONS,
    Accelerator,
    api_accelerator_type,
    gpu_regions,
    host_of,
)
from planning.question.types import ProvisioningModel
from scripts.capacity.history import Sighting, StockHistory

ORDER: Final = (
    "Locations are sorted by availability: all three gates open, then unknown, then closed. "
    "Within each group: latest grant first, waiting or failed last, then by price, then in the order of the stack's settings."
)
_NOT_READ: Final = Reply(problem="not queried")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One condition of a location, and its source."""

    answer: Answer
    detail: str = ""
    """Reason for closed or unknown; empty if it is open."""
    source: str = ""
    is_read: bool = True
    """False: the query to Google failed, and `detail` is the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """A quota in its own unit: chips, or GPUs."""

    limit: float | None
    """Infinite: no limit. None: unknown."""
    used: float | None
    """Usage of all resources in the project, in every state. None: unknown."""
    needed: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A queued resource or a service of this product in the location."""

    name: str
    stack: str
    state: str
    created: datetime
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPlace:
    """One accelerator in one zone or region."""

    accelerator: Accelerator
    place: str
    hardware: Gate
    models: Mapping[str, Gate]
    """Gate by provisioning model. Cloud Run has one, `instance`."""
    model: str
    """The provisioning model in question, a key of `models`."""
    quota: Gate
    use: QuotaUse
    own: Sequence[Own]
    stock: Sighting | None
    usd_per_hour: float
    price_is_assumed: bool
    position: int | None
    """Index in the stack's settings; None if they do not have it."""

    @property
    def gates(self) -> Sequence[Gate]:
        """The gates in order."""
        return (self.hardware, self.models[self.model], self.quota)

    @property
    def is_in_stack(self) -> bool:
        """True if the stack's settings have it."""
        return self.position is not None

    @property
    def is_without(self) -> bool:
        """True if the location does not have the hardware."""
        return self.hardware.answer == "no"

    @property
    def is_open(self) -> bool:
        """True if all gates are open."""
        return all(gate.answer == "yes" for gate in self.gates)

    @property
    def is_closed(self) -> bool:
        """True if a gate is closed."""
        return any(gate.answer == "no" for gate in self.gates)

    @property
    def promise(self) -> tuple[object, ...]:
        """The sort key."""
        group = 0 if self.is_open else 2 if self.is_closed else 1
        outcome = self.stock.outcome if self.stock else None
        at_s = datetime.fromisoformat(self.stock.at).timestamp() if self.stock else 0.0
        rank = {"granted": 0, None: 1}.get(outcome, 2)
        price = (round(self.usd_per_hour, 4), self.price_is_assumed)
        settings = math.inf if self.position is None else self.position
        return (group, rank, -at_s if rank == 0 else 0.0, price, settings, self.place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Requirements of the stack, or of one slice or instance."""

    stack: str | None = None
    """The stack, whose own usage is not counted."""
    places: Sequence[str] = ()
    """Zones or region in its settings."""
    instances: int = 1
    """Instances of a service."""
    machines: int = 1
    """Slices at the same time: two during a renewal."""
    vcpu: float | None = None
    memory_gib: float | None = None
    prices: PriceBook = LIST_PRICES

    def position(self, place: str) -> int | None:
        """Return the index of a location in the settings; None if they do not have it."""
        return self.places.index(place) if place in self.places else None


def requests_in(answers: Answers) -> Sequence[QueuedResource]:
    """Return all queued resources in the answers."""
    replies = (reply for (_, key), reply in answers.catalogs.items() if key == "queuedResources")
    return [QueuedResource(item) for reply in replies for item in reply.items]


def judge(asked: CapacityQuestion, answers: Answers, history: StockHistory, need: Need) -> Sequence[JudgedPlace]:
    """Return all locations of all accelerators, sorted within each accelerator."""
    comparison = _Comparison(asked=asked, answers=answers, history=history, need=need, requests=requests_in(answers))
    places: list[JudgedPlace] = []
    for accelerator in asked.accelerators:
        found = (
            [comparison.zone(accelerator, zone) for zone in zones_of(asked, answers.zones)]
            if accelerator.is_tpu
            else [comparison.region(accelerator, region) for region in asked.regions_of(accelerator)]
        )
        places += sorted(found, key=lambda place: place.promise)
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    """Data for judging the locations."""

    asked: CapacityQuestion
    answers: Answers
    history: StockHistory
    need: Need
    requests: Sequence[QueuedResource]

    def zone(self, accelerator: Accelerator, zone: str) -> JudgedPlace:
        """Return the judgment of a slice in a zone."""
        name, model = api_accelerator_type(accelerator.name), self.asked.provisioning
        here = [request for request in self.requests if request.zone == zone]
        known = self.answers.catalogs.get((zone, "queuedResources"), _NOT_READ).is_read
        counted = [request for request in here if self._counts(request)]
        use = QuotaUse(
            limit=self._limit(accelerator, zone),
            used=sum(request.chips(name.rpartition("-")[0]) for request in counted) if known else None,
            needed=self.need.machines * accelerator.devices,
            unit="chips",
        )
        parts = slice_parts(
            self.need.prices,
            generation=accelerator.name.partition("-")[0],
            chips=accelerator.devices,
            provisioning=model,
            place=zone,
        )
        own = [
            Own(name=one.name, stack=one.stack, state=one.state, created=one.created, detail=one.detail)
            for one in here
            if one.stack is not None and name in one.accelerators
        ]
        return JudgedPlace(
            accelerator=accelerator,
            place=zone,
            hardware=self._hardware(zone, name),
            models={each: self._accepted(accelerator, each, zone) for each in PROVISIONING_MODELS},
            model=model,
            quota=self._quota_gate(accelerator, use),
            use=use,
            own=own,
            stock=self.history.latest(zone, name, model),
            usd_per_hour=sum(part.usd_per_hour for part in parts),
            price_is_assumed=any(part.price.is_assumed for part in parts),
            position=self.need.position(zone),
        )

    def region(self, gpu: Accelerator, region: str) -> JudgedPlace:
        """Return the judgment of a service with a GPU in a region."""
        reply = self.answers.services.get(region, _NOT_READ)
        kind, need, name = by_name("Cloud Run service"), self.need, CLOUD_RUN_GPUS[gpu.name]
        owners = [(item, kind.owner(item)) for item in reply.items if _gpu_of(item) == name]
        others = [item for item, owner in owners if owner is None or owner.stack != need.stack]
        use = QuotaUse(
            limit=self._limit(gpu, region),
            used=sum(_instances(item, self.asked) for item in others) if reply.is_read else None,
            needed=need.instances,
            unit="GPUs",
        )
        host = host_of(gpu, "cloud-run")
        parts = instance_parts(
            need.prices,
            gpu=gpu.name,
            vcpu=need.vcpu or host.vcpu,
            memory_gib=need.memory_gib or host.memory_gib,
            zonal_redundancy=self.asked.zonal_redundancy,
            place=region,
        )
        accepted = _gate(run_acceptance(gpu, region))
        return JudgedPlace(
            accelerator=gpu,
            place=region,
            hardware=Gate(answer="yes", source=accepted.source) if region in gpu_regions(gpu) else accepted,
            models={"instance": accepted},
            model="instance",
            quota=self._quota_gate(gpu, use),
            use=use,
            own=[_own(item, owner.stack) for item, owner in owners if owner is not None],
            stock=None,
            usd_per_hour=sum(part.usd_per_hour for part in parts),
            price_is_assumed=any(part.price.is_assumed for part in parts),
            position=need.position(region),
        )

    def _counts(self, request: QueuedResource) -> bool:
        """Return whether a request uses the quota in question and belongs to another stack."""
        same = quotas.is_preemptible(request.provisioning) == quotas.is_preemptible(self.asked.provisioning)
        return same and (self.need.stack is None or request.stack != self.need.stack)

    def _hardware(self, zone: str, name: str) -> Gate:
        """Return the gate for the type and the boot image in a zone."""
        source = "Cloud TPU API, acceleratorTypes and runtimeVersions"
        types = self.answers.catalogs.get((zone, "acceleratorTypes"), _NOT_READ)
        versions = self.answers.catalogs.get((zone, "runtimeVersions"), _NOT_READ)
        wanted = RUNTIME_VERSIONS.get(name.rpartition("-")[0], "")
        if types.is_read and name not in _names(types, "type"):
            return Gate(answer="no", detail=f"the zone does not offer {name}", source=source)
        for reply in (types, versions):
            if not reply.is_read:
                return Gate(answer="unknown", detail=reply.problem, source=source, is_read=False)
        if wanted not in _names(versions, "version"):
            return Gate(answer="no", detail=f"the zone does not offer runtime version {wanted}", source=source)
        return Gate(answer="yes", source=source)

    def _accepted(self, accelerator: Accelerator, model: ProvisioningModel, zone: str) -> Gate:
        """Return the gate for a provisioning model in a zone. A past grant takes precedence over documentation."""
        seen = self.history.latest(zone, api_accelerator_type(accelerator.name), model)
        if seen is not None and seen.outcome == "granted":
            return Gate(answer="yes", source=f"granted to {seen.request.rpartition('/')[2]}, requested {seen.at}")
        reply = self.answers.catalogs.get((zone, "reservations"), _NOT_READ)
        if model == "reservation" and reply.is_read:
            source = "Cloud TPU API, reservations"
            if reply.items:
                return Gate(answer="yes", source=source)
            return Gate(answer="no", detail="the project has no reservation there", source=source)
        return _gate(acceptance(accelerator, model, zone))

    def _limit(self, accelerator: Accelerator, place: str) -> float | None:
        quota = self.asked.quota_of(accelerator)
        reply = self.answers.limits.get(quota.metric, _NOT_READ) if quota else _NOT_READ
        return quotas.limit_in(reply.items, quota, place) if quota and reply.is_read else None

    def _quota_gate(self, accelerator: Accelerator, use: QuotaUse) -> Gate:
        quota = self.asked.quota_of(accelerator)
        if quota is None:
            return Gate(answer="yes", source="a reservation needs no separate quota")
        source = f"Service Usage, {quota.service}.googleapis.com/{quota.metric}"
        if use.limit is None:
            reply = self.answers.limits.get(quota.metric, _NOT_READ)
            detail = reply.problem or "Service Usage returned no quota for it"
            return Gate(answer="unknown", detail=detail, source=source, is_read=reply.is_read)
        if use.limit < use.needed:
            detail = f"the quota is {use.limit:g} {use.unit}, but {use.needed:g} are needed"
            return Gate(answer="no", detail=detail, source=source)
        if use.used is None:
            detail = "the quota usage could not be read"
            return Gate(answer="unknown", detail=detail, source=source, is_read=False)
        if use.limit - use.used < use.needed:
            detail = f"{use.used:g} of {use.limit:g} {use.unit} are in use, but {use.needed:g} are needed"
            return Gate(answer="no", detail=detail, source=source)
        return Gate(answer="yes", source=source)


def _gate(known: Acceptance) -> Gate:
    return Gate(answer=known.answer, detail="" if known.answer == "yes" else known.source, source=known.source)


def _names(reply: Reply, key: str) -> set[str]:
    """Return the last parts of the names in a catalog."""
    return {str(item.get(key) or str(item.get("name")).rpartition("/")[2]) for item in reply.items}


def _instances(item: Item, asked: CapacityQuestion) -> int:
    """Return the maximum number of instances of a service, or 0 if they do not use the quota in question."""
    template = as_mapping(item.get("template"))
    if bool(template.get("gpuZonalRedundancyDisabled")) == asked.zonal_redundancy:
        return 0
    return max(int(str(as_mapping(part.get("scaling")).get("maxInstanceCount") or 0)) for part in (item, template))


def _gpu_of(item: Item) -> str:
    return str(as_mapping(as_mapping(item.get("template")).get("nodeSelector")).get("accelerator") or "")


def _own(item: Item, stack: str) -> Own:
    condition = as_mapping(item.get("terminalCondition"))
    return Own(
        name=str(item.get("name")),
        stack=stack,
        state=str(condition.get("state") or "").removeprefix("CONDITION_") or "UNKNOWN",
        created=datetime.fromisoformat(str(item.get("createTime") or "1970-01-01T00:00:00Z")),
        detail=str(condition.get("message") or ""),
    )
