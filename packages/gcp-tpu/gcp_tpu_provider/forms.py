"""Forms of capacity in order of preference: the input `forms`, or `provisioningModel` as the only one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from gcp_tpu_provider.compute_request import COMPUTE_ENGINE
from gcp_tpu_provider.tpu_api import PROVISIONING_MODELS

FLEX_START: Final = "flex-start"
IN_AN_ORDER: Final = ("flex-start", "spot", "standard")
"""Provisioning models that `forms` can list. A reservation is paid for whether it is used or not, so it has no alternative."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of capacity."""

    model: str
    """Provisioning model, such as `flex-start`."""
    wait_s: int | None
    """Maximum wait in all its zones together, in seconds; None for no limit of its own."""
    zones: tuple[str, ...]
    """Zones in order of preference."""

    def is_of(self, google_model: str) -> bool:
        """Return whether a queued resource with Google's name of a provisioning model has this form."""
        return google_model == PROVISIONING_MODELS[self.model]


def forms_of(inputs: Mapping[str, Any]) -> tuple[Form, ...]:
    """Return the forms of checked, plain inputs."""
    zones = tuple(cast("list[str]", inputs.get("zones") or [inputs["zone"]]))
    listed = cast("Sequence[Mapping[str, Any]] | None", inputs.get("forms"))
    if listed is None:
        return (Form(str(inputs["provisioningModel"]), None, zones),)
    return tuple(_form(item, zones) for item in listed)


def _form(item: Mapping[str, Any], zones: Sequence[str]) -> Form:
    own = cast("Sequence[str] | None", item.get("zones"))
    wait_s = item.get("waitS")
    return Form(
        model=str(item["provisioningModel"]),
        wait_s=None if wait_s is None else int(wait_s),
        zones=tuple(zone for zone in zones if own is None or zone in own),
    )


def inputs_of(inputs: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    """Return the inputs of a request in one form of capacity, the only one or one of `forms`.

    Cloud TPU accepts a run duration for flex-start only. A Compute Engine instance has one in each form.
    """
    request = {**inputs, "provisioningModel": form.model}
    if form.model != FLEX_START and inputs.get("api") != COMPUTE_ENGINE:
        request.pop("maxRunDurationS", None)
    return request
