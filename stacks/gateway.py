"""A stack of target `gateway`: a network for the machines of other stacks, and Envoy on Cloud Run in front of them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pulumi

from cloud.model_files import PROJECT
from components import gcp
from components.gateway_config import GatewayServer, gateway_config
from components.gateway_service import GatewayService, GatewayServiceArgs
from components.observability import Observability, ObservabilityArgs
from components.private_network import GATEWAY_RANGE, PrivateNetwork, PrivateNetworkArgs
from components.runtime_identity import RuntimeIdentity, RuntimeIdentityArgs
from components.serving_image import ServingImage, ServingImageArgs
from contracts.alerts import AlertValues, alerts_of
from contracts.fields import camel_case, to_json
from contracts.gateway import ENVOY_DIGEST, ENVOY_REPOSITORY
from contracts.labels import Ownership
from contracts.naming import Names
from contracts.outputs import GatewayBackend, GatewayNetwork, StackOutputs
from contracts.resource_types import SERVICE_TYPE
from planning.planner import plan_of
from planning.question.features import served_features
from planning.question.vllm_args import given_options
from planning.rules.gateway import DeployedBackend, usd_per_hour
from stacks.apis import GATEWAY_APIS
from stacks.base import PORT
from stacks.bound_hooks import bind_types
from stacks.gateway_plan import GatewayPlan, gateway_lines, plan_gateway
from stacks.outputs import export, known_after_up, smoke_thresholds
from stacks.planned import today
from stacks.project.other_stacks import deployed_outputs
from stacks.project.propagation import require_enabled, require_resource_manager, wait_for_google
from stacks.settings import GatewayStack


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gateway:
    """Inputs of the stack."""

    settings: GatewayStack
    plan: GatewayPlan
    names: Names
    ownership: Ownership

    @property
    def backends(self) -> tuple[GatewayBackend, ...]:
        """Backends as this `up` finds them."""
        return tuple(
            GatewayBackend(
                stack=backend.stack,
                address=backend.deployed.address,
                state=backend.deployed.state,
                deadline=backend.deployed.deadline,
            )
            for backend in self.plan.question.backends
            if backend.deployed is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Foundation:
    """Resources that exist with and without a service."""

    options: pulumi.ResourceOptions
    identity: RuntimeIdentity
    image: ServingImage
    network: PrivateNetwork
    outputs: GatewayNetwork


def deploy(settings: GatewayStack, stack: str, folder: Path = PROJECT) -> None:
    """Declare the network and, once a backend has an address, the service. Export their outputs.

    The settings files of the backends are in `folder`.

    Raises:
        CommandRefusedError: findings block the stack, or the state of a backend cannot be read.
    """
    deployed = {backend.stack: _deployed(backend.stack) for backend in settings.gateway.backends}
    plan = plan_gateway(settings, stack, deployed, folder, today=today())
    for text, is_warning in gateway_lines(plan):
        (pulumi.log.warn if is_warning else pulumi.log.info)(text)
    gateway = _Gateway(
        settings=settings,
        plan=plan,
        names=Names(project=settings.project, stack=stack),
        ownership=Ownership(project=pulumi.get_project(), stack=stack),
    )
    foundation = _lay_foundation(gateway)
    if any(backend.address for backend in gateway.backends):
        _serve(gateway, foundation)
    else:
        _export_network(gateway, foundation)


def _deployed(stack: str) -> DeployedBackend:
    """Return a backend as its last `up` left it."""
    outputs = deployed_outputs(stack) or {}
    return DeployedBackend(
        address=_text(outputs, "address"),
        state=_text(outputs, "state"),
        deadline=_text(outputs, "deadline"),
        api_key_secret=_text(outputs, camel_case("api_key_secret")),
    )


def _text(outputs: Mapping[str, object], key: str) -> str:
    value = outputs.get(key)
    return value if isinstance(value, str) else ""


def _lay_foundation(gateway: _Gateway) -> _Foundation:
    settings, names, ownership = gateway.settings, gateway.names, gateway.ownership
    project, region = settings.project, settings.gateway.region
    require_enabled(project, GATEWAY_APIS)
    provider = gcp.Provider("gcp", project=project, region=region, billing_project=project)
    require_resource_manager(project)
    wait_for_google(project=project)
    options = pulumi.ResourceOptions(providers={"gcp": provider})
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
    outputs = GatewayNetwork(
        network=known_after_up(network.network),
        subnetwork=network.subnetwork_name,
        regions=tuple(settings.gateway.regions),
        gateway_range=GATEWAY_RANGE,
        internet_egress=settings.gateway.internet_egress,
    )
    return _Foundation(options=options, identity=identity, image=image, network=network, outputs=outputs)


def _serve(gateway: _Gateway, foundation: _Foundation) -> None:
    settings, names = gateway.settings.gateway, gateway.names
    _explain_failed_start(gateway)
    service = GatewayService(
        "gateway",
        GatewayServiceArgs(
            project=gateway.settings.project,
            location=settings.region,
            service_name=names.base,
            service_account=foundation.identity.email,
            image=foundation.image.ref,
            config=gateway_config(
                [
                    GatewayServer(name=one.stack, address=one.address, port=PORT)
                    for one in gateway.backends
                    if one.address
                ],
                names.stack,
            ),
            network=foundation.network.network,
            subnetwork=foundation.network.gateway_subnetwork,
            invokers=settings.invokers,
            min_instances=settings.min_instances,
            max_instances=settings.max_instances,
            ownership=gateway.ownership,
            labels=gateway.settings.labels,
        ),
        pulumi.ResourceOptions.merge(
            foundation.options,
            pulumi.ResourceOptions(depends_on=[*foundation.image.grants, *foundation.network.ready]),
        ),
    )
    if gateway.settings.alerts.enabled:
        _watch(gateway, foundation)
    export(_outputs(gateway, foundation, service))


def _watch(gateway: _Gateway, foundation: _Foundation) -> None:
    settings, names = gateway.settings, gateway.names
    arguments = ObservabilityArgs(
        project=settings.project,
        ownership=gateway.ownership,
        labels=settings.labels,
        values=AlertValues(stack=names.stack, name=names.base),
        alerts=list(alerts_of("gateway")),
        email=settings.alerts.email,
        webhook=settings.alerts.webhook,
    )
    Observability("alerts", arguments, foundation.options)


def _explain_failed_start(gateway: _Gateway) -> None:
    """Register an error hook that names what a revision needs to start. Cloud Run reports only that its startup probe failed."""
    rules = ", ".join(
        f"{Names(project=gateway.settings.project, stack=one.stack).base}-gateway-server" for one in gateway.backends
    )

    async def explain(_args: pulumi.ErrorHookArgs) -> bool:
        await asyncio.sleep(0)
        pulumi.log.info(
            "If the error above names the startup probe, no server answered the gateway. Check each server with `gemma smoke NAME`, "
            f"and the firewall rules {rules} in network {gateway.names.base}. `pulumi up --refresh --stack NAME` of a server restores its rule."
        )
        return False

    hook = pulumi.ErrorHook("explain-failed-gateway", explain)

    bind_types({SERVICE_TYPE}, pulumi.ResourceHookBinding(on_error=[hook]))


def _outputs(gateway: _Gateway, foundation: _Foundation, service: GatewayService) -> StackOutputs:
    """Return the outputs. Model, plan, options and thresholds are those of the first backend: a request has one server.

    The price is that of the gateway and all servers that get requests.
    """
    first = gateway.plan.planned[0]
    plan = plan_of(first.subject)
    stack, summary = gateway.ownership.stack, plan.summary()
    question = gateway.plan.question
    price = usd_per_hour(question, [backend for backend in question.backends if backend.serves])
    return StackOutputs(
        target="gateway",
        model=first.settings.model,
        served_model=first.settings.vllm.served_model_name or first.settings.model,
        endpoint=known_after_up(service.uri),
        auth="id-token",
        image=known_after_up(foundation.image.ref),
        plan=replace(summary, cost=replace(summary.cost, usd_per_hour=price)),
        vllm=given_options(plan.vllm),
        smoke=smoke_thresholds(first.settings.smoke, first.subject, plan),
        labels={**gateway.settings.labels, **gateway.ownership.labels},
        project=gateway.settings.project,
        location=gateway.settings.gateway.region,
        # All backends have the same key, or none.
        api_key_secret=next(
            (key for one in question.backends if one.deployed and (key := one.deployed.api_key_secret)), None
        ),
        check=f"gemma smoke {stack}",
        connect=f"gemma connect {stack}",
        features=served_features(first.subject.resolved),
        backends=gateway.backends,
        gateway_network=foundation.outputs,
    )


def _export_network(gateway: _Gateway, foundation: _Foundation) -> None:
    """Export the outputs of a gateway without a service, under the keys of `StackOutputs`."""
    first = gateway.backends[0].stack
    given: Mapping[str, object] = {
        "target": "gateway",
        "project": gateway.settings.project,
        "location": gateway.settings.gateway.region,
        "backends": to_json(gateway.backends),
        "gateway_network": to_json(foundation.outputs),
        "next": f"pulumi up --stack {first}, then pulumi up --stack {gateway.ownership.stack}",
    }
    for name, value in given.items():
        pulumi.export(camel_case(name), value)
