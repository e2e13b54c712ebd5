"""Explain from the log and the plan why a server did not start: causes of the platform, then those of vLLM's engine."""

import math
import re
from collections.abc import Sequence
from typing import Final

from contracts.staged_weights import folder_uri
from planning.data.checkpoints import other_ids
from planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, CLOUD_RUN_VCPU, find_accelerator, host_of
from planning.rules.platforms.places import STREAMS_FROM_GS
from planning.speed.probes import LONGEST_PROBE
from planning.units import align_to
from stacks.hooks.engine_causes import ENGINE_CAUSES, ENGINE_FAILED
from stacks.hooks.known_causes import Cause, FailedStart, KnownCause
from stacks.secrets import HF_TOKEN, set_command

_MEMORY_STEP_GIB: Final = 4
_GIB_MIB: Final = 1024


def cause_of(lines: Sequence[str], start: FailedStart) -> Cause | None:
    """Return the cause shown by the newest matching line, or None. Of several causes, return the one that explains the others."""
    known = (one for one in _CAUSES if one.target in {None, start.settings.target})
    found = (one.cause(line, start) for one in known for line in reversed(lines))
    return next((cause for cause in found if cause is not None), None)


def _memory(found: re.Match[str], start: FailedStart) -> str:
    limit_mib, used_mib = int(found["limit"]), int(found["used"])
    planned_gib = start.plan.memory.load_peak_host_gib
    limit_gib = limit_mib / _GIB_MIB
    text = (
        f"The container ran out of memory: it used {used_mib} MiB, {used_mib - limit_mib} MiB more than "
        f"gemma-serving:cloudRun.memory allows ({limit_gib:g} GiB). The planned peak while the weights load is "
        f"{planned_gib:.1f} GiB"
    )
    cache = start.cloud_run.mount.cache_mib
    text += f", including the file cache (cloudRun.mount.cacheSize, {cache / _GIB_MIB:g} GiB)." if cache else "."
    return f"{text} {_more_memory(start, max(planned_gib, used_mib / _GIB_MIB))}"


def _more_memory(start: FailedStart, need_gib: float) -> str:
    """Return the memory setting for the observed use, and the vCPU that Cloud Run requires with it."""
    run = start.cloud_run
    accelerator = find_accelerator(run.gpu)
    most_gib = host_of(accelerator, "cloud-run").max_memory_gib if accelerator else math.inf
    memory_gib = align_to(math.ceil(need_gib) + 1, _MEMORY_STEP_GIB)
    cpu = next((cpu for cpu in CLOUD_RUN_VCPU if cpu * CLOUD_RUN_GIB_PER_VCPU >= memory_gib), None)
    if memory_gib > most_gib or cpu is None:
        return (
            f"A {run.gpu} has {most_gib:g} GiB at most. Choose a smaller checkpoint or another GPU "
            f"(`gemma plan {start.stack}` compares them)."
        )
    more_cpu = f" and gemma-serving:cloudRun.cpu to {cpu}" if run.cpu < cpu else ""
    return f"Set gemma-serving:cloudRun.memory to at least {memory_gib}Gi{more_cpu}."


def _small_buffer(found: re.Match[str], _start: FailedStart) -> str:
    return (
        f"The streamer's buffer has {int(found['has']):,} bytes, but the largest tensor of the checkpoint has "
        f"{int(found['needs']):,}. "
        "The planner's data on this checkpoint is incomplete. Set gemma-serving:cloudRun.mount.mode: fuse-buffered."
    )


def _unreadable(found: re.Match[str], start: FailedStart) -> str:
    mount, image = start.cloud_run.mount, start.settings.image
    owner = mount.uid if mount.uid is not None else image.uid or 0
    return (
        f"The server cannot read {found['path']}: the mount is owned by uid {owner}, but the container runs as "
        "another user. "
        "Set gemma-serving:image.uid and image.gid to the user of your image (`docker inspect --format '{{.Config.User}}' IMAGE` shows it), and "
        "remove cloudRun.mount.uid."
    )


