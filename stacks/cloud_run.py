"""A stack of target `cloud-run`: a GPU service, with its weights on a mount or in its image."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pulumi

from gemma_serving.components.cloud_run_gpu_service import (
    CloudRunGpuService,
    CloudRunGpuServiceArgs,
    Collector,
    DirectVpc,
    MemoryVolume,
)
from gemma_serving.components.container_starter import container_command
from gemma_serving.components.vllm_server import VllmServer
from gemma_serving.contracts.collector import COLLECTOR_IMAGE
from gemma_serving.contracts.compile_cache import ARCHIVE_PREFIX
from gemma_serving.contracts.container_start import ContainerStart, GraphCache, graphs_folder
from gemma_serving.contracts.outputs import StackOutputs
from gemma_serving.contracts.path_guard import is_guarded
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.stacks.base import Context, ServerParts, lay_foundation
from gemma_serving.stacks.deployed.kept_start import GRAPHS_VOLUME
from gemma_serving.stacks.hooks.changed_server import show_changes
from gemma_serving.stacks.hooks.old_secrets import destroy_old_versions
from gemma_serving.stacks.hooks.run_failures import explain_failures
from gemma_serving.stacks.hooks.run_recorder import keep_runs
from gemma_serving.stacks.hooks.staged_weights import require_staged_weights
from gemma_serving.stacks.observability import METRICS_ROLE, collector_text, declare_alerts
from gemma_serving.stacks.outputs import stack_outputs
from gemma_serving.stacks.server_command import COMMAND, MEMORY_FOLDER, PORT

if TYPE_CHECKING:
    from gemma_serving.components.private_network import PrivateNetwork

_GRAPHS_FOLDER = "/mnt/graphs/vllm"
"""VLLM_CACHE_ROOT. An archive in transfer is stored next to it."""
_DESTROY = (
    "pulumi destroy --exclude-protected --continue-on-error",
    "It fails at the network: Google holds that for two hours after the service is deleted, at no cost. Only a bucket with weights is billed.",
    "Then run it again, or at any time `gemma teardown {}`, which also deletes the bucket.",
)
"""Lines of 150 characters at most: the engine cuts longer ones. It prints them below Google's error."""


def deploy(context: Context, run: CloudRunSettings, annotations: Mapping[str, str]) -> StackOutputs:
    """Declare the service with the annotations of its revisions, and its resources. Return their outputs."""
    settings = context.settings
    foundation = lay_foundation(
        context,
        project_roles=(METRICS_ROLE,) if settings.collects_metrics else (),
        before_change=lambda: keep_runs(context),
    )
    network, vpc = None, None
    if run.direct_vpc:
        network = service_network("network", context, context.names.base, run.region, foundation.options)
        vpc = DirectVpc(network=network.network, subnetwork=network.subnetwork_name, tag=context.names.base)
    explain_failures(context, foundation.new_grants)
    require_staged_weights(context)
    show_changes(context)
    destroy_old_versions(context)
    service = CloudRunGpuService(
        "vllm",
        replace(service_arguments(context, run, foundation, vpc), annotations=annotations),
        pulumi.ResourceOptions.merge(
            foundation.options,
            pulumi.ResourceOptions(depends_on=[*foundation.ready, *(network.ready if network else [])]),
        ),
    )
    declare_alerts(context, foundation)
    outputs = stack_outputs(
        context,
        foundation,
        endpoint=service.uri,
        auth="none" if run.public else "id-token",
        location=run.region,
    )
    lines = tuple(line.format(context.names.stack) for line in _DESTROY)
    return replace(outputs, destroy=lines if network else None)


