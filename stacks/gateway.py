"""A stack of target `gateway`: a network for machines of other stacks, and Envoy in front of them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pulumi

from gemma_serving.cloud.model_files import PROJECT
from gemma_serving.components.gateway_config import GatewayServer, gateway_config
from gemma_serving.components.gateway_service import GatewayService, GatewayServiceArgs
from gemma_serving.components.observability import Observability, ObservabilityArgs
from gemma_serving.components.private_network import GATEWAY_RANGE, PrivateNetwork, PrivateNetworkArgs
from gemma_serving.components.runtime_identity import RuntimeIdentity, RuntimeIdentityArgs
from gemma_serving.components.serving_image import ServingImage, ServingImageArgs
from gemma_serving.contracts.alerts import AlertValues, alerts_of
from gemma_serving.contracts.fields import camel_case, to_json
from gemma_serving.contracts.gateway import ENVOY_DIGEST, ENVOY_REPOSITORY
from gemma_serving.contracts.labels import Ownership
from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.outputs import GatewayBackend, GatewayNetwork, StackOutputs
from gemma_serving.contracts.resource_types import SERVICE_TYPE
from gemma_serving.planning.planner import plan_of
from gemma_serving.planning.question.features import served_features
from gemma_serving.planning.rules.gateway import DeployedBackend, usd_per_hour
from gemma_serving.planning.settings.gateway_stack import GatewayStack
from gemma_serving.planning.settings.vllm_args import given_options
from gemma_serving.stacks.apis import GATEWAY_APIS
from gemma_serving.stacks.base import open_project
from gemma_serving.stacks.bound_hooks import bind_types
from gemma_serving.stacks.deployed.other_stacks import deployed_outputs
from gemma_serving.stacks.gateway_plan import GatewayPlan, gateway_lines, plan_gateway
from gemma_serving.stacks.google_project.propagation import require_enabled
from gemma_serving.stacks.outputs import export, known_after_up, smoke_thresholds
from gemma_serving.stacks.planned import today
from gemma_serving.stacks.server_command import PORT

DEPLOYED_OUTPUTS: Final = ("address", "state", "deadline", "api_key_secret", "provisioning", "location")
"""Outputs of a backend that its gateway reads. They must be outputs of the stack: a program cannot read another stack's component."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gateway:
    """Inputs of the stack, and the resources that exist with and without a service."""

    settings: GatewayStack
    plan: GatewayPlan
    backends: tuple[GatewayBackend, ...]
    """Backends as this `up` finds them."""
    names: Names
    ownership: Ownership
    options: pulumi.ResourceOptions
    identity: RuntimeIdentity
    image: ServingImage
    network: PrivateNetwork
    outputs: GatewayNetwork


def deploy(settings: GatewayStack, stack: str, folder: Path = PROJECT) -> None:
    """Declare the network and, once a backend has an address, the service. Export their outputs.

    `folder` has the settings files of the backends. Raises CommandRefusedError.
    """
    deployed = {backend.stack: _deployed(backend.stack) for backend in settings.gateway.backends}
    plan = plan_gateway(settings, stack, deployed, folder, today=today())
    for text, is_warning in gateway_lines(plan):
        (pulumi.log.warn if is_warning else pulumi.log.info)(text)
    backends = tuple(
        GatewayBackend(stack=name, address=one.address, state=one.state, deadline=one.deadline)
        for name, one in deployed.items()
    )
    gateway = _lay_foundation(settings, stack, plan, backends)
    if any(backend.address for backend in backends):
        _serve(gateway)
    else:
        _export_network(gateway)


def _deployed(stack: str) -> DeployedBackend:
    """Return a backend as its last `up` left it; texts are empty for a stack that was never deployed."""
    outputs = deployed_outputs(stack) or {}
    given = {name: outputs.get(camel_case(name)) for name in DEPLOYED_OUTPUTS}
    return DeployedBackend(**{name: value if isinstance(value, str) else "" for name, value in given.items()})


def _lay_foundation(
    settings: GatewayStack, stack: str, plan: GatewayPlan, backends: tuple[GatewayBackend, ...]
) -> _Gateway:
    project, region = settings.project, settings.gateway.region
    names, ownership = Names(project=project, stack=stack), Ownership(project=pulumi.get_project(), stack=stack)
    require_enabled(project, GATEWAY_APIS)
    options, _ = open_project(project, region)
    identity = RuntimeIdentity(
        "gateway",
        RuntimeIdentityArgs(project=project, account_id=names.account_id, ownership=ownership, program="Gateway"),
        options,
    )
    image = ServingImage(
        "image",
        ServingImageArgs(
            project=project,
            locations=[region],
            repository_id=names.base,
            upstream=ENVOY_REPOSITORY,
            digest=ENVOY_DIGEST,
            ownership=ownership,
            labels=settings.labels,
            readers={"gateway": identity.member},
        ),
        options,
    )
    arguments = PrivateNetworkArgs(
        project=project,
        name=names.base,
        regions=settings.gateway.regions,
        ownership=ownership,
        target_tag=names.base,
        internet_egress=settings.gateway.internet_egress,
        allow_iap=False,  # each stack has a rule for its own machines
        gateway_region=region,
    )
    network = PrivateNetwork("network", arguments, options)
    return _Gateway(
        settings=settings,
        plan=plan,
        backends=backends,
        names=names,
        ownership=ownership,
        options=options,
        identity=identity,
        image=image,
        network=network,
        outputs=GatewayNetwork(
            network=known_after_up(network.network),
            subnetwork=network.subnetwork_name,
            regions=tuple(settings.gateway.regions),
            gateway_range=GATEWAY_RANGE,
            internet_egress=settings.gateway.internet_egress,
        ),
    )


