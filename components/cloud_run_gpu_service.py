"""A Cloud Run service with one GPU an instance: weights on a Cloud Storage FUSE mount, a startup probe within the platform's limits, private by default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from components.errors import ComponentError
from components.ownership import Ownership
from planning.hardware import (
    CLOUD_RUN_MAX_GPU_PROBE_S,
    CLOUD_RUN_MAX_INITIAL_DELAY_S,
    CLOUD_RUN_MAX_PERIOD_S,
    CLOUD_RUN_MAX_STARTUP_S,
    find_accelerator,
    host_of,
)
from planning.types import StartupProbe

HEALTH_PATH = "/health"
_LIVENESS_PERIOD_S = 60
_LIVENESS_TIMEOUT_S = 10
_LIVENESS_FAILURES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsMount:
    """A bucket, read-only, at `path`; `options` are gcsfuse's, as "name" or "name=value"."""

    bucket: pulumi.Input[str]
    path: str
    options: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryVolume:
    """Memory of the container used as a folder; `name` is what other settings refer to."""

    name: str
    path: str
    size_limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """An environment variable whose value Cloud Run reads from Secret Manager at start."""

    name: str
    secret_id: pulumi.Input[str]
    version: pulumi.Input[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectVpc:
    """All egress through a subnet of ours."""

    network: pulumi.Input[str]
    subnetwork: str
    tag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRunGpuServiceArgs:
    """Memory in MiB, times in seconds. `invokers` may call the service; `public` lets everybody."""

    project: str
    location: str
    service_name: str
    image: pulumi.Input[str]
    command: Sequence[str]
    arguments: Sequence[str]
    environment: Mapping[str, str]
    secret_variables: Sequence[SecretVariable]
    port: int
    gpu: str
    cpu: int
    memory_mib: int
    concurrency: int
    min_instances: int
    max_instances: int
    request_timeout_s: int
    startup_probe: StartupProbe
    service_account: pulumi.Input[str]
    ownership: Ownership
    labels: Mapping[str, str]
    invokers: Sequence[str]
    public: bool
    deletion_protection: bool
    zonal_redundancy: bool
    mount: GcsMount | None = None
    memory_volumes: Sequence[MemoryVolume] = ()
    direct_vpc: DirectVpc | None = None


def check_startup_probe(probe: StartupProbe) -> None:
    """Refuse a probe that Cloud Run would refuse, naming the limit. Raises ComponentError."""
    limits = (
        (
            probe.initial_delay_s > CLOUD_RUN_MAX_INITIAL_DELAY_S,
            "initialDelay",
            probe.initial_delay_s,
            f"{CLOUD_RUN_MAX_INITIAL_DELAY_S}s",
        ),
        (probe.period_s > CLOUD_RUN_MAX_PERIOD_S, "period", probe.period_s, f"{CLOUD_RUN_MAX_PERIOD_S}s"),
        (probe.timeout_s > probe.period_s, "timeout", probe.timeout_s, f"its period, {probe.period_s}s"),
    )
    for broken, key, value_s, limit in limits:
        if broken:
            raise ComponentError(f"startupProbe.{key} = {value_s}s is more than Cloud Run allows: at most {limit}.")
    for key, value in (
        ("period", probe.period_s),
        ("timeout", probe.timeout_s),
        ("failureThreshold", probe.failure_threshold),
    ):
        if value < 1:
            raise ComponentError(f"startupProbe.{key} = {value} is less than Cloud Run allows: at least 1.")
    failing_s = probe.failure_threshold * probe.period_s
    if failing_s > CLOUD_RUN_MAX_GPU_PROBE_S:
        raise ComponentError(
            f"startupProbe allows {probe.failure_threshold} x {probe.period_s}s = {failing_s}s; "
            f"Cloud Run allows failureThreshold x period of at most {CLOUD_RUN_MAX_GPU_PROBE_S}s beside a GPU."
        )


def probe_for(budget_s: int) -> StartupProbe:
    """Return a probe that gives the container at least `budget_s` seconds. Raises ComponentError where the platform allows no such probe."""
    longest_s = CLOUD_RUN_MAX_STARTUP_S
    if budget_s > longest_s:
        raise ComponentError(
            f"The start needs {budget_s}s and Cloud Run's startup probe allows {longest_s}s at most; load the weights faster or use another platform."
        )
    initial_s = min(CLOUD_RUN_MAX_INITIAL_DELAY_S, budget_s // 2)
    period_s = min(60, max(1, budget_s - initial_s))
    return StartupProbe(
        initial_delay_s=initial_s,
        period_s=period_s,
        failure_threshold=-(-(budget_s - initial_s) // period_s),
        timeout_s=min(50, period_s),
    )


def check_gpu(args: CloudRunGpuServiceArgs) -> None:
    """Refuse vCPU or memory below what the GPU requires. Raises ComponentError."""
    accelerator = find_accelerator(args.gpu)
    if accelerator is None:
        raise ComponentError(f"cloudRun.gpu = {args.gpu}: the planner knows no such GPU.")
    host = host_of(accelerator, "cloud-run")
    if args.cpu < host.min_vcpu:
        raise ComponentError(
            f"cloudRun.cpu = {args.cpu}: a {args.gpu} on Cloud Run needs at least {host.min_vcpu:g} vCPU."
        )
    if args.memory_mib < host.min_memory_gib * 1024:
        raise ComponentError(
            f"cloudRun.memory = {args.memory_mib} MiB: a {args.gpu} on Cloud Run needs at least {host.min_memory_gib:g}Gi."
        )


class CloudRunGpuService(pulumi.ComponentResource):
    """The service and who may call it.

    It refuses to manage what belongs to others: no domain mapping, no load balancer, no project-wide grant.
    """

    uri: pulumi.Output[str]

    def __init__(self, name: str, args: CloudRunGpuServiceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        check_startup_probe(args.startup_probe)
        check_gpu(args)
        super().__init__("gemma-serving:index:CloudRunGpuService", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        service = gcp.cloudrunv2.Service(
            name,
            name=args.service_name,
            project=args.project,
            location=args.location,
            # Private means IAM, not an unreachable address: callers come from anywhere with an ID token.
            ingress="INGRESS_TRAFFIC_ALL",
            # The engine's default is true, and then a teardown cannot finish.
            deletion_protection=args.deletion_protection,
            labels={**args.labels, **args.ownership.labels},
            template=_template(args),
            traffics=[gcp.cloudrunv2.ServiceTrafficArgs(type="TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", percent=100)],
            opts=child,
        )
        members = ["allUsers"] if args.public else list(args.invokers)
        for member in members:
            gcp.cloudrunv2.ServiceIamMember(
                f"{name}-{member}",
                project=args.project,
                location=args.location,
                name=service.name,
                role="roles/run.invoker",
                member=member,
                opts=child,
            )
        self.uri = service.uri
        self.register_outputs({"uri": self.uri})


def _template(args: CloudRunGpuServiceArgs) -> gcp.cloudrunv2.ServiceTemplateArgs:
    return gcp.cloudrunv2.ServiceTemplateArgs(
        service_account=args.service_account,
        timeout=f"{args.request_timeout_s}s",
        execution_environment="EXECUTION_ENVIRONMENT_GEN2",
        max_instance_request_concurrency=args.concurrency,
        gpu_zonal_redundancy_disabled=not args.zonal_redundancy,
        node_selector=gcp.cloudrunv2.ServiceTemplateNodeSelectorArgs(accelerator=args.gpu),
        scaling=gcp.cloudrunv2.ServiceTemplateScalingArgs(
            min_instance_count=args.min_instances, max_instance_count=args.max_instances
        ),
        containers=[_container(args)],
        volumes=_volumes(args),
        vpc_access=_vpc_access(args.direct_vpc) if args.direct_vpc else None,
    )


def _container(args: CloudRunGpuServiceArgs) -> gcp.cloudrunv2.ServiceTemplateContainerArgs:
    probe = args.startup_probe
    return gcp.cloudrunv2.ServiceTemplateContainerArgs(
        name="vllm",
        image=args.image,
        commands=list(args.command),
        args=list(args.arguments),
        envs=_environment(args),
        ports=gcp.cloudrunv2.ServiceTemplateContainerPortsArgs(container_port=args.port),
        resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
            limits={"cpu": str(args.cpu), "memory": f"{args.memory_mib}Mi", "nvidia.com/gpu": "1"},
            # A GPU needs its CPUs between requests too, and is billed by the instance anyway.
            cpu_idle=False,
            startup_cpu_boost=True,
        ),
        startup_probe=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeArgs(
            initial_delay_seconds=probe.initial_delay_s,
            period_seconds=probe.period_s,
            failure_threshold=probe.failure_threshold,
            timeout_seconds=probe.timeout_s,
            http_get=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeHttpGetArgs(path=HEALTH_PATH, port=args.port),
        ),
        liveness_probe=gcp.cloudrunv2.ServiceTemplateContainerLivenessProbeArgs(
            period_seconds=_LIVENESS_PERIOD_S,
            timeout_seconds=_LIVENESS_TIMEOUT_S,
            failure_threshold=_LIVENESS_FAILURES,
            http_get=gcp.cloudrunv2.ServiceTemplateContainerLivenessProbeHttpGetArgs(path=HEALTH_PATH, port=args.port),
        ),
        volume_mounts=_mounts(args),
    )


def _environment(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateContainerEnvArgs]:
    plain = [
        gcp.cloudrunv2.ServiceTemplateContainerEnvArgs(name=key, value=value)
        for key, value in sorted(args.environment.items())
    ]
    return plain + [
        gcp.cloudrunv2.ServiceTemplateContainerEnvArgs(
            name=variable.name,
            value_source=gcp.cloudrunv2.ServiceTemplateContainerEnvValueSourceArgs(
                secret_key_ref=gcp.cloudrunv2.ServiceTemplateContainerEnvValueSourceSecretKeyRefArgs(
                    secret=variable.secret_id, version=variable.version
                )
            ),
        )
        for variable in args.secret_variables
    ]


def _mounts(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs]:
    mounts = [
        gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name=volume.name, mount_path=volume.path)
        for volume in args.memory_volumes
    ]
    if args.mount is not None:
        mounts.append(gcp.cloudrunv2.ServiceTemplateContainerVolumeMountArgs(name="models", mount_path=args.mount.path))
    return mounts


def _volumes(args: CloudRunGpuServiceArgs) -> list[gcp.cloudrunv2.ServiceTemplateVolumeArgs]:
    volumes = [
        gcp.cloudrunv2.ServiceTemplateVolumeArgs(
            name=volume.name,
            empty_dir=gcp.cloudrunv2.ServiceTemplateVolumeEmptyDirArgs(medium="MEMORY", size_limit=volume.size_limit),
        )
        for volume in args.memory_volumes
    ]
    if args.mount is not None:
        volumes.append(
            gcp.cloudrunv2.ServiceTemplateVolumeArgs(
                name="models",
                gcs=gcp.cloudrunv2.ServiceTemplateVolumeGcsArgs(
                    bucket=args.mount.bucket, read_only=True, mount_options=list(args.mount.options)
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
