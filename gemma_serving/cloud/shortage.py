"""Why a TPU request waits or failed: for quota, for stock, or unknown if nothing that was read tells.

Google gives no reason while a request waits or when it expires, and a request without quota can wait like one without stock. So a wait is for stock only if the
quota that the request draws on was read, with its use by all others, and is enough. A quota that was not read is unknown, not 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from gcp_tpu_provider import refusals
from gcp_tpu_provider.quota_documents import chips_used
from gemma_serving.cloud import quotas
from gemma_serving.cloud.caller import GoogleCaller
from gemma_serving.cloud.capacity import ListedQueuedResource
from gemma_serving.cloud.kinds import Item
from gemma_serving.cloud.offers import CapacityQuestion, GoogleResponses, deadline, read_all
from gemma_serving.cloud.quotas import Quota
from gemma_serving.contracts.capacity_states import GRANTED, IN_QUEUE
from gemma_serving.contracts.plain_text import for_terminal
from gemma_serving.contracts.quotas import SERVICE_USAGE
from gemma_serving.contracts.stack_facts import Shortage
from gemma_serving.contracts.three_answers import Present, Unknown
from gemma_serving.planning.machine.hardware import api_accelerator_type, find_accelerator
from gemma_serving.planning.settings.capacity_form import ProvisioningModel

Cause = Literal["quota", "stock", "unknown"]
_WITHOUT_CAPACITY: Final = frozenset({*IN_QUEUE, "FAILED"})
"""States of a request that waits or failed."""
_MOST_OTHERS: Final = 3
"""Requests in other zones that the evidence names."""
_CAUSES: Final[Mapping[str, Cause]] = {refusals.QUOTA: "quota", refusals.STOCK: "stock"}
"""Cause by what Google's words name. All other words name neither."""
_OF_A_WAIT: Final[Mapping[bool | None, Cause]] = {True: "stock", False: "quota", None: "unknown"}
"""Cause of a wait, for which Google has no words, by whether the quota is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRead:
    """What was read about the quota of one request in a zone or region, in the quota's unit."""

    quota: Quota
    place: str
    """Zone or region of the limit that leaves least."""
    limit: Present[float] | Unknown
    """Infinite: no limit."""
    used: Present[float] | Unknown
    """Use by all others."""
    needed: float

    @property
    def known_limit(self) -> float | None:
        """The limit; None if unknown."""
        return self.limit.value if isinstance(self.limit, Present) else None

    @property
    def known_use(self) -> float | None:
        """The use by all others; None if unknown."""
        return self.used.value if isinstance(self.used, Present) else None

    @property
    def left(self) -> float:
        """The rest of the limit for this request. An unknown part counts as 0."""
        return (self.known_limit or 0) - (self.known_use or 0)

    @property
    def is_enough(self) -> bool | None:
        """Whether the quota allows the request beside all others; None if unknown."""
        is_unread = isinstance(self.used, Unknown) and self.needed <= self.left < math.inf
        return None if is_unread or isinstance(self.limit, Unknown) else self.left >= self.needed

    @property
    def sentence(self) -> str:
        """What was read, as a clause with the quota's id."""
        if isinstance(self.limit, Unknown):
            return f"quota {self.quota.quota_id} in {self.place} is unknown ({self.limit.why})"
        use = (
            f"use by others unknown ({self.used.why})"
            if isinstance(self.used, Unknown)
            else f"{self.used.value:g} used by others"
        )
        return f"quota {self.quota.quota_id}: {self.limit.value:g} {self.quota.unit} in {self.place}, {use}, {self.needed:g} needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRequest:
    """An answer to another request of this project for the same accelerator and form."""

    zone: str
    state: str
    words: str = ""

    @property
    def sentence(self) -> str:
        """The answer as a clause."""
        return f"{self.zone}: {self.state}{f' ({self.words.rstrip(chr(46))})' if self.words else ''}"