def _serve(gateway: _Gateway) -> None:
    settings, names = gateway.settings.gateway, gateway.names
    _explain_failed_start(gateway)
    service = GatewayService(
        "gateway",
        GatewayServiceArgs(
            project=gateway.settings.project,
            location=settings.region,
            service_name=names.base,
            service_account=gateway.identity.email,
            image=gateway.image.ref,
            config=gateway_config(
                [
                    GatewayServer(name=one.stack, address=one.address, port=PORT)
                    for one in gateway.backends
                    if one.address
                ],
                names.stack,
            ),
            network=gateway.network.network,
            subnetwork=gateway.network.gateway_subnetwork,
            invokers=settings.invokers,
            min_instances=settings.min_instances,
            max_instances=settings.max_instances,
            ownership=gateway.ownership,
            labels=gateway.settings.labels,
        ),
        pulumi.ResourceOptions.merge(
            gateway.options,
            pulumi.ResourceOptions(depends_on=[*gateway.image.grants, *gateway.network.ready]),
        ),
    )
    alerts = gateway.settings.alerts
    if alerts.enabled:
        arguments = ObservabilityArgs(
            project=gateway.settings.project,
            ownership=gateway.ownership,
            labels=gateway.settings.labels,
            values=AlertValues(stack=names.stack, name=names.base),
            alerts=list(alerts_of("gateway")),
            email=alerts.email,
            webhook=alerts.webhook,
        )
        Observability("alerts", arguments, gateway.options)
    export(_outputs(gateway, service))


def _explain_failed_start(gateway: _Gateway) -> None:
    """Register an error hook: Cloud Run reports only that the startup probe failed."""
    rules = ", ".join(
        f"{Names(project=gateway.settings.project, stack=one.stack).base}-gateway-server" for one in gateway.backends
    )

    async def explain(_args: pulumi.ErrorHookArgs) -> bool:
        await asyncio.sleep(0)
        pulumi.log.info(
            "If the error above names the startup probe, no server answered the gateway. Check each server with `gemma smoke NAME`, "
            f"and the firewall rules {rules} in network {gateway.names.base}. `gemma up NAME --refresh` of a server restores its rule."
        )
        return False

    hook = pulumi.ErrorHook("explain-failed-gateway", explain)

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(on_error=[hook]))


def _outputs(gateway: _Gateway, service: GatewayService) -> StackOutputs:
    """Return the outputs. Model, plan and thresholds are the first backend's.

    The price includes the gateway and all servers that get requests.
    """
    first, subject = gateway.plan.first
    plan = plan_of(subject)
    stack, summary = gateway.ownership.stack, plan.summary()
    question = gateway.plan.question
    price = usd_per_hour(question, [backend for backend in question.backends if backend.serves])
    return StackOutputs(
        target="gateway",
        model=first.model,
        served_model=first.vllm.served_model_name or first.model,
        endpoint=known_after_up(service.uri),
        auth="id-token",
        image=known_after_up(gateway.image.ref),
        plan=replace(summary, cost=replace(summary.cost, usd_per_hour=price)),
        vllm=given_options(plan.vllm),
        smoke=smoke_thresholds(first.smoke, subject, plan),
        labels={**gateway.settings.labels, **gateway.ownership.labels},
        project=gateway.settings.project,
        location=gateway.settings.gateway.region,
        # All backends have the same key, or none.
        api_key_secret=next(
            (key for one in question.backends if one.deployed and (key := one.deployed.api_key_secret)), None
        ),
        check=f"gemma smoke {stack}",
        connect=f"gemma connect {stack}",
        features=served_features(subject.resolved),
        backends=gateway.backends,
        gateway_network=gateway.outputs,
    )


def _export_network(gateway: _Gateway) -> None:
    """Export the outputs of a gateway without a service, under the keys of `StackOutputs`."""
    first = gateway.backends[0].stack
    given: Mapping[str, object] = {
        "target": "gateway",
        "project": gateway.settings.project,
        "location": gateway.settings.gateway.region,
        "backends": to_json(gateway.backends),
        "gateway_network": to_json(gateway.outputs),
        "next": f"`gemma up {first}`, then `gemma up {gateway.ownership.stack}`",
    }
    for name, value in given.items():
        pulumi.export(camel_case(name), value)
