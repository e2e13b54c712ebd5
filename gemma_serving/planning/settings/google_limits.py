"""Values that Google rejects, or that no server survives: checked by the rules of a plan, whose findings a user can accept, and by a component.

Each function yields its problems. `spell` returns the name of an attribute path in their text: the key in a file, or an argument in Python.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from gemma_serving.planning.machine.hardware import (
    ACCELERATORS,
    CLOUD_RUN_GIB_PER_VCPU,
    CLOUD_RUN_MAX_GPU_PROBE_S,
    CLOUD_RUN_MAX_INITIAL_DELAY_S,
    CLOUD_RUN_MAX_PERIOD_S,
    FLEX_START_MAX_RUN_S,
    MIN_RUN_S,
    Host,
    cloud_run_vcpu,
    find_accelerator,
    why_not_planned,
)
from gemma_serving.planning.settings.cloud_run import MountSettings, ProbeSettings
from gemma_serving.planning.settings.fields import file_key
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.units import DAY_S, HOUR_S, duration

Spell: TypeAlias = Callable[[str], str]
USUAL_RUN_S: Final = 4 * HOUR_S
"""Run that is proposed where none is set."""

PROBE_PERIOD_S: Final = 10
"""Time between probes, and so the maximum delay for a ready server. 180 of them fill the 1,800 s that Cloud Run allows."""
PROBE_TIMEOUT_S: Final = 5
"""Below the period, because one sentence of the API requires less and another allows equal. A running server answers /health immediately."""
PROMPT_PROBE: Final = ProbeSettings(
    initial_delay_s=0,
    period_s=PROBE_PERIOD_S,
    failure_threshold=CLOUD_RUN_MAX_GPU_PROBE_S // PROBE_PERIOD_S,
    timeout_s=PROBE_TIMEOUT_S,
)
"""Detects a server within one period of its start, and waits 1,800 s for it."""


class LimitProblem(NamedTuple):
    """An invalid value."""

    fact: str
    """Field, value and what is allowed, as a clause."""
    fix: str
    """Next step, as a clause in the imperative."""


def probe_problems(probe: ProbeSettings, path: str, spell: Spell = file_key) -> Iterator[LimitProblem]:
    """Yield each limit of Cloud Run that a startup probe exceeds."""

    def outside(name: str, value_s: int, allowed: str) -> LimitProblem:
        key = spell(f"{path}.{name}")
        return LimitProblem(f"{key} is {value_s} s; {allowed}", f"set {key} within it")

    delay_s, period_s = probe.initial_delay_s, probe.period_s
    if not 0 <= delay_s <= CLOUD_RUN_MAX_INITIAL_DELAY_S:
        yield outside("initial_delay_s", delay_s, f"allowed: 0 to {CLOUD_RUN_MAX_INITIAL_DELAY_S} s")
    if not 1 <= period_s <= CLOUD_RUN_MAX_PERIOD_S:
        yield outside("period_s", period_s, f"allowed: 1 to {CLOUD_RUN_MAX_PERIOD_S} s")
    if not 1 <= probe.timeout_s <= period_s:
        yield outside("timeout_s", probe.timeout_s, f"it must not exceed the period ({period_s} s)")
    whole_s = period_s * probe.failure_threshold
    if whole_s > CLOUD_RUN_MAX_GPU_PROBE_S:
        yield LimitProblem(
            f"period times failure threshold is {whole_s} s; the maximum with a GPU is {CLOUD_RUN_MAX_GPU_PROBE_S} s",
            f"set {spell(f'{path}.failure_threshold')} to {CLOUD_RUN_MAX_GPU_PROBE_S // period_s} or less",
        )


def instance_problems(
    host: Host, name: str, *, size: tuple[float, float], paths: tuple[str, str], spell: Spell = file_key
) -> Iterator[LimitProblem]:
    """Yield each limit of Cloud Run that an instance with the GPU `name` exceeds. `size` and `paths`: its vCPU, and its memory in GiB."""
    vcpu, memory_gib = size
    vcpu_key, memory_key = map(spell, paths)
    allowed, most_gib = cloud_run_vcpu(host), most_memory_gib(host)
    if vcpu not in allowed:
        sizes = ", ".join(map(str, allowed))
        yield LimitProblem(
            f"{vcpu_key} is {vcpu:g}, but Cloud Run allows {sizes} vCPU with {name}", "choose one of them"
        )
    if not host.min_memory_gib <= memory_gib <= most_gib:
        limits = f"{host.min_memory_gib:g} to {most_gib:g} GiB"
        fact = f"{memory_key} is {memory_gib:g} GiB, but Cloud Run allows {limits} with {name}"
        yield LimitProblem(fact, f"set {memory_key} within it")
    elif vcpu in allowed and memory_gib > vcpu * CLOUD_RUN_GIB_PER_VCPU:
        yield LimitProblem(
            f"{memory_key} is {memory_gib:g} GiB, but Cloud Run allows at most {vcpu * CLOUD_RUN_GIB_PER_VCPU:g} "
            f"GiB with {vcpu_key} {vcpu:g} ({CLOUD_RUN_GIB_PER_VCPU} GiB per vCPU)",
            f"lower {memory_key} or raise {vcpu_key}",
        )


def most_memory_gib(host: Host) -> float:
    """Return the maximum memory of an instance with the GPU of this host."""
    return min(host.max_memory_gib, float(max(cloud_run_vcpu(host)) * CLOUD_RUN_GIB_PER_VCPU))


def mount_owner_problems(mount: MountSettings, *, uid: int | None, gid: int | None) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the mount's number and the image's for each owner of a mount that is not the image's.

    Root reads every file, so an image that runs as root (uid 0 or None) has no problem.
    """
    if not uid:
        return
    for name, given, wanted in (("uid", mount.uid, uid), ("gid", mount.gid, gid or 0)):
        if given is not None and given != wanted:
            yield name, given, wanted


def run_limit_problem(tpu: TpuSettings, spell: Spell = file_key) -> tuple[str, int] | None:
    """Return why a run has the wrong length, in sentences, and an allowed length in seconds; None for a run that is allowed."""
    run_s, name = tpu.max_run_duration_s, spell("tpu.max_run_duration_s")
    if run_s is None:
        if not tpu.has_form("flex-start"):
            return None
        return f"{name} is not set, but flex-start requires it. Google deletes the nodes when it expires.", USUAL_RUN_S
    if run_s > FLEX_START_MAX_RUN_S:
        return (
            f"{name} is {duration(run_s)}, but the maximum is {FLEX_START_MAX_RUN_S // DAY_S} d.",
            FLEX_START_MAX_RUN_S,
        )
    if run_s < MIN_RUN_S:
        most = f"the minimum is {duration(MIN_RUN_S)}: a large model takes longer to load."
        return f"{name} is {duration(run_s)}, but {most}", MIN_RUN_S
    return None


def accelerator_problem(accelerator_type: str, spell: Spell = file_key) -> str | None:
    """Return why no TPU VM of this project has an accelerator type, or None."""
    found = find_accelerator(accelerator_type)
    if found is not None and found.is_tpu and not found.plan_only:
        return None
    allowed = ", ".join(one.name for one in ACCELERATORS.values() if one.is_tpu and not one.plan_only)
    reason = found.plan_only if found is not None and found.is_tpu else why_not_planned(accelerator_type)
    return f'{spell("tpu.accelerator_type")} is "{accelerator_type}"; {reason or f"expected one of {allowed}"}'
