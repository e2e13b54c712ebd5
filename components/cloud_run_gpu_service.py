"""A Cloud Run service with one GPU per instance: weights on a Cloud Storage FUSE mount, a startup probe, and grants for callers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.checks import (
    Input,
    Labels,
    Owner,
    argument,
    arguments,
    program_ownership,
    require_names,
    require_valid,
)
from gemma_serving.components.model_bucket import ModelBucket
from gemma_serving.components.stored_secret import Secret
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.collector import COLLECTOR_CONTAINER, CONFIG_ARGUMENT, CONFIG_VARIABLE, server_share
from gemma_serving.contracts.resource_types import SERVICE_COMPONENT
from gemma_serving.contracts.staged_weights import MODELS_FOLDER
from gemma_serving.planning.machine.hardware import ACCELERATORS, CLOUD_RUN_GPUS, host_of
from gemma_serving.planning.settings import text
from gemma_serving.planning.settings.cloud_run import CloudRunSettings, MountSettings, ProbeSettings
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.google_limits import (
    PROMPT_PROBE,
    instance_problems,
    mount_owner_problems,
    probe_problems,
)
from gemma_serving.planning.settings.reading import problem_with
from gemma_serving.planning.settings.vllm_args import cuda_compatibility, vllm_environment

HEALTH_PATH = "/health"
INGRESS: Mapping[str, str] = {
    "all": "INGRESS_TRAFFIC_ALL",
    "internal": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "internal-and-cloud-load-balancing": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}
"""API values by the names that gcloud uses."""
_SERVER = "vllm"
_CACHE_VOLUME: Final = "file-cache"
_PLANNERS_NAME: Final = {name: planners for planners, name in CLOUD_RUN_GPUS.items()}
_MIB_PER_GIB = 1024
_LIVENESS_PERIOD_S = 60
_LIVENESS_TIMEOUT_S = 10
_LIVENESS_FAILURES = 3
_READINESS_PERIOD_S = 10
_READINESS_TIMEOUT_S = 5
_READINESS_FAILURES = 3
_IMAGE_PULL_S = 15 * 60
"""Time to import an image of 8.6 GB and for Cloud Run's work around the start. Assumed, on the safe side."""
require_names(CloudRunSettings)


@arguments
class MemoryVolume(Block):
    """A folder of the container in memory. Its content is part of the container's memory."""

    name: text.ResourceName
    path: text.MountPath
    size_limit: str
    """Kubernetes quantity, such as 8Gi. Writes beyond it fail."""


@arguments
class DirectVpc(Block):
    """A subnet for all egress of the service. Without Cloud NAT it reaches only Google's APIs, and these only with Private Google Access."""

    network: Input[text.Network]
    """projects/P/global/networks/N."""
    subnetwork: Input[text.Subnetwork]
    """Name of the subnet in the service's region. Each instance takes an address, so a full subnet stops scaling."""
    tag: text.ResourceName
    """Network tag that firewall rules refer to."""


@arguments
class Collector(Block):
    """Collector of metrics in a container next to the server's."""

    image: text.ImageByDigest
    """Reference by digest."""
    config: str
    secrets: Mapping[text.Variable, Secret]
    """The server's API key by its variable, if it has one."""


