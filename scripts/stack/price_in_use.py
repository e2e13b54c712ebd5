"""Price of what a stack runs now. A plan has the price of the first form of capacity; an order of forms may have ended in another."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.stack_facts import DeployedServer

if TYPE_CHECKING:
    from gemma_serving.planning.settings.capacity_form import ProvisioningModel

UNKNOWN_PRICE: Final = "price unknown"


def usd_per_hour_in_use(stack: str, outputs: StackOutputs) -> float | None:
    """Return the price per hour of one instance or slice, as of the stack's last `up`; None if it is unknown.

    With an order of forms, it is the price of the form in use in the zone in use, from the stack's price file or the list prices.
    """
    form = outputs.provisioning
    if form is None:
        return outputs.plan.cost.usd_per_hour
    from gemma_serving.cloud.price_file import book_of  # noqa: PLC0415 - only a TPU stack with an order of forms needs prices
    from gemma_serving.planning.cost.capacity_order import known_usd_per_hour  # noqa: PLC0415 - the same
    from gemma_serving.planning.data.prices import LIST_PRICES  # noqa: PLC0415 - the same
    from gemma_serving.planning.errors import PlanningError  # noqa: PLC0415 - the same
    from gemma_serving.scripts.stack.settings import NO_PROJECT, stack_settings  # noqa: PLC0415 - the same

    try:
        prices = book_of(stack_settings(stack, project=NO_PROJECT).prices) or LIST_PRICES
    except (CommandRefusedError, PlanningError):
        return None  # whether the stack has its own prices is unknown
    return known_usd_per_hour(outputs.plan.accelerator, cast("ProvisioningModel", form), outputs.location, prices)


def price_in_use(stack: str, outputs: StackOutputs) -> str:
    """Return `usd_per_hour_in_use` as text, such as "$1.40/h", or "price unknown"."""
    usd = usd_per_hour_in_use(stack, outputs)
    return UNKNOWN_PRICE if usd is None else f"${usd:.2f}/h"


def listed_usd_per_hour(server: DeployedServer) -> float | None:
    """Return the list price per hour of a server as a state declares it: of one instance, or of the dearest place that capacity may come from.

    None if one of them is unknown.
    """
    from gemma_serving.cloud.kinds import SERVICE  # noqa: PLC0415 - only a stack without complete outputs needs prices
    from gemma_serving.cloud.prices import container_usd_per_hour, node_usd_per_hour  # noqa: PLC0415 - the same

    if server.kind == SERVICE:
        return container_usd_per_hour(server.inputs, str(server.inputs.get("location") or "")) or None
    rates = [node_usd_per_hour(server.inputs, form, zone) for form, zone in _places(server)]
    known = [rate for rate in rates if rate is not None]
    return max(known) if known and len(known) == len(rates) else None


def _places(server: DeployedServer) -> Iterator[tuple[str, str]]:
    """Yield the form of the capacity in use with each zone, or each form that may be requested with its zones if none was yet."""
    inputs, outputs = server.inputs, server.outputs
    zones = [
        str(zone) for zone in (outputs.get("zone") or inputs.get("zone"), *as_sequence(inputs.get("zones"))) if zone
    ]
    in_use = outputs.get("provisioningModelInUse") or inputs.get("provisioningModel")
    listed = [as_mapping(form) for form in as_sequence(inputs.get("forms"))]
    for form in [{"provisioningModel": in_use or "standard"}] if in_use or not listed else listed:
        own = form.get("zones")
        for zone in zones if own is None else as_sequence(own):
            yield str(form.get("provisioningModel")), str(zone)
