"""Cost of a deployment: per hour with all parts in each location, maximum, and per million tokens."""

from dataclasses import dataclass

from planning.data.prices import HourlyPart, Price, instance_parts, region_of, slice_parts
from planning.machine.hardware import FLEX_START_MAX_RUN_S
from planning.question.resolved import Resolved
from planning.question.types import CostPlan, PlaceCost, ThroughputPlan
from planning.units import HOUR_S, MONTH_H, duration

_MILLION = 1_000_000


def cost_plan(resolved: Resolved, throughput: ThroughputPlan) -> CostPlan:
    """Return the cost of a resolved deployment in US dollars."""
    places = tuple(_place_cost(resolved, place) for place in places_of(resolved))
    highest = max(places, key=lambda one: one.usd_per_hour)
    hourly = highest.usd_per_hour
    maximum, basis = _maximum(resolved, hourly)
    measured = resolved.deployment.measured_tok_per_s
    dates = [price.as_of for price in highest.prices]
    return CostPlan(
        usd_per_hour=hourly,
        parts_usd_per_hour=tuple((part.name, part.usd_per_hour) for part in parts_at(resolved, highest.place)),
        lowest_usd_per_hour=min(one.usd_per_hour for one in places),
        places=places,
        max_usd=maximum,
        max_usd_basis=basis,
        idle_usd_per_hour=hourly * resolved.deployment.cloud_run.min_instances
        if resolved.platform == "cloud-run"
        else hourly,
        usd_per_million_tokens=per_million(hourly, measured or throughput.decode_tok_per_s),
        usd_per_million_tokens_saturated=per_million(hourly, measured or throughput.saturated_tok_per_s),
        prices_as_of=min(dates, default=""),
        is_known=bool(dates),
    )


def hourly_parts(resolved: Resolved) -> tuple[tuple[str, float], ...]:
    """Return the hourly bill of one instance, machine or slice in the deployment's most expensive location."""
    each = [parts_at(resolved, place) for place in places_of(resolved)]
    highest = max(each, key=_total)
    return tuple((part.name, part.usd_per_hour) for part in highest)


def parts_at(resolved: Resolved, place: str) -> tuple[HourlyPart, ...]:
    """Return the hourly bill of one instance, machine or slice in a zone or region ("": if none is set)."""
    book, accelerator = resolved.prices, resolved.accelerator
    if resolved.platform == "own":
        return () if accelerator.usd_per_hour is None else (_own_part(resolved, accelerator.usd_per_hour),)
    if resolved.platform == "cloud-run":
        return instance_parts(
            book,
            gpu=accelerator.name,
            vcpu=resolved.vcpu,
            memory_gib=resolved.host_memory_gib,
            zonal_redundancy=resolved.deployment.cloud_run.zonal_redundancy,
            place=place,
        )
    if resolved.platform == "tpu-vm":
        return slice_parts(
            book,
            generation=accelerator.name.partition("-")[0],
            chips=accelerator.devices,
            provisioning=resolved.deployment.tpu.provisioning_model,
            place=place,
        )
    price = book.gce_hour(accelerator.name)
    name = resolved.host.machine or accelerator.name
    return (HourlyPart(name=name, amount=1, unit="machine-hour", price=price),)


def _own_part(resolved: Resolved, usd_per_hour: float) -> HourlyPart:
    """Return the stated price of a custom device, as of today."""
    today = resolved.deployment.today or ""
    price = Price(key="--device usd", region="", usd=usd_per_hour, as_of=today, url="", is_own=True)
    return HourlyPart(name=resolved.accelerator.name, amount=1, unit="machine-hour", price=price)


def places_of(resolved: Resolved) -> tuple[str, ...]:
    """Return the zones or the region of the deployment, in its order; "" alone if it has none."""
    if resolved.platform == "tpu-vm":
        return resolved.deployment.tpu.zones or ("",)
    return (resolved.deployment.cloud_run.region or "",) if resolved.platform == "cloud-run" else ("",)


def regions_of(resolved: Resolved) -> tuple[str, ...]:
    """Return the distinct regions of these locations."""
    return tuple(dict.fromkeys(region for place in places_of(resolved) if (region := region_of(place))))


def _place_cost(resolved: Resolved, place: str) -> PlaceCost:
    parts = parts_at(resolved, place)
    return PlaceCost(place=place, usd_per_hour=_total(parts), prices=tuple(part.price for part in parts))


def _total(parts: tuple[HourlyPart, ...]) -> float:
    return sum(part.usd_per_hour for part in parts)


def _maximum(resolved: Resolved, hourly: float) -> tuple[float, str]:
    if resolved.platform == "tpu-vm":
        tpu = resolved.deployment.tpu
        run_s = tpu.max_run_duration_s
        if run_s is None and tpu.provisioning_model == "flex-start":
            run_s = FLEX_START_MAX_RUN_S
        renews = renewals(resolved)
        if renews is not None:
            return hourly * MONTH_H * renews.most_machines, "a month of renewed runs"
        if run_s is not None:
            return hourly * run_s / HOUR_S, f"one run of {duration(run_s)}"
        return hourly * MONTH_H, "a month without a run duration"
    if resolved.platform == "cloud-run":
        instances = max(resolved.deployment.cloud_run.max_instances, 1)
        return (
            hourly * instances * MONTH_H,
            f"a month with {instances} {'instance' if instances == 1 else 'instances'} running",
        )
    return hourly * MONTH_H, "a month"


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewals:
    """Overlap of two machines when one takes over from the other."""

    most_overlap_s: float
    """All of `renew_before_s`: capacity was immediate, and the new server took as long to become ready."""
    most_machines: float
    """Maximum concurrent machines over a month, each running for its whole duration."""


def renewals(resolved: Resolved) -> Renewals | None:
    """Return the overlap of renewals, or None if the deployment is not renewed."""
    tpu = resolved.deployment.tpu
    before_s, run_s = tpu.renew_before_s, tpu.max_run_duration_s
    if resolved.platform != "tpu-vm" or before_s is None or run_s is None:
        return None
    return Renewals(most_overlap_s=before_s, most_machines=run_s / (run_s - before_s))


def per_million(hourly: float, tok_per_s: float) -> float:
    """Return the price of a million tokens, from the price of an hour and the tokens per second."""
    return hourly / HOUR_S / tok_per_s * _MILLION
