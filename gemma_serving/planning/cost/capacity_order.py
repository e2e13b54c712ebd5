"""The order of forms of capacity, priced: which form is requested in which zones, for how long, and below which ceiling."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gemma_serving.planning.data.prices import LIST_PRICES, PriceBook, slice_parts
from gemma_serving.planning.machine.hardware import find_accelerator
from gemma_serving.planning.question.types import FormStep, FormZone
from gemma_serving.planning.settings.capacity_form import CapacityForm, ProvisioningModel
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.units import duration

UNKNOWN_PRICE: Final = "price unknown"
ABOVE: Final = "above the price ceiling"


def capacity_order(tpu: TpuSettings, prices: PriceBook = LIST_PRICES) -> tuple[FormStep, ...]:
    """Return the forms of a TPU's settings in order of preference, with their waits and prices."""
    return tuple(_step(tpu, form, prices) for form in tpu.forms)


def waits_s_of(tpu: TpuSettings) -> Iterator[int]:
    """Yield the maximum wait for each form in all zones together, in seconds."""
    for form in tpu.forms:
        yield _wait_s(tpu, form, len(tpu.zones))


def _wait_s(tpu: TpuSettings, form: CapacityForm, zones: int) -> int:
    limits = (zones * tpu.wait_per_zone_s, form.wait_s, tpu.wait_total_s)
    return min(limit for limit in limits if limit is not None)


def _step(tpu: TpuSettings, form: CapacityForm, prices: PriceBook) -> FormStep:
    places = tuple(_place(tpu, form.model, zone, prices) for zone in tpu.zones)
    requested = sum(not place.skipped for place in places)
    return FormStep(
        model=form.model, wait_s=_wait_s(tpu, form, requested), run_s=run_s_of(tpu, form.model), places=places
    )


def _place(tpu: TpuSettings, model: ProvisioningModel, zone: str, prices: PriceBook) -> FormZone:
    usd = known_usd_per_hour(tpu.accelerator_type, model, zone, prices)
    most = tpu.max_usd_per_hour
    skipped = ""
    if most is not None and usd is None:
        skipped = UNKNOWN_PRICE
    elif most is not None and usd is not None and usd > most:
        skipped = ABOVE
    return FormZone(zone=zone, usd_per_hour=usd, skipped=skipped)


def known_usd_per_hour(
    accelerator_type: str, model: ProvisioningModel, zone: str, prices: PriceBook = LIST_PRICES
) -> float | None:
    """Return the price of a slice per hour in a zone; None if no price of its region is known. A price of another region does not count."""
    accelerator = find_accelerator(accelerator_type)
    if accelerator is None:
        return None
    parts = slice_parts(
        prices, generation=accelerator.generation, chips=accelerator.chips, provisioning=model, place=zone
    )
    if not parts or any(part.price.is_assumed for part in parts):
        return None
    return sum(part.usd_per_hour for part in parts)


class CeilingProblem(NamedTuple):
    """A ceiling under which no form is requested in any zone."""

    message: str
    least_usd_per_hour: float | None
    """Lowest known price of a form in a zone; None if none is known."""


def ceiling_problem(tpu: TpuSettings, prices: PriceBook = LIST_PRICES) -> CeilingProblem | None:
    """Return why a ceiling leaves nothing to request; None without a ceiling, or if a form may be requested."""
    if tpu.max_usd_per_hour is None:
        return None
    steps = capacity_order(tpu, prices)
    if any(step.zones for step in steps):
        return None
    known = [place.usd_per_hour for step in steps for place in step.places if place.usd_per_hour is not None]
    least = min(known, default=None)
    cheapest = (
        "no price of its forms in its zones is known" if least is None else f"the cheapest form costs ${least:.2f}"
    )
    return CeilingProblem(
        f"tpu.maxUsdPerHour is {tpu.max_usd_per_hour:g}, but {cheapest} for {tpu.accelerator_type}, so no capacity would be requested",
        least,
    )


def order_lines(steps: Sequence[FormStep]) -> Iterator[str]:
    """Yield a line for each form: when it is requested, its price, and what ends it. The first form has no wait before it."""
    waited_s, before = 0, list[str]()
    for step in steps:
        when = f" after {duration(waited_s)} without {' and '.join(before)}" if before else ""
        skipped = " and ".join(_skipped(step))
        if not step.zones:
            yield f"{step.model} is not requested in {skipped}: {_price(step)}"
            continue
        left_out = f"; not requested in {skipped}" if skipped else ""
        yield f"{step.model}{when}: {_price(step)}, {_end(step)}{left_out}"
        waited_s += step.wait_s
        before.append(step.model)


def _skipped(step: FormStep) -> Iterator[str]:
    """Yield the zones in which a form is not requested, with each reason."""
    for reason in (ABOVE, UNKNOWN_PRICE):
        zones = [place.zone for place in step.places if place.skipped == reason]
        if zones:
            yield f"{', '.join(zones)} ({reason})"


def _price(step: FormStep) -> str:
    if step.usd_per_hour is None:
        return UNKNOWN_PRICE
    low, high = (f"${usd:.2f}" for usd in step.usd_per_hour)
    is_unknown_in_some = any(place.usd_per_hour is None and not place.skipped for place in step.places)
    unknown = " (in some zones unknown)" if is_unknown_in_some else ""
    return f"{low if low == high else f'{low} to {high}'}/h{unknown}"


def _end(step: FormStep) -> str:
    """Return what ends capacity of this form."""
    if step.run_s is not None:
        return f"ends after {duration(step.run_s)}"
    return "runs until Google reclaims it or you delete it" if step.model == "spot" else "runs until you delete it"


def run_s_of(tpu: TpuSettings, model: ProvisioningModel) -> int | None:
    """Return the seconds after which Google deletes capacity of this form; None if it does not. Cloud TPU limits flex-start only."""
    return tpu.max_run_duration_s if model == "flex-start" or tpu.api == "compute-engine" else None
