"""Rules for the host: memory and vCPU limits of the platform, and space for the weights on a TPU node."""

from collections.abc import Iterator

from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.overheads import HOST_SYSTEM_DISK_GIB, IMAGE_ON_DISK_GIB
from gemma_serving.planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, MIN_BOOT_DISK_GB, cloud_run_vcpu
from gemma_serving.planning.memory.host_memory import parts_bytes, smallest_instance, with_margin_gib
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.registry import RuleResult, change, instance_size, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.google_limits import instance_problems, most_memory_gib
from gemma_serving.planning.units import align_to, to_gib

_ON_DISK = ("hub", "disk")
_DISK_STEP_GB = 10


@rule("HST01")
def _host_limits(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    size, paths = (resolved.vcpu, resolved.host_memory_gib), ("cloud_run.cpu", "cloud_run.memory_mib")
    wrong = [
        found.fact for found in instance_problems(resolved.host, resolved.accelerator.name, size=size, paths=paths)
    ]
    if not wrong:
        return None
    return RuleResult(f"{'; '.join(wrong)}.", remedies=_cloud_run_remedies(subject), advice=_quota_too_small(resolved))


@rule("HST02")
def _room_for_weights(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    weights_gib = subject.memory.checkpoint_gib + to_gib(parts_bytes(resolved))
    if resolved.weights_mode == "memory":
        return _shared_memory(resolved, weights_gib)
    if resolved.weights_mode not in _ON_DISK:
        return None
    disk_gib = resolved.question.tpu.boot_disk_size_gb or MIN_BOOT_DISK_GB  # Google's GB of a disk are GiB
    pairs = zip(HOST_SYSTEM_DISK_GIB, IMAGE_ON_DISK_GIB, strict=True)
    least_gib, enough_gib = (weights_gib + system_gib + image_gib for system_gib, image_gib in pairs)
    if disk_gib >= enough_gib:
        return None
    fails = disk_gib < least_gib
    return RuleResult(
        f"A {disk_gib} GB boot disk {'is' if fails else 'may be'} too small for the OS, the image and "
        f"{weights_gib:.1f} GiB of weights. Minimum: {least_gib:.0f} GiB, recommended: {enough_gib:.0f} GiB.",
        severity="block" if fails else "warn",
        remedies=(change("tpu.boot_disk_size_gb", align_to(int(enough_gib) + 1, _DISK_STEP_GB)),),
        advice="Resizing the disk replaces the capacity.",
    )


def _shared_memory(resolved: Resolved, weights_gib: float) -> RuleResult | None:
    room_gib = resolved.host_memory_gib / 2
    if weights_gib <= room_gib:
        return None
    return RuleResult(
        f"{weights_gib:.1f} GiB of weights do not fit in /dev/shm, which has {room_gib:g} GiB (half of the host's "
        f"{resolved.host_memory_gib:g} GiB).",
        remedies=(change("weights_mode", "disk"),),
    )


def _cloud_run_remedies(subject: Subject) -> Iterator[Remedy]:
    """Yield the requested memory, or what a start needs, with sufficient vCPU; the requested vCPU with the memory it allows; the default host.

    Yield the first again with as many instances as the quotas allow, because an allowed size may be too large for all of them.
    """
    resolved = subject.resolved
    host, run = resolved.host, resolved.question.cloud_run
    allowed = cloud_run_vcpu(host)
    size = smallest_instance(resolved, with_margin_gib(subject.memory.load_peak_host_gib))
    least_gib = float(host.min_memory_gib) if size is None else size[0]
    memory_gib = min(max(resolved.host_memory_gib, least_gib), most_memory_gib(host))
    vcpu = min(max(resolved.vcpu, min(allowed)), max(allowed))
    enough = next(count for count in allowed if count >= vcpu and count * CLOUD_RUN_GIB_PER_VCPU >= memory_gib)
    kept = next(count for count in allowed if count >= vcpu)
    largest = kept * CLOUD_RUN_GIB_PER_VCPU
    for gib, count in dict.fromkeys(((memory_gib, enough), (largest, kept), (host.memory_gib, host.vcpu))):
        yield Remedy(changes=instance_size(count, gib))
    quota_gib = None if run.memory_quota_mib is None else run.memory_quota_mib / 1024
    quotas = ((run.cpu_quota, enough), (quota_gib, memory_gib))
    carried = [int(quota // needed) for quota, needed in quotas if quota is not None]
    if carried and 0 < min(carried) < run.max_instances:
        yield Remedy(changes={**instance_size(enough, memory_gib), "cloud_run.max_instances": min(carried)})


def _quota_too_small(resolved: Resolved) -> str:
    run = resolved.question.cloud_run
    least_vcpu, least_gib = min(cloud_run_vcpu(resolved.host)), resolved.host.min_memory_gib
    if (run.cpu_quota or least_vcpu) >= least_vcpu and (run.memory_quota_mib or least_gib * 1024) >= least_gib * 1024:
        return ""
    return f"The quotas are too small for one instance, which needs {least_vcpu} vCPU and {least_gib:g} GiB."