@arguments
class CloudRunGpuServiceArgs(Block):
    """A service, its server, and its settings.

    Of `service`, a component has no use for quotas and for `compile_cache`, whose parts a stack adds to `server` and `memory_volumes`.
    """

    project: Input[text.ProjectId] | None = None
    """Id of the Google Cloud project. A change replaces the service. Default: the provider's, such as `gcp:project`."""
    service_name: Input[text.ServiceName]
    """Name of the service, part of its URL. A change replaces the service."""
    service_account: Input[text.AccountEmail]
    """E-mail address of the account that pulls the image and reads secrets and bucket. A change is a new revision."""
    service: CloudRunSettings
    """Region, GPU, size, instances, probes, mount and callers. Another region replaces the service; most changes are a new revision."""
    server: VllmServer
    """The server. A change is a new revision."""
    bucket: ModelBucket | Input[str] | None = None
    """Bucket with the weights, or the name of one that `service_account` can read, mounted as `service.mount` sets. Default: no mount."""
    mount_path: text.MountPath = MODELS_FOLDER
    """Absolute path of the bucket's folder in the container, read-only, owned by `service.mount.uid`, by default `server.uid`."""
    memory_volumes: Sequence[MemoryVolume] = ()
    """More folders in memory. One for the file cache of mode `fuse-cached` is added."""
    direct_vpc: DirectVpc | None = None
    """Subnet for all egress. Required with `service.direct_vpc`, otherwise rejected."""
    collector: Collector | None = None
    """Collector, which takes its share of the instance from the server (contracts.collector). Default: no metrics are stored."""
    ownership: Owner = field(default_factory=program_ownership)
    """Owner in the labels of the service. Default: the project and stack of the running program."""
    labels: Labels = field(default_factory=dict[str, pulumi.Input[str]])
    """Additional labels of the service. A change updates it in place."""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    """Annotations of each revision. A change is a new revision."""
    accepts_limits: bool = False
    """Skip the checks of Google's limits, for a limit that Google has raised."""

    @property
    def startup_probe(self) -> ProbeSettings:
        """Startup probe in effect."""
        return self.service.startup_probe or PROMPT_PROBE

    @property
    def mounted(self) -> pulumi.Input[str] | None:
        """Name of the bucket if it is mounted, or None."""
        name = self.bucket.bucket if isinstance(self.bucket, ModelBucket) else self.bucket
        return name if self.service.mount.mounts else None

    def problems(self) -> Iterator[str]:
        """Yield each invalid argument: argument, value, what is allowed, and what to do."""
        if isinstance(self.bucket, str) and (problem := problem_with(text.BucketName, self.bucket)):
            yield f'`bucket` is "{self.bucket}"; {problem}'
        if self.service.direct_vpc not in {None, self.direct_vpc is not None}:
            yield "`direct_vpc` and `service.direct_vpc` require each other. Set both or neither"
        if not self.accepts_limits:
            yield from self._limits()

    def _limits(self) -> Iterator[str]:
        run, server = self.service, self.server
        host = host_of(ACCELERATORS[_PLANNERS_NAME[run.gpu]], "cloud-run")
        size = (run.cpu, run.memory_mib / _MIB_PER_GIB)
        found = [
            *instance_problems(host, run.gpu, size=size, paths=("service.cpu", "service.memory_mib"), spell=argument),
            *probe_problems(self.startup_probe, "service.startup_probe", argument),
        ]
        yield from (f"{problem.fact}. {problem.fix.capitalize()}" for problem in found)
        for name, given, wanted in mount_owner_problems(run.mount, uid=server.uid, gid=server.gid):
            yield (
                f"`service.mount.{name}` is {given}, but the image runs as {wanted} (`server.{name}`) and could read no file. "
                f"Remove `service.mount.{name}` or set it to {wanted}"
            )


