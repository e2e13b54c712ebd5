"""Cost of a gateway: instances of Cloud Run without a GPU, whose CPU is always allocated."""

from contracts.gateway import GATEWAY_MIB, GATEWAY_VCPU
from planning.data.prices import LIST_PRICES, HourlyPart, PriceBook, instance_parts


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
