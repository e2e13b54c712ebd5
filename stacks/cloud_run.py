"""A stack of target `cloud-run`: a GPU service, with its weights on a mount or in its image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pulumi

from components.cloud_run_gpu_service import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    Collector,
    DirectVpc,
    GcsMount,
    GpuMachine,
    KeptTraffic,
    MemoryVolume,
    ReadinessProbe,
    RequestScaling,
    ServerContainer,
)
from components.container_starter import container_command
from contracts.collector import COLLECTOR_IMAGE
from contracts.compile_cache import ARCHIVE_PREFIX
from contracts.container_start import ContainerStart, GraphCache, graphs_folder
from contracts.outputs import RolloutPlan, StackOutputs
from contracts.path_guard import is_guarded
from contracts.serving_document import BucketWeights
from contracts.staged_weights import MODELS_FOLDER
from planning.data.overheads import constant
from planning.question.types import Plan
from planning.settings.cloud_run import CloudRunSettings, MountSettings, ProbeSettings
from stacks.base import COMMAND, MEMORY_FOLDER, WITHOUT_MOUNT, Context, Foundation, lay_foundation
from stacks.hooks.changed_server import show_changes
from stacks.hooks.observed_service import ServicePlace, observed_service, report_next_step, require_revisions
from stacks.hooks.run_failures import explain_failures
from stacks.hooks.run_keeper import keep_runs
from stacks.hooks.staged_weights import require_staged_weights
from stacks.outputs import stack_outputs
from stacks.secrets import API_KEY
from stacks.server_command import PORT
from stacks.settings import Settings
from stacks.watching import METRICS_ROLE, collector_text, watch

if TYPE_CHECKING:
    from components.private_network import PrivateNetwork

_CACHE_VOLUME = "file-cache"
_GRAPHS_FOLDER = "/mnt/graphs/vllm"
"""VLLM_CACHE_ROOT. An archive in transfer is stored next to it."""


def deploy(context: Context) -> StackOutputs:
    """Declare the service and its resources, and return their outputs."""
    settings = context.settings
    run = settings.cloud_run
    if run is None:
        raise ValueError("settings without cloudRun reached the Cloud Run stack")
    foundation = lay_foundation(
        context,
        project_roles=(METRICS_ROLE,) if settings.collects_metrics else (),
        before_change=lambda: keep_runs(context),
    )
    network = _network(context, run, foundation) if run.direct_vpc else None
    explain_failures(context, run, startup_probe(context.plan), foundation.new_grants)
    require_staged_weights(context)
    show_changes(context)
    if run.rollout is not None and run.rollout.traffic is None:
        report_next_step(context.names.stack)
    service = CloudRunGpuService(
        "vllm",
        _arguments(context, run, foundation, network),
        pulumi.ResourceOptions.merge(
            foundation.options,
            pulumi.ResourceOptions(depends_on=[*foundation.ready, *(network.ready if network else [])]),
        ),
    )
    watch(context, foundation)
    return stack_outputs(
        context,
        foundation,
        endpoint=service.uri,
        auth="none" if run.public else "id-token",
        location=run.region,
        rollout=RolloutPlan(
            service=f"projects/{settings.project}/locations/{run.region}/services/{context.names.base}",
            traffic=run.rollout.traffic,
        )
        if run.rollout
        else None,
    )


def mount_options(mount: MountSettings, settings: Settings) -> Sequence[str]:
    """Return the gcsfuse options. No other user than the files' owner can read them."""
    uid = mount.uid if mount.uid is not None else settings.image.uid or 0
    gid = mount.gid if mount.gid is not None else settings.image.gid or 0
    options = [f"uid={uid}", f"gid={gid}", "implicit-dirs", "metadata-cache-ttl-secs=3600", "max-conns-per-host=100"]
    if mount.mode == "fuse-buffered":
        options.append("enable-buffered-read=true")
    if mount.mode == "fuse-cached":
        options += [
            f"cache-dir=cr-volume:{_CACHE_VOLUME}",
            f"file-cache-max-size-mb={mount.cache_size_mib}",
            "file-cache-enable-parallel-downloads=true",
        ]
    return [*options, *mount.options]


def _arguments(
    context: Context, run: CloudRunSettings, foundation: Foundation, network: "PrivateNetwork | None"
) -> CloudRunGpuServiceArgs:
    settings = context.settings
    return CloudRunGpuServiceArgs(
        project=settings.project,
        location=run.region,
        service_name=context.names.base,
        service_account=foundation.identity.email,
        ownership=context.ownership,
        labels=settings.labels,
        container=_container(context, run, foundation),
        machine=GpuMachine(gpu=run.gpu, cpu=run.cpu, memory_mib=run.memory_mib, zonal_redundancy=run.zonal_redundancy),
        collector=_collector(context, foundation),
        scaling=RequestScaling(
            min_instances=run.min_instances,
            max_instances=run.max_instances,
            concurrency=run.concurrency,
            request_timeout_s=run.request_timeout_s,
        ),
        invokers=["allUsers"] if run.public else run.invokers,
        deletion_protection=run.deletion_protection,
        ingress=run.ingress,
        kept_traffic=_kept_traffic(context, run),
        direct_vpc=None
        if network is None
        else DirectVpc(network=network.network, subnetwork=network.subnetwork_name, tag=context.names.base),
    )


