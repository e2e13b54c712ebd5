"""Rules for the platforms: probes, scaling, zones and regions, slices, networks, mounts, cost."""

import math
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from contracts.tunnel_role import SUGGESTED_ID, TunnelRole
from planning.cost.costs import renewals
from planning.cost.running_costs import daily_limit_usd, idle_text, usual_start_s, watching_usd_per_month
from planning.cost.subject import Subject
from planning.data import overheads
from planning.data.prices import PRICES, Price, region_of
from planning.machine.hardware import (
    CLOUD_RUN_MAX_CONCURRENCY,
    CLOUD_RUN_MAX_GPU_PROBE_S,
    CLOUD_RUN_MAX_INITIAL_DELAY_S,
    CLOUD_RUN_MAX_PERIOD_S,
    CLOUD_RUN_MAX_STARTUP_S,
    FLEX_START_MAX_RUN_S,
    FLEX_START_V6E_ZONES,
    MIN_RUN_S,
    gpu_regions,
)
from planning.model.support import version_in_use
from planning.question.hub_files import LoadedRepository, hub_files
from planning.question.recommendation import FUSE_MODES
from planning.question.releases import STREAMS_ON_TPU, is_known_from
from planning.question.types import Remedy, StartupProbe
from planning.question.vllm_args import LORA_MODULES, STREAMER, TOKENIZER, TOKENIZER_REVISION
from planning.question.workload import DEFAULT_WORKLOAD
from planning.rules.alternatives import alternatives_for
from planning.rules.arguments import arguments_named, kept_arguments
from planning.rules.platforms.replicas import sized
from planning.rules.registry import RuleResult, change, rule
from planning.speed.serving import server_of
from planning.speed.startup import PROBE_PERIOD_S, PROBE_TIMEOUT_S, compile_s_of
from planning.units import DAY_S, HOUR_S, duration

STREAMS_FROM_GS: Final = "0.11.1"
"""First release that streams from gs:// with the instance's credentials; its image has the package (vllm-project/vllm#26464)."""
_IN_BUCKET: Final = (*FUSE_MODES, "memory")
_CENT = 0.01
_USUAL_RUN_S = 4 * HOUR_S
_CLIENT_TIMEOUT_S = 600
"""Time after which OpenAI's client libraries end a request, unless their caller sets another."""
_LONGEST_REQUEST_S = HOUR_S
"""Cloud Run's maximum request timeout."""
_FASTER_MODES = ("fuse-buffered", "streamer", "memory")
"""Weights modes that read from the bucket faster than a plain mount, smallest change first."""


