"""Cost of a deployment: per hour with all parts in each location, maximum, and per million tokens."""

from collections.abc import Sequence

from gemma_serving.planning.cost.capacity_order import capacity_order, run_s_of
from gemma_serving.planning.data.prices import (
    HourlyPart,
    Price,
    instance_parts,
    region_of,
    slice_parts,
)
from gemma_serving.planning.machine.hardware import FLEX_START_MAX_RUN_S
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import CostPlan, FormStep, PlaceCost, ThroughputPlan
from gemma_serving.planning.settings.capacity_form import ProvisioningModel
from gemma_serving.planning.units import HOUR_S, MONTH_H, duration

_MILLION = 1_000_000


def cost_plan(resolved: Resolved, throughput: ThroughputPlan | None) -> CostPlan:
    """Return the cost of a resolved deployment in US dollars; `throughput` is None if the speed is unknown."""
    order = _order(resolved)
    model = first_model(resolved, order)
    bills = [(place, parts_at(resolved, place, model)) for place in places_of(resolved)]
    places = tuple(
        PlaceCost(place=place, usd_per_hour=_total(parts), prices=tuple(part.price for part in parts))
        for place, parts in bills
    )
    requested = next((step.zones for step in order if step.model == model), ())
    highest = max((one for one in places if not requested or one.place in requested), key=lambda one: one.usd_per_hour)
    hourly = highest.usd_per_hour
    maximum, basis = _maximum(resolved, hourly) if not order else _maximum_of(order)
    measured = resolved.question.settings.measured_tok_per_s
    dates = [price.as_of for price in highest.prices]
    return CostPlan(
        usd_per_hour=hourly,
        parts_usd_per_hour=tuple((part.name, part.usd_per_hour) for part in parts_at(resolved, highest.place, model)),
        lowest_usd_per_hour=min(one.usd_per_hour for one in places),
        places=places,
        most_usd=maximum,
        most_usd_basis=basis,
        idle_usd_per_hour=hourly * resolved.question.cloud_run.min_instances
        if resolved.platform == "cloud-run"
        else hourly,
        usd_per_million_tokens=per_million(hourly, measured or (throughput and throughput.decode_tok_per_s)),
        usd_per_million_tokens_saturated=per_million(
            hourly, measured or (throughput and throughput.saturated_tok_per_s)
        ),
        is_measured=measured is not None,
        prices_as_of=min(dates, default=""),
        is_known=bool(dates),
        order=order,
        endless_forms=endless_forms(resolved),
    )


def _order(resolved: Resolved) -> tuple[FormStep, ...]:
    tpu = resolved.question.tpu
    has_order = resolved.platform == "tpu-vm" and bool(tpu.zones) and tpu.has_order
    return capacity_order(tpu, resolved.prices) if has_order else ()


def endless_forms(resolved: Resolved) -> tuple[ProvisioningModel, ...]:
    """Return the forms of capacity that may be requested and that Google does not end after a time; none for Cloud Run."""
    tpu = resolved.question.tpu
    if resolved.platform != "tpu-vm" or not tpu.zones:
        return ()
    order = _order(resolved)
    requested: list[ProvisioningModel] = [form.model for form in tpu.forms]
    if order:
        requested = [step.model for step in order if step.zones]
    return tuple(model for model in requested if run_s_of(tpu, model) is None)


def first_model(resolved: Resolved, order: Sequence[FormStep]) -> ProvisioningModel:
    """Return the first form of capacity that is requested, or the first of all if the ceiling leaves none."""
    requested: list[ProvisioningModel] = [step.model for step in order if step.zones]
    return requested[0] if requested else resolved.question.tpu.forms[0].model


def _maximum_of(order: Sequence[FormStep]) -> tuple[float, str]:
    """Return the highest cost of any form that is requested: of one run, or of a month if nothing ends it."""
    found: list[tuple[float, str]] = [(0.0, "no form is requested")]
    for step in order:
        usd = step.usd_per_hour
        if usd is None or not step.zones:
            continue
        found.append(_maximum_of_form(usd[1], step.model, step.run_s))
    return max(found)