def shortage(
    state: str, words: str, reads: Sequence[QuotaRead], zone: str = "", others: Sequence[OtherRequest] = ()
) -> Shortage:
    """Return why a request in a state, with Google's words, waits or failed.

    `reads`: the quotas that it can draw on, any of which suffices. `others`: answers in other zones, to requests of the same form.
    """
    enough = _any_enough([read.is_enough for read in reads])
    is_wait = refusals.has_expired(words) if words else state in IN_QUEUE
    named = refusals.kind(words)
    cause: Cause = _OF_A_WAIT[enough] if is_wait else _CAUSES.get(named, "unknown")
    if words and cause == "stock" and enough is False:
        cause = "unknown"  # words about stock and a quota that is too low contradict each other
    region = zone.rpartition("-")[0]
    if cause == "stock" and is_wait and any(refusals.region_without_quota(other.words) == region for other in others):
        cause = "unknown"
    said = f'Google says "{for_terminal(words).rstrip(".")}"' if words else f"Google gives no reason for {state}"
    quota = [read.sentence for read in reads] or ["no quota of this request is known"]
    new = [refusals.advice(words).rstrip(".")] if words and named == refusals.UNKNOWN_WORDS else []
    return Shortage(cause=cause, evidence=(said, *new, *quota, *_shown(others, zone)))


def is_over_quota(words: str) -> bool:
    """Return whether Google refuses a resource because a quota does not allow it."""
    return refusals.kind(words) == refusals.QUOTA


def _any_enough(responses: Sequence[bool | None]) -> bool | None:
    if True in responses:
        return True
    return None if not responses or None in responses else False


def _shown(others: Sequence[OtherRequest], zone: str) -> list[str]:
    listed = [other.sentence for other in others if other.zone != zone]
    more = [f"{len(listed) - _MOST_OTHERS} more in other zones"] if len(listed) > _MOST_OTHERS else []
    return listed[:_MOST_OTHERS] + more


Use: TypeAlias = Present[float] | Unknown
"""The use of a quota by all others."""
UNREAD_USE: Final = Unknown("not read")
NOT_USED: Final = Present(0.0)


def read_quota(
    responses: GoogleResponses, quota: Quota, place: str, needed: float, use: "ChipUse | Use" = NOT_USED
) -> QuotaRead:
    """Return what was read about a quota in a location. If it has a limit in the zone and in the region, the one that leaves less."""
    listed = responses.get("limits", quota.metric)
    found: list[QuotaRead] = []
    for at, limit in quotas.limits_in(listed.items, quota, place).items():
        counted = use.at(at) if isinstance(use, ChipUse) else use
        why = listed.unread or f"Service Usage returned no limit for {quota.metric} in {at}"
        known = Unknown(why, fix=listed.fix) if limit is None else Present(limit, SERVICE_USAGE)
        found.append(QuotaRead(quota=quota, place=at, limit=known, used=counted, needed=needed))
    return min(found, key=lambda read: (_RANK[read.is_enough], read.left))


_RANK: Final[Mapping[bool | None, int]] = {False: 0, None: 1, True: 2}
"""A limit that is too low decides; then one that is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipUse:
    """Chips of a generation that requests and nodes take from the quota of a provisioning model.

    A request counts in every state until it is deleted. A node counts if no listed request has it.
    """

    responses: GoogleResponses
    generation: str
    """The API's name, such as v5litepod."""
    provisioning: ProvisioningModel
    stack: str | None = None
    """The stack whose own requests are not counted."""
    request: str = ""
    """Full name of a request that is not counted."""

    def at(self, place: str) -> Use:
        """Return the chips in use in a zone or region."""
        if place.count("-") > 1:
            return self._in_zone(place)
        if not self.responses.get("zones").is_read:
            return Unknown("the zones of the region were not read")
        keys = self.responses.responses
        found = [self._in_zone(zone) for key, zone in keys if key == "queuedResources" and zone.startswith(f"{place}-")]
        unread = next((one for one in found if isinstance(one, Unknown)), None)
        return unread or Present(sum(one.value for one in found if isinstance(one, Present)))

    def _in_zone(self, zone: str) -> Use:
        requests, nodes = (self.responses.get(key, zone) for key in ("queuedResources", "nodes"))
        for response in (requests, nodes):
            if not response.is_read:
                return Unknown(response.unread, fix=response.fix)
        preemptible = quotas.is_preemptible(self.provisioning)
        used = chips_used(requests.items, nodes.items, self.generation, preemptible=preemptible, is_own=self._is_own)
        if used is None:
            return Unknown(f"a request or a node in {zone} does not name its accelerator type")
        return Present(used)

    def _is_own(self, item: Item) -> bool:
        one = ListedQueuedResource(item)
        return one.name == self.request or (self.stack is not None and one.stack == self.stack)


