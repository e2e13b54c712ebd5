"""Rules of the host: memory and vCPU that the platform does not rent with the accelerator, and room for the weights on a TPU machine."""

from collections.abc import Iterator

from planning.cost.subject import Subject
from planning.data import overheads
from planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, MIN_BOOT_DISK_GB, cloud_run_vcpu
from planning.question.resolved import Resolved
from planning.question.types import Remedy
from planning.rules.registry import RuleResult, change, rule
from planning.units import align_to

_ON_DISK = ("hub", "disk")
_DISK_STEP_GB = 10


@rule(
    "HST01",
    "block",
    source="Cloud Run, GPU support, CPU and memory limits; machine types of Compute Engine and Cloud TPU",
    what="memory or vCPU that the platform does not rent with the accelerator",
)
def host_limits(subject: Subject) -> RuleResult | None:
    """Find memory or vCPU outside what Cloud Run allows beside the GPU, or above what the machine has."""
    resolved = subject.resolved
    wrong = list(_cloud_run(resolved) if resolved.platform == "cloud-run" else _machine(resolved))
    if not wrong:
        return None
    return RuleResult(
        message=f"{'; '.join(wrong)}.",
        remedies=_cloud_run_remedies(resolved) if resolved.platform == "cloud-run" else _machine_remedies(resolved),
        advice=_quota_advice(resolved) if resolved.platform == "cloud-run" else "",
    )


@rule(
    "HST02",
    "block",
    "warn",
    source="planning/data/overheads.py (HOST_SYSTEM_DISK_GIB, IMAGE_ON_DISK_GIB); tmpfs of Linux, half of the memory",
    what="weights that have no room on the disk or in the shared memory of a TPU machine, or may have none",
)
def room_for_weights(subject: Subject) -> RuleResult | None:
    """Find weights that do not fit beside the system and the image on the boot disk, or into half of the host's memory."""
    resolved, weights_gib = subject.resolved, subject.memory.checkpoint_gib
    if resolved.platform != "tpu-vm":
        return None
    if resolved.weights_mode == "memory":
        return _shared_memory(resolved, weights_gib)
    if resolved.weights_mode not in _ON_DISK:
        return None
    disk_gib = resolved.deployment.tpu.boot_disk_size_gb or MIN_BOOT_DISK_GB  # Google's GB of a disk are GiB
    pairs = zip(overheads.HOST_SYSTEM_DISK_GIB, overheads.IMAGE_ON_DISK_GIB, strict=True)
    least_gib, enough_gib = (weights_gib + system_gib + image_gib for system_gib, image_gib in pairs)
    if disk_gib >= enough_gib:
        return None
    fails = disk_gib < least_gib
    return RuleResult(
        severity="block" if fails else "warn",
        message=(
            f"Weights of {weights_gib:.1f} GiB lie on a boot disk of {disk_gib} GB, beside the system and the image: {least_gib:.0f} GiB at least, "
            f"{enough_gib:.0f} GiB to be sure."
        ),
        remedies=(change("tpu.boot_disk_size_gb", align_to(int(enough_gib) + 1, _DISK_STEP_GB)),),
        advice="A change of the disk's size replaces the capacity.",
    )


def _shared_memory(resolved: Resolved, weights_gib: float) -> RuleResult | None:
    room_gib = resolved.host_memory_gib / 2
    if weights_gib <= room_gib:
        return None
    return RuleResult(
        message=(
            f"Weights of {weights_gib:.1f} GiB do not fit into /dev/shm, which has {room_gib:g} GiB: half of the host's "
            f"{resolved.host_memory_gib:g} GiB."
        ),
        remedies=(change("weights_mode", "disk"),),
    )


def _cloud_run(resolved: Resolved) -> Iterator[str]:
    """Yield each limit of Cloud Run that is broken."""
    host, memory_gib, vcpu, name = resolved.host, resolved.host_memory_gib, resolved.vcpu, resolved.accelerator.name
    allowed = cloud_run_vcpu(host)
    if vcpu not in allowed:
        yield f"`vcpu` is {vcpu:g}, and Cloud Run rents {', '.join(map(str, allowed))} vCPU beside {name}"
    if not host.min_memory_gib <= memory_gib <= _most_gib(resolved):
        limits = f"{host.min_memory_gib:g} to {_most_gib(resolved):g} GiB"
        yield f"`host_memory_gib` is {memory_gib:g} GiB, and Cloud Run rents {limits} beside {name}"
    elif vcpu in allowed and memory_gib > vcpu * CLOUD_RUN_GIB_PER_VCPU:
        yield (
            f"`host_memory_gib` is {memory_gib:g} GiB, and Cloud Run gives `vcpu` {vcpu:g} at most "
            f"{vcpu * CLOUD_RUN_GIB_PER_VCPU:g} GiB ({CLOUD_RUN_GIB_PER_VCPU} GiB per vCPU)"
        )


