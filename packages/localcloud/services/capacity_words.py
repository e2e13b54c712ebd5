"""Google's words for a request of accelerators that gets no capacity, each with its source."""

from typing import Final

EXPIRED: Final = "The queued resource could not be fulfilled by its valid-until time."
"""A queued resource whose time ended. Discovery, QueueingPolicy.validUntilDuration: "If the request cannot be fulfilled by this time the request
will be failed." The words themselves are assumed, and name no cause, because none is published."""


def over_quota(quota: str, limit: int, zone: str) -> str:
    """Return the words for a queued resource over its quota.

    They are Google's 429 for nodes (public logs, 2025 and 2026). A queued resource fails with them (marin-community/marin#87).
    """
    return f"Quota limit '{quota}' has been exceeded. Limit: {limit} in zone {zone}."


def zone_is_empty(zone: str) -> str:
    """Return the words for a queued resource in a zone that lets no request of its form wait.

    They are those of a node without capacity (public logs of 2021 to 2026, for example in skypilot-org/skypilot). That a queued resource
    fails with them is assumed.
    """
    offered = (
        "you can try in another zone where Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)"
    )
    return f'There is no more capacity in the zone "{zone}"; {offered}'


def instance_over_quota(quota: str, limit: int, region: str = "") -> str:
    """Return the words for a Compute Engine instance over its quota (public logs: Quota 'TPUS_PER_TPU_FAMILY', 'GPUS_ALL_REGIONS' exceeded)."""
    return f"Quota '{quota}' exceeded.  Limit: {limit:.1f} {f'in region {region}' if region else 'globally'}."


def instance_without_stock(zone: str) -> str:
    """Return the words for an instance in a zone without capacity (public logs: ZONE_RESOURCE_POOL_EXHAUSTED). `zone`: full name."""
    return f"The zone '{zone}' does not have enough resources available to fulfill the request.  Try a different zone, or try again later."


def zone_without_accelerator(accelerator: str, zone: str) -> str:
    """Return the words for a type of accelerator that the zone does not have (public logs of Cloud TPU)."""
    return (
        f'Cloud TPU received a bad request. The requested accelerator configuration for accelerator type, "{accelerator}", '
        f'could not be found in the zonal accelerator configurations for "{zone}".; '
        f"the accelerator {accelerator} was not found in zone {zone}"
    )


def zone_without_machine_type(machine_type: str, zone: str) -> str:
    """Return the words for a machine type that the zone does not have (public logs of Compute Engine)."""
    return f"Machine type with name '{machine_type}' does not exist in zone '{zone}'."


def unknown_location(location: str) -> str:
    """Return the words for a location that does not exist, or that the project must not use (public logs)."""
    return f"Permission denied on 'locations/{location}' (or it may not exist)."
