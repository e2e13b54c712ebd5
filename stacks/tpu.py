"""A stack of target `tpu`: a queued resource in a private network, with the server from its document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pulumi
import pulumi_gcp as gcp

from gemma_serving.components.private_network import HTTP_PORT, HTTPS_PORT, PrivateNetwork, PrivateNetworkArgs
from gemma_serving.components.tpu_queued_resource import TpuQueuedResource, TpuQueuedResourceArgs
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX, ArchiveSettings
from gemma_serving.contracts.labels import ALWAYS
from gemma_serving.contracts.outputs import StackOutputs, Tunnel
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.contracts.staged_weights import folder_uri
from gemma_serving.contracts.tunnel_role import ADMIN, tunnel_role
from gemma_serving.planning.settings.tpu import CapacityApiName, SshAccess, TpuSettings
from gemma_serving.stacks.base import Context, Foundation, ServerParts, lay_foundation
from gemma_serving.stacks.hooks.changed_server import show_changes
from gemma_serving.stacks.hooks.next_steps import next_steps
from gemma_serving.stacks.hooks.old_secrets import destroy_old_versions
from gemma_serving.stacks.hooks.run_recorder import keep_runs
from gemma_serving.stacks.observability import METRICS_ROLE, declare_alerts, machine_collector
from gemma_serving.stacks.outputs import known_after_up, stack_outputs
from gemma_serving.stacks.server_command import COMMAND, PORT, supports_draining

PROJECT_ROLES = ("roles/logging.logWriter", METRICS_ROLE)
"""Roles of the TPU VM's account on the project. docs/ci.md names them too."""
_TUNNEL_ROLE = "roles/iap.tunnelResourceAccessor"
"""Opens tunnels of Identity-Aware Proxy, restricted to SSH ports by a condition."""
_OS_LOGIN_ROLE = "roles/compute.osLogin"
_INSTANCE_ROLES: Mapping[SshAccess, Sequence[str]] = {
    "os-login": (_OS_LOGIN_ROLE,),
    "metadata-key": ("roles/compute.instanceAdmin.v1",),
}
"""Roles that a member needs for a Compute Engine instance in addition to the tunnel. With OS Login gcloud keeps the key in the user's own profile
and does not change the instance. Otherwise it writes the key into the instance's metadata (gcloud 528, command_lib/compute/ssh_utils.py);
no narrower predefined role has `compute.instances.setMetadata`. Both roles read the instance and the project."""
_NODE_ROLES: Mapping[SshAccess, Sequence[str]] = {
    "os-login": (_OS_LOGIN_ROLE, ADMIN),
    "metadata-key": ("roles/compute.viewer", ADMIN),
}
"""The same for a machine of Cloud TPU. `roles/compute.osLogin` allows the login without root rights, and reads the project; without OS Login
another role must read it. With `roles/tpu.admin` gcloud reads the node and writes the SSH key into its metadata, which it does on the first
connection with OS Login too; no narrower predefined role has `tpu.nodes.update` (docs.cloud.google.com/iam/docs/roles-permissions/tpu, 2026-11;
gcloud 528, command_lib/compute/tpus/tpu_vm/ssh.py). A custom role (`tpu.tunnelRole`) replaces it."""
TUNNEL_ACCOUNT_ROLE = "roles/iam.serviceAccountUser"
"""Role on the TPU VM's account: logins and changes of metadata act as that account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineNetwork:
    """The network of the virtual machine. `ready`: resources that must exist before it boots."""

    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    ready: Sequence[pulumi.Resource]


def deploy(context: Context, tpu: TpuSettings) -> StackOutputs:
    """Declare the capacity, the network and the server, and return their outputs."""
    settings = context.settings
    foundation = lay_foundation(context, project_roles=PROJECT_ROLES, before_change=lambda: keep_runs(context))
    show_changes(context)
    destroy_old_versions(context)
    network = _network(context, tpu, foundation)
    _tunnel_grants(context, tpu, foundation)
    declare_alerts(context, foundation)
    queued = TpuQueuedResource(
        "capacity",
        capacity_arguments(context, tpu, foundation, network),
        pulumi.ResourceOptions.merge(
            foundation.options, pulumi.ResourceOptions(depends_on=[*foundation.ready, *network.ready])
        ),
    )
    tunnel = pulumi.Output.all(queued.node_name, queued.zone).apply(
        lambda known: ssh_tunnel(node=known[0], zone=known[1], project=settings.project, api=tpu.api)
    )
    outputs = stack_outputs(
        context,
        foundation,
        endpoint=f"http://127.0.0.1:{PORT}",
        auth="tunnel",
        location=queued.zone,
    )
    return replace(
        outputs,
        tunnel=known_after_up(tunnel),
        zone=known_after_up(queued.zone),
        provisioning=known_after_up(queued.provisioning) if tpu.has_order else None,
        state=known_after_up(queued.state),
        phase=known_after_up(queued.phase),
        container=known_after_up(queued.container),
        deadline=known_after_up(queued.deadline),
    )


def ssh_tunnel(*, node: str, zone: str, project: str, api: CapacityApiName = "cloud-tpu") -> Tunnel:
    """Return the SSH tunnel through Identity-Aware Proxy to the TPU VM's loopback address.

    Only gcloud's alpha track has `--tunnel-through-iap` for TPU machines; for instances every track has it. `--quiet` answers gcloud's
    prompts, such as the one for an SSH key.
    """
    words = ("compute", "ssh") if api == "compute-engine" else ("alpha", "compute", "tpus", "tpu-vm", "ssh")
    ssh = ("gcloud", *words, node.rpartition("/")[2])
    place = (f"--project={project}", f"--zone={zone}", "--tunnel-through-iap", "--quiet")
    return Tunnel(argv=(*ssh, *place, "--", "-N", "-L", f"{PORT}:127.0.0.1:{PORT}"), local_port=PORT)


def tunnel_roles(api: CapacityApiName, ssh: SshAccess, custom: str | None = None) -> Mapping[str, str]:
    """Return the project roles that a member of `tpu.tunnelMembers` needs, each with its condition.

    `api`: API of the TPU VM. `ssh`: login method of the tunnel. `custom`: full name of the role that replaces roles/tpu.admin.
    """
    roles = (_INSTANCE_ROLES if api == "compute-engine" else _NODE_ROLES)[ssh]
    held = [custom if custom and role == ADMIN else role for role in roles]
    return {_TUNNEL_ROLE: "destination.port == 22", **dict.fromkeys(held, ALWAYS)}


def _network(context: Context, tpu: TpuSettings, foundation: Foundation) -> MachineNetwork:
    given = tpu.existing_network
    if given is not None:
        return MachineNetwork(network=given.network, subnetwork=given.subnetwork, ready=())
    created = PrivateNetwork(
        "network",
        PrivateNetworkArgs(
            project=context.settings.project,
            name=context.names.base,
            regions=context.settings.regions,
            ownership=context.ownership,
            target_tag=context.names.base,
            internet_egress=downloads(context, tpu),
            allow_iap=True,
            egress_ports=_egress_ports(context, tpu),
        ),
        foundation.options,
    )
    return MachineNetwork(network=created.network, subnetwork=created.subnetwork_name, ready=created.ready)


def downloads(context: Context, tpu: TpuSettings) -> bool:
    """Return whether the TPU VM needs the internet, to reach the hub and the docker package."""
    return context.needs_hub or tpu.api == "compute-engine"


def _egress_ports(context: Context, tpu: TpuSettings) -> Sequence[str] | None:
    """Return the TCP ports that the TPU VM may connect to, or None for all."""
    if tpu.egress == "open" or context.needs_hub:
        return None
    return (HTTPS_PORT, HTTP_PORT) if tpu.api == "compute-engine" else (HTTPS_PORT,)


def _tunnel_grants(context: Context, tpu: TpuSettings, foundation: Foundation) -> None:
    """Grant each member all roles. A new role has a new name, so it is granted before the old one is removed."""
    project = context.settings.project
    custom = tunnel_role(tpu.tunnel_role, project).name if tpu.tunnel_role else None
    for member in tpu.tunnel_members:
        for role, expression in tunnel_roles(tpu.api, tpu.ssh, custom).items():
            gcp.projects.IAMMember(
                f"tunnel-{_short(role)}-{member}",
                gcp.projects.IAMMemberArgs(
                    project=project,
                    role=role,
                    member=member,
                    condition=gcp.projects.IAMMemberConditionArgs(**context.ownership.condition(expression)),
                ),
                opts=foundation.options,
            )
        gcp.serviceaccount.IAMMember(
            f"tunnel-{TUNNEL_ACCOUNT_ROLE.rpartition('.')[2]}-{member}",
            gcp.serviceaccount.IAMMemberArgs(
                service_account_id=foundation.identity.name,
                role=TUNNEL_ACCOUNT_ROLE,
                member=member,
            ),
            opts=foundation.options,
        )


def _short(role: str) -> str:
    """Return the role in the name of its grant: `admin`, or `role-ID` for a custom role."""
    if role.startswith("roles/"):
        return role.removesuffix(".v1").rpartition(".")[2]
    return f"role-{role.rpartition('/')[2]}"


def capacity_arguments(
    context: Context, tpu: TpuSettings, parts: ServerParts, network: MachineNetwork
) -> TpuQueuedResourceArgs:
    """Return the arguments of the capacity and its server."""
    settings = context.settings
    return TpuQueuedResourceArgs(
        project=settings.project,
        queued_resource_id=context.names.base,
        tpu=tpu,
        server=VllmServer(
            image=parts.image,
            arguments=context.arguments,
            command=COMMAND,
            port=PORT,
            environment=context.environment,
            secrets=parts.secrets,
        ),
        weights=_weights(context, parts),
        parts=context.part_copies,
        shutdown_flag=supports_draining(settings),
        image_repositories=parts.image_repositories,
        compile_archive=_compile_archive(tpu, parts),
        collector=machine_collector(context, parts),
        network=network.network,
        subnetwork=network.subnetwork,
        service_account=parts.account,
        ownership=context.ownership,
        labels=settings.labels,
        tags=[context.names.base],
        prices=context.subject.resolved.prices,
        next_steps=next_steps(context.subject.resolved.question, context.ownership.stack),
        accepts_limits=True,
    )


def _compile_archive(tpu: TpuSettings, parts: ServerParts) -> pulumi.Output[str] | None:
    """Return the metadata with the location of archived compiled programs, or None without archives."""
    bucket, key = parts.bucket_name, parts.archive_key
    if bucket is None or key is None:
        return None

    def text(name: str, version: str) -> str:
        uri = f"gs://{name}/{ARCHIVE_PREFIX}"
        return ArchiveSettings(uri=uri, accelerator=tpu.accelerator_type, key=version).text()

    return pulumi.Output.all(bucket, key.version_name).apply(lambda known: text(*known))


def _weights(context: Context, parts: ServerParts) -> pulumi.Output[BucketWeights] | None:
    """Return the folder that the TPU VM copies, or None if the server reads the bucket itself or the hub."""
    settings, bucket = context.settings, parts.bucket_name
    if bucket is None or settings.weights != "bucket" or settings.streams_on_tpu:
        return None
    return bucket.apply(
        lambda name: BucketWeights(uri=folder_uri(name, settings.weights_prefix), path=context.model_path)
    )
