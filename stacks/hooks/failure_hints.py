"""Causes of failed starts: those of `causes.toml` with their facts, and the crashes on public record."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.server_errors import EXCEPTION, FINAL_FAILURES, HUB, LOGGER, PASSING, server_error
from gemma_serving.contracts.staged_weights import folder_uri
from gemma_serving.planning.data.checkpoints import find_checkpoint, original_of, other_ids
from gemma_serving.planning.machine.hardware import CLOUD_RUN_GIB_PER_VCPU, CLOUD_RUN_VCPU, find_accelerator, host_of
from gemma_serving.planning.memory.budget import utilization_leaving
from gemma_serving.planning.question.records import CRASHES, Crash
from gemma_serving.planning.question.types import MemoryPlan, Plan
from gemma_serving.planning.rules.platforms.cloud_run import STREAMS_FROM_GS
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.secrets import HF_TOKEN, set_command
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.speed.startup import LONGEST_PROBE
from gemma_serving.planning.units import align_to

_MEMORY_STEP_GIB: Final = 4
_GIB_MIB: Final = 1024
_UNITS_GIB: Final = {"K": 2**-20, "M": 2**-10, "T": 2**10}
_STEP: Final = 0.01
_ROUNDING: Final = 1e-6
_HUB_BUSY: Final = rf"(?im)^(?=.*(?:{HUB.pattern})).*(?-i:{EXCEPTION.pattern}).*(?:{PASSING.pattern})"
"""An exception with the hub's address and a transient cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """Facts about a revision that did not start."""

    stack: str
    settings: Settings
    plan: Plan

    @property
    def run(self) -> CloudRunSettings | None:
        """Settings of the service. None on a TPU."""
        return self.settings.cloud_run

    @property
    def bucket(self) -> str:
        """Bucket of the weights, even if the stack reads none."""
        return self.settings.bucket_name(self.stack)

    @property
    def account(self) -> str:
        """E-mail address of the server's account."""
        return Names(project=self.settings.project, stack=self.stack).account_email


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The cause of a failure, and the log line that shows it."""

    line: str
    hint: str = ""
    """Cause and fix. Empty if the line is the error of a server and its cause is unknown."""
    finding: str = ""
    """Id of the planner's finding that predicts it (docs/reference/rules.md), or empty."""


def cause_of(lines: Sequence[str], start: FailedStart, *, reason: str = "") -> Cause | None:
    """Return the cause shown by the newest matching line. Of several, the one that explains the others.

    `reason`: the error of a server that failed, which is returned if no cause is known. Without one, if the engine did not start, the error
    in the lines.
    """
    text = "\n".join(LOGGER.sub("", line) for line in lines)  # a message can continue on the next line
    for known in known_causes().values():
        found = next(reversed([*re.finditer(known["pattern"], text)]), None)
        if found is None or known.get("target") not in {None, start.settings.target}:
            continue
        if known.get("generic"):
            is_named = reason and not re.search(known["pattern"], reason)
            error = reason if is_named else server_error(lines)[0]
            if error:
                return Cause(line=error)
        line = lines[text.count("\n", 0, found.start())]
        return Cause(line=line, hint=_hint(known, _facts(found, start)), finding=known.get("rule", ""))
    return Cause(line=reason) if reason else None


@cache
def known_causes() -> Mapping[str, Mapping[str, Any]]:
    """Return the known causes by name, in the order in which they are tried: crashes on public record first."""
    table = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
    shared = {**FINAL_FAILURES, "hub-busy": _HUB_BUSY}
    read = {name: {"pattern": pattern, **table[name]} for name, pattern in shared.items()}
    return {crash.id: _recorded(crash) for crash in CRASHES.values() if crash.pattern} | table | read


def _recorded(crash: Crash) -> Mapping[str, str]:
    """Return a crash on public record as a row of the table."""
    text = f"This line is on public record: {crash.dies or crash.likely} ({crash.source}). {crash.way_out}"
    return {"pattern": crash.pattern, "rule": "REL01", "text": text}


