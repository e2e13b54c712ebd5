"""A Cloud Run service with one GPU per instance: weights on a Cloud Storage FUSE mount, a startup probe, and grants for callers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pulumi
import pulumi_gcp as gcp

from components.stored_secret import ExistingSecret, StoredSecret
from contracts.collector import COLLECTOR_CONTAINER, CONFIG_ARGUMENT, CONFIG_VARIABLE, server_share
from contracts.labels import Ownership
from contracts.service_traffic import (
    FOLLOW_LATEST,
    TEMPLATE_LABEL,
    Service,
    TrafficTarget,
    declared_targets,
    template_fingerprint,
)
from planning.settings.cloud_run import ProbeSettings

HEALTH_PATH = "/health"
INGRESS: Mapping[str, str] = {
    "all": "INGRESS_TRAFFIC_ALL",
    "internal": "INGRESS_TRAFFIC_INTERNAL_ONLY",
    "internal-and-cloud-load-balancing": "INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER",
}
"""API values by the names that gcloud uses."""
_SERVER = "vllm"
_MIB_PER_GIB = 1024
_LIVENESS_PERIOD_S = 60
_LIVENESS_TIMEOUT_S = 10
_LIVENESS_FAILURES = 3
_IMAGE_PULL_S = 15 * 60
"""Time to import an image of 8.6 GB and for Cloud Run's work around the start. Assumed, on the safe side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsMount:
    """A bucket mounted as a read-only folder of the container, through Cloud Storage FUSE."""

    bucket: pulumi.Input[str]
    """Name of the bucket. The service account needs roles/storage.objectViewer on it, or no instance starts."""
    path: str
    options: Sequence[str]
    """Options of gcsfuse, "name" or "name=value". The server cannot read the files if their uid differs from its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVolume:
    """A folder of the container in memory. Its content is part of the container's memory."""

    name: str
    path: str
    size_limit: str
    """Kubernetes quantity, such as 8Gi. Writes beyond it fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectVpc:
    """A subnet for all egress of the service. Without Cloud NAT the service then reaches only Google's APIs."""

    network: pulumi.Input[str]
    """projects/P/global/networks/N."""
    subnetwork: str
    """Name of the subnet in the service's region. Each instance takes an address, so a full subnet stops scaling."""
    tag: str
    """Network tag that firewall rules refer to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessProbe:
    """Readiness probe of a running instance."""

    period_s: int
    failure_threshold: int
    timeout_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptTraffic:
    """The current service. A change of the template does not move its traffic."""

    service: Service | None
    """The service as returned by run.v2, or None if it does not exist yet."""
    fixed: Mapping[str, int] | None = None
    """Traffic percentage by revision. None keeps the current traffic. Google rejects a revision that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContainer:
    """The container of the server."""

    image: pulumi.Input[str]
    """Reference by digest, in a registry that the service account can read."""
    command: Sequence[str]
    arguments: Sequence[pulumi.Input[str]]
    port: int
    """Port of the server. Its arguments must use the same one, otherwise every probe fails."""
    startup_probe: ProbeSettings
    """Probe of the start. Instances that do not answer /health within its budget are stopped, and their revision fails."""
    environment: Mapping[str, str]
    readiness_probe: ReadinessProbe | None = None
    secrets: Mapping[str, StoredSecret | ExistingSecret] = field(
        default_factory=dict[str, StoredSecret | ExistingSecret]
    )
    """Secret by the variable whose value Cloud Run reads from it. The account needs roles/secretmanager.secretAccessor on each."""
    mount: GcsMount | None = None
    memory_volumes: Sequence[MemoryVolume] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """Collector of metrics in a container next to the server's."""

    image: str
    """Reference by digest."""
    config: str
    secrets: Mapping[str, StoredSecret | ExistingSecret]
    """The server's API key by its variable, if it has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMachine:
    """Hardware of each instance. Cloud Run rejects less vCPU or memory than the GPU requires."""

    gpu: str
    """Cloud Run's name for the accelerator, such as nvidia-l4."""
    cpu: int
    memory_mib: int
    """Memory of the instance in MiB. Too little kills the server while it loads the weights."""
    zonal_redundancy: bool
    """Reserve the GPUs in a second zone too. It costs more and has a separate quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestScaling:
    """Number of instances, and the load that each accepts."""

    min_instances: int
    """Instances that always run and cost money. With 0, the first request waits for a cold start of many minutes."""
    max_instances: int
    """Maximum number of instances. Above the region's GPU quota, new revisions fail."""
    concurrency: int
    """Maximum concurrent requests per instance. Further requests wait in Cloud Run's queue."""
    request_timeout_s: int
    """Seconds after which Cloud Run terminates a request, even in the middle of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRunGpuServiceArgs:
    """A service, its container and the hardware of each instance."""

    project: str
    location: str
    """Region. The GPU must be available there."""
    service_name: str
    """Name of the service, part of its URL. A change replaces the service."""
    service_account: pulumi.Input[str]
    """E-mail address of the server's account."""
    ownership: Ownership
    labels: Mapping[str, str]
    container: ServerContainer
    machine: GpuMachine
    scaling: RequestScaling
    invokers: Sequence[str]
    """IAM members that can call the service, such as user:a@example.com, or allUsers."""
    deletion_protection: bool
    """True: the engine refuses to delete the service until this is turned off and deployed, or until gemma teardown clears it."""
    direct_vpc: DirectVpc | None = None
    ingress: str = "all"
    """Key of INGRESS: networks that can reach the service."""
    collector: Collector | None = None
    """Collector, which takes its share of the machine from the server (contracts.collector). None: no metrics are stored."""
    kept_traffic: KeptTraffic | None = None
    """Traffic to keep. None: the latest ready revision gets all traffic."""


