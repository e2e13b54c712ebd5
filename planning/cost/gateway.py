"""Cost of a gateway: instances of Cloud Run without a GPU, whose CPU is always allocated."""

from dataclasses import dataclass

from contracts.gateway import GATEWAY_MIB, GATEWAY_VCPU
from planning.data.prices import LIST_PRICES, HourlyPart, PriceBook, instance_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayScaling:
    """Instances of a gateway."""

    region: str
    min_instances: int
    max_instances: int


def gateway_parts(region: str, book: PriceBook | None = None) -> tuple[HourlyPart, ...]:
    """Return the hourly bill of one instance, which Cloud Run bills for its whole life."""
    return instance_parts(
        book or LIST_PRICES,
        gpu=None,
        vcpu=GATEWAY_VCPU,
        memory_gib=GATEWAY_MIB / 1024,
        zonal_redundancy=False,
        place=region,
    )
