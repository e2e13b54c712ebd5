"""Price of what a stack runs now. A plan has the price of the first form of capacity; an order of forms may have ended in another."""

from typing import TYPE_CHECKING, Final, cast

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.contracts.outputs import StackOutputs

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