@rule("LDR01")
def _load_format(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    given, mode = resolved.deployment.vllm.load_format, resolved.weights_mode
    if given is None:
        return None
    if mode == "streamer" and given != STREAMER:
        return RuleResult(
            f"`vllm.load_format` is {given}, but weights streamed from gs:// need {STREAMER}. The server will find "
            "no weights.",
            remedies=(change("vllm.load_format", None),),
        )
    if mode == "streamer" or not given.startswith(STREAMER):
        return None
    streamed = Remedy(changes={"weights_mode": "streamer", "vllm.load_format": None})
    return RuleResult(
        f"`vllm.load_format` is {given}, but the weights mode is {mode}, planned at "
        f"{duration(subject.startup.load_s)}. The streamer "
        "will read local files at an untested rate; it is fast only when it reads gs:// directly.",
        remedies=(*((streamed,) if mode in _IN_BUCKET else ()), change("vllm.load_format", None)),
    )


@rule("LDR02")
def _streams(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if resolved.weights_mode != "streamer" or is_known_from(resolved, STREAMS_FROM_GS):
        return None
    version = version_in_use(resolved.accelerator, resolved.deployment.image_version)
    has = f"has vLLM {version}" if version else "has an unknown version of vLLM (`image_version`)"
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
    startup, probe = subject.startup, subject.resolved.deployment.cloud_run.startup_probe
    budget_s = probe.budget_s if probe else CLOUD_RUN_MAX_STARTUP_S
    if startup.total_s <= budget_s:
        return None
    given = (
        f"`cloud_run.startup_probe` allows {duration(budget_s)}"
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
    probe = subject.resolved.deployment.cloud_run.startup_probe
    wrong = list(_probe_faults(probe)) if probe is not None else []
    if not wrong:
        return None
    return RuleResult(
        f"Cloud Run will reject the startup probe: {'; '.join(wrong)}.", remedies=_probe_remedies(subject)
    )


def _probe_faults(probe: StartupProbe) -> Iterator[str]:
    """Yield each limit that the probe exceeds."""
    name, delay_s = "cloud_run.startup_probe", probe.initial_delay_s
    if not 0 <= delay_s <= CLOUD_RUN_MAX_INITIAL_DELAY_S:
        yield f"`{name}.initial_delay_s` is {delay_s} s; allowed: 0 to {CLOUD_RUN_MAX_INITIAL_DELAY_S} s"
    if not 1 <= probe.period_s <= CLOUD_RUN_MAX_PERIOD_S:
        yield f"`{name}.period_s` is {probe.period_s} s; allowed: 1 to {CLOUD_RUN_MAX_PERIOD_S} s"
    if probe.failure_threshold < 1:
        yield f"`{name}.failure_threshold` is {probe.failure_threshold}; it must be 1 or more"
    if not 1 <= probe.timeout_s <= probe.period_s:
        yield f"`{name}.timeout_s` is {probe.timeout_s} s; it must not exceed the period ({probe.period_s} s)"
    whole_s = probe.period_s * probe.failure_threshold
    if whole_s > CLOUD_RUN_MAX_GPU_PROBE_S:
        yield f"period times failure threshold is {whole_s} s; the maximum with a GPU is {CLOUD_RUN_MAX_GPU_PROBE_S} s"


@rule("SCL01")
def _queueing(subject: Subject) -> RuleResult | None:
    run, resolved = subject.resolved.deployment.cloud_run, subject.resolved
    if run.concurrency is None:
        return None
    workload = resolved.deployment.workload or DEFAULT_WORKLOAD
    at_once = server_of(resolved, subject.memory, workload).all_slots
    length = min(round(workload.held_tokens), resolved.max_model_len)
    allowed = run.concurrency * run.max_instances
    if allowed < at_once:
        return RuleResult(
            f"Cloud Run allows {allowed} concurrent requests (`cloud_run.concurrency` {run.concurrency} x "
            f"`cloud_run.max_instances` {run.max_instances}), but one instance can serve {at_once} of {length:,} "
            "tokens. Requests will queue while the GPU is underused.",
            remedies=(
                change("cloud_run.concurrency", min(at_once, CLOUD_RUN_MAX_CONCURRENCY)),
                change("cloud_run.max_instances", math.ceil(at_once / run.concurrency)),
            ),
        )
    if run.concurrency <= at_once:
        return None
    limit = (
        "(`vllm.max_num_seqs`)"
        if at_once == resolved.max_num_seqs * resolved.dp
        else f"(KV cache full with requests of {length:,} tokens)"
    )
    return RuleResult(
        f"`cloud_run.concurrency` is {run.concurrency}, but one instance can serve {at_once} concurrent requests "
        f"{limit}. The others will queue inside the instance, where scaling does not count them.",
        remedies=(change("cloud_run.concurrency", at_once), change("vllm.max_num_seqs", run.concurrency)),
    )


_MORE_QUOTA = "Or request more GPU quota (free of charge, takes days)."


@rule("SCL02")
def _quota(subject: Subject) -> RuleResult | None:
    run = subject.resolved.deployment.cloud_run
    region = run.region or "the region"
    extra = max(run.min_instances, 1) if run.rolls_out else 0
    if run.gpu_quota is None:
        if run.max_instances + extra <= _without_quota(subject):
            return None
        candidate = f", and a rollout needs {extra} more for the revision under test" if extra else ""
        return RuleResult(
            f"`cloud_run.max_instances` is {run.max_instances}{candidate}, but the GPU quota of {region} is not set.",
            severity="warn",
            advice=(
                "To read it and print how to set `cloud_run.gpu_quota`, run `gemma doctor STACK`. "
                "Revisions that still hold instances count too."
            ),
        )
    if run.max_instances <= run.gpu_quota:
        return _roll_out_quota(run.max_instances, extra, run.gpu_quota, region)
    changes: dict[str, object] = {"cloud_run.max_instances": run.gpu_quota}
    if run.min_instances > run.gpu_quota:
        changes["cloud_run.min_instances"] = run.gpu_quota
    return RuleResult(
        f"`cloud_run.max_instances` is {run.max_instances}, but the GPU quota of {region} is {run.gpu_quota}. "
        "The deployment will fail.",
        remedies=(Remedy(changes=changes),) if run.gpu_quota else (),
        advice=_MORE_QUOTA,
    )


def _without_quota(subject: Subject) -> int:
    """Return the instances that need no warning while the quota is unset: 1, or 0 for a GPU that new projects have no quota for."""
    is_project = subject.resolved.deployment.cloud_run.region is not None
    return 0 if is_project and not subject.resolved.accelerator.cloud_run.new_project_quota else 1


def _roll_out_quota(most: int, extra: int, allowed: int, region: str) -> RuleResult | None:
    """Find a rollout whose two revisions need more GPUs than the quota. During a traffic split, each may scale to the maximum."""
    if most + extra <= allowed or not extra:
        return None
    is_certain = 2 * extra > allowed  # a revision with traffic or a tag keeps its minimum instances
    return RuleResult(
        f"A rollout needs {most + extra} GPUs: {extra} for the new revision and up to {most} for the serving one "
        f"(`cloud_run.max_instances`), but the GPU quota of {region} is {allowed}. The new revision will "
        f"{'never start' if is_certain else 'not start while all instances run'}.",
        severity="block" if is_certain else "warn",
        advice=_MORE_QUOTA,
    )


@rule("SCL03")
def _region(subject: Subject) -> RuleResult | None:
    run, resolved = subject.resolved.deployment.cloud_run, subject.resolved
    known = gpu_regions(resolved.accelerator)
    if run.region is None or run.region in known:
        return None
    nearest_first = sorted(known, key=lambda name: _continent(name) != _continent(run.region or ""))
    return RuleResult(
        f"{resolved.accelerator.name} is not listed for Cloud Run in {run.region}.",
        remedies=tuple(change("cloud_run.region", name) for name in nearest_first[:3]),
        advice="If the region is newer than this list, accept this finding.",
    )


def _continent(place: str) -> str:
    return place.partition("-")[0]


@rule("SCL06")
def _cold_start(subject: Subject) -> RuleResult | None:
    resolved, run = subject.resolved, subject.resolved.deployment.cloud_run
    limit_s = run.request_timeout_s
    if run.min_instances or limit_s is None:
        return None
    start_s = usual_start_s(subject.startup)
    if start_s <= min(limit_s, _CLIENT_TIMEOUT_S):
        return None
    by_client = f"OpenAI's client libraries time out after {duration(_CLIENT_TIMEOUT_S)} by default"
    by_google = f"Cloud Run terminates it after {duration(limit_s)} (`cloud_run.request_timeout_s`)"
    causes = [text for text, most_s in ((by_google, limit_s), (by_client, _CLIENT_TIMEOUT_S)) if most_s < start_s]
    faster = (change("weights_mode", "fuse-buffered"),) if resolved.weights_mode == "fuse" else ()
    return RuleResult(
        "`cloud_run.min_instances` is 0, so the first request after a pause waits for a start of up to "
        f"{duration(start_s)}. {', and '.join(causes)}.",
        remedies=(
            change("cloud_run.request_timeout_s", _LONGEST_REQUEST_S),
            *faster,
            change("cloud_run.graph_cache", "bucket"),
            change("cloud_run.min_instances", 1),
        ),
        advice=f"One minimum instance costs ${subject.cost.usd_per_hour * 24:,.2f} per day.",
    )


@rule("TPU01")
def _slice_parallelism(subject: Subject) -> RuleResult | None:
    resolved, chips = subject.resolved, subject.resolved.accelerator.devices
    used = resolved.tp * resolved.dp
    if used == chips:
        return None
    set_to = f"`vllm.tensor_parallel_size` is {resolved.tp}"
    if resolved.dp > 1:
        set_to += f" and `vllm.data_parallel_size` is {resolved.dp}, {used} chips together"

    def remedies() -> Iterator[Remedy]:
        yield Remedy(changes={"vllm.tensor_parallel_size": chips, "vllm.data_parallel_size": None})
        yield sized(None)
        if used < chips and chips % resolved.tp == 0 and not resolved.spec.is_moe:
            yield change("vllm.data_parallel_size", chips // resolved.tp)
        if resolved.dp > 1 and chips % resolved.dp == 0:
            yield change("vllm.tensor_parallel_size", None)

    return RuleResult(
        f"{set_to}, but {resolved.accelerator.name} has {chips} chip(s). The server will not start, or will leave "
        "paid chips idle.",
        remedies=remedies(),
        last_resorts=alternatives_for(subject),
    )


@rule("TPU02")
def _run_duration(subject: Subject) -> RuleResult | None:
    tpu = subject.resolved.deployment.tpu
    run_s = tpu.max_run_duration_s
    if run_s is None:
        if tpu.provisioning_model != "flex-start":
            return None
        message = (
            "`tpu.max_run_duration_s` is not set, but flex-start requires it. Google deletes the nodes when it expires."
        )
        allowed_s = _USUAL_RUN_S
    elif run_s > FLEX_START_MAX_RUN_S:
        message = (
            f"`tpu.max_run_duration_s` is {duration(run_s)}, but the maximum is {FLEX_START_MAX_RUN_S // DAY_S} d."
        )
        allowed_s = FLEX_START_MAX_RUN_S
    elif run_s < MIN_RUN_S:
        message = f"`tpu.max_run_duration_s` is {duration(run_s)}, but the minimum is {duration(MIN_RUN_S)}: a large model takes longer to load."
        allowed_s = MIN_RUN_S
    else:
        return None
    price = subject.cost.usd_per_hour * allowed_s / HOUR_S
    return RuleResult(
        message,
        remedies=(change("tpu.max_run_duration_s", allowed_s),),
        advice=f"A run of {duration(allowed_s)} costs ${price:,.2f}.",
    )


@rule("TPU04")
def _zones(subject: Subject) -> RuleResult | None:
    tpu, accelerator = subject.resolved.deployment.tpu, subject.resolved.accelerator
    if not accelerator.name.startswith("v6e") or tpu.provisioning_model != "flex-start":
        return None
    unknown = [zone for zone in tpu.zones if zone not in FLEX_START_V6E_ZONES]
    if not unknown:
        return None
    known = tuple(zone for zone in tpu.zones if zone in FLEX_START_V6E_ZONES)
    continents = {_continent(zone) for zone in tpu.zones}
    near = tuple(zone for zone in FLEX_START_V6E_ZONES if _continent(zone) in continents)
    choices = dict.fromkeys(choice for choice in (near, FLEX_START_V6E_ZONES) if choice)
    # An existing subnet is in the region of the current zones. Other zones need the stack's own network.
    own_network = {} if tpu.private_google_access is None else {"tpu.private_google_access": None}
    return RuleResult(
        f"Flex-start v6e is not listed for {', '.join(unknown)}. A zone needs the hardware, your quota and the "
        "flex-start offer; many have only two of the three.",
        remedies=(
            *((change("tpu.zones", known),) if known else ()),
            *(Remedy(changes={"tpu.zones": choice, **own_network}) for choice in choices if choice != known),
        ),
        advice="If a zone is newer than this list, accept this finding.",
    )


@rule("TPU06")
def _compile_cache(subject: Subject) -> RuleResult | None:
    if subject.resolved.deployment.tpu.compile_cache != "off":
        return None
    return RuleResult(
        f"`tpu.compile_cache` is off. Each restart will compile for {duration(subject.startup.compile_s)} "
        f"instead of {duration(compile_s_of(subject.resolved, is_cached=True))}.",
        remedies=(change("tpu.compile_cache", "machine"),),
    )


@rule("TPU07")
def _streamer_on_tpu(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if resolved.weights_mode != "streamer":
        return None
    remedies = (Remedy(changes={"vllm.load_format": None, "weights_mode": "disk"}),)
    if not is_known_from(resolved, STREAMS_ON_TPU):
        return RuleResult(
            f"`vllm.load_format` is runai_streamer, but reading gs:// on a TPU needs vLLM {STREAMS_ON_TPU} or later. "
            "The image is older or of unknown version, so the server will not start.",
            remedies=remedies,
        )
    return RuleResult(
        "`vllm.load_format` is runai_streamer, which stores no weights on the machine. Each start will read "
        f"{subject.memory.checkpoint_gib:.1f} GiB from the bucket. Published rates on TPU hosts range from 56 MB/s to "
        f"over 1 GB/s; the plan uses {overheads.STREAMER_BYTES_PER_S / 1e9:g} GB/s.",
        severity="warn",
        remedies=remedies,
    )


@rule("NET01")
def _localhost(subject: Subject) -> RuleResult | None:
    url = subject.resolved.deployment.endpoint_url
    parts = urlsplit(url or "")
    if url is None or (parts.hostname or "").lower() != "localhost":
        return None
    port = parts.netloc.lower().rpartition("localhost")[2]
    address = urlunsplit(parts._replace(netloc=f"127.0.0.1{port}"))
    return RuleResult(
        f"`endpoint_url` is {url}, but localhost may resolve to ::1 first, where vLLM does not listen.",
        remedies=(change("endpoint_url", address),),
    )


@rule("NET02")
def _private_access(subject: Subject) -> RuleResult | None:
    if subject.resolved.deployment.tpu.private_google_access is not False:
        return None
    return RuleResult(
        "`tpu.private_google_access` is false, but the machine has no external address. It will not be able to pull "
        "the image or the weights.",
        remedies=(change("tpu.private_google_access", None),),
        advice="Or enable Private Google Access for the subnet (free of charge) and set `tpu.private_google_access` to true.",
    )


@rule("NET03")
def _hub_without_nat(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    files = tuple(hub_files(resolved))
    if resolved.deployment.tpu.private_google_access is None or resolved.weights_mode == "hub" or not files:
        return None
    listed = " and ".join(f"the {one.kind} {one.name}" for one in files)
    return RuleResult(
        f"The server downloads {listed} from the Hugging Face hub at each start, because the bucket has no staged "
        "copy. The machine has no external address, and the stack adds Cloud NAT only to its own network. Without "
        "Cloud NAT in the subnet of tpu.existingNetwork, the server will not start.",
        remedies=(change("tpu.private_google_access", None), _without_files(subject, files)),
        advice=(
            "Or run scripts.stage_model, which copies drafters and adapters to the bucket. If that subnet has Cloud "
            "NAT, accept this finding."
        ),
    )


def _without_files(subject: Subject, files: Sequence[LoadedRepository]) -> Remedy:
    """Return the change that removes the drafter, and the arguments that name a tokenizer or adapters."""
    kinds, changes = {one.kind for one in files}, dict[str, object]()
    if "drafter" in kinds:
        changes["vllm.speculative_config"] = None
    if "adapter" in kinds and subject.resolved.deployment.vllm.lora_adapters is not None:
        changes |= {"vllm.lora_adapters": None, "vllm.max_lora_rank": None, "vllm.max_loras": None}
        kinds -= {"adapter"}
    if kinds - {"drafter"}:
        named = {TOKENIZER, TOKENIZER_REVISION, LORA_MODULES}
        changes["vllm.extra_args"] = kept_arguments(subject, arguments_named(subject, named))
    return Remedy(changes=changes)


@rule("SEC03")
def _metadata_keys(subject: Subject) -> RuleResult | None:
    if subject.resolved.deployment.tpu.ssh == "os-login":
        return None
    return RuleResult(
        "`tpu.ssh` is metadata-key, and OS Login is off. Anyone with an SSH key in the metadata of the project or "
        "the machine is root on it, and can read the stack's secrets and the token of its service account.",
        remedies=(change("tpu.ssh", "os-login"),),
        advice="Or keep it if a policy or an account outside the organization rules out OS Login.",
    )


@rule("SEC09")
def _tunnel_admins(subject: Subject) -> RuleResult | None:
    tpu = subject.resolved.deployment.tpu
    if tpu.api != "cloud-tpu" or not tpu.tunnel_members or tpu.tunnel_role:
        return None
    count = len(tpu.tunnel_members)
    whom = f"{count} members" if count > 1 else "1 member"
    command = TunnelRole("projects/YOUR_PROJECT", SUGGESTED_ID).create_command()
    return RuleResult(
        f"`tpu.tunnel_members` grants {whom} roles/tpu.admin, which can create, stop and delete every TPU of the "
        "project. A tunnel needs only a custom role with 3 permissions.",
        remedies=(change("tpu.tunnel_role", SUGGESTED_ID),),
        advice=f"Create the role once, before `pulumi up`: `{command}`.",
    )


@rule("FUS01")
def _mount_owner(subject: Subject) -> RuleResult | None:
    run, resolved = subject.resolved.deployment.cloud_run, subject.resolved
    if resolved.weights_mode not in FUSE_MODES or not run.image_uid:
        return None
    owners = (("uid", run.mount_uid, run.image_uid), ("gid", run.mount_gid, run.image_gid or 0))
    wrong = {name: (given, wanted) for name, given, wanted in owners if given is not None and given != wanted}
    if not wrong:
        return None
    listed = " and ".join(f"{name} {given} (the image runs as {wanted})" for name, (given, wanted) in wrong.items())
    return RuleResult(
        f"The mount will be owned by {listed}. The server will fail with Permission denied.",
        remedies=(Remedy(changes={f"cloud_run.mount_{name}": None for name in wrong}),),
    )


@rule("CST01")
def _whole_bill(subject: Subject) -> RuleResult | None:
    cost, resolved = subject.cost, subject.resolved
    if not cost.is_known:
        return None
    parts = " + ".join(f"{name} ${price:.2f}" for name, price in cost.parts_usd_per_hour)
    idle = f"; {idle_text(subject)}" if resolved.platform == "cloud-run" else ""
    watching_usd = watching_usd_per_month(subject)
    watched = f"; alerts and metrics up to ${watching_usd:.2f} per month" if watching_usd else ""
    daily_usd = daily_limit_usd(subject)
    watched += f"; an alert above ${daily_usd:.2f} per day" if daily_usd else ""
    return RuleResult(
        f"${cost.usd_per_hour:.2f}/h ({parts}){_range(subject)}{idle}{watched}; ${cost.max_usd:,.2f} maximum "
        f"({cost.max_usd_basis}); prices of {cost.prices_as_of or 'an unknown date'}."
    )


def _range(subject: Subject) -> str:
    """Return the price range per hour if it differs by zone. The most expensive zone counts until one is granted."""
    cost = subject.cost
    if cost.usd_per_hour - cost.lowest_usd_per_hour < _CENT:
        return ""
    cheapest = min(cost.places, key=lambda one: one.usd_per_hour)
    highest = max(cost.places, key=lambda one: one.usd_per_hour)
    return f" in {highest.place}, the most expensive zone; ${cheapest.usd_per_hour:.2f}/h in {cheapest.place}"


@rule("CST02")
def _kept_warm(subject: Subject) -> RuleResult | None:
    least = subject.resolved.deployment.cloud_run.min_instances
    if not least:
        return None
    return RuleResult(
        f"`cloud_run.min_instances` is {least}, which costs ${subject.cost.idle_usd_per_hour * 24:,.2f} per day, even "
        "when idle. Google never stops it.",
        remedies=(change("cloud_run.min_instances", 0),),
        advice=(
            "No instance then runs without requests, and the first request after a pause waits for a cold start of up to "
            f"{duration(usual_start_s(subject.startup))}. docs/costs.md states when that is cheaper."
        ),
    )


@rule("CST03")
def _limit_before_the_end(subject: Subject) -> RuleResult | None:
    limit_usd, cost = subject.resolved.deployment.max_usd, subject.cost
    if limit_usd is None or cost.max_usd <= limit_usd:
        return None
    renewed = renewals(subject.resolved) is not None
    fitting_s = int(limit_usd / cost.usd_per_hour * HOUR_S // 60 * 60)
    shorter = (change("tpu.max_run_duration_s", fitting_s),) if fitting_s >= MIN_RUN_S and not renewed else ()
    return RuleResult(
        f"`max_usd` is {limit_usd}, but the machine costs that much after {duration(fitting_s)}; its maximum is "
        f"${cost.max_usd:,.0f} ({cost.max_usd_basis}). Google does not enforce `max_usd`; only a scheduled guard "
        "(docs/limits.md) will tear the stack down then.",
        remedies=(*shorter, change("max_usd", math.ceil(cost.max_usd))),
    )


@rule("CST04")
def _old_prices(subject: Subject) -> RuleResult | None:
    today, prices = subject.resolved.deployment.today, _prices(subject)
    # CST05 reports an unknown price, and one that a refresh did not find.
    known = (price for price in prices if not (price.is_assumed or price.missed_on))
    old = [price for price in known if today and price.is_old(today)]
    if today is None or not old:
        return None
    oldest = min(old, key=lambda price: price.as_of)
    age_days = oldest.age_days(today)
    age = "undated" if age_days is None else f"{age_days} days old (limit {oldest.max_age_days})"
    named = f"{oldest.key}{f' in {oldest.region}' if oldest.region else ''}"
    return RuleResult(f"{len(old)} of {len(prices)} prices may be out of date: {named} is {age}.", advice=_update(old))


@rule("CST05")
def _assumed_prices(subject: Subject) -> RuleResult | None:
    prices = [price for price in _prices(subject) if price.is_assumed or price.missed_on]
    if not prices:
        return None
    missed = [price for price in prices if price.missed_on]
    if not missed:
        regions, keys = (
            ", ".join(dict.fromkeys(each)) for each in zip(*((p.region, p.key) for p in prices), strict=True)
        )
        return RuleResult(
            f"No price of {keys} in {regions} is known. The highest known price is used.", advice=_update(prices)
        )
    price = missed[0]
    found = "several prices" if price.is_unclear else "no price"
    others = f" {len(missed) - 1} more have the same problem." if len(missed) > 1 else ""
    used = "highest known price" if price.is_assumed else "list price"
    fixes = tuple(_without_regions(subject, missed))
    return RuleResult(
        f"Google's price catalog of {price.missed_on} has {found} for {price.key} in {price.region}. "
        f"The {used} is used (${price.usd:g}).{others}",
        remedies=fixes,
        advice=f"{'Or write' if fixes else 'Write'} the price that you pay to a price file (docs/costs.md).",
    )


def _update(prices: Sequence[Price]) -> str:
    """Return how to get current prices. A refresh replaces no price of the user's own, which precedes it."""
    if all(PRICES[price.key].sku and not price.is_own for price in prices):
        return "Run `gemma plan prices`."
    if any(price.is_own for price in prices):
        return "Update your price file and its as_of (docs/costs.md)."
    return "Write the current prices to a price file (docs/costs.md)."


def _without_regions(subject: Subject, missed: Sequence[Price]) -> Iterator[Remedy]:
    """Yield the change that removes the zones in the regions of these prices, if others are left."""
    regions, zones = {price.region for price in missed}, subject.resolved.deployment.tpu.zones
    kept = tuple(zone for zone in zones if region_of(zone) not in regions)
    if kept and kept != zones:
        yield change("tpu.zones", kept)


def _prices(subject: Subject) -> tuple[Price, ...]:
    """Return the hourly prices in every location, without duplicates."""
    return tuple(dict.fromkeys(price for place in subject.cost.places for price in place.prices))
