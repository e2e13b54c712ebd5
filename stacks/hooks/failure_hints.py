"""Explain from the log and the plan why a server did not start: the causes of `causes.toml`, and the texts that need more than a plan's figures."""

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from contracts.staged_weights import folder_uri
from planning.data.checkpoints import original_of, other_ids
from planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, CLOUD_RUN_VCPU, find_accelerator, host_of
from planning.memory.budget import utilization_leaving
from planning.question.types import Plan, StartupProbe
from planning.rules.platforms.places import STREAMS_FROM_GS
from planning.speed.startup import LONGEST_PROBE
from planning.units import align_to
from stacks.secrets import HF_TOKEN, set_command
from stacks.settings import CloudRunSettings, Settings

_MEMORY_STEP_GIB: Final = 4
_GIB_MIB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """Facts about a revision that did not start."""

    stack: str
    settings: Settings
    run: CloudRunSettings | None
    """None on a TPU."""
    plan: Plan
    probe: StartupProbe | None
    """Startup probe in effect. None on a TPU."""
    bucket: str
    """Bucket of the weights, even if the stack reads none."""
    account: str
    """E-mail address of the server's account."""

    @property
    def cloud_run(self) -> CloudRunSettings:
        """Settings of Cloud Run. Used only for log lines of Cloud Run."""
        assert self.run is not None  # noqa: S101 - causes of Cloud Run are skipped for a TPU
        return self.run

    @property
    def startup_probe(self) -> StartupProbe:
        """Startup probe. Used only for log lines of Cloud Run."""
        assert self.probe is not None  # noqa: S101 - as above
        return self.probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The cause of a failure, and the log line that shows it."""

    line: str
    hint: str
    finding: str = ""
    """Id of the planner's finding that predicts it (docs/reference/rules.md), or empty."""


def cause_of(lines: Sequence[str], start: FailedStart) -> Cause | None:
    """Return the cause shown by the newest matching line, or None. Of several causes, return the one that explains the others."""
    for name, known in known_causes().items():
        if known.get("target") not in {None, start.settings.target}:
            continue
        for line in reversed(lines):
            found = re.search(known["pattern"], line)
            if found is not None:
                text = known["text"].format(**_facts(found, start)) if "text" in known else _TEXTS[name](found, start)
                return Cause(line=line, hint=text, finding=known.get("rule", ""))
    return None


@cache
def known_causes() -> Mapping[str, Mapping[str, str]]:
    """Return the known causes by name, in the order in which they are tried."""
    return tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))


def _facts(found: re.Match[str], start: FailedStart) -> Mapping[str, object]:
    """Return what a text can name: the groups of the line, and facts of the settings and the plan."""
    settings = start.settings
    model, original, near = settings.model, original_of(settings.model), other_ids(settings.model)
    has_token = settings.has_secret(HF_TOKEN.key)
    wrong_token = f"the token of the stack's secret {HF_TOKEN.key} cannot read it or is invalid"
    mount_uid = start.run.mount.uid if start.run is not None else None
    groups: Mapping[str, str | None] = found.groupdict()
    return {
        "start": start,
        "memory": start.plan.memory,
        "model": model,
        "original": original,
        "version": settings.image.version or "unknown version",
        "streams_from": STREAMS_FROM_GS,
        "mount_owner": mount_uid if mount_uid is not None else settings.image.uid or 0,
        "nearest": f" (closest known ids: {', '.join(near)})" if near else "",
        "token": wrong_token if has_token else f"the stack has no secret {HF_TOKEN.key}",
        "set_token": set_command(HF_TOKEN.key, start.stack),
        "other_precision": f"Set gemma-serving:model to {original}"
        if original != model
        else "Choose a checkpoint in bf16",
        **{name: int(text) if text and text.isdecimal() else text or "" for name, text in groups.items()},
    }