class CloudRunGpuService(pulumi.ComponentResource):
    """The service and the grants of its callers.

    It manages nothing that others may share: no domain mapping, no load balancer, no grant on the project.
    """

    uri: pulumi.Output[str]

    def __init__(self, name: str, args: CloudRunGpuServiceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gemma-serving:index:CloudRunGpuService", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        template = _template(args)
        traffic, labels = _traffic(args, template)
        service = gcp.cloudrunv2.Service(
            name,
            gcp.cloudrunv2.ServiceArgs(
                name=args.service_name,
                project=args.project,
                location=args.location,
                # By default the service is private by IAM, not by its address: callers with an ID token may come from anywhere.
                ingress=INGRESS[args.ingress],
                # pulumi-gcp's default is true, and then `pulumi destroy` cannot finish.
                deletion_protection=args.deletion_protection,
                labels=labels,
                template=template,
                traffics=traffic,
            ),
            opts=pulumi.ResourceOptions(parent=self, custom_timeouts=_timeouts(args.container.startup_probe)),
        )
        allow_callers(name, service, args.invokers, project=args.project, location=args.location, opts=child)
        self.uri = service.uri
        self.register_outputs({"uri": self.uri})


def allow_callers(
    name: str,
    service: gcp.cloudrunv2.Service,
    members: Sequence[str],
    *,
    project: str,
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


def _traffic(
    args: CloudRunGpuServiceArgs, template: gcp.cloudrunv2.ServiceTemplateArgs
) -> tuple[pulumi.Input[Sequence[gcp.cloudrunv2.ServiceTrafficArgs]], pulumi.Input[Mapping[str, str]]]:
    """Return the traffic and the labels. Both depend on the template if the traffic is kept."""
    labels = {**args.labels, **args.ownership.labels}
    kept = args.kept_traffic
    if kept is None:
        return _targets(FOLLOW_LATEST), labels
    # A secret's value is never part of a template, so its fingerprint reveals nothing about one.
    fingerprint = pulumi.Output.unsecret(
        pulumi.Output.from_input(template).apply(lambda found: template_fingerprint(_plain(found)))
    )
    return (
        fingerprint.apply(lambda found: _targets(declared_targets(kept.service, found, kept.fixed))),
        fingerprint.apply(lambda found: {**labels, TEMPLATE_LABEL: found}),
    )


def _plain(value: object) -> object:
    """Return a resource's arguments in JSON types, without unset ones."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    if not isinstance(value, Mapping):
        # The SDK's arguments are classes whose fields are their whole content.
        if not hasattr(value, "__dict__"):
            return value
        value = vars(value)
    items = cast("Mapping[str, object]", value).items()
    return {key: _plain(item) for key, item in items if item is not None}


def _targets(targets: Sequence[TrafficTarget]) -> Sequence[gcp.cloudrunv2.ServiceTrafficArgs]:
    """Return the targets as arguments. A share of 0 is omitted, as in Google's responses."""
    return [gcp.cloudrunv2.ServiceTrafficArgs(**target.to_api()) for target in targets]


def _timeouts(probe: ProbeSettings) -> pulumi.CustomTimeouts:
    """Return timeouts longer than any allowed start. The provider's own is 20 minutes, after which a service is left partly created."""
    whole_s = probe.budget_s + _IMAGE_PULL_S
    return pulumi.CustomTimeouts(create=f"{whole_s}s", update=f"{whole_s}s")


def _template(args: CloudRunGpuServiceArgs) -> gcp.cloudrunv2.ServiceTemplateArgs:
    return gcp.cloudrunv2.ServiceTemplateArgs(
        service_account=args.service_account,
        timeout=f"{args.scaling.request_timeout_s}s",
        execution_environment="EXECUTION_ENVIRONMENT_GEN2",
        max_instance_request_concurrency=args.scaling.concurrency,
        gpu_zonal_redundancy_disabled=not args.machine.zonal_redundancy,
        node_selector=gcp.cloudrunv2.ServiceTemplateNodeSelectorArgs(accelerator=args.machine.gpu),
        scaling=gcp.cloudrunv2.ServiceTemplateScalingArgs(
            min_instance_count=args.scaling.min_instances, max_instance_count=args.scaling.max_instances
        ),
        containers=_containers(args),
        volumes=_volumes(args.container),
        vpc_access=_vpc_access(args.direct_vpc) if args.direct_vpc else None,
    )


def _containers(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateContainerArgs]:
    """Return the server's container and, if one exists, the collector's with its share of the instance."""
    machine, collector = args.machine, args.collector
    if collector is None:
        return [_container(args.container, machine)]
    cpu, memory_gib = server_share(machine.cpu, machine.memory_mib / _MIB_PER_GIB)
    memory_mib = round(memory_gib * _MIB_PER_GIB)
    server = replace(machine, cpu=round(cpu), memory_mib=memory_mib)
    beside = gcp.cloudrunv2.ServiceTemplateContainerArgs(
        name=COLLECTOR_CONTAINER,
        image=collector.image,
        args=[CONFIG_ARGUMENT],
        envs=_variables({CONFIG_VARIABLE: collector.config}, collector.secrets),
        # It starts when the server is ready, because the server has no metrics before.
        depends_ons=[_SERVER],
        resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
            limits={"cpu": str(machine.cpu - server.cpu), "memory": f"{machine.memory_mib - memory_mib}Mi"},
            cpu_idle=False,
        ),
    )
    return [_container(args.container, server), beside]


def _container(server: ServerContainer, machine: GpuMachine) -> gcp.cloudrunv2.ServiceTemplateContainerArgs:
    probe = server.startup_probe
    return gcp.cloudrunv2.ServiceTemplateContainerArgs(
        name=_SERVER,
        image=server.image,
        commands=list(server.command),
        args=list(server.arguments),
        envs=_variables(server.environment, server.secrets),
        ports=gcp.cloudrunv2.ServiceTemplateContainerPortsArgs(container_port=server.port),
        resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
            limits={"cpu": str(machine.cpu), "memory": f"{machine.memory_mib}Mi", "nvidia.com/gpu": "1"},
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
        readiness_probe=_readiness(server),
        volume_mounts=_mounts(server),
    )


def _readiness(server: ServerContainer) -> gcp.cloudrunv2.ServiceTemplateContainerReadinessProbeArgs | None:
    probe = server.readiness_probe
    if probe is None:
        return None
    return gcp.cloudrunv2.ServiceTemplateContainerReadinessProbeArgs(
        period_seconds=probe.period_s,
        failure_threshold=probe.failure_threshold,
        timeout_seconds=probe.timeout_s,
        http_get=gcp.cloudrunv2.ServiceTemplateContainerReadinessProbeHttpGetArgs(path=HEALTH_PATH, port=server.port),
    )


def _variables(
    environment: Mapping[str, str], secrets: Mapping[str, StoredSecret | ExistingSecret]
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


def _mounts(server: ServerContainer) -> list[gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs]:
    mounts = [
        gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name=volume.name, mount_path=volume.path)
        for volume in server.memory_volumes
    ]
    if server.mount is not None:
        mounts.append(
            gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name="models", mount_path=server.mount.path)
        )
    return mounts


def _volumes(server: ServerContainer) -> list[gcp.cloudrunv2.ServiceTemplateVolumeArgs]:
    volumes = [
        gcp.cloudrunv2.ServiceTemplateVolumeArgs(
            name=volume.name,
            empty_dir=gcp.cloudrunv2.ServiceTemplateVolumeEmptyDirArgs(medium="MEMORY", size_limit=volume.size_limit),
        )
        for volume in server.memory_volumes
    ]
    if server.mount is not None:
        volumes.append(
            gcp.cloudrunv2.ServiceTemplateVolumeArgs(
                name="models",
                gcs=gcp.cloudrunv2.ServiceTemplateVolumeGcsArgs(
                    bucket=server.mount.bucket, read_only=True, mount_options=list(server.mount.options)
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
