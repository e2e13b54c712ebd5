"""From settings to the planner's question, and from its answer to the program's decision to go on."""

from planning.hardware import FLEX_START_V6E_ZONES, L4_REGIONS, RTX_PRO_6000_REGIONS
from planning.types import CloudRunOptions, Deployment, Plan, StartupProbe, TpuOptions, WeightsMode
from planning.vllm_args import XLA_CACHE_PATH
from stacks.settings import CloudRunSettings, ProbeSettings, Settings, TpuSettings

_REGIONS = {"nvidia-l4": L4_REGIONS, "nvidia-rtx-pro-6000": RTX_PRO_6000_REGIONS}


class PlacesError(ValueError):
    """A zone or region does not have the accelerator; the message names those that have."""


class BlockedError(ValueError):
    """The plan has findings that stop the stack; the message lists them with their remedies."""


def to_deployment(settings: Settings) -> Deployment:
    """Return the planner's view of the settings; nothing is lost that the planner could judge."""
    tpu, run = settings.tpu, settings.cloud_run
    return Deployment(
        model=settings.model,
        accelerator=tpu.accelerator_type if tpu else run.gpu if run else "",
        platform="tpu-vm" if tpu else "cloud-run",
        quantization=settings.quantization,
        vllm=settings.vllm,
        weights_mode=_weights_mode(settings),
        host_memory_gib=run.memory_mib / 1024 if run else None,
        vcpu=run.cpu if run else None,
        tpu=_tpu_options(tpu) if tpu else TpuOptions(),
        cloud_run=_cloud_run_options(run, settings) if run else CloudRunOptions(),
        public=run.public if run else False,
        endpoint_url=settings.endpoint_url,
        subnet_private_google_access=tpu.existing_network.private_google_access
        if tpu and tpu.existing_network
        else None,
        measured_tok_per_s=settings.measured_tok_per_s,
        token_source="secret-manager" if settings.has_hf_token else "none",
        accept_findings=tuple(settings.accept_findings),
    )


def check_places(settings: Settings) -> None:
    """Refuse a zone or region in which the accelerator is not known to exist, before anything is asked of the cloud.

    Raises PlacesError.
    """
    tpu, run = settings.tpu, settings.cloud_run
    if tpu is not None and tpu.provisioning == "flex-start" and tpu.accelerator_type.startswith("v6e"):
        for index, zone in enumerate(tpu.zones):
            if zone not in FLEX_START_V6E_ZONES:
                raise PlacesError(
                    f'gemma-serving:tpu.zones[{index}] = "{zone}": no flex-start {tpu.accelerator_type} is known there; known are '
                    f"{', '.join(FLEX_START_V6E_ZONES)}."
                )
    if run is not None and run.region not in _REGIONS[run.gpu]:
        raise PlacesError(
            f'gemma-serving:cloudRun.region = "{run.region}": Cloud Run has no {run.gpu} there; it has in {", ".join(_REGIONS[run.gpu])}.'
        )


def to_probe(probe: ProbeSettings) -> StartupProbe:
    """Return the planner's view of a startup probe."""
    return StartupProbe(
        initial_delay_s=probe.initial_delay_s,
        period_s=probe.period_s,
        failure_threshold=probe.failure_threshold,
        timeout_s=probe.timeout_s,
    )


def headline(plan: Plan) -> str:
    """Return the plan in one line: fits or not, start-up, speed; what it costs is a finding of its own (CST01)."""
    memory, startup = plan.memory, plan.startup
    verdict = {"fits": "fits", "oom": "does not fit", "blocked": "is blocked"}[plan.verdict]
    return (
        f"{plan.model} {verdict} on {plan.accelerator}: weights {memory.weights_gib:.1f} of {memory.usable_gib:.1f} GiB a device, KV cache for "
        f"{memory.kv_tokens:,} tokens ({memory.max_concurrency:.1f} requests of the longest length); starts in {startup.total_s / 60:.0f} min; "
        f"{plan.throughput.decode_tok_per_s:.0f} tok/s for one request."
    )


def require_unblocked(plan: Plan, stack: str) -> None:
    """Raise BlockedError where the plan has findings that stop the stack and were not accepted."""
    if not plan.stopping:
        return
    lines = [f"{finding.id}: {finding.message} {finding.remedy}" for finding in plan.stopping]
    ids = ", ".join(finding.id for finding in plan.stopping)
    hint = f"Nothing was declared. Change Pulumi.{stack}.yaml as said above, or accept with gemma-serving:acceptFindings: [{ids}]; "
    raise BlockedError(
        "\n".join(
            [
                f"The plan stops stack {stack}:",
                *lines,
                f"{hint}python -m scripts.plan --stack {stack} shows the figures.",
            ]
        )
    )


def _weights_mode(settings: Settings) -> WeightsMode:
    if settings.weights == "hub":
        return "hub"
    if settings.weights == "prefetched-image":
        return "image"
    return settings.cloud_run.mount.mode if settings.cloud_run else "disk"


def _tpu_options(tpu: TpuSettings) -> TpuOptions:
    return TpuOptions(
        provisioning_model=tpu.provisioning,
        max_run_duration_s=tpu.max_run_duration_s,
        valid_until_s=tpu.wait_per_zone_s,
        zones=tuple(tpu.zones),
        external_ip=False,
        compile_cache_path=XLA_CACHE_PATH if tpu.compile_cache == "memory" else None,
        allow_replace_active=tpu.allow_replace_active,
    )


def _cloud_run_options(run: CloudRunSettings, settings: Settings) -> CloudRunOptions:
    return CloudRunOptions(
        region=run.region,
        concurrency=run.concurrency,
        min_instances=run.min_instances,
        max_instances=run.max_instances,
        startup_probe=to_probe(run.startup_probe) if run.startup_probe else None,
        gpu_quota=run.gpu_quota,
        zonal_redundancy=run.zonal_redundancy,
        mount_uid=run.mount.uid,
        mount_gid=run.mount.gid,
        image_uid=settings.image.uid,
        image_gid=settings.image.gid,
        cuda13_image=settings.image.needs_cuda_13,
    )