def _machine(resolved: Resolved) -> Iterator[str]:
    """Yield what the machine does not have."""
    host, name = resolved.host, resolved.accelerator.name
    if resolved.host_memory_gib > host.max_memory_gib:
        yield f"`host_memory_gib` is {resolved.host_memory_gib:g} GiB, and a machine with {name} has {host.max_memory_gib:g} GiB at most"
    if resolved.vcpu > host.most_vcpu:
        yield f"`vcpu` is {resolved.vcpu:g}, and a machine with {name} has {host.most_vcpu:g} vCPU at most"


def _most_gib(resolved: Resolved) -> float:
    return min(resolved.host.max_memory_gib, float(max(cloud_run_vcpu(resolved.host)) * CLOUD_RUN_GIB_PER_VCPU))


def _cloud_run_remedies(resolved: Resolved) -> Iterator[Remedy]:
    """Yield the asked memory with enough vCPU, the asked vCPU with the memory that it allows, and the usual host.

    The first of them comes again with as many instances as the quotas carry: a size that is allowed may be too large for all of them.
    """
    host, allowed = resolved.host, cloud_run_vcpu(resolved.host)
    memory_gib = min(max(resolved.host_memory_gib, float(host.min_memory_gib)), _most_gib(resolved))
    vcpu = min(max(resolved.vcpu, min(allowed)), max(allowed))
    enough = next(count for count in allowed if count >= vcpu and count * CLOUD_RUN_GIB_PER_VCPU >= memory_gib)
    yield Remedy(changes={"host_memory_gib": memory_gib, "vcpu": float(enough)})
    kept = next(count for count in allowed if count >= vcpu)
    yield Remedy(changes={"host_memory_gib": float(kept * CLOUD_RUN_GIB_PER_VCPU), "vcpu": float(kept)})
    yield Remedy(changes={"host_memory_gib": float(host.memory_gib), "vcpu": float(host.vcpu)})
    instances = _instances_within_quota(resolved, memory_gib, enough)
    if instances:
        changes = {"host_memory_gib": memory_gib, "vcpu": float(enough), "cloud_run.max_instances": instances}
        yield Remedy(changes=changes)


def _instances_within_quota(resolved: Resolved, memory_gib: float, vcpu: int) -> int:
    """Return the instances of this size that the quotas carry, fewer than those that are asked for; 0 if all are carried, or not one."""
    run = resolved.deployment.cloud_run
    quotas = ((run.cpu_quota, vcpu), (run.memory_quota_gib, memory_gib))
    carried = min((int(quota // needed) for quota, needed in quotas if quota is not None), default=run.max_instances)
    return carried if carried < run.max_instances else 0


def _quota_advice(resolved: Resolved) -> str:
    """Return what to do where no size that Cloud Run rents is within the quota that the deployment states, so that no change helps."""
    host, run = resolved.host, resolved.deployment.cloud_run
    least = {"cloud_run.cpu_quota": min(cloud_run_vcpu(host)), "cloud_run.memory_quota_gib": host.min_memory_gib}
    short = [
        f"`{name}` is {quota:g}, and an instance needs {needed:g} at least"
        for (name, needed), quota in zip(least.items(), (run.cpu_quota, run.memory_quota_gib), strict=True)
        if quota is not None and quota < needed
    ]
    return f"{'; '.join(short)}: request more quota, and state it." if short else ""


def _machine_remedies(resolved: Resolved) -> Iterator[Remedy]:
    """Yield the usual machine, and the largest of its family, since loading may need its memory."""
    host = resolved.host
    for memory_gib in (None, float(host.max_memory_gib)):
        changes: dict[str, object] = {}
        if resolved.host_memory_gib > host.max_memory_gib:
            changes["host_memory_gib"] = memory_gib
        if resolved.vcpu > host.most_vcpu:
            changes["vcpu"] = None
        yield Remedy(changes=changes)