class CloudRunGpuService(pulumi.ComponentResource):
    """The service and the grants of its callers: private by default, with one GPU per instance and probes on /health.

    A change of the server or of an instance is a new revision, which gets all traffic once it is ready.
    It manages nothing that others may share: no domain mapping, no load balancer, no grant on the project.
    Raises InvalidArgumentError with one sentence for an invalid argument, before it declares a resource.
    """

    uri: pulumi.Output[str]
    """URL of the service. Callers send an ID token with it as the audience, unless the service is public."""
    service_name: pulumi.Output[str]
    """Name of the service, for grants and a serverless network endpoint group."""
    service_id: pulumi.Output[str]
    """projects/P/locations/REGION/services/NAME."""
    service_account: pulumi.Output[str]
    """E-mail address of the account that the server runs as."""

    def __init__(self, name: str, args: CloudRunGpuServiceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        require_valid(f'CloudRunGpuService "{name}"', args, CloudRunGpuServiceArgs)
        super().__init__(SERVICE_COMPONENT, name, None, opts)
        run = args.service
        service = gcp.cloudrunv2.Service(
            name,
            gcp.cloudrunv2.ServiceArgs(
                name=args.service_name,
                project=args.project,
                location=run.region,
                # By default the service is private by IAM, not by its address: callers with an ID token may come from anywhere.
                ingress=INGRESS[run.ingress],
                # pulumi-gcp's default is true, and then `pulumi destroy` cannot finish.
                deletion_protection=run.deletion_protection,
                labels={**args.labels, **args.ownership.labels},
                template=_template(args),
                # Declared, so that a refresh undoes what was set by hand for all revisions.
                scaling=gcp.cloudrunv2.ServiceScalingArgs(min_instance_count=0),
                traffics=[gcp.cloudrunv2.ServiceTrafficArgs(type="TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", percent=100)],
            ),
            # A revision whose account cannot read its secrets or its bucket never starts.
            opts=pulumi.ResourceOptions(
                parent=self,
                custom_timeouts=_timeouts(args.startup_probe),
                depends_on=[
                    *args.server.needed,
                    *([args.bucket] if args.mounted and isinstance(args.bucket, ModelBucket) else []),
                ],
            ),
        )
        members = ("allUsers",) if run.public else run.invokers
        child = pulumi.ResourceOptions(parent=self)
        _allow_callers(name, service, members, project=args.project, location=run.region, opts=child)
        self.uri = service.uri
        self.service_name = service.name
        self.service_id = service.id
        self.service_account = pulumi.Output.from_input(args.service_account)
        self.register_outputs({"uri": self.uri})


def _allow_callers(
    name: str,
    service: gcp.cloudrunv2.Service,
    members: Sequence[str],
    *,
    project: pulumi.Input[str] | None,
    location: str,
    opts: pulumi.ResourceOptions,
) -> None:
    """Grant each member the call of a service."""
    for member in members:
        gcp.cloudrunv2.ServiceIamMember(
            f"{name}-{member}",
            gcp.cloudrunv2.ServiceIamMemberArgs(
                project=project, location=location, name=service.name, role="roles/run.invoker", member=member
            ),
            opts=opts,
        )


def _timeouts(probe: ProbeSettings) -> pulumi.CustomTimeouts:
    """Return timeouts longer than any allowed start. The provider's own is 20 minutes, after which a service is left partly created."""
    whole_s = probe.budget_s + _IMAGE_PULL_S
    return pulumi.CustomTimeouts(create=f"{whole_s}s", update=f"{whole_s}s")


def _template(args: CloudRunGpuServiceArgs) -> gcp.cloudrunv2.ServiceTemplateArgs:
    run = args.service
    return gcp.cloudrunv2.ServiceTemplateArgs(
        service_account=args.service_account,
        annotations=args.annotations or None,
        timeout=f"{run.request_timeout_s}s",
        execution_environment="EXECUTION_ENVIRONMENT_GEN2",
        max_instance_request_concurrency=run.concurrency,
        gpu_zonal_redundancy_disabled=not run.zonal_redundancy,
        node_selector=gcp.cloudrunv2.ServiceTemplateNodeSelectorArgs(accelerator=run.gpu),
        scaling=gcp.cloudrunv2.ServiceTemplateScalingArgs(
            min_instance_count=run.min_instances, max_instance_count=run.max_instances
        ),
        containers=_containers(args),
        volumes=_volumes(args),
        vpc_access=_vpc_access(args.direct_vpc) if args.direct_vpc else None,
    )


def _containers(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateContainerArgs]:
    """Return the server's container and, if one exists, the collector's with its share of the instance."""
    run, collector = args.service, args.collector
    if collector is None:
        return [_container(args, cpu=run.cpu, memory_mib=run.memory_mib)]
    own_cpu, own_gib = server_share(run.cpu, run.memory_mib / _MIB_PER_GIB)
    cpu, memory_mib = round(own_cpu), round(own_gib * _MIB_PER_GIB)
    beside = gcp.cloudrunv2.ServiceTemplateContainerArgs(
        name=COLLECTOR_CONTAINER,
        image=collector.image,
        args=[CONFIG_ARGUMENT],
        envs=_variables({CONFIG_VARIABLE: collector.config}, collector.secrets),
        # It starts when the server is ready, because the server has no metrics before.
        depends_ons=[_SERVER],
        resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
            limits={"cpu": str(run.cpu - cpu), "memory": f"{run.memory_mib - memory_mib}Mi"},
            cpu_idle=False,
        ),
    )
    return [_container(args, cpu=cpu, memory_mib=memory_mib), beside]


def _container(
    args: CloudRunGpuServiceArgs, *, cpu: int, memory_mib: int
) -> gcp.cloudrunv2.ServiceTemplateContainerArgs:
    """Return the server's container with its share of the instance."""
    server = args.server
    probe = args.startup_probe
    run = args.service
    compatible = cuda_compatibility(run.gpu, run.cuda_compatibility)
    defaults = vllm_environment(is_tpu=False, is_moe=False, cuda_compatibility=compatible)
    return gcp.cloudrunv2.ServiceTemplateContainerArgs(
        name=_SERVER,
        image=server.image,
        commands=list(server.command),
        args=list(server.arguments),
        envs=_variables({**defaults, **server.environment}, server.secrets),
        ports=gcp.cloudrunv2.ServiceTemplateContainerPortsArgs(container_port=server.port),
        resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
            limits={"cpu": str(cpu), "memory": f"{memory_mib}Mi", "nvidia.com/gpu": "1"},
            # A GPU needs its CPUs between requests too, and is billed per instance anyway.
            cpu_idle=False,
            startup_cpu_boost=True,
        ),
        startup_probe=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeArgs(
            initial_delay_seconds=probe.initial_delay_s,
            period_seconds=probe.period_s,
            failure_threshold=probe.failure_threshold,
            timeout_seconds=probe.timeout_s,
            http_get=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeHttpGetArgs(path=HEALTH_PATH, port=server.port),
        ),
        liveness_probe=gcp.cloudrunv2.ServiceTemplateContainerLivenessProbeArgs(
            period_seconds=_LIVENESS_PERIOD_S,
            timeout_seconds=_LIVENESS_TIMEOUT_S,
            failure_threshold=_LIVENESS_FAILURES,
            http_get=gcp.cloudrunv2.ServiceTemplateContainerLivenessProbeHttpGetArgs(
                path=HEALTH_PATH, port=server.port
            ),
        ),
        readiness_probe=_readiness(args),
        volume_mounts=_mounts(args),
    )


