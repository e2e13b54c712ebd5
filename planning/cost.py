"""What a deployment costs: an hour with all its parts, the most it can cost, and a million tokens."""

from planning.hardware import FLEX_START_MAX_RUN_S
from planning.resolve import Resolved
from planning.types import CostPlan, ThroughputPlan
from planning.units import HOUR_S, MONTH_H, duration

_MILLION = 1_000_000


def cost_plan(resolved: Resolved, throughput: ThroughputPlan) -> CostPlan:
    """Return the cost of a resolved deployment in US dollars."""
    parts = hourly_parts(resolved)
    hourly = sum(price for _, price in parts)
    maximum, basis = _maximum(resolved, hourly)
    measured = resolved.deployment.measured_tok_per_s
    return CostPlan(
        usd_per_hour=hourly,
        parts_usd_per_hour=parts,
        max_usd=maximum,
        max_usd_basis=basis,
        idle_usd_per_hour=hourly * resolved.deployment.cloud_run.min_instances
        if resolved.platform == "cloud-run"
        else hourly,
        usd_per_million_tokens=_per_million(hourly, measured or throughput.decode_tok_per_s),
        usd_per_million_tokens_saturated=_per_million(hourly, measured or throughput.saturated_tok_per_s),
        prices_as_of=resolved.prices.as_of,
    )


def hourly_parts(resolved: Resolved) -> tuple[tuple[str, float], ...]:
    """Return what one instance, machine or slice is billed for in an hour."""
    prices, accelerator = resolved.prices, resolved.accelerator
    if resolved.platform == "cloud-run":
        redundant = resolved.deployment.cloud_run.zonal_redundancy
        gpu = prices.cloud_run_gpu_usd_per_s(accelerator.name, zonal_redundancy=redundant)
        return (
            (f"1 {accelerator.name}", gpu * HOUR_S),
            (f"{resolved.vcpu:g} vCPU", resolved.vcpu * prices.cloud_run_vcpu_usd_per_s * HOUR_S),
            (f"{resolved.host_memory_gib:g} GiB", resolved.host_memory_gib * prices.cloud_run_gib_usd_per_s * HOUR_S),
        )
    if resolved.platform == "tpu-vm":
        generation, provisioning = accelerator.name.partition("-")[0], resolved.deployment.tpu.provisioning_model
        chip = prices.tpu_chip_hour_usd(generation, provisioning)
        return (
            (
                f"{accelerator.devices} {generation} chip{'s' if accelerator.devices > 1 else ''}, {provisioning}",
                accelerator.devices * chip,
            ),
        )
    return ((resolved.host.machine or accelerator.name, prices.gce_hour_usd(accelerator.name)),)


def _maximum(resolved: Resolved, hourly: float) -> tuple[float, str]:
    if resolved.platform == "tpu-vm":
        tpu = resolved.deployment.tpu
        run_s = tpu.max_run_duration_s
        if run_s is None and tpu.provisioning_model == "flex-start":
            run_s = FLEX_START_MAX_RUN_S
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


def _per_million(hourly: float, tok_per_s: float) -> float:
    return hourly / HOUR_S / tok_per_s * _MILLION