def _gated(_found: re.Match[str], start: FailedStart) -> str:
    model = start.settings.model
    token = (
        f"the token of the stack's secret {HF_TOKEN.key} cannot read it or is invalid"
        if start.settings.has_secret(HF_TOKEN.key)
        else f"the stack has no secret {HF_TOKEN.key}"
    )
    return (
        f"The Hugging Face hub denied access to {model}: {token}. Accept the terms at "
        f"https://huggingface.co/{model}, then run "
        f"`{set_command(HF_TOKEN.key, start.stack)}` with a token of that account."
    )


def _absent(_found: re.Match[str], start: FailedStart) -> str:
    model = start.settings.model
    near = other_ids(model)
    nearest = f" (closest known ids: {', '.join(near)})" if near else ""
    return (
        f"The Hugging Face hub does not show {model} to this server: it does not exist or is private. Check "
        f"gemma-serving:model{nearest}. For a "
        f"private model, run `{set_command(HF_TOKEN.key, start.stack)}` with a token that can read it."
    )


def _no_weights(_found: re.Match[str], start: FailedStart) -> str:
    settings = start.settings
    if settings.weights == "bucket":
        return (
            f"{folder_uri(start.bucket, settings.weights_prefix)} has no complete checkpoint. Run "
            f"`gemma stage_model {start.stack}`, then `pulumi up --stack {start.stack}` again."
        )
    place = "the image" if settings.weights == "prefetched-image" else "the hub"
    return f"The server found no checkpoint of {settings.model} in {place}. Check gemma-serving:model and gemma-serving:image."


def _too_slow(_found: re.Match[str], start: FailedStart) -> str:
    allowed, longest, planned = start.startup_probe, LONGEST_PROBE, start.plan.startup
    text = (
        f"The server did not answer /health within {allowed.budget_s:,} s ({allowed.initial_delay_s} s, then "
        f"{allowed.failure_threshold} x "
        f"{allowed.period_s} s). The planned start takes {planned.total_s:,.0f} s, of which loading the weights "
        f"takes {planned.load_s:,.0f} s."
    )
    if allowed.budget_s < longest.budget_s:
        block = (
            f"{{ initialDelay: {longest.initial_delay_s}s, period: {longest.period_s}s, failureThreshold: {longest.failure_threshold}, "
            f"timeout: {longest.timeout_s}s }}"
        )
        return f"{text} Cloud Run allows {longest.budget_s:,} s. Set gemma-serving:cloudRun.startupProbe: {block}."
    return (
        f"{text} Cloud Run allows no more. To start faster, set gemma-serving:cloudRun.mount.mode: fuse-buffered "
        "with cloudRun.directVpc: true, "
        "or weights: prefetched-image."
    )


def _refused_libraries(found: re.Match[str], start: FailedStart) -> str:
    text = (
        f"CUDA error {found['code']}: the driver of the {start.cloud_run.gpu} rejects the CUDA compatibility "
        "libraries of the image, because "
        "it is as new as they are."
    )
    if not _loads_libraries(start):
        # The setting does not load them, so the image does, in its ld.so.conf (gpustack/gpustack#4678).
        return f"{text} The image itself loads them. Set gemma-serving:image to a digest with a CUDA version up to the driver's."
    return f"{text} Set gemma-serving:cloudRun.cudaCompatibility: false, then run `pulumi up --stack {start.stack}`."


def _old_driver(found: re.Match[str], start: FailedStart) -> str:
    version = int(found["version"])
    text = f"The driver of the {start.cloud_run.gpu} has CUDA {version // 1000}.{version % 1000 // 10}, older than the CUDA of the image."
    if _loads_libraries(start):
        return f"{text} Loading the image's compatibility libraries did not help. Set gemma-serving:image to a digest with an older CUDA."
    return f"{text} Set gemma-serving:cloudRun.cudaCompatibility: true, then run `pulumi up --stack {start.stack}`."


def _loads_libraries(start: FailedStart) -> bool:
    return dict(start.plan.environment).get("VLLM_ENABLE_CUDA_COMPATIBILITY") == "1"


