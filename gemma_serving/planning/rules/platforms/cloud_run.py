"""Rules for Cloud Run: loading, probes, scaling, quota, regions and mounts."""

import math
from collections.abc import Iterator
from typing import Final

from gemma_serving.planning.cost.running_costs import usual_start_s
from gemma_serving.planning.cost.subject import Subject, is_out_of_memory
from gemma_serving.planning.data.prices import continent_of
from gemma_serving.planning.machine.hardware import (
    CLOUD_RUN_MAX_CONCURRENCY,
    CLOUD_RUN_MAX_GPU_PROBE_S,
    CLOUD_RUN_MAX_INITIAL_DELAY_S,
    CLOUD_RUN_MAX_STARTUP_S,
)
from gemma_serving.planning.model.support import version_in_use
from gemma_serving.planning.question.recommendation import FUSE_MODES
from gemma_serving.planning.question.releases import is_known_from
from gemma_serving.planning.rules.alternatives import alternatives_for
from gemma_serving.planning.rules.platforms.quota import known_quota
from gemma_serving.planning.rules.registry import RULES, RuleResult, change, rule
from gemma_serving.planning.settings.cloud_run import LONGEST_REQUEST_S
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.google_limits import (
    PROBE_PERIOD_S,
    PROBE_TIMEOUT_S,
    mount_owner_problems,
    probe_problems,
)
from gemma_serving.planning.settings.image import NO_IMAGE
from gemma_serving.planning.settings.vllm_args import STREAMER
from gemma_serving.planning.settings.workload import DEFAULT_WORKLOAD
from gemma_serving.planning.speed.serving import server_of
from gemma_serving.planning.units import duration, number_of

STREAMS_FROM_GS: Final = "0.11.1"
"""First release that streams from gs:// with the instance's credentials; its image has the package (vllm-project/vllm#26464)."""
_IN_BUCKET: Final = (*FUSE_MODES, "memory")
_CLIENT_TIMEOUT_S = 600
"""Time after which OpenAI's client libraries end a request, unless their caller sets another."""
_FASTER_MODES = ("fuse-buffered", "streamer", "memory")
"""Weights modes that read from the bucket faster than a plain mount, smallest change first."""


