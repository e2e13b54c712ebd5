"""The weights modes on Cloud Run, for a faster start: start, host memory and cost of each."""

import dataclasses
from math import ceil
from typing import Final, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.cost.costs import most_usd_per_hour
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.host_memory import smallest_instance, with_margin_gib
from gemma_serving.planning.memory.resolve import resolve
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.cloud_run import MountMode, MountSettings
from gemma_serving.planning.settings.question import WeightsMode
from gemma_serving.planning.speed.startup import startup_plan
from gemma_serving.planning.units import to_gib

MODES: Final[tuple[MountMode, ...]] = get_args(MountMode)
"""Modes for the stack's bucket that a Cloud Run service can use."""


class LoadingMode(Struct, frozen=True, kw_only=True):
    """A mode, with or without Direct VPC."""

    mode: WeightsMode
    direct_vpc: bool
    is_chosen: bool
    """True if the deployment uses it."""
    start_s: float
    """With an empty compile cache."""
    host_gib: float
    """Peak host memory of the start."""
    memory_gib: float | None
    """Smallest Cloud Run memory that is sufficient, at least the deployment's own; None if the maximum is too small."""
    vcpu: float | None
    extra_usd_per_hour: float | None
    """Cost difference to the deployment's own memory and vCPU."""
    nat_start_usd: float
    """Price of Cloud NAT for the weights of one start; 0 without it."""


def loading_modes(subject: Subject) -> tuple[LoadingMode, ...]:
    """Return the modes of the bucket, or the hub, with and without Direct VPC; empty for a deployment on no Cloud Run, or with weights in its image."""
    resolved = subject.resolved
    modes: tuple[WeightsMode, ...] = ("hub",) if resolved.weights_mode == "hub" else MODES
    if resolved.platform != "cloud-run" or resolved.weights_mode not in modes:
        return ()
    present = most_usd_per_hour(resolved)
    return tuple(
        _mode(resolved, mode, direct_vpc=direct_vpc, present=present) for direct_vpc in (False, True) for mode in modes
    )


def _mode(resolved: Resolved, mode: WeightsMode, *, direct_vpc: bool, present: float | None) -> LoadingMode:
    question = resolved.question
    # A load format of one mode conflicts with the next; a file cache without a size holds the whole checkpoint.
    cache_mib = question.cloud_run.mount.cache_size_mib or to_gib(weights_of(resolved).checkpoint) * 1024
    mounted = None if mode == "hub" else cast("MountMode", mode)
    mount = MountSettings(
        mode=mounted or question.cloud_run.mount.mode,
        cache_size_mib=ceil(cache_mib) if mode == "fuse-cached" else None,
    )
    run = dataclasses.replace(question.cloud_run, direct_vpc=direct_vpc, mount=mount)
    changed = question.changed(
        weights_mode=mode,
        vllm=dataclasses.replace(question.settings.vllm, load_format=None),
        cloud_run=run,
    )
    after = resolve(changed)
    host_gib = memory_plan(after).load_peak_host_gib
    host = _host_for(after, with_margin_gib(host_gib))
    hourly = None
    if host is not None:
        hourly = most_usd_per_hour(replace(after, host_memory_gib=host[0], vcpu=host[1]))
    memory_gib, vcpu = host or (None, None)
    nat_gib = to_gib(weights_of(resolved).checkpoint) if mode == "hub" and direct_vpc else 0.0
    return LoadingMode(
        mode=mode,
        direct_vpc=direct_vpc,
        is_chosen=(mode, direct_vpc) == (resolved.weights_mode, resolved.service.direct_vpc),
        start_s=startup_plan(after).total_s,
        host_gib=host_gib,
        memory_gib=memory_gib,
        vcpu=vcpu,
        extra_usd_per_hour=None if hourly is None or present is None else hourly - present,
        nat_start_usd=nat_gib * resolved.prices.price("nat_usd_per_gib").usd,
    )


def _host_for(resolved: Resolved, need_gib: float) -> tuple[float, float] | None:
    """Return the memory and the vCPU for a start: the current ones, otherwise the next size of Cloud Run."""
    if need_gib <= resolved.server_memory_gib:
        return resolved.host_memory_gib, resolved.vcpu
    larger = smallest_instance(resolved, need_gib)
    return None if larger is None else (larger[0], max(larger[1], resolved.vcpu))