def _readiness(args: CloudRunGpuServiceArgs) -> gcp.cloudrunv2.ServiceTemplateContainerReadinessProbeArgs | None:
    if not args.service.readiness_probe:
        return None
    return gcp.cloudrunv2.ServiceTemplateContainerReadinessProbeArgs(
        period_seconds=_READINESS_PERIOD_S,
        failure_threshold=_READINESS_FAILURES,
        timeout_seconds=_READINESS_TIMEOUT_S,
        http_get=gcp.cloudrunv2.ServiceTemplateContainerReadinessProbeHttpGetArgs(
            path=HEALTH_PATH, port=args.server.port
        ),
    )


def _variables(
    environment: Mapping[str, str], secrets: Mapping[str, Secret]
) -> list[gcp.cloudrunv2.ServiceTemplateContainerEnvArgs]:
    plain = [
        gcp.cloudrunv2.ServiceTemplateContainerEnvArgs(name=key, value=value)
        for key, value in sorted(environment.items())
    ]
    return plain + [
        gcp.cloudrunv2.ServiceTemplateContainerEnvArgs(
            name=name,
            value_source=gcp.cloudrunv2.ServiceTemplateContainerEnvValueSourceArgs(
                secret_key_ref=gcp.cloudrunv2.ServiceTemplateContainerEnvValueSourceSecretKeyRefArgs(
                    secret=secret.secret_id, version=secret.version
                )
            ),
        )
        for name, secret in secrets.items()
    ]


def mount_options(mount: MountSettings, *, uid: int, gid: int) -> Sequence[str]:
    """Return the gcsfuse options of a mount for an image that runs as `uid` and `gid`. No other user than the files' owner can read them."""
    options = mount.flags(uid=uid, gid=gid)
    if mount.mode == "fuse-cached":
        options += [
            f"cache-dir=cr-volume:{_CACHE_VOLUME}",
            f"file-cache-max-size-mb={mount.cache_size_mib}",
            "file-cache-enable-parallel-downloads=true",
        ]
    return [*options, *mount.options]


def _memory_volumes(args: CloudRunGpuServiceArgs) -> Sequence[MemoryVolume]:
    """Return the folders in memory, the file cache of the mount first."""
    cache_mib = args.service.mount.cache_size_mib
    if args.mounted is None or cache_mib is None:
        return args.memory_volumes
    return (MemoryVolume(name=_CACHE_VOLUME, path="/mnt/cache", size_limit=f"{cache_mib}Mi"), *args.memory_volumes)


def _mounts(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs]:
    mounts = [
        gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name=volume.name, mount_path=volume.path)
        for volume in _memory_volumes(args)
    ]
    if args.mounted is not None:
        mounts.append(gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name="models", mount_path=args.mount_path))
    return mounts


def _volumes(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateVolumeArgs]:
    volumes = [
        gcp.cloudrunv2.ServiceTemplateVolumeArgs(
            name=volume.name,
            empty_dir=gcp.cloudrunv2.ServiceTemplateVolumeEmptyDirArgs(medium="MEMORY", size_limit=volume.size_limit),
        )
        for volume in _memory_volumes(args)
    ]
    if args.mounted is not None:
        options = mount_options(args.service.mount, uid=args.server.uid, gid=args.server.gid)
        volumes.append(
            gcp.cloudrunv2.ServiceTemplateVolumeArgs(
                name="models",
                gcs=gcp.cloudrunv2.ServiceTemplateVolumeGcsArgs(
                    bucket=args.mounted, read_only=True, mount_options=list(options)
                ),
            )
        )
    return volumes


def _vpc_access(vpc: DirectVpc) -> gcp.cloudrunv2.ServiceTemplateVpcAccessArgs:
    return gcp.cloudrunv2.ServiceTemplateVpcAccessArgs(
        egress="ALL_TRAFFIC",
        network_interfaces=[
            gcp.cloudrunv2.ServiceTemplateVpcAccessNetworkInterfaceArgs(
                network=vpc.network, subnetwork=vpc.subnetwork, tags=[vpc.tag]
            )
        ],
    )