def service_arguments(
    context: Context, run: CloudRunSettings, parts: ServerParts, direct_vpc: DirectVpc | None
) -> CloudRunGpuServiceArgs:
    """Return the arguments of the service, with the planned probe."""
    settings = context.settings
    return CloudRunGpuServiceArgs(
        project=settings.project,
        service_name=context.names.base,
        service_account=parts.account,
        ownership=context.ownership,
        labels=settings.labels,
        service=replace(run, startup_probe=context.plan.startup.probe),
        server=_server(context, run, parts),
        bucket=parts.bucket if settings.weights == "bucket" else None,
        memory_volumes=_memory_volumes(context, run),
        collector=_collector(context, parts),
        direct_vpc=direct_vpc,
        accepts_limits=True,
    )


def _collector(context: Context, parts: ServerParts) -> Collector | None:
    config = collector_text(context)
    if config is None:
        return None
    key = {name: secret for name, secret in parts.secrets.items() if name == API_KEY.variable}
    return Collector(image=COLLECTOR_IMAGE, config=config, secrets=key)


def _server(context: Context, run: CloudRunSettings, parts: ServerParts) -> VllmServer:
    image = context.settings.image
    command, arguments = _command(context, run, parts)
    keeps_graphs = run.compile_cache == "bucket"
    return VllmServer(
        image=parts.image,
        command=command,
        arguments=arguments,
        port=PORT,
        environment={**context.environment, **({"VLLM_CACHE_ROOT": _GRAPHS_FOLDER} if keeps_graphs else {})},
        secrets=parts.secrets,
        uid=image.uid or 0,
        gid=image.gid or 0,
    )


def _memory_volumes(context: Context, run: CloudRunSettings) -> list[MemoryVolume]:
    # No volume at /dev/shm, because Cloud Run rejects it, and the single worker of one GPU does not share memory.
    volumes: list[MemoryVolume] = []
    weights_in_bucket = context.settings.weights == "bucket"
    if weights_in_bucket and (run.mount.mode == "memory" or context.part_copies):
        # All memory that the server itself does not need, so a copy that is too large fails with an error and does not terminate the container.
        left_mib = round((context.subject.resolved.server_memory_gib - constant("SERVER_HOST_GIB")) * 1024)
        volumes.append(MemoryVolume(name="weights", path=MEMORY_FOLDER, size_limit=f"{left_mib}Mi"))
    if run.compile_cache == "bucket":
        volumes.append(MemoryVolume(name=GRAPHS_VOLUME, path="/mnt/graphs", size_limit="2Gi"))
    return volumes


def _command(
    context: Context, run: CloudRunSettings, parts: ServerParts
) -> tuple[Sequence[str], Sequence[pulumi.Input[str]]]:
    """Return the command and its arguments: the server's own, or the starter before them."""
    words, uri = context.arguments, context.weights_uri
    weights = BucketWeights(uri, context.model_path) if run.mount.mode == "memory" else None
    key = parts.archive_key
    if weights is None and key is None and not context.part_copies and not is_guarded(words):
        return COMMAND, words
    bucket = uri.removeprefix("gs://").partition("/")[0]

    def start(image: str, version: str | None) -> str:
        folder = graphs_folder(image, run.gpu, context.settings.model, words[1:])
        archives = f"gs://{bucket}/{ARCHIVE_PREFIX}/{folder}"
        return ContainerStart(
            weights,
            None if version is None else GraphCache(archives, _GRAPHS_FOLDER, version),
            context.part_copies,
        ).text()

    known = pulumi.Output.all(parts.image, None if key is None else key.version_name)
    return container_command(), (known.apply(lambda each: start(*each)), *COMMAND, *words)


def service_network(
    name: str, context: Context, base: str, region: str, options: pulumi.ResourceOptions | None
) -> "PrivateNetwork":
    """Declare the network of a service. `base`: name of the network, its subnetwork and its tag at Google."""
    from gemma_serving.components.private_network import PrivateNetwork, PrivateNetworkArgs  # noqa: PLC0415 - 0.7 s, and few servers need it

    arguments = PrivateNetworkArgs(
        project=context.settings.project,
        name=base,
        regions=[region],
        ownership=context.ownership,
        target_tag=base,
        internet_egress=context.needs_hub,
        allow_iap=False,
    )
    return PrivateNetwork(name, arguments, options)
