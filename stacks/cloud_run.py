"""A stack of target `cloud-run`: a GPU service, its weights on a mount or in its image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pulumi

from components.cloud_run_gpu_service import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    DirectVpc,
    GcsMount,
    GpuMachine,
    MemoryVolume,
    RequestScaling,
    SecretVariable,
    ServerContainer,
    ServiceAccess,
)
from planning.types import Plan, StartupProbe
from stacks.base import MODELS_FOLDER, Context, Foundation, lay_foundation
from stacks.outputs import export, stack_outputs
from stacks.run_failures import explain_failures
from stacks.settings import CloudRunSettings, MountSettings, Settings
from stacks.staged_weights import require_staged_weights

if TYPE_CHECKING:
    from components.private_network import PrivateNetwork

_CACHE_VOLUME = "file-cache"


def deploy(context: Context) -> None:
    """Declare the service and the resources that it needs, and export their outputs."""
    settings = context.settings
    run = settings.cloud_run
    if run is None:
        raise ValueError("settings without cloudRun reached the Cloud Run stack")
    foundation = lay_foundation(context, region=run.region, project_roles=())
    network = _network(context, run, foundation) if run.direct_vpc else None
    explain_failures(context, run, startup_probe(context.plan))
    require_staged_weights(context)
    service = CloudRunGpuService(
        "vllm",
        _arguments(context, run, foundation, network),
        pulumi.ResourceOptions.merge(
            foundation.options,
            pulumi.ResourceOptions(depends_on=[*foundation.ready, *(network.ready if network else [])]),
        ),
    )
    export(
        stack_outputs(
            context,
            foundation,
            endpoint=service.uri,
            auth="none" if run.public else "id-token",
            location=run.region,
        )
    )


def mount_options(mount: MountSettings, settings: Settings) -> Sequence[str]:
    """Return the options of gcsfuse: those of every mount, then those of the mode, then those of the settings.

    The files belong to the user that the image runs as: another user could not read them.
    """
    uid = mount.uid if mount.uid is not None else settings.image.uid or 0
    gid = mount.gid if mount.gid is not None else settings.image.gid or 0
    options = [f"uid={uid}", f"gid={gid}", "implicit-dirs", "metadata-cache-ttl-secs=3600", "max-conns-per-host=100"]
    if mount.mode == "fuse-buffered":
        options.append("enable-buffered-read=true")
    if mount.mode == "fuse-cached":
        options += [
            f"cache-dir=cr-volume:{_CACHE_VOLUME}",
            f"file-cache-max-size-mb={mount.cache_mib}",
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
        scaling=RequestScaling(
            min_instances=run.min_instances,
            max_instances=run.max_instances,
            concurrency=run.concurrency,
            request_timeout_s=run.request_timeout_s,
        ),
        access=ServiceAccess(invokers=run.invokers, public=run.public),
        deletion_protection=run.deletion_protection,
        direct_vpc=None
        if network is None
        else DirectVpc(network=network.network, subnetwork=network.subnetwork_name, tag=context.names.base),
    )


def _container(context: Context, run: CloudRunSettings, foundation: Foundation) -> ServerContainer:
    serving, bucket = foundation.serving, foundation.bucket
    # No volume at /dev/shm: Cloud Run refuses it, and the one worker of one GPU shares memory with nobody.
    volumes: list[MemoryVolume] = []
    if bucket is not None and run.mount.cache_mib is not None:
        volumes.append(MemoryVolume(name=_CACHE_VOLUME, path="/mnt/cache", size_limit=f"{run.mount.cache_mib}Mi"))
    return ServerContainer(
        image=serving.image,
        command=serving.command,
        arguments=serving.arguments,
        port=serving.port,
        startup_probe=startup_probe(context.plan),
        environment=serving.environment,
        secret_variables=_secrets(foundation),
        mount=None
        if bucket is None
        else GcsMount(bucket=bucket.bucket, path=MODELS_FOLDER, options=mount_options(run.mount, context.settings)),
        memory_volumes=volumes,
    )


def _secrets(foundation: Foundation) -> Sequence[SecretVariable]:
    return [
        SecretVariable(name=name, secret_id=secret.secret_id, version=secret.version)
        for name, secret in foundation.secrets.items()
    ]


def startup_probe(plan: Plan) -> StartupProbe:
    """Return the probe of the settings, else the planner's: it sees the server soon, and ends no start that is slower than planned."""
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
            internet_egress=context.settings.weights == "hub",
            allow_iap=False,
        ),
        foundation.options,
    )
