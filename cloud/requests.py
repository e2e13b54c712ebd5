"""Queued resources as the Cloud TPU API answers them: what they ask for, since when, and how far they are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from cloud.google_prices import provisioning_of
from cloud.inventory.kinds import Item, by_name
from planning.question.types import ProvisioningModel

_FAMILIES: Final[Mapping[str, str]] = {"V6E": "v6e", "V5LITE_POD": "v5litepod", "V5P": "v5p"}
"""Types of an accelerator configuration (discovery: tpu.v2alpha1 AcceleratorConfig) -> generation."""


RENEWAL_SUFFIX: Final = "-b"
"""Ends the id of the second queued resource of a renewal (docs/provider-gcp-tpu.md); the two ids take turns."""


def queued_names(project: str, identifier: str, zones: Sequence[str]) -> list[str]:
    """Return the full names that the queued resources of a Pulumi resource can have: two in each zone, the second ones at the end."""
    return [
        f"projects/{project}/locations/{zone}/queuedResources/{name}"
        for name in (identifier, f"{identifier}{RENEWAL_SUFFIX}")
        for zone in zones
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """One queued resource."""

    name: str
    """projects/P/locations/Z/queuedResources/ID."""
    stack: str | None
    """The stack of this product that its labels name; None for that of somebody else."""
    state: str
    provisioning: ProvisioningModel
    accelerators: tuple[str, ...]
    """Type of each node, as the API names it: v5litepod-4."""
    created: datetime
    detail: str
    """Why it failed, in Google's words; empty otherwise."""

    @property
    def zone(self) -> str:
        """The zone."""
        return self.name.split("/")[3]

    def chips(self, generation: str) -> int:
        """Return its chips of a generation: they count against the quota until it is deleted, in every state."""
        sizes = (kind.rpartition("-") for kind in self.accelerators)
        return sum(int(count) for family, _, count in sizes if family == generation and count.isdigit())

    def age_s(self, now: datetime) -> float:
        """Return the seconds since it was created, 0 at least."""
        return max((now - self.created).total_seconds(), 0.0)


def request_of(item: Item) -> CapacityRequest:
    """Return a queued resource of a list."""
    owner = by_name("TPU queued resource").owner(item)
    state = _part(item, "state")
    error = _part(_part(state, "failedData"), "error")
    return CapacityRequest(
        name=str(item.get("name") or ""),
        stack=owner.stack if owner else None,
        state=str(state.get("state") or "STATE_UNSPECIFIED"),
        provisioning=provisioning_of(item),
        accelerators=tuple(_accelerators(item)),
        created=datetime.fromisoformat(str(item.get("createTime") or "1970-01-01T00:00:00Z")),
        detail=str(error.get("message") or ""),
    )


def _accelerators(item: Item) -> Iterator[str]:
    for spec in cast("Sequence[Item]", _part(item, "tpu").get("nodeSpec") or ()):
        count = int(str(_part(spec, "multiNodeParams").get("nodeCount") or 1))
        yield from [_accelerator(_part(spec, "node"))] * count


def _accelerator(node: Item) -> str:
    """Return the type of a node, which is given by its name or by generation and topology."""
    if node.get("acceleratorType"):
        return str(node["acceleratorType"])
    config = _part(node, "acceleratorConfig")
    sides = [int(side) for side in str(config.get("topology") or "").split("x") if side.isdigit()]
    return f"{_FAMILIES.get(str(config.get('type')), '')}-{math.prod(sides)}"


def _part(item: Item, key: str) -> Item:
    return cast("Item", item.get(key) or {})