def _maximum_of_form(hourly: float, model: ProvisioningModel, run_s: int | None) -> tuple[float, str]:
    """Return the highest cost of a form of capacity: of one run, or of a month if nothing ends it."""
    if run_s is not None:
        return hourly * run_s / HOUR_S, f"one run of {duration(run_s)}"
    return hourly * MONTH_H, f"a month of {model}"


def most_usd_per_hour(resolved: Resolved, provisioning: str | None = None) -> float | None:
    """Return the hourly price in the deployment's most expensive location (`parts_at`); None if no price is known."""
    parts = [parts_at(resolved, place, provisioning) for place in places_of(resolved)]
    return max(map(_total, parts)) if all(parts) else None


def parts_at(resolved: Resolved, place: str, provisioning: str | None = None) -> tuple[HourlyPart, ...]:
    """Return the hourly bill of one instance, machine or slice in a zone or region ("": if none is set); nothing without a known price.

    `provisioning`: a slice's; by default the deployment's own.
    """
    book, accelerator = resolved.prices, resolved.accelerator
    if resolved.platform == "own":
        if accelerator.usd_per_hour is None:
            return ()
        today = resolved.question.facts.today or ""
        price = Price(key="--device usd", region="", usd=accelerator.usd_per_hour, as_of=today, url="", kind="own")
        return (HourlyPart(name=accelerator.name, amount=1, unit="machine-hour", price=price),)
    if resolved.platform == "cloud-run":
        return instance_parts(
            book,
            gpu=accelerator.name,
            vcpu=resolved.vcpu,
            memory_gib=resolved.host_memory_gib,
            zonal_redundancy=resolved.question.cloud_run.zonal_redundancy,
            place=place,
        )
    if resolved.platform == "tpu-vm":
        return slice_parts(
            book,
            generation=accelerator.generation,
            chips=accelerator.chips,
            provisioning=provisioning or first_model(resolved, _order(resolved)),
            place=place,
        )
    price = book.gce_hour(accelerator.name)
    if price is None:
        return ()
    name = resolved.host.machine or accelerator.name
    return (HourlyPart(name=name, amount=1, unit="machine-hour", price=price),)


def places_of(resolved: Resolved) -> tuple[str, ...]:
    """Return the zones or the region of the deployment, in its order; "" alone if it has none."""
    if resolved.platform == "tpu-vm":
        return resolved.question.tpu.zones or ("",)
    return (resolved.question.cloud_run.region or "",) if resolved.platform == "cloud-run" else ("",)


def regions_of(resolved: Resolved) -> tuple[str, ...]:
    """Return the distinct regions of these locations."""
    return tuple(dict.fromkeys(region for place in places_of(resolved) if (region := region_of(place))))


def _total(parts: tuple[HourlyPart, ...]) -> float:
    return sum(part.usd_per_hour for part in parts)


def _maximum(resolved: Resolved, hourly: float) -> tuple[float, str]:
    if resolved.platform == "tpu-vm":
        tpu = resolved.question.tpu
        model = tpu.forms[0].model
        run_s = run_s_of(tpu, model)
        if run_s is None and model == "flex-start":
            run_s = FLEX_START_MAX_RUN_S
        return _maximum_of_form(hourly, model, run_s)
    if resolved.platform == "cloud-run":
        instances = max(resolved.question.cloud_run.max_instances, 1)
        return (
            hourly * instances * MONTH_H,
            f"a month with {instances} {'instance' if instances == 1 else 'instances'} running",
        )
    return hourly * MONTH_H, "a month"


def per_million(hourly: float, tok_per_s: float | None) -> float | None:
    """Return the price of a million tokens, from the price of an hour and the tokens per second; None if the speed is unknown."""
    return None if tok_per_s is None else hourly / HOUR_S / tok_per_s * _MILLION
