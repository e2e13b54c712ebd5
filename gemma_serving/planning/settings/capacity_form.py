"""A form of TPU capacity: how it is bought, and how long to wait for it."""

from functools import cache
from typing import Annotated, Literal, NamedTuple, cast

from gemma_serving.planning.settings.annotations import matching
from gemma_serving.planning.units import parse_duration_s

ProvisioningModel = Literal["flex-start", "spot", "standard", "reservation"]
FormText = Annotated[
    str,
    matching(
        r"^(flex-start|spot|standard|reservation)(:([0-9]+[dhms])+)?$",
        "flex-start, spot, standard or reservation, each with a wait or without,",
        "spot:5m",
    ),
]
"""A form of capacity as the file has it: the provisioning model, and after a colon its wait in all zones together."""


class CapacityForm(NamedTuple):
    """A form of capacity in an order of forms."""

    model: ProvisioningModel
    wait_s: int | None
    """Maximum wait in all zones together, in seconds; None if only the waits per zone and in total limit it."""


@cache
def read_form(text: str) -> CapacityForm:
    """Return the form of a text that matches `FormText`."""
    model, _, wait = text.partition(":")
    return CapacityForm(cast("ProvisioningModel", model), parse_duration_s(wait) if wait else None)
