"""Envoy on Cloud Run, in one network with the servers behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.cloud_run_gpu_service import allow_callers
from gemma_serving.components.gateway_config import GATEWAY_PORT, READY_PATH
from gemma_serving.contracts.gateway import (
    CONCURRENCY,
    ENVOY_COMMAND,
    GATEWAY_MIB,
    GATEWAY_START_S,
    GATEWAY_VCPU,
    LONGEST_REQUEST_S,
)
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.resource_types import GATEWAY_COMPONENT

_PROBE_PERIOD_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServiceArgs:
    """A service and its place in the network."""

    project: str
    location: str
    service_name: str
    """Name of the service, part of its URL. A change replaces the service."""
    service_account: pulumi.Input[str]
    """E-mail address of the gateway's account."""
    image: pulumi.Input[str]
    """Envoy by digest."""
    config: str
    """Text of Envoy's configuration (components.gateway_config)."""
    network: pulumi.Input[str]
    """projects/P/global/networks/N, the network of all servers, because a service has one network interface."""
    subnetwork: str
    invokers: Sequence[str]
    min_instances: int
    max_instances: int
    ownership: Ownership
    labels: Mapping[str, str]


class GatewayService(pulumi.ComponentResource):
    """The service and the grants of its callers."""

    uri: pulumi.Output[str]

    def __init__(self, name: str, args: GatewayServiceArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(GATEWAY_COMPONENT, name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        service = gcp.cloudrunv2.Service(
            name,
            gcp.cloudrunv2.ServiceArgs(
                name=args.service_name,
                project=args.project,
                location=args.location,
                ingress="INGRESS_TRAFFIC_ALL",
                deletion_protection=False,
                labels={**args.labels, **args.ownership.labels},
                template=_template(args),
                scaling=gcp.cloudrunv2.ServiceScalingArgs(min_instance_count=0),
                traffics=[gcp.cloudrunv2.ServiceTrafficArgs(type="TRAFFIC_TARGET_ALLOCATION_TYPE_LATEST", percent=100)],
            ),
            opts=child,
        )
        allow_callers(name, service, args.invokers, project=args.project, location=args.location, opts=child)
        self.uri = service.uri
        self.register_outputs({"uri": self.uri})


def _template(args: GatewayServiceArgs) -> gcp.cloudrunv2.ServiceTemplateArgs:
    return gcp.cloudrunv2.ServiceTemplateArgs(
        service_account=args.service_account,
        timeout=f"{LONGEST_REQUEST_S}s",
        execution_environment="EXECUTION_ENVIRONMENT_GEN2",
        max_instance_request_concurrency=CONCURRENCY,
        scaling=gcp.cloudrunv2.ServiceTemplateScalingArgs(
            min_instance_count=args.min_instances, max_instance_count=args.max_instances
        ),
        vpc_access=gcp.cloudrunv2.ServiceTemplateVpcAccessArgs(
            # The metadata server is outside the network.
            egress="PRIVATE_RANGES_ONLY",
            network_interfaces=[
                gcp.cloudrunv2.ServiceTemplateVpcAccessNetworkInterfaceArgs(
                    network=args.network, subnetwork=args.subnetwork
                )
            ],
        ),
        containers=[_container(args)],
    )


def _container(args: GatewayServiceArgs) -> gcp.cloudrunv2.ServiceTemplateContainerArgs:
    return gcp.cloudrunv2.ServiceTemplateContainerArgs(
        name="envoy",
        image=args.image,
        commands=[ENVOY_COMMAND],
        args=["--config-yaml", args.config, "--log-level", "warning"],
        ports=gcp.cloudrunv2.ServiceTemplateContainerPortsArgs(container_port=GATEWAY_PORT),
        resources=gcp.cloudrunv2.ServiceTemplateContainerResourcesArgs(
            limits={"cpu": str(GATEWAY_VCPU), "memory": f"{GATEWAY_MIB}Mi"},
            # Health checks run between requests too, when an instance with request-based billing has no CPU.
            cpu_idle=False,
        ),
        startup_probe=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeArgs(
            period_seconds=_PROBE_PERIOD_S,
            timeout_seconds=_PROBE_PERIOD_S,
            failure_threshold=GATEWAY_START_S // _PROBE_PERIOD_S,
            http_get=gcp.cloudrunv2.ServiceTemplateContainerStartupProbeHttpGetArgs(path=READY_PATH, port=GATEWAY_PORT),
        ),
    )
