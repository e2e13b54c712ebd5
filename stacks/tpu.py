"""A stack of target `tpu`: a queued resource in a private network, with the server that its document describes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pulumi
import pulumi_gcp as gcp

from components.private_network import PrivateNetwork, PrivateNetworkArgs
from components.serving_document import BucketWeights, ServingDocument
from components.tpu_queued_resource import TpuQueuedResource, TpuQueuedResourceArgs
from planning.vllm_args import vllm_arguments
from stacks.base import COMMAND, MODELS_FOLDER, PORT, Context, Foundation, lay_foundation
from stacks.outputs import export, served_model
from stacks.settings import ExistingNetworkSettings, Settings, TpuSettings

_ROLES = ("roles/logging.logWriter", "roles/monitoring.metricWriter")
_SHM_GIB = 16
_TUNNEL_ROLE = "roles/iap.tunnelResourceAccessor"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """The network of the virtual machine. `ready` is what has to exist before it boots."""

    network: pulumi.Input[str]
    subnetwork: str
    ready: Sequence[pulumi.Resource]


def deploy(context: Context) -> None:
    """Declare the capacity, the network and the server, and export their outputs."""
    settings = context.settings
    tpu = settings.tpu
    if tpu is None:
        raise ValueError("settings without tpu reached the TPU stack")
    foundation = lay_foundation(
        context, region=settings.regions[0], apis=("tpu", "compute", "iap"), project_roles=_ROLES
    )
    network = _existing_network(tpu.existing_network) if tpu.existing_network else _own_network(context, foundation)
    _tunnel_grants(tpu, settings, foundation)
    queued = TpuQueuedResource(
        "capacity",
        _arguments(context, tpu, foundation, network),
        pulumi.ResourceOptions.merge(
            foundation.options, pulumi.ResourceOptions(depends_on=[*foundation.ready, *network.ready])
        ),
    )
    export(
        context,
        endpoint=f"http://127.0.0.1:{PORT}",
        auth="tunnel",
        tunnel=pulumi.Output.all(queued.node_name, queued.zone).apply(
            lambda known: tunnel_command(node=known[0], zone=known[1], project=settings.project)
        ),
        image=foundation.image.ref,
        location=queued.zone,
    )


def tunnel_command(*, node: str, zone: str, project: str) -> dict[str, object]:
    """Return how to reach the server: an SSH tunnel through Identity-Aware Proxy to the machine's own loopback address."""
    return {
        "argv": [
            "gcloud",
            "compute",
            "tpus",
            "tpu-vm",
            "ssh",
            node.rpartition("/")[2],
            f"--project={project}",
            f"--zone={zone}",
            "--tunnel-through-iap",
            "--",
            "-N",
            "-L",
            f"{PORT}:127.0.0.1:{PORT}",
        ],
        "localPort": PORT,
    }


def _existing_network(given: ExistingNetworkSettings) -> _Network:
    return _Network(network=given.network, subnetwork=given.subnetwork, ready=())


def _own_network(context: Context, foundation: Foundation) -> _Network:
    own = PrivateNetwork(
        "network",
        PrivateNetworkArgs(
            project=context.settings.project,
            name=context.names.base,
            regions=context.settings.regions,
            ownership=context.ownership,
            target_tag=context.names.base,
            # The hub is on the internet; images come through Artifact Registry and staged weights from Cloud Storage, both reached privately.
            internet_egress=context.settings.weights == "hub",
            allow_iap=True,
        ),
        foundation.options,
    )
    return _Network(network=own.network, subnetwork=own.subnetwork_name, ready=own.ready)


def _tunnel_grants(tpu: TpuSettings, settings: Settings, foundation: Foundation) -> None:
    for member in tpu.tunnel_members:
        gcp.projects.IAMMember(
            f"tunnel-{member}",
            project=settings.project,
            role=_TUNNEL_ROLE,
            member=member,
            opts=foundation.options,
        )


def _arguments(context: Context, tpu: TpuSettings, foundation: Foundation, network: _Network) -> TpuQueuedResourceArgs:
    settings = context.settings
    return TpuQueuedResourceArgs(
        project=settings.project,
        queued_resource_id=context.names.base,
        zones=tpu.zones,
        accelerator_type=tpu.accelerator_type,
        provisioning_model=tpu.provisioning,
        reservation_name=tpu.reservation,
        max_run_duration_s=tpu.max_run_duration_s,
        wait_per_zone_s=tpu.wait_per_zone_s,
        ready_timeout_s=tpu.ready_timeout_s,
        runtime_version=tpu.runtime_version,
        document=_document(context, foundation),
        network=network.network,
        subnetwork=network.subnetwork,
        service_account=foundation.identity.email,
        ownership=context.ownership,
        labels=settings.labels,
        tags=[context.names.base],
        allow_replace_active=tpu.allow_replace_active,
    )


def _document(context: Context, foundation: Foundation) -> pulumi.Output[str]:
    settings, plan = context.settings, context.plan
    options = replace(plan.vllm, served_model_name=served_model(settings))
    path = f"{MODELS_FOLDER}/{settings.weights_prefix}"
    arguments = vllm_arguments(
        options, model_or_path=path if settings.weights == "bucket" else settings.model, port=PORT
    )
    version: pulumi.Output[str | None] = (
        foundation.token.version_name if foundation.token else pulumi.Output.from_input(None)
    )
    bucket: pulumi.Output[str | None] = (
        foundation.bucket.bucket if foundation.bucket else pulumi.Output.from_input(None)
    )

    def text(known: tuple[str, str | None, str | None]) -> str:
        image, token_version, bucket_name = known
        uri = f"gs://{bucket_name}/{settings.weights_prefix}"
        return ServingDocument(
            image=image,
            command=COMMAND,
            arguments=arguments,
            environment=dict(plan.environment),
            secret_environment={"HF_TOKEN": token_version} if token_version else {},
            port=PORT,
            shm_size_gib=_SHM_GIB,
            weights=BucketWeights(uri=uri, path=path) if bucket_name else None,
        ).text()

    return pulumi.Output.all(foundation.image.ref, version, bucket).apply(
        lambda known: text((known[0], known[1], known[2]))
    )
