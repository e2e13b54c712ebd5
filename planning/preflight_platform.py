"""Preflight rules of the platforms: probes, scaling, slices, networks, secrets, mounts, money."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import urlsplit

from planning import overheads
from planning.hardware import (
    CLOUD_RUN_MAX_GPU_PROBE_S,
    CLOUD_RUN_MAX_INITIAL_DELAY_S,
    CLOUD_RUN_MAX_PERIOD_S,
    CLOUD_RUN_MAX_STARTUP_S,
    FLEX_START_MAX_RUN_S,
    FLEX_START_V6E_ZONES,
    L4_REGIONS,
    RTX_PRO_6000_REGIONS,
)
from planning.recommendation import FUSE_MODES
from planning.startup import startup_plan
from planning.subject import Subject
from planning.throughput import saturation_batch
from planning.types import Finding
from planning.units import DAY_S, duration

_PROBES: Final = "Cloud Run, container health checks"


def prb01_budget(s: Subject) -> Finding | None:
    """The probe ends the start before it is done."""
    if s.r.platform != "cloud-run":
        return None
    total, probe = s.startup.total_s, s.r.deployment.cloud_run.startup_probe
    budget = probe.budget_s if probe else CLOUD_RUN_MAX_STARTUP_S
    if total <= budget:
        return None
    passing = s.startup.probe_budget_s
    given = (
        f"the startup probe gives up after {duration(budget)}"
        if probe
        else f"Cloud Run allows {duration(budget)} at most"
    )
    return Finding(
        id="PRB01",
        severity="block",
        message=(
            f"The start is predicted to take {duration(total)} ({duration(s.startup.load_s)} loading, {duration(s.startup.compile_s)} compiling and warm-up), "
            f"but {given}: the revision would never become ready."
        ),
        remedy=f"{_passing_probe(passing) if total <= CLOUD_RUN_MAX_STARTUP_S else 'No probe that Cloud Run allows is long enough.'}{_faster(s)}",
        source=_PROBES,
    )


def _passing_probe(budget_s: int) -> str:
    delay = CLOUD_RUN_MAX_INITIAL_DELAY_S if budget_s > CLOUD_RUN_MAX_GPU_PROBE_S else 0
    threshold = math.ceil((budget_s - delay) / 60)
    return f"A budget of {budget_s} s passes: initialDelay {delay}s, period 60s, failureThreshold {threshold}."


def _faster(s: Subject) -> str:
    from dataclasses import replace  # noqa: PLC0415 - only a blocked start gets here

    if s.r.weights_mode == "fuse-buffered":
        return ""
    other = startup_plan(replace(s.r, weights_mode="fuse-buffered"))
    return f" Buffered reads (weightsMode fuse-buffered) would start in {duration(other.total_s)}."


def prb02_limits(s: Subject) -> Finding | None:
    """A probe that Cloud Run does not accept."""
    probe = s.r.deployment.cloud_run.startup_probe
    if s.r.platform != "cloud-run" or probe is None:
        return None
    checks = (
        (
            probe.initial_delay_s > CLOUD_RUN_MAX_INITIAL_DELAY_S or probe.initial_delay_s < 0,
            f"initialDelay is {probe.initial_delay_s} s; 0 to {CLOUD_RUN_MAX_INITIAL_DELAY_S} s are allowed",
        ),
        (
            not 1 <= probe.period_s <= CLOUD_RUN_MAX_PERIOD_S,
            f"period is {probe.period_s} s; 1 to {CLOUD_RUN_MAX_PERIOD_S} s are allowed",
        ),
        (probe.failure_threshold < 1, f"failureThreshold is {probe.failure_threshold}; it must be 1 or more"),
        (
            not 1 <= probe.timeout_s <= probe.period_s,
            f"timeout is {probe.timeout_s} s; it may not be longer than the period of {probe.period_s} s",
        ),
        (
            probe.period_s * probe.failure_threshold > CLOUD_RUN_MAX_GPU_PROBE_S,
            f"period x failureThreshold is {probe.period_s * probe.failure_threshold} s; {CLOUD_RUN_MAX_GPU_PROBE_S} s are allowed with a GPU",
        ),
    )
    wrong = [text for is_wrong, text in checks if is_wrong]
    if not wrong:
        return None
    return Finding(
        id="PRB02",
        severity="block",
        message=f"Cloud Run would refuse the startup probe: {'; '.join(wrong)}.",
        remedy=_passing_probe(min(s.startup.probe_budget_s, CLOUD_RUN_MAX_STARTUP_S)),
        source=_PROBES,
    )


def scl01_queueing(s: Subject) -> Finding | None:
    """Requests queue in front of a server that could take more, or inside one that cannot."""
    run, r = s.r.deployment.cloud_run, s.r
    if r.platform != "cloud-run" or run.concurrency is None:
        return None
    holds = saturation_batch(r, s.memory)
    length = min(overheads.TYPICAL_SEQUENCE_TOKENS, r.max_model_len)
    if run.concurrency * run.max_instances < holds:
        message = (
            f"Cloud Run lets {run.concurrency} requests into each of {run.max_instances} instance{'s' if run.max_instances > 1 else ''}, "
            f"but the KV cache of one holds {holds} of {length:,} tokens each ({s.memory.kv_tokens:,} tokens in all): the others queue outside."
        )
        remedy = f"Set concurrency to {holds}, or raise maxInstances (${s.cost.usd_per_hour:.2f}/h each while it runs)."
    elif run.concurrency > r.max_num_seqs:
        message = (
            f"Cloud Run lets {run.concurrency} requests into an instance that computes {r.max_num_seqs} at a time (maxNumSeqs): "
            "the others queue inside, unseen by scaling."
        )
        remedy = f"Set concurrency to {r.max_num_seqs} or less, or raise maxNumSeqs."
    else:
        return None
    return Finding(
        id="SCL01",
        severity="warn",
        message=message,
        remedy=remedy,
        source="Cloud Run concurrency; " + "vLLM v1 scheduler",
    )


def scl02_quota(s: Subject) -> Finding | None:
    """More instances than GPUs in the quota."""
    run = s.r.deployment.cloud_run
    if s.r.platform != "cloud-run":
        return None
    if run.gpu_quota is not None:
        if run.max_instances <= run.gpu_quota:
            return None
        return Finding(
            id="SCL02",
            severity="block",
            message=(
                f"maxInstances is {run.max_instances}, and the quota of {run.region or 'the region'} allows {run.gpu_quota} GPUs: "
                "the service would fail to deploy."
            ),
            remedy=f"Set maxInstances to {run.gpu_quota}, or ask for more GPU quota (free of charge, takes days).",
            source="Cloud Run GPU quota; pulumi/pulumi-gcp#3794",
        )
    if run.max_instances <= 1:
        return None
    return Finding(
        id="SCL02",
        severity="warn",
        message=f"maxInstances is {run.max_instances}, and nobody has said how many GPUs the quota of {run.region or 'the region'} allows.",
        remedy="Look it up and set gpuQuota (nvidia_l4_gpu_allocation_no_zonal_redundancy and its kin); revisions that still hold instances count too.",
        source="Cloud Run GPU quota; pulumi/pulumi-gcp#3794",
    )


def scl03_region(s: Subject) -> Finding | None:
    """A region without this GPU."""
    run, r = s.r.deployment.cloud_run, s.r
    if r.platform != "cloud-run" or run.region is None:
        return None
    known = L4_REGIONS if r.accelerator.name == "L4" else RTX_PRO_6000_REGIONS
    if run.region in known:
        return None
    return Finding(
        id="SCL03",
        severity="warn",
        message=f"Cloud Run is not known to have {r.accelerator.name} in {run.region}.",
        remedy=f"Regions known to have it: {', '.join(known)}.",
        source="Cloud Run, GPU support by region",
    )


def tpu01_parallelism(s: Subject) -> Finding | None:
    """Tensor parallelism differs from the slice."""
    r = s.r
    if not r.is_tpu or r.tp == r.accelerator.devices:
        return None
    return Finding(
        id="TPU01",
        severity="block",
        message=(
            f"tensorParallelSize is {r.tp}, and {r.accelerator.name} has {r.accelerator.devices} chip(s): "
            "the server would not start, or leave chips idle that are paid for."
        ),
        remedy=f"Set tensorParallelSize to {r.accelerator.devices}, or leave it out.",
        source="vLLM on TPU, Gemma 4 recipe",
    )


def tpu02_run_duration(s: Subject) -> Finding | None:
    """Flex-start capacity that never ends, or longer than it may."""
    tpu = s.r.deployment.tpu
    if not s.r.is_tpu or tpu.provisioning_model != "flex-start":
        return None
    run_s = tpu.max_run_duration_s
    if run_s is None:
        return Finding(
            id="TPU02",
            severity="info",
            message=f"No maxRunDuration is given; flex-start ends after {FLEX_START_MAX_RUN_S // DAY_S} days at most, and the cost is reckoned with that.",
            remedy="Set maxRunDuration to what the work needs; at its end Google deletes the nodes.",
            source="Cloud TPU, queued resources (runDuration)",
        )
    if 0 < run_s <= FLEX_START_MAX_RUN_S:
        return None
    return Finding(
        id="TPU02",
        severity="block",
        message=f"maxRunDuration is {duration(run_s)}; flex-start allows more than 0 and at most {FLEX_START_MAX_RUN_S // DAY_S} d.",
        remedy=f"Set maxRunDuration to 7d or less (7 days cost ${s.cost.usd_per_hour * FLEX_START_MAX_RUN_S / 3600:,.0f}).",
        source="Cloud TPU, queued resources (runDuration)",
    )


def tpu04_zones(s: Subject) -> Finding | None:
    """Zones where nobody has seen flex-start v6e granted."""
    tpu, r = s.r.deployment.tpu, s.r
    if not r.accelerator.name.startswith("v6e") or tpu.provisioning_model != "flex-start":
        return None
    unknown = [zone for zone in tpu.zones if zone not in FLEX_START_V6E_ZONES]
    if not unknown:
        return None
    return Finding(
        id="TPU04",
        severity="warn",
        message=(
            f"Flex-start v6e is not known to be offered in {', '.join(unknown)}; "
            "a zone can have the hardware, the quota and the offer, or any two of the three."
        ),
        remedy=f"Zones known to offer it: {', '.join(FLEX_START_V6E_ZONES)}; each zone is left empty before the next is tried.",
        source="Cloud TPU regions and zones",
    )


def net01_localhost(s: Subject) -> Finding | None:
    """A name that resolves to IPv6 first."""
    url = s.r.deployment.endpoint_url
    if url is None or (urlsplit(url).hostname or "").lower() != "localhost":
        return None
    return Finding(
        id="NET01",
        severity="block",
        message=f"The endpoint {url} names localhost, which may resolve to ::1 first, where vLLM does not listen.",
        remedy="Write 127.0.0.1.",
        source="vLLM binds to IPv4",
    )


def net02_private_access(s: Subject) -> Finding | None:
    """A machine that can pull nothing."""
    d = s.r.deployment
    if d.subnet_private_google_access is not False or d.tpu.external_ip:
        return None
    return Finding(
        id="NET02",
        severity="block",
        message="The given subnet has no Private Google Access and the machine no external address: it could pull neither image nor weights.",
        remedy="Switch on Private Google Access for the subnet (free of charge), or let the stack make its own network.",
        source="VPC, Private Google Access",
    )


def sec01_token(s: Subject) -> Finding | None:
    """A token where others can read it."""
    source = s.r.deployment.token_source
    if source not in {"environment", "metadata"}:
        return None
    where = (
        "instance metadata, readable by every process on the machine and everyone who may describe it"
        if source == "metadata"
        else "the container's environment, in clear in the service's description"
    )
    return Finding(
        id="SEC01",
        severity="block",
        message=f"The Hugging Face token would stand in {where}.",
        remedy="Keep it in Secret Manager; the service account reads it when the server starts (about $0.06 a month).",
        source="Secret Manager best practices",
    )


def sec02_public(s: Subject) -> Finding | None:
    """An endpoint for everybody."""
    if not s.r.deployment.public:
        return None
    return Finding(
        id="SEC02",
        severity="block",
        message=f"Anyone on the internet could use the endpoint, at up to ${s.cost.max_usd:,.0f} ({s.cost.max_usd_basis}).",
        remedy="Leave public out and name invokers, or accept this finding.",
        source="Cloud Run IAM (allUsers); vllm-project/vllm#58144",
    )


def fus01_owner(s: Subject) -> Finding | None:
    """A mount that the server's user cannot read."""
    run, r = s.r.deployment.cloud_run, s.r
    if r.platform != "cloud-run" or r.weights_mode not in FUSE_MODES or not run.image_uid:
        return None
    wrong = [
        f"{name} {given} (the image runs as {wanted})"
        for name, given, wanted in (("uid", run.mount_uid, run.image_uid), ("gid", run.mount_gid, run.image_gid or 0))
        if given is not None and given != wanted
    ]
    if not wrong:
        return None
    return Finding(
        id="FUS01",
        severity="block",
        message=f"The mount would belong to {' and '.join(wrong)}: the server fails with Permission denied.",
        remedy="Leave the mount's uid and gid out; they are derived from the image.",
        source="Cloud Storage FUSE mount options (uid, gid)",
    )


def cst01_whole_bill(s: Subject) -> Finding | None:
    """The bill with the parts that estimates forget."""
    parts = " + ".join(f"{name} ${price:.2f}" for name, price in s.cost.parts_usd_per_hour)
    idle = f"; ${s.cost.idle_usd_per_hour:.2f}/h while nobody calls" if s.r.platform == "cloud-run" else ""
    return Finding(
        id="CST01",
        severity="info",
        message=f"${s.cost.usd_per_hour:.2f}/h ({parts}){idle}; at most ${s.cost.max_usd:,.0f} ({s.cost.max_usd_basis}); prices of {s.cost.prices_as_of}.",
        remedy="Scale to zero (minInstances 0) where a cold start is bearable."
        if s.r.deployment.cloud_run.min_instances
        else "Prices of your own: --prices FILE.",
        source="Google Cloud price lists",
    )