@rule("LDR01")
def _load_format(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    given, mode = resolved.question.settings.vllm.load_format, resolved.weights_mode
    if given is None:
        return None
    if mode == "streamer" and given != STREAMER:
        return RuleResult(
            f"vllm.loadFormat is {given}, but weights streamed from gs:// need {STREAMER}. The server will find "
            "no weights.",
            remedies=(change("vllm.load_format", None),),
        )
    if mode == "streamer" or not given.startswith(STREAMER):
        return None
    streamed = Remedy(changes={"weights_mode": "streamer", "vllm.load_format": None})
    return RuleResult(
        f"vllm.loadFormat is {given}, but the weights mode is {mode}, planned at "
        f"{duration(subject.startup.load_s)}. The streamer "
        "will read local files at an untested rate; it is fast only when it reads gs:// directly.",
        remedies=(*((streamed,) if mode in _IN_BUCKET else ()), change("vllm.load_format", None)),
    )


@rule("LDR02")
def _streams(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if resolved.weights_mode != "streamer" or is_known_from(resolved, STREAMS_FROM_GS):
        return None
    version = version_in_use(resolved.accelerator, resolved.question.image_version)
    has = f"has vLLM {version}" if version else "has an unknown version of vLLM (image.version)"
    return RuleResult(
        f"The image {has}, but streaming weights from gs:// needs {STREAMS_FROM_GS} or later with the package in its "
        "image.",
        remedies=(change("weights_mode", "fuse-buffered"),),
    )


def _probe_remedies(subject: Subject) -> tuple[Remedy, Remedy]:
    """Return the probe that allows the predicted start plus its margin, within Cloud Run's limits, and the usual one."""
    budget_s = min(subject.startup.probe_budget_s, CLOUD_RUN_MAX_STARTUP_S)
    delay_s = CLOUD_RUN_MAX_INITIAL_DELAY_S if budget_s > CLOUD_RUN_MAX_GPU_PROBE_S else 0
    probe = {
        "initial_delay_s": delay_s,
        "period_s": PROBE_PERIOD_S,
        "failure_threshold": math.ceil((budget_s - delay_s) / PROBE_PERIOD_S),
        "timeout_s": PROBE_TIMEOUT_S,
    }
    passing: dict[str, object] = {f"cloud_run.startup_probe.{name}": value for name, value in probe.items()}
    return Remedy(changes=passing), change("cloud_run.startup_probe", None)


@rule("PRB01")
def _probe_budget(subject: Subject) -> RuleResult | None:
    startup, probe = subject.startup, subject.resolved.question.cloud_run.startup_probe
    budget_s = probe.budget_s if probe else CLOUD_RUN_MAX_STARTUP_S
    if startup.total_s <= budget_s:
        return None
    given = (
        f"cloudRun.startupProbe allows {duration(budget_s)}"
        if probe
        else f"Cloud Run allows at most {duration(budget_s)}"
    )

    def last_resorts() -> Iterator[Remedy]:
        for mode in _FASTER_MODES:
            faster = {"weights_mode": mode, "cloud_run.startup_probe": None}
            yield Remedy(changes=faster)
            yield Remedy(changes={**faster, "cloud_run.direct_vpc": True})
        yield from alternatives_for(subject)

    return RuleResult(
        f"Predicted start time is up to {duration(startup.total_s)} ({duration(startup.load_s)} loading, "
        f"{duration(startup.compile_s)} compiling and warm-up), but {given}. The revision will never become ready.",
        remedies=(*_probe_remedies(subject), *(change("weights_mode", mode) for mode in _FASTER_MODES)),
        last_resorts=last_resorts(),
        advice="No probe within Cloud Run's limits is long enough."
        if startup.total_s > CLOUD_RUN_MAX_STARTUP_S
        else "",
    )


@rule("PRB02")
def _probe_limits(subject: Subject) -> RuleResult | None:
    probe = subject.resolved.question.cloud_run.startup_probe
    wrong = [found.fact for found in probe_problems(probe, "cloud_run.startup_probe")] if probe is not None else []
    if not wrong:
        return None
    return RuleResult(
        f"Cloud Run will reject the startup probe: {'; '.join(wrong)}.", remedies=_probe_remedies(subject)
    )


@rule("SCL01")
def _queueing(subject: Subject) -> RuleResult | None:
    run, resolved = subject.resolved.question.cloud_run, subject.resolved
    if not run.concurrency:
        return None
    workload = resolved.question.settings.workload or DEFAULT_WORKLOAD
    at_once = server_of(resolved, subject.memory, workload).all_own_slots
    length = min(round(workload.held_tokens), resolved.max_model_len)
    allowed = run.concurrency * run.max_instances
    if allowed < at_once:
        return RuleResult(
            f"Cloud Run allows {number_of(allowed, 'concurrent request')} (cloudRun.concurrency {run.concurrency} x "
            f"cloudRun.maxInstances {run.max_instances}), but one instance can serve {at_once} of {length:,} "
            "tokens. Requests will queue while the GPU is underused.",
            remedies=(
                change("cloud_run.concurrency", min(at_once, CLOUD_RUN_MAX_CONCURRENCY)),
                change("cloud_run.max_instances", math.ceil(at_once / run.concurrency)),
            ),
        )
    if run.concurrency <= at_once:
        return None
    limit = (
        "(vllm.maxNumSeqs)"
        if at_once == resolved.max_num_seqs * resolved.dp
        else f"(KV cache full with requests of {length:,} tokens)"
    )
    return RuleResult(
        f"cloudRun.concurrency is {run.concurrency}, but one instance can serve {number_of(at_once, 'concurrent request')} "
        f"{limit}. The others will queue inside the instance, where scaling does not count them.",
        remedies=(change("cloud_run.concurrency", at_once), change("vllm.max_num_seqs", run.concurrency)),
    )


@rule("SCL02")
def _quota(subject: Subject) -> RuleResult | None:
    run = subject.resolved.question.cloud_run
    region = run.region or "the region"
    quota = known_quota(subject.resolved, "GPUs", "cloudRun.gpuQuota", run.gpu_quota)
    if quota is None:
        has_none = run.zonal_redundancy or not subject.resolved.accelerator.cloud_run.new_project_quota
        if run.max_instances <= (0 if run.region and has_none else 1):
            return None
        redundant = " with cloudRun.zonalRedundancy, which is 0 in new projects," if run.zonal_redundancy else ""
        return RuleResult(
            f"cloudRun.maxInstances is {run.max_instances}, but the GPU quota of {region}{redundant} is not set.",
            severity="warn",
            remedies=(change("cloud_run.zonal_redundancy", False),) if run.zonal_redundancy else (),
            advice=(
                "To read it and print how to set cloudRun.gpuQuota, run `gemma doctor STACK`. "
                "Revisions that still hold instances count too."
            ),
        )
    if run.max_instances <= quota.value:
        return None
    most = int(quota.value)
    changes: dict[str, object] = {"cloud_run.max_instances": most}
    if run.min_instances > most:
        changes["cloud_run.min_instances"] = most
    return RuleResult(
        f"cloudRun.maxInstances is {run.max_instances}, but the GPU quota of {region} is {most} ({quota.source}). "
        "The deployment will fail.",
        remedies=(Remedy(changes=changes),) if most else (),
        advice="Or request more GPU quota (free of charge, takes days).",
    )


@rule("SCL03")
def _region(subject: Subject) -> RuleResult | None:
    run, resolved = subject.resolved.question.cloud_run, subject.resolved
    invited = resolved.accelerator.cloud_run.by_invitation
    known = [name for name in resolved.accelerator.cloud_run.regions if name not in invited]
    by_invitation = run.region in invited
    quota = known_quota(resolved, "GPUs", "cloudRun.gpuQuota", run.gpu_quota)
    if not run.region or run.region in known or (by_invitation and quota and quota.value):
        return None
    nearest_first = sorted(known, key=lambda name: continent_of(name) != continent_of(run.region))
    where = f"by invitation only in {run.region}: the GPU quota of other projects there is 0"
    return RuleResult(
        f"{resolved.accelerator.name} is {where if by_invitation else f'not listed for Cloud Run in {run.region}'}.",
        severity="warn" if by_invitation else "block",
        remedies=tuple(change("cloud_run.region", name) for name in nearest_first[:3]),
        advice="If your project is invited, set cloudRun.gpuQuota. To read the quota, run `gemma doctor STACK`."
        if by_invitation
        else "If the region is newer than this list, accept this finding.",
    )


@rule("SCL06")
def _cold_start(subject: Subject) -> RuleResult | None:
    resolved, run = subject.resolved, subject.resolved.question.cloud_run
    limit_s = run.request_timeout_s
    if run.min_instances or not limit_s:
        return None
    start_s = usual_start_s(subject.startup)
    if start_s <= min(limit_s, _CLIENT_TIMEOUT_S):
        return None
    by_client = f"OpenAI's client libraries time out after {duration(_CLIENT_TIMEOUT_S)} by default"
    by_google = f"Cloud Run terminates it after {duration(limit_s)} (cloudRun.requestTimeout)"
    causes = [text for text, most_s in ((by_google, limit_s), (by_client, _CLIENT_TIMEOUT_S)) if most_s < start_s]
    faster = (change("weights_mode", "fuse-buffered"),) if resolved.weights_mode == "fuse" else ()
    return RuleResult(
        "cloudRun.minInstances is 0, so the first request after a pause waits for a start of up to "
        f"{duration(start_s)}. {', and '.join(causes)}.",
        remedies=(
            change("cloud_run.request_timeout_s", LONGEST_REQUEST_S),
            *faster,
            change("cloud_run.compile_cache", "bucket"),
            change("cloud_run.min_instances", 1),
        ),
        advice=f"One minimum instance costs ${subject.cost.usd_per_hour * 24:,.2f} per day.",
    )


@rule("SCL07")
def _request_timeout(subject: Subject) -> RuleResult | None:
    limit_s, answer = subject.resolved.question.cloud_run.request_timeout_s, subject.workload
    if not limit_s or answer is None or answer.request_s.high <= limit_s or is_out_of_memory(subject.memory):
        return None
    request_s, workload = answer.request_s, answer.workload
    is_certain = request_s.low > limit_s
    part = limit_s / request_s.high
    arrivals = RULES["WRK01"].result(subject)
    return RuleResult(
        f"A workload request takes {duration(request_s.low)} to {duration(request_s.high)}, but Cloud Run terminates it after {duration(limit_s)} "
        f"(cloudRun.requestTimeout). {'Every' if is_certain else 'A slow'} answer will be cut off.",
        severity="block" if is_certain else "warn",
        remedies=(
            change("cloud_run.request_timeout_s", LONGEST_REQUEST_S),
            *(arrivals.remedies if arrivals else ()),
            change("workload.output_tokens", max(1, int(workload.output_tokens * part))),
            change("workload.input_tokens", max(1, int(workload.input_tokens * part))),
        ),
    )


@rule("FUS01")
def _mount_owner(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    mount, image = resolved.question.cloud_run.mount, resolved.question.settings.image
    if resolved.weights_mode not in FUSE_MODES or image == NO_IMAGE:
        return None
    problems = mount_owner_problems(mount, uid=image.uid, gid=image.gid)
    wrong = {name: (given, wanted) for name, given, wanted in problems}
    if not wrong:
        return None
    listed = " and ".join(f"{name} {given} (the image runs as {wanted})" for name, (given, wanted) in wrong.items())
    return RuleResult(
        f"The mount will be owned by {listed}. The server will fail with Permission denied.",
        remedies=(Remedy(changes={f"cloud_run.mount.{name}": None for name in wrong}),),
    )