_CAUSES: Final[Sequence[KnownCause]] = (
    KnownCause(
        r"Memory limit of (?P<limit>\d+) MiB exceeded with (?P<used>\d+) MiB used", _memory, "FIT03", "cloud-run"
    ),
    KnownCause(
        r"volume \(type: gcs, name: (?P<volume>[\w-]+)\): mount operation failed",
        "The server never started, because Cloud Run could not mount volume {found[volume]}. Bucket "
        "gs://{start.bucket} does not exist, or "
        "{start.account} cannot list it (a new grant takes up to two minutes). Check it with `gcloud storage ls "
        "gs://{start.bucket}`, "
        "then run `pulumi up --stack {start.stack}` again.",
        target="cloud-run",
    ),
    KnownCause(
        r"Forbidden: 403 .* does not have storage\.objects\.list access",
        "vLLM cannot read gs://{start.bucket}: {start.account} needs roles/storage.objectViewer on it. A new grant "
        "takes up to two minutes. "
        "Run `pulumi up --stack {start.stack}`, which grants the role and tries again.",
        target="cloud-run",
    ),
    KnownCause(
        r"Repo id must be in the form .*'gs://",
        "The image's vLLM ({start.version}) treats a gs:// URI as a Hugging Face id. Set gemma-serving:image to one "
        "with vLLM "
        f"{STREAMS_FROM_GS} or later, or set gemma-serving:cloudRun.mount.mode: fuse-buffered.",
        "LDR02",
        "cloud-run",
    ),
    KnownCause(
        r"(?:Cannot start the server|The server is not started): (?P<said>.*\S)",
        "The server never started, because the weights were not copied into memory: {found[said]} If memory was too "
        "small, raise "
        "gemma-serving:cloudRun.memory (now {start.cloud_run.memory_mib} MiB) or set "
        "gemma-serving:cloudRun.mount.mode: fuse-buffered.",
        target="cloud-run",
    ),
    KnownCause(
        r"Memory limit supplied: (?P<has>\d+) cannot be smaller than: (?P<needs>\d+)", _small_buffer, target="cloud-run"
    ),
    KnownCause(r"Permission denied: '(?P<path>/mnt/[^']*)'", _unreadable, "FUS01", "cloud-run"),
    KnownCause(
        r"RepositoryNotFoundError|Repository Not Found for url|is not a valid model identifier listed on", _absent
    ),
    KnownCause(r"GatedRepoError|Cannot access gated repo|Access to model \S+ is restricted|401 Client Error", _gated),
    KnownCause(r"Invalid repository ID or local directory specified|Cannot find any model weights with", _no_weights),
    KnownCause(
        r"[Ee]rror (?P<code>803|804): (?:system has unsupported display driver|forward compatibility was attempted on non supported HW)",
        _refused_libraries,
        target="cloud-run",
    ),
    KnownCause(
        r"NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)", _old_driver, target="cloud-run"
    ),
    *ENGINE_CAUSES,
    KnownCause(
        r"\(killed, most likely out of memory\)",
        "The machine killed the server, most likely because its host ran out of memory. The planned peak while the "
        "weights load is "
        "{start.plan.memory.load_peak_host_gib:.1f} GiB. Choose a larger slice or a smaller checkpoint.",
        target="tpu",
    ),
    KnownCause(
        r"Cannot pull image .*(toomanyrequests|\b429\b)",
        "Docker Hub denied the pull: the limit for pulls without an account is reached. Set gemma-serving:dockerHub "
        "(docs/tpu-advanced.md) or wait.",
        target="tpu",
    ),
    KnownCause(
        r"vllm(?: serve)?: error: (?P<said>.*\S)",
        "vLLM rejected its command line: {found[said]}. Change gemma-serving:vllm.",
    ),
    ENGINE_FAILED,
    # CANCELLED: the container had already exited.
    KnownCause(r"STARTUP \w+ probe failed \d+ times? consecutively(?!.*CANCELLED)", _too_slow, "PRB01", "cloud-run"),
)
"""In order: an earlier cause explains later ones."""
