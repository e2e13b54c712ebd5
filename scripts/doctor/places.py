"""The judge of places, for the list of blockers and the table of `capacity`: hardware, provisioning model, and quota with its use, in each zone or region."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from gemma_serving.cloud import quotas
from gemma_serving.cloud.capacity import ListedQueuedResource
from gemma_serving.cloud.kinds import SERVICE, Item, by_name
from gemma_serving.cloud.offers import CapacityQuestion, GoogleResponse, GoogleResponses, zones_of
from gemma_serving.cloud.price_file import book_of
from gemma_serving.cloud.quotas import Quota
from gemma_serving.cloud.shortage import NOT_USED, ChipUse, QuotaRead, Shortage, Use, read_quota, request_shortage
from gemma_serving.contracts.capacity_states import GRANTED
from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT, Ownership
from gemma_serving.contracts.quotas import SERVICE_USAGE
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.cost.capacity_order import capacity_order
from gemma_serving.planning.cost.provisioning import (
    PROVISIONING_MODELS,
    Acceptance,
    provisioning_support,
    run_acceptance,
)
from gemma_serving.planning.data.prices import LIST_PRICES, HourlyPart, PriceBook, instance_parts, slice_parts
from gemma_serving.planning.machine.hardware import (
    CLOUD_RUN_GPUS,
    Accelerator,
    api_accelerator_type,
    find_accelerator,
    host_of,
    tpu_offer,
)
from gemma_serving.planning.question.types import FormStep
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.solve.candidates import deployable_accelerators
from gemma_serving.scripts.cli.check_result import CheckResult, State

FORMS: Final[Sequence[ProvisioningModel]] = ("flex-start", "spot", "standard")
"""Forms that every zone is compared by. A reservation has its own zone and no alternative."""


@dataclass(frozen=True, slots=True)
class LocationCheck(CheckResult):
    """One condition of a location, and its source. An open one needs no detail."""

    source: str = ""
    is_read: bool = True
    """False: the query to Google failed, and `detail` is the problem."""


@dataclass(frozen=True, slots=True)
class QuotaCheck(LocationCheck):
    """A quota with its use by all others in the project, in every state."""

    read: QuotaRead = field(kw_only=True)


NO_QUOTA: Final = LocationCheck("passed", source="a reservation needs no separate quota")


@dataclass(frozen=True, slots=True)
class ExistingRequest:
    """A queued resource or a service of this product in the location."""

    name: str
    stack: str
    state: str
    created: datetime
    detail: str = ""
    model: ProvisioningModel | None = None
    """Provisioning model; None for a service."""
    shortage: Shortage | None = None
    """Why a request waits or failed; None in other states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedForm:
    """A form of capacity in a zone, or the instances of a service in a region."""

    model: str
    """Provisioning model; `instance` for a service."""
    accepted: LocationCheck
    quota: LocationCheck
    """A QuotaCheck, or NO_QUOTA."""
    parts: Sequence[HourlyPart]
    """Cost of one slice, or one instance of the stack's size."""
    in_stack: bool
    """True if the stack's settings have it."""
    not_requested: str = ""
    """Why the stack does not request it in this zone, such as the ceiling; empty if it does, or if its settings do not have it."""
    last_answer: ExistingRequest | None = None
    """The latest request of this project; None if there is none."""

    @property
    def usd_per_hour(self) -> float | None:
        """USD per hour; None if no price is known."""
        return sum(part.usd_per_hour for part in self.parts) if self.parts else None

    @property
    def price_is_assumed(self) -> bool:
        """True if no price of this region is known."""
        return any(part.price.is_assumed for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPlace:
    """One accelerator in one zone or region."""

    accelerator: Accelerator
    place: str
    hardware: LocationCheck
    asked: JudgedForm
    """The form in question."""
    requests: Sequence[ExistingRequest]
    position: int | None = None
    """Index in the stack's settings; None if they do not have it."""
    forms: Sequence[JudgedForm] = ()
    """Forms of capacity of a TPU in the order of the settings; empty for a GPU."""

    @property
    def checks(self) -> Sequence[LocationCheck]:
        """The checks in order."""
        return (self.hardware, self.asked.accepted, self.asked.quota)

    @property
    def group(self) -> int:
        """0: all checks are open. 1: some are unknown. 2: at least one is closed."""
        return max({"passed": 0, "failed": 2}.get(check.state, 1) for check in self.checks)


def question_of(project: str, settings: Settings | None, accelerators: Sequence[str] = ()) -> CapacityQuestion:
    """Return the question about these accelerators, else about the stack's with all its forms and quotas, else about all.

    Raises PlanningError for an unknown one.
    """
    tpu, run = (settings.tpu, settings.cloud_run) if settings else (None, None)
    wanted = tpu.accelerator_type if tpu else run.gpu if run else None
    found = [one for name in accelerators or (wanted,) for one in deployable_accelerators(name, option="ACCELERATOR")]
    own: Sequence[ProvisioningModel] = [form.model for form in tpu.forms] if tpu else []
    model = own[0] if own else FORMS[0]
    others: Sequence[ProvisioningModel] = FORMS if model in FORMS else ()
    return CapacityQuestion(
        project=project,
        accelerators=tuple(dict.fromkeys(found)),
        provisioning=model,
        forms=tuple(dict.fromkeys(form for form in (*others, *own) if form != model)),
        quotas=(quotas.CPU, quotas.MEMORY) if run else (),
        zonal_redundancy=run.zonal_redundancy if run else False,
        places=tuple(tpu.zones) if tpu else (run.region,) if run else (),
    )


def judge(
    asked: CapacityQuestion,
    responses: GoogleResponses,
    stack: str | None = None,
    settings: Settings | None = None,
) -> Sequence[JudgedPlace]:
    """Return all locations of all accelerators, sorted within each accelerator. The use of `stack` itself is not counted."""
    of = _PlaceComparison(asked=asked, responses=responses, stack=stack, settings=settings)
    places: list[JudgedPlace] = []
    for accelerator in asked.accelerators:
        if accelerator.is_tpu:
            found = [of.zone(accelerator, zone) for zone in zones_of(asked, responses.get("zones"))]
        else:
            found = [of.region(accelerator, region) for region in asked.regions_of(accelerator)]
        places += sorted(found, key=_order)
    return places


def _order(place: JudgedPlace) -> tuple[object, ...]:
    position = math.inf if place.position is None else place.position
    usd = math.inf if place.asked.usd_per_hour is None else round(place.asked.usd_per_hour, 4)
    return (place.group, usd, place.asked.price_is_assumed, position, place.place)


def judge_quota(
    quota: Quota,
    place: str,
    responses: GoogleResponses,
    needed: float,
    *,
    use: ChipUse | Use = NOT_USED,
) -> QuotaCheck:
    """Return whether a quota suffices for its use."""
    read = read_quota(responses, quota, place, needed, use)
    source = f"{SERVICE_USAGE}, {quota.service}.googleapis.com/{quota.metric}"
    check = partial(QuotaCheck, source=source, read=read)
    if isinstance(read.limit, Unknown):
        is_read = responses.get("limits", quota.metric).is_read
        return check("unknown", read.limit.why, read.limit.fix, is_read=is_read)
    if isinstance(read.used, Unknown) and read.limit.value >= needed:
        return check("unknown", read.used.why, read.used.fix, is_read=False)
    if math.isinf(read.limit.value):
        return check("passed", f"no limit, {needed:g} needed")
    where = "" if read.place == place else f" in {read.place}"
    in_use = f", {read.known_use:g} in use" if read.known_use else ""
    text = f"{read.limit.value:g} {quota.unit}{where}, {needed:g} needed{in_use}"
    return check("passed" if read.is_enough else "failed", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlaceComparison:
    """What the accelerators are compared by: the question, what Google returned, and the stack with its settings, if one is named."""

    asked: CapacityQuestion
    responses: GoogleResponses
    stack: str | None
    settings: Settings | None

    @property
    def prices(self) -> PriceBook:
        return book_of(self.settings.prices if self.settings else None) or LIST_PRICES

    def position(self, place: str) -> int | None:
        return self.asked.places.index(place) if place in self.asked.places else None

    def zone(self, accelerator: Accelerator, zone: str) -> JudgedPlace:
        """Return the judgment of a slice in a zone."""
        name = api_accelerator_type(accelerator.name)
        here = [ListedQueuedResource(item) for item in self.responses.get("queuedResources", zone).items]
        requests = [self._own(one) for one in here if one.stack is not None and name in one.accelerators]
        forms = [
            self._form(accelerator, form, zone, self._accepted(accelerator, form, zone, here), requests)
            for form in (self.asked.provisioning, *self.asked.forms)
        ]
        return JudgedPlace(
            accelerator=accelerator,
            place=zone,
            hardware=self._hardware(accelerator, zone, name),
            asked=forms[0],
            requests=requests,
            position=self.position(zone),
            forms=self._in_order(forms),
        )

    def _in_order(self, forms: Sequence[JudgedForm]) -> Sequence[JudgedForm]:
        """Return the forms in the order of the settings, then the others in the usual order."""
        listed = [form.model for form in self.settings.tpu.forms] if self.settings and self.settings.tpu else []
        order = dict.fromkeys([*listed, *PROVISIONING_MODELS])
        return sorted(forms, key=lambda form: list(order).index(form.model))

    def _order_of(self, accelerator: Accelerator) -> Sequence[FormStep]:
        """Return the forms in the stack's settings; none for another accelerator than the stack's."""
        tpu = self.settings.tpu if self.settings else None
        if tpu is None or find_accelerator(tpu.accelerator_type) != accelerator:
            return ()
        return capacity_order(tpu, self.prices)

    def _form(
        self,
        accelerator: Accelerator,
        model: ProvisioningModel,
        zone: str,
        accepted: LocationCheck,
        requests: Sequence[ExistingRequest],
    ) -> JudgedForm:
        quota = self.asked.quota_of(accelerator, model)
        use = ChipUse(
            responses=self.responses,
            generation=api_accelerator_type(accelerator.name).rpartition("-")[0],
            provisioning=model,
            stack=self.stack,
        )
        step = next((step for step in self._order_of(accelerator) if step.model == model), None)
        skipped = "" if step is None else next((at.skipped for at in step.places if at.zone == zone), "")
        return JudgedForm(
            model=model,
            accepted=accepted,
            quota=judge_quota(quota, zone, self.responses, accelerator.chips, use=use) if quota else NO_QUOTA,
            parts=slice_parts(
                self.prices, generation=accelerator.generation, chips=accelerator.chips, provisioning=model, place=zone
            ),
            in_stack=step is not None and zone in self.asked.places,
            not_requested=skipped,
            last_answer=max((one for one in requests if one.model == model), key=lambda one: one.created, default=None),
        )

    def _own(self, one: ListedQueuedResource) -> ExistingRequest:
        return ExistingRequest(
            name=one.name,
            stack=one.stack or "",
            state=one.state,
            created=one.created,
            detail=one.detail,
            model=one.provisioning,
            shortage=request_shortage(self.responses, one),
        )

    def region(self, gpu: Accelerator, region: str) -> JudgedPlace:
        """Return the judgment of a service with a GPU in a region."""
        response = self.responses.get("services", region)
        run = self.settings.cloud_run if self.settings else None
        name, host = CLOUD_RUN_GPUS[gpu.name], host_of(gpu, "cloud-run")
        selected = [
            item
            for item in response.items
            if as_mapping(as_mapping(item.get("template")).get("nodeSelector")).get("accelerator") == name
        ]
        owners = [(item, by_name(SERVICE).owner(item)) for item in selected]
        own = Ownership(project=PRODUCT, stack=self.stack or "")
        others = [item for item, owner in owners if owner != own]
        used = sum(_instances(item, self.asked) for item in others)
        use = Present(float(used)) if response.is_read else Unknown(response.unread, fix=response.fix)
        needed = run.max_instances if run else 1
        quota = self.asked.quota_of(gpu)
        accepted = _check_of(run_acceptance(gpu, region))
        return JudgedPlace(
            accelerator=gpu,
            place=region,
            hardware=LocationCheck("passed", source=accepted.source) if region in gpu.cloud_run.regions else accepted,
            asked=JudgedForm(
                model="instance",
                accepted=accepted,
                quota=judge_quota(quota, region, self.responses, needed, use=use) if quota else NO_QUOTA,
                parts=instance_parts(
                    self.prices,
                    gpu=gpu.name,
                    vcpu=run.cpu if run else host.vcpu,
                    memory_gib=run.memory_mib / 1024 if run else host.memory_gib,
                    zonal_redundancy=self.asked.zonal_redundancy,
                    place=region,
                ),
                in_stack=self.position(region) is not None,
            ),
            requests=[
                _own(item, owner.stack) for item, owner in owners if owner is not None and owner.project == PRODUCT
            ],
            position=self.position(region),
        )

    def _hardware(self, accelerator: Accelerator, zone: str, name: str) -> LocationCheck:
        """Return the check for the type and the runtime version in a zone."""
        source = "Cloud TPU API, acceleratorTypes and runtimeVersions"
        types = self.responses.get("acceleratorTypes", zone)
        versions = self.responses.get("runtimeVersions", zone)
        tpu = self.settings.tpu if self.settings is not None else None
        given = tpu.runtime_version if tpu and api_accelerator_type(tpu.accelerator_type) == name else None
        wanted = given or tpu_offer(accelerator).runtime_version
        if types.is_read and name not in _names(types, "type"):
            return LocationCheck("failed", f"the zone does not offer {name}", source=source)
        for response in (types, versions):
            if not response.is_read:
                return LocationCheck("unknown", response.unread, response.fix, source=source, is_read=False)
        offered = _names(versions, "version")
        if wanted not in offered:
            fix = f"remove tpu.runtimeVersion, or set one of {', '.join(sorted(offered))}" if given else ""
            return LocationCheck("failed", f"the zone does not offer runtime version {wanted}", fix, source=source)
        return LocationCheck("passed", source=source)

    def _accepted(
        self, accelerator: Accelerator, model: ProvisioningModel, zone: str, here: Sequence[ListedQueuedResource]
    ) -> LocationCheck:
        """Return the check for a provisioning model in a zone. A request that was granted takes precedence over documentation."""
        name = api_accelerator_type(accelerator.name)
        for one in here:
            if one.state in GRANTED and one.provisioning == model and name in one.accelerators:
                return LocationCheck("passed", source=f"granted to {one.name.rpartition('/')[2]}")
        response = self.responses.get("reservations", zone)
        if model != "reservation" or not response.is_read:
            return _check_of(provisioning_support(accelerator, model, zone))
        source = "Cloud TPU API, reservations"
        if response.items:
            return LocationCheck("passed", source=source)
        return LocationCheck("failed", "the project has no reservation there", source=source)


def _check_of(known: Acceptance) -> LocationCheck:
    states: Mapping[str, State] = {"yes": "passed", "no": "failed", "unknown": "unknown"}
    return LocationCheck(states[known.answer], "" if known.answer == "yes" else known.source, source=known.source)


def _names(response: GoogleResponse, key: str) -> set[str]:
    return {str(item.get(key) or str(item.get("name")).rpartition("/")[2]) for item in response.items}


def _instances(item: Item, asked: CapacityQuestion) -> int:
    """Return the maximum number of instances of a service, or 0 if they do not use the quota in question."""
    template = as_mapping(item.get("template"))
    if bool(template.get("gpuZonalRedundancyDisabled")) == asked.zonal_redundancy:
        return 0
    return max(int(str(as_mapping(part.get("scaling")).get("maxInstanceCount") or 0)) for part in (item, template))


def _own(item: Item, stack: str) -> ExistingRequest:
    condition = as_mapping(item.get("terminalCondition"))
    state = str(condition.get("state") or "").removeprefix("CONDITION_") or "UNKNOWN"
    created = datetime.fromisoformat(str(item.get("createTime") or "1970-01-01T00:00:00Z"))
    return ExistingRequest(str(item.get("name")), stack, state, created, str(condition.get("message") or ""))
