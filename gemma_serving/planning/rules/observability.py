"""Rules for alerts and metrics: alerts have data, and the collector leaves the server enough of the instance."""

import math
from collections.abc import Iterator

from gemma_serving.contracts.collector import COLLECTOR_MIN_GIB, COLLECTOR_VCPU, server_share
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, cloud_run_vcpu
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.registry import RuleResult, change, instance_size, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.observability import OBSERVABILITY_PLATFORMS
from gemma_serving.planning.speed.residuals import decode_band


@rule("OBS02")
def _no_metrics(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    alerts = resolved.question.settings.alerts
    tells = alerts.enabled and (alerts.email or alerts.webhook)
    if not tells or resolved.collects or resolved.platform not in OBSERVABILITY_PLATFORMS:
        return None
    on_run = resolved.platform == "cloud-run"
    present = "the daily cost and " if on_run else ""
    missing = "" if on_run else ", readiness and idle time"
    return RuleResult(
        f"metrics.enabled is off, so the stack has alerts only for {present}log lines. Alerts for the queue "
        f"and the KV cache{missing} need metrics.",
        remedies=(change("metrics.enabled", True), *_room_remedies(resolved)),
    )


@rule("OBS04")
def _goal_beyond_the_plan(subject: Subject) -> RuleResult | None:
    """Compare each goal with the plan's own figure of its unit."""
    question, throughput = subject.resolved.question, subject.known_throughput
    facts: list[str] = []
    changes: dict[str, object] = {}
    goal, cost = question.settings.smoke.min_decode_tok_per_s, question.settings.alerts.daily_cost
    if goal is not None and throughput is not None:
        band = decode_band(throughput.decode_tok_per_s, is_tpu=subject.resolved.is_tpu)
        if goal > band.high:
            facts.append(
                f"smoke.minDecodeTokPerS is {goal:g}, but one stream is planned at {band.words} tok/s, so `gemma smoke` fails."
            )
            changes["smoke.min_decode_tok_per_s"] = math.floor(band.low)
    day_usd = subject.cost.idle_usd_per_day
    if cost is not None and cost < day_usd:
        facts.append(
            f"alerts.dailyCost is {cost:g}, but a day without requests costs ${day_usd:,.2f}, so the alert fires each day."
        )
        changes["alerts.daily_cost"] = math.ceil(day_usd)
    return RuleResult(" ".join(facts), remedies=(Remedy(changes=changes),)) if facts else None


@rule("OBS03")
def _no_room(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if not resolved.collects_on_cloud_run or resolved.has_room_for_collector:
        return None
    vcpu, memory_gib = server_share(resolved.vcpu, resolved.host_memory_gib)
    host = resolved.host
    return RuleResult(
        f"The collector of metrics takes {COLLECTOR_VCPU} vCPU and at least {COLLECTOR_MIN_GIB:g} GiB of each "
        f"instance. Of cloudRun.cpu {resolved.vcpu:g} and cloudRun.memory {resolved.host_memory_gib:g} GiB, the server "
        f"keeps {vcpu:g} vCPU and {memory_gib:g} GiB, but a container with {resolved.accelerator.name} needs at "
        f"least {host.min_vcpu:g} vCPU and {host.min_memory_gib:g} GiB.",
        remedies=(*_room_remedies(resolved), change("metrics.enabled", False)),
    )


def _room_remedies(resolved: Resolved) -> Iterator[Remedy]:
    """Yield the smallest larger instance that fits the collector, with metrics on, unless the instance fits it."""
    least_gib = max(resolved.host_memory_gib, resolved.host.min_memory_gib + COLLECTOR_MIN_GIB)
    for vcpu in cloud_run_vcpu(resolved.host) if resolved.platform == "cloud-run" else ():
        memory_gib = float(math.ceil(least_gib))
        fits = vcpu >= resolved.vcpu and memory_gib <= min(vcpu * CLOUD_RUN_GIB_PER_VCPU, resolved.host.max_memory_gib)
        own_vcpu, own_gib = server_share(vcpu, memory_gib)
        if fits and own_vcpu >= resolved.host.min_vcpu and own_gib >= resolved.host.min_memory_gib:
            if (vcpu, memory_gib) != (resolved.vcpu, resolved.host_memory_gib):
                yield Remedy(changes={**instance_size(vcpu, memory_gib), "metrics.enabled": True})
            return
