"""From settings to the planner's question, and from its answer to the program's decision to go on."""

import json
from datetime import UTC, datetime
from pathlib import Path

from cloud.model_files import PROJECT, read_model
from planning.errors import PlanningError
from planning.memory.margins import margin_words
from planning.model.spec import ModelSpec
from planning.question.types import CloudRunOptions, Deployment, Finding, Plan, StartupProbe, TpuOptions, WeightsMode
from planning.rules.findings import ACCEPTABLE_IDS
from planning.solve.wording import Wording, remedy_of, worded
from stacks.price_file import book_of
from stacks.settings import CloudRunSettings, ProbeSettings, Settings, TpuSettings


class BlockedError(ValueError):
    """The plan has findings that stop the stack; the message lists them with their remedies."""


def today() -> str:
    """Return the date by which prices are old, YYYY-MM-DD in UTC: the planner has no clock."""
    return datetime.now(UTC).date().isoformat()


def to_deployment(settings: Settings, folder: Path = PROJECT, *, today: str | None = None) -> Deployment:
    """Return the planner's view of the settings; nothing is lost that the planner could judge.

    `modelConfig` and `draftConfig` are files below `folder`. Without `today` no price is called old.

    Raises:
        PlanningError: if a file that the settings name cannot be read, or has a mistake.
    """
    tpu, run = settings.tpu, settings.cloud_run
    return Deployment(
        model=settings.model,
        model_revision=settings.model_revision or "",
        accelerator=tpu.accelerator_type if tpu else run.gpu if run else "",
        platform="tpu-vm" if tpu else "cloud-run",
        quantization=settings.quantization,
        vllm=settings.vllm,
        image_version=settings.image.version or "",
        image_supports=tuple(settings.image.supports),
        weights_mode=_weights_mode(settings),
        host_memory_gib=run.memory_mib / 1024 if run else None,
        vcpu=run.cpu if run else None,
        tpu=_tpu_options(tpu) if tpu else TpuOptions(),
        cloud_run=_cloud_run_options(run, settings) if run else CloudRunOptions(),
        public=run.public if run else False,
        has_api_key=settings.has_secret("apiKey"),
        endpoint_url=settings.endpoint_url,
        workload=settings.workload,
        measured_tok_per_s=settings.measured_tok_per_s,
        max_usd=settings.max_usd,
        accept_findings=tuple(settings.accept_findings),
        model_spec=_model(settings.architecture_file, folder, settings.model, key="modelConfig"),
        draft_spec=_model(settings.drafter_file, folder, _drafter_id(settings), key="draftConfig"),
        prices=book_of(settings.prices),
        today=today,
        existing_bucket=settings.bucket.existing,
        bucket_region=settings.bucket.region,
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
    if plan.fits and plan.margin:
        verdict = f"fits, but may fail ({margin_words(plan.margin)}),"
    most = "at most " if plan.platform == "cloud-run" else ""
    return (
        f"{plan.model} {verdict} on {plan.accelerator}: weights {memory.weights_gib:.1f} of {memory.usable_gib:.1f} GiB a device, KV cache for "
        f"{memory.kv_tokens:,} tokens ({memory.max_concurrency:.1f} requests of the longest length); starts in {most}{startup.ready_s / 60:.0f} min; "
        f"{plan.throughput.decode_tok_per_s:.0f} tok/s for one request."
    )


def doctor_hint(stack: str) -> str:
    """Return the sentence that names the command which finds everything that Google would refuse."""
    return f"python -m scripts.doctor --stack {stack} lists what the project lacks, with the commands that mend it."


def require_unblocked(plan: Plan, stack: str, wording: Wording) -> None:
    """Raise BlockedError if the plan has findings that stop the stack and were not accepted."""
    if not plan.stopping:
        return
    lines = [finding_text(finding, wording) for finding in plan.stopping]
    ids = ", ".join(finding.id for finding in plan.stopping if finding.id in ACCEPTABLE_IDS)
    accept = f", or accept with gemma-serving:acceptFindings: [{ids}]" if ids else ""
    hint = (
        f"Nothing was declared. Change Pulumi.{stack}.yaml as said above (python -m scripts.plan --stack {stack} --fix shows the "
        f"change){accept}. python -m scripts.plan --stack {stack} shows the figures."
    )
    raise BlockedError("\n".join([f"The plan stops stack {stack}:", *lines, hint]))


def finding_text(finding: Finding, wording: Wording) -> str:
    """Return a finding in words: its id, what was found, and what to change in the settings file."""
    return f"{finding.id}: {worded(finding.message, wording)} {remedy_of(finding, wording)}".rstrip()


def _model(file: str | None, folder: Path, name: str | None, *, key: str) -> ModelSpec | None:
    if file is None:
        return None
    try:
        return read_model(folder / file, name=name)
    except PlanningError as error:
        raise PlanningError(f"gemma-serving:{key} = {json.dumps(file)}: {error}") from None


def _drafter_id(settings: Settings) -> str | None:
    named = (settings.vllm.speculative_config or {}).get("model")
    return named if isinstance(named, str) else None


def _weights_mode(settings: Settings) -> WeightsMode:
    if settings.weights == "hub":
        return "hub"
    if settings.weights == "prefetched-image":
        return "image"
    if settings.streams_on_tpu:
        return "streamer"
    return settings.cloud_run.mount.mode if settings.cloud_run else "disk"


def _tpu_options(tpu: TpuSettings) -> TpuOptions:
    return TpuOptions(
        provisioning_model=tpu.provisioning,
        api=tpu.api,
        max_run_duration_s=tpu.max_run_duration_s,
        zones=tuple(tpu.zones),
        compile_cache=tpu.compile_cache,
        boot_disk_size_gb=tpu.boot_disk_size_gb,
        renew_before_s=tpu.renew_before_s,
        ssh=tpu.ssh,
        tunnel_members=tuple(tpu.tunnel_members),
        tunnel_role=tpu.tunnel_role,
        private_google_access=tpu.existing_network.private_google_access if tpu.existing_network else None,
    )


def _cloud_run_options(run: CloudRunSettings, settings: Settings) -> CloudRunOptions:
    return CloudRunOptions(
        region=run.region,
        concurrency=run.concurrency,
        min_instances=run.min_instances,
        max_instances=run.max_instances,
        startup_probe=to_probe(run.startup_probe) if run.startup_probe else None,
        gpu_quota=run.gpu_quota,
        cpu_quota=run.cpu_quota,
        memory_quota_gib=None if run.memory_quota_mib is None else run.memory_quota_mib / 1024,
        zonal_redundancy=run.zonal_redundancy,
        direct_vpc=run.direct_vpc,
        mount_uid=run.mount.uid,
        mount_gid=run.mount.gid,
        image_uid=settings.image.uid,
        image_gid=settings.image.gid,
        cuda13_image=settings.image.needs_cuda_13,
        cuda_compatibility=run.cuda_compatibility,
        rolls_out=run.rollout is not None,
        graph_cache=run.compile_cache,
        file_cache_gib=None if run.mount.cache_mib is None else run.mount.cache_mib / 1024,
    )