def _collector(context: Context, foundation: Foundation) -> Collector | None:
    config = collector_text(context)
    if config is None:
        return None
    key = {name: secret for name, secret in foundation.secrets.items() if name == API_KEY.variable}
    return Collector(image=COLLECTOR_IMAGE, config=config, secrets=key)


def _kept_traffic(context: Context, run: CloudRunSettings) -> KeptTraffic | None:
    if run.rollout is None:
        return None
    place = ServicePlace(
        project=context.settings.project, region=run.region, name=context.names.base, stack=context.names.stack
    )
    service = observed_service(place)
    require_revisions(place, service, run.rollout.traffic or {})
    return KeptTraffic(service=service, fixed=run.rollout.traffic)


def _container(context: Context, run: CloudRunSettings, foundation: Foundation) -> ServerContainer:
    serving, bucket = foundation.serving, foundation.bucket
    is_mounted = context.settings.weights == "bucket" and run.mount.mode not in WITHOUT_MOUNT
    command, arguments = _command(context, run, foundation)
    keeps_graphs = run.compile_cache == "bucket"
    return ServerContainer(
        image=serving.image,
        command=command,
        arguments=arguments,
        port=PORT,
        startup_probe=startup_probe(context.plan),
        readiness_probe=_readiness_probe(run),
        environment={**serving.environment, **({"VLLM_CACHE_ROOT": _GRAPHS_FOLDER} if keeps_graphs else {})},
        secrets=foundation.secrets,
        mount=GcsMount(bucket=bucket.bucket, path=MODELS_FOLDER, options=mount_options(run.mount, context.settings))
        if bucket is not None and is_mounted
        else None,
        memory_volumes=_memory_volumes(context, run),
    )


def _readiness_probe(run: CloudRunSettings) -> ReadinessProbe | None:
    probe = run.readiness_probe
    if probe is None:
        return None
    return ReadinessProbe(period_s=probe.period_s, failure_threshold=probe.failure_threshold, timeout_s=probe.timeout_s)


def _memory_volumes(context: Context, run: CloudRunSettings) -> list[MemoryVolume]:
    # No volume at /dev/shm, because Cloud Run rejects it, and the single worker of one GPU does not share memory.
    volumes: list[MemoryVolume] = []
    weights_in_bucket = context.settings.weights == "bucket"
    if weights_in_bucket and run.mount.cache_size_mib is not None:
        volumes.append(MemoryVolume(name=_CACHE_VOLUME, path="/mnt/cache", size_limit=f"{run.mount.cache_size_mib}Mi"))
    if weights_in_bucket and (run.mount.mode == "memory" or context.part_copies):
        # All memory that the server itself does not need, so a copy that is too large fails with an error and does not terminate the container.
        left_mib = round((context.subject.resolved.server_memory_gib - constant("SERVER_HOST_GIB")) * 1024)
        volumes.append(MemoryVolume(name="weights", path=MEMORY_FOLDER, size_limit=f"{left_mib}Mi"))
    if run.compile_cache == "bucket":
        volumes.append(MemoryVolume(name="graphs", path="/mnt/graphs", size_limit="2Gi"))
    return volumes


def _command(
    context: Context, run: CloudRunSettings, foundation: Foundation
) -> tuple[Sequence[str], Sequence[pulumi.Input[str]]]:
    """Return the command and its arguments: the server's own, or the starter before them."""
    serving, uri = foundation.serving, context.weights_uri
    weights = BucketWeights(uri, context.model_path) if run.mount.mode == "memory" else None
    key = foundation.archive_key
    if weights is None and key is None and not context.part_copies and not is_guarded(serving.arguments):
        return COMMAND, serving.arguments
    bucket = uri.removeprefix("gs://").partition("/")[0]

    def start(image: str, version: str | None) -> str:
        folder = graphs_folder(image, run.gpu, context.settings.model, serving.arguments[1:])
        archives = f"gs://{bucket}/{ARCHIVE_PREFIX}/{folder}"
        return ContainerStart(
            weights,
            None if version is None else GraphCache(archives, _GRAPHS_FOLDER, version),
            context.part_copies,
        ).text()

    known = pulumi.Output.all(serving.image, None if key is None else key.version_name)
    return container_command(), (known.apply(lambda each: start(*each)), *COMMAND, *serving.arguments)


def startup_probe(plan: Plan) -> ProbeSettings:
    """Return the probe. It detects the server early and does not terminate a slow start."""
    probe = plan.startup.probe
    if probe is None:
        raise ValueError("a plan without a startup probe reached the Cloud Run stack")
    return probe


def _network(context: Context, run: CloudRunSettings, foundation: Foundation) -> "PrivateNetwork":
    from components.private_network import PrivateNetwork, PrivateNetworkArgs  # noqa: PLC0415 - 0.7 s, and few stacks need it

    return PrivateNetwork(
        "network",
        PrivateNetworkArgs(
            project=context.settings.project,
            name=context.names.base,
            regions=[run.region],
            ownership=context.ownership,
            target_tag=context.names.base,
            internet_egress=context.needs_hub,
            allow_iap=False,
        ),
        foundation.options,
    )