def _hint(known: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the text of a cause, with the ending for the first fact that holds."""
    ending = next((text for fact, text in known.get("if", {}).items() if facts[fact]), known.get("else", ""))
    given = {name: text.format(**facts) if facts.get(name) else "" for name, text in known.get("given", {}).items()}
    return " ".join(filter(None, (known.get("text"), ending))).format(**facts, given=given)


def _facts(found: re.Match[str], start: FailedStart) -> Mapping[str, Any]:
    """Return the values that a text can name: the groups of the line, and facts of the settings and the plan."""
    settings, memory, probe = start.settings, start.plan.memory, start.plan.startup.probe
    model = settings.model
    original = original_of(settings.model)
    near = other_ids(settings.model)
    wrong_token = f"the token of the stack's secret {HF_TOKEN.key} cannot read it or is invalid"
    mount_uid = start.run.mount.uid if start.run is not None else None
    groups = {name: _value(text) for name, text in found.groupdict().items()}
    return {
        "start": start,
        "memory": memory,
        "model": model,
        "original": original,
        "revision": settings.model_revision or "",
        "own_commit": _other_commit(model, settings.model_revision),
        "version": settings.image.version or "unknown version",
        "streams_from": STREAMS_FROM_GS,
        "mount_owner": mount_uid if mount_uid is not None else settings.image.uid or 0,
        "nearest": f" (closest known ids: {', '.join(near)})" if near else "",
        "token": wrong_token if settings.has_secret(HF_TOKEN.key) else f"the stack has no secret {HF_TOKEN.key}",
        "set_token": set_command(HF_TOKEN.key, start.stack),
        "other_precision": f"Set gemma-serving:model to {original}"
        if original != model
        else "Choose a checkpoint in bf16",
        "is_converted": original != model,
        "on_tpu": settings.target == "tpu",
        "is_privileged": settings.tpu is not None and settings.tpu.container == "privileged",
        "runtime_version": settings.tpu.runtime_version if settings.tpu is not None else None,
        "in_bucket": settings.weights == "bucket",
        "weights": folder_uri(start.bucket, settings.weights_prefix),
        "source": "the image" if settings.weights == "prefetched-image" else "the hub",
        "loads_libraries": dict(start.plan.environment).get("VLLM_ENABLE_CUDA_COMPATIBILITY") == "1",
        "on_chip": "VMEM of a chip" if settings.target == "tpu" else "shared memory of the GPU",
        "probe": probe,
        "may_wait_longer": probe is not None and probe.budget_s < LONGEST_PROBE.budget_s,
        "longest": LONGEST_PROBE,
        **groups,
        **_other_utilization(groups, start.plan.memory),
        **_more_memory(groups, start),
    }


def _other_commit(model: str, revision: str | None) -> str:
    """Return the listed commit of a model, unless it is the given one or none is listed."""
    found = find_checkpoint(model)
    return found.commit if found is not None and found.commit != revision else ""


def _value(text: str | None) -> int | str:
    digits = (text or "").replace(",", "")
    return int(digits) if digits.isdecimal() else text or ""


def _other_utilization(groups: Mapping[str, Any], memory: MemoryPlan) -> Mapping[str, object]:
    """Return the utilization that failed, a lower one that frees what the line lacks, and a higher one with that much more KV cache.

    The line's figures go before the plan's, which the failure disproved.
    """
    failed = float(groups.get("share") or round(memory.budget_gib / memory.usable_gib, 4))
    highest = utilization_leaving(memory.outside_enough_gib, memory.usable_gib)
    lacking_gib = _gib(groups.get("needs")) - _gib(groups.get("free")) if groups.get("free") else 0.0
    lower = min(highest, failed - max(lacking_gib / memory.usable_gib, _STEP))
    more_gib = (_gib(groups.get("needed")) or memory.kv_request_gib) - _gib(groups.get("available"))
    higher = math.ceil((failed + max(more_gib / memory.usable_gib, _STEP)) * 100 - _ROUNDING) / 100
    return {
        "failed": failed,
        "highest": highest,
        "recommends": memory.headroom_gib < memory.outside_enough_gib,
        "lower": math.floor(lower * 100 + _ROUNDING) / 100,
        "too_low": lower * memory.usable_gib < memory.budget_gib - memory.kv_gib + memory.kv_request_gib,
        "higher": higher,
        "can_raise": higher <= highest,
        "none_fits": groups.get("longest") == 0,
    }


def _gib(size: object) -> float:
    """Return a size of a log line in GiB, of which it has no unit or its first letter last; 0 without one."""
    text = str(size or 0)
    return float(text.rstrip(" KMGT")) * _UNITS_GIB.get(text[-1], 1.0)


def _more_memory(groups: Mapping[str, Any], start: FailedStart) -> Mapping[str, object]:
    """Return the memory setting for the observed use, and the vCPU that Cloud Run requires with it."""
    run = start.run
    if run is None or "used" not in groups:
        return {}
    accelerator, cache = find_accelerator(run.gpu), run.mount.cache_size_mib
    most_gib = host_of(accelerator, "cloud-run").max_memory_gib if accelerator else math.inf
    need_gib = max(start.plan.memory.load_peak_host_gib, groups["used"] / _GIB_MIB)
    memory_gib = align_to(math.ceil(need_gib) + 1, _MEMORY_STEP_GIB)
    cpu = next((cpu for cpu in CLOUD_RUN_VCPU if cpu * CLOUD_RUN_GIB_PER_VCPU >= memory_gib), None)
    return {
        "over_mib": groups["used"] - groups["limit"],
        "limit_gib": groups["limit"] / _GIB_MIB,
        "cache": f", including the file cache (cloudRun.mount.cacheSize, {cache / _GIB_MIB:g} GiB)" if cache else "",
        "most_gib": most_gib,
        "enough_gib": memory_gib,
        "more_cpu": f" and gemma-serving:cloudRun.cpu to {cpu}" if cpu is not None and run.cpu < cpu else "",
        "too_large": memory_gib > most_gib or cpu is None,
    }