def request_shortage(responses: GoogleResponses, request: ListedQueuedResource) -> Shortage | None:
    """Return why a queued resource waits or failed, from lists of its zone and of others; None in other states."""
    if request.state not in _WITHOUT_CAPACITY:
        return None
    accelerator = next(iter(request.accelerators), "")
    quota = quotas.tpu_quota(accelerator, request.provisioning)
    reads: list[QuotaRead] = []
    if quota is not None:
        generation = accelerator.rpartition("-")[0]
        use = ChipUse(
            responses=responses, generation=generation, provisioning=request.provisioning, request=request.name
        )
        reads.append(read_quota(responses, quota, request.zone, request.chips(generation), use))
    others = [
        OtherRequest(zone=one.zone, state=one.state, words=one.detail)
        for (key, _), response in responses.responses.items()
        if key == "queuedResources"
        for one in map(ListedQueuedResource, response.items)
        if one.name != request.name
        and one.state in _WITHOUT_CAPACITY | GRANTED
        and (one.provisioning, one.accelerators) == (request.provisioning, request.accelerators)
    ]
    return shortage(request.state, request.detail, reads, request.zone, others)


def read_shortage(caller: GoogleCaller, request: ListedQueuedResource, zones: Sequence[str] = ()) -> Shortage | None:
    """Return why a queued resource waits or failed, from Google's answers; None in other states. A read that fails is evidence of nothing.

    `zones`: the stack's zones, whose answers are read beside those of the region.
    """
    found = find_accelerator(next(iter(request.accelerators), ""))
    if request.state not in _WITHOUT_CAPACITY:
        return None
    if found is None or not found.is_tpu:
        return shortage(request.state, request.detail, ())
    asked = CapacityQuestion(
        project=caller.project,
        accelerators=(found,),
        provisioning=request.provisioning,
        places=tuple(dict.fromkeys((request.zone, *zones))),
        region=request.zone.rpartition("-")[0],
        catalog=False,
    )
    return request_shortage(read_all(caller, asked, remaining_s=deadline()), request)


def read_instance_shortage(
    caller: GoogleCaller, state: str, accelerator_type: str, provisioning: str, zone: str
) -> Shortage | None:
    """Return why a Compute Engine instance waits; None in other states. How many chips of a quota others use is not read, so never stock."""
    if state not in IN_QUEUE:
        return None
    (reads,) = read_quotas(caller, accelerator_type, [(zone, provisioning)], instances=True)
    return shortage(state, "", reads, zone)


def read_quotas(
    caller: GoogleCaller, accelerator_type: str, requests: Sequence[tuple[str, str]], *, instances: bool
) -> Sequence[Sequence[QuotaRead]]:
    """Return for each zone and form what was read about the quotas that a request can draw on; none if the form is empty or no quota is known.

    `instances`: requests of Compute Engine, whose quotas are those of a region, and whose use by others is not read.
    """
    found = find_accelerator(accelerator_type)
    if found is None:
        return [()] * len(requests)
    usable = {form: _usable(accelerator_type, form, instances=instances) for _, form in requests}
    asked = CapacityQuestion(
        project=caller.project,
        accelerators=() if instances else (found,),
        places=tuple(dict.fromkeys(zone for zone, _ in requests)),
        everywhere=False,
        quotas=tuple(dict.fromkeys(quota for each in usable.values() for quota in each)),
        catalog=False,
    )
    responses = read_all(caller, asked, remaining_s=deadline())
    generation = api_accelerator_type(accelerator_type).rpartition("-")[0]

    def read(quota: Quota, zone: str, form: str) -> QuotaRead:
        if instances:
            return read_quota(responses, quota, zone.rpartition("-")[0], found.chips, UNREAD_USE)
        use = ChipUse(responses=responses, generation=generation, provisioning=cast("ProvisioningModel", form))
        return read_quota(responses, quota, zone, found.chips, use)

    return [[read(quota, zone, form) for quota in usable[form]] for zone, form in requests]


def _usable(accelerator_type: str, form: str, *, instances: bool) -> Sequence[Quota]:
    """Return the quotas on which a request can draw."""
    if instances:
        return quotas.instance_quotas(accelerator_type, form) if form else ()
    quota = quotas.tpu_quota(accelerator_type, form)
    return () if quota is None else (quota,)
