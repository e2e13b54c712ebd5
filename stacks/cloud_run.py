"""A stack of target `cloud-run`: a GPU service, its weights on a mount or in its image."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pulumi

from components.cloud_run_gpu_service import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    DirectVpc,
    GcsMount,
    MemoryVolume,
    SecretVariable,
    probe_for,
)
from planning.types import StartupProbe
from planning.vllm_args import vllm_arguments
from stacks.base import COMMAND, MODELS_FOLDER, PORT, Context, Foundation, lay_foundation
from stacks.outputs import export, served_model
from stacks.planned import to_probe
from stacks.settings import CloudRunSettings, MountSettings, Settings

if TYPE_CHECKING:
    from components.private_network import PrivateNetwork

_SHM = MemoryVolume(name="shm", path="/dev/shm", size_limit="8Gi")  # noqa: S108  vLLM's workers share memory there
_CACHE_VOLUME = "file-cache"


def deploy(context: Context) -> None:
    """Declare the service and what it stands on, and export its outputs."""
    settings = context.settings
    run = settings.cloud_run
    if run is None:
        raise ValueError("settings without cloudRun reached the Cloud Run stack")
    apis = ("run", "compute") if run.direct_vpc else ("run",)
    foundation = lay_foundation(context, region=run.region, apis=apis, project_roles=())
    network = _network(context, run, foundation) if run.direct_vpc else None
    service = CloudRunGpuService(
        "vllm",
        _arguments(context, run, foundation, network),
        pulumi.ResourceOptions.merge(
            foundation.options,
            pulumi.ResourceOptions(depends_on=[*foundation.ready, *(network.ready if network else [])]),
        ),
    )
    export(
        context,
        endpoint=service.uri,
        auth="none" if run.public else "id-token",
        tunnel=None,
        image=foundation.image.ref,
        location=run.region,
    )


def mount_options(mount: MountSettings, settings: Settings) -> Sequence[str]:
    """Return gcsfuse's options: owned by the image's own user, since a mount of root's cannot be read by another, then the mode's, then the user's."""
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
    settings, plan = context.settings, context.plan
    volumes = [_SHM]
    if foundation.bucket is not None and run.mount.cache_mib is not None:
        volumes.append(MemoryVolume(name=_CACHE_VOLUME, path="/mnt/cache", size_limit=f"{run.mount.cache_mib}Mi"))
    options = replace(plan.vllm, served_model_name=served_model(settings))
    return CloudRunGpuServiceArgs(
        project=settings.project,
        location=run.region,
        service_name=context.names.base,
        image=foundation.image.ref,
        command=COMMAND,
        arguments=vllm_arguments(options, model_or_path=_model_path(settings), port=PORT),
        environment=dict(plan.environment),
        secret_variables=_secrets(foundation),
        port=PORT,
        gpu=run.gpu,
        cpu=run.cpu,
        memory_mib=run.memory_mib,
        concurrency=run.concurrency,
        min_instances=run.min_instances,
        max_instances=run.max_instances,
        request_timeout_s=run.request_timeout_s,
        startup_probe=_probe(run, plan.startup.probe_budget_s),
        service_account=foundation.identity.email,
        ownership=context.ownership,
        labels=settings.labels,
        invokers=run.invokers,
        public=run.public,
        deletion_protection=run.deletion_protection,
        zonal_redundancy=run.zonal_redundancy,
        mount=None
        if foundation.bucket is None
        else GcsMount(bucket=foundation.bucket.bucket, path=MODELS_FOLDER, options=mount_options(run.mount, settings)),
        memory_volumes=volumes,
        direct_vpc=None
        if network is None
        else DirectVpc(network=network.network, subnetwork=network.subnetwork_name, tag=context.names.base),
    )


def _model_path(settings: Settings) -> str:
    return f"{MODELS_FOLDER}/{settings.weights_prefix}" if settings.weights == "bucket" else settings.model


def _secrets(foundation: Foundation) -> Sequence[SecretVariable]:
    if foundation.token is None:
        return ()
    return (SecretVariable(name="HF_TOKEN", secret_id=foundation.token.secret_id, version=foundation.token.version),)


def _probe(run: CloudRunSettings, budget_s: int) -> StartupProbe:
    return to_probe(run.startup_probe) if run.startup_probe is not None else probe_for(budget_s)


def _network(context: Context, run: CloudRunSettings, foundation: Foundation) -> "PrivateNetwork":
    from components.private_network import PrivateNetwork, PrivateNetworkArgs  # noqa: PLC0415  costs most of a second, rarely needed

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