def _memory(found: re.Match[str], start: FailedStart) -> str:
    limit_mib, used_mib = int(found["limit"]), int(found["used"])
    planned_gib = start.plan.memory.load_peak_host_gib
    limit_gib = limit_mib / _GIB_MIB
    text = (
        f"The container ran out of memory: it used {used_mib} MiB, {used_mib - limit_mib} MiB more than "
        f"gemma-serving:cloudRun.memory allows ({limit_gib:g} GiB). The planned peak while the weights load is {planned_gib:.1f} GiB"
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


def _no_weights(_found: re.Match[str], start: FailedStart) -> str:
    settings = start.settings
    if settings.weights == "bucket":
        return (
            f"{folder_uri(start.bucket, settings.weights_prefix)} has no complete checkpoint. Run "
            f"`gemma stage_model {start.stack}`, then `pulumi up --stack {start.stack}` again."
        )
    place = "the image" if settings.weights == "prefetched-image" else "the hub"
    return f"The server found no checkpoint of {settings.model} in {place}. Check gemma-serving:model and gemma-serving:image."


def _refused_libraries(found: re.Match[str], start: FailedStart) -> str:
    text = (
        f"CUDA error {found['code']}: the driver of the {start.cloud_run.gpu} rejects the CUDA compatibility libraries of the image, because "
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


def _too_long(found: re.Match[str], start: FailedStart) -> str:
    longest = int(found["longest"].replace(",", ""))
    request = f"one request of {int(found['length']):,} tokens" if found["length"] else "one request"
    text = (
        f"The KV cache is too small for {request}: it needs {found['needed']} GiB, but "
        f"{found['available']} GiB is left (planned: {start.plan.memory.kv_gib:.2f} GiB)."
    )
    if longest < 1:
        return f"{text} Choose a smaller checkpoint or a larger GPU."
    return f"{text} Set gemma-serving:vllm.maxModelLen to {longest} or less, or raise vllm.gpuMemoryUtilization."


def _program_memory(found: re.Match[str], start: FailedStart) -> str:
    """Explain a compiled program that found no room: the budget of weights and KV cache leaves too little outside it."""
    memory = start.plan.memory
    given = [text for text in found.groups() if text]
    figures = f" It needs {given[0]}B, and {given[1]}B is free." if given else ""
    utilization = utilization_leaving(memory.outside_enough_gib, memory.usable_gib)
    return (
        f"A compiled program did not fit on the chip.{figures} gemma-serving:vllm.gpuMemoryUtilization leaves {memory.headroom_gib:.2f} GiB "
        f"outside the budget, and the planner recommends {memory.outside_enough_gib:.2f} GiB for this model. "
        f"Set gemma-serving:vllm.gpuMemoryUtilization to {utilization:g} or less."
    )


def _kernel_memory(found: re.Match[str], start: FailedStart) -> str:
    """Explain a kernel that needs more on-chip memory than the chip has: VMEM of a TPU, shared memory of a GPU."""
    figures = f": {found['needs']} needed, {found['most']} available" if found["needs"] else ""
    place = "VMEM of a chip" if start.settings.target == "tpu" else "shared memory of the GPU"
    return (
        f"A kernel does not fit in the {place}{figures}. That depends on the model, its precision and the image, not on "
        "vllm.gpuMemoryUtilization. Set gemma-serving:model to an unquantized checkpoint, gemma-serving:image to another release, or choose "
        "another accelerator."
    )


def _gpu_memory(found: re.Match[str], start: FailedStart) -> str:
    memory, size = start.plan.memory, found["size"] or found["asked"]
    when = f" when {size} more was requested" if size else ""
    return (
        f"The GPU ran out of memory{when}. The plan has {memory.weights_gib:.1f} GiB of weights and "
        f"{memory.activations_gib:.1f} GiB of activations in {memory.usable_gib:.1f} GiB. Lower gemma-serving:vllm.gpuMemoryUtilization to leave "
        "more for allocations outside the KV cache, or lower vllm.maxNumBatchedTokens."
    )


def _engine_failed(_found: re.Match[str], start: FailedStart) -> str:
    margin = start.plan.margin
    near = f" The plan is close to a limit ({margin.finding})." if margin is not None else ""
    blocking = [finding.id for finding in start.plan.findings if finding.severity == "block"]
    predicted = f" The plan predicts a failure: {', '.join(blocking)}." if blocking else near
    return (
        f"vLLM's engine did not start, and this line has no reason.{predicted} The reason is above it: run "
        f"`gemma logs {start.stack} --lines 200`."
    )


def _too_slow(_found: re.Match[str], start: FailedStart) -> str:
    allowed, longest, planned = start.startup_probe, LONGEST_PROBE, start.plan.startup
    text = (
        f"The server did not answer /health within {allowed.budget_s:,} s ({allowed.initial_delay_s} s, then {allowed.failure_threshold} x "
        f"{allowed.period_s} s). The planned start takes {planned.total_s:,.0f} s, of which loading the weights takes {planned.load_s:,.0f} s."
    )
    if allowed.budget_s < longest.budget_s:
        block = (
            f"{{ initialDelay: {longest.initial_delay_s}s, period: {longest.period_s}s, failureThreshold: {longest.failure_threshold}, "
            f"timeout: {longest.timeout_s}s }}"
        )
        return f"{text} Cloud Run allows {longest.budget_s:,} s. Set gemma-serving:cloudRun.startupProbe: {block}."
    return (
        f"{text} Cloud Run allows no more. To start faster, set gemma-serving:cloudRun.mount.mode: fuse-buffered with cloudRun.directVpc: true, "
        "or weights: prefetched-image."
    )


_TEXTS: Final[Mapping[str, Callable[[Any, FailedStart], str]]] = {
    "memory": _memory,
    "no-weights": _no_weights,
    "refused-libraries": _refused_libraries,
    "old-driver": _old_driver,
    "too-long": _too_long,
    "program-memory": _program_memory,
    "kernel-memory": _kernel_memory,
    "gpu-memory": _gpu_memory,
    "engine-failed": _engine_failed,
    "too-slow": _too_slow,
}
"""Texts of the causes that have none in the table."""
