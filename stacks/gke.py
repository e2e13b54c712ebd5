"""A stack's server on GKE: the same words as on its own target, sized and timed for a node."""

import math
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.staged_weights import MODELS_FOLDER
from gemma_serving.gke.server import BucketMount, GkeOptions, GkeServer
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.cloud_run import MountSettings
from gemma_serving.planning.settings.secrets import API_KEY, HF_TOKEN
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.units import to_gib
from gemma_serving.stacks.server_command import (
    COMMAND,
    EVERY_ADDRESS,
    PORT,
    SHUTDOWN_FLAG,
    PlannedServer,
    supports_draining,
)

_DRAIN_S: Final = (30, 600)
"""Least and most time for running requests. Chosen: a TPU VM's agent gives 30 s, and no request of a chat takes longer than the other."""
_DISK_MARGIN_GIB: Final = 10
"""Space for logs and the container's own files next to the weights. Assumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnGke(PlannedServer):
    """The server in a Pod: it sees the bucket's own folders, and other Pods reach it."""

    @property
    def is_mounted(self) -> bool:
        """True: a Pod mounts the bucket."""
        return True

    @property
    def host(self) -> str:
        """Every address of the Pod."""
        return EVERY_ADDRESS


def gke_server(settings: Settings, subject: Subject, plan: Plan, stack: str, options: GkeOptions) -> GkeServer:
    """Return the server of a stack. `subject` and `plan` are the stack's own, so its flags and its environment stay the same.

    Start, concurrent requests and price are those of a node: of the same TPU host, or of the Compute Engine machine with the GPU.
    """
    names = Names(project=settings.project, stack=stack)
    planned = _OnGke(settings=settings, plan=plan, names=names)
    run, deployment = settings.cloud_run, subject.resolved.deployment
    node = subject if run is None else examine(replace(deployment, platform="gce"))
    drain_s = _drain_s(node)
    drains = (f"{SHUTDOWN_FLAG}={drain_s}",) if supports_draining(settings) else ()
    workload, resolved = node.workload, node.resolved
    image = settings.image
    return GkeServer(
        name=names.base,
        image=options.image or ("" if image.build_context else f"{image.repository}@{image.digest}"),
        command=COMMAND,
        arguments=(*planned.arguments, *drains),
        environment=planned.environment,
        port=PORT,
        accelerator=plan.accelerator,
        form=settings.tpu.forms[0].model if settings.tpu else "standard",
        zones=settings.tpu.zones if settings.tpu else (),
        cpu=run.cpu if run else None,
        memory_mib=run.memory_mib if run else None,
        disk_gib=math.ceil(to_gib(node.weights.checkpoint)) + _DISK_MARGIN_GIB if settings.weights == "hub" else 0,
        service_account=names.account_email,
        mount=_mount(settings, stack),
        token_secret=_token_secret(planned),
        container_start_s=node.startup.total_high_s,
        concurrent_requests=workload.most_users if workload else resolved.max_num_seqs * resolved.dp,
        drain_s=drain_s,
        has_api_key=settings.has_secret(API_KEY.key),
        usd_per_hour=node.cost.usd_per_hour if node.cost.is_known else None,
    )


def _drain_s(node: Subject) -> int:
    """Return the time of a request of the workload at the slow end of its band, within limits."""
    least, most = _DRAIN_S
    return least if node.workload is None else min(max(math.ceil(node.workload.request_s.high), least), most)


def _mount(settings: Settings, stack: str) -> BucketMount | None:
    """Return the mount of the weights, with the stack's own options; None if the server downloads or streams them."""
    mount = settings.cloud_run.mount if settings.cloud_run else MountSettings()
    if settings.weights != "bucket" or settings.streams_on_tpu or not mount.mounts:
        return None
    options = mount.flags(uid=settings.image.uid or 0, gid=settings.image.gid or 0)
    if mount.cache_size_mib is not None:
        # In the driver's spelling: the file cache is in its own volume (accelerated-platforms 9320f3b, online-inference-tpu/vllm).
        options += [
            f"file-cache:max-size-mb:{mount.cache_size_mib}",
            "file-cache:enable-parallel-downloads:true",
        ]
    return BucketMount(
        bucket=settings.bucket_name(stack),
        path=MODELS_FOLDER,
        options=(*options, *mount.options),
        cache_mib=mount.cache_size_mib,
    )


def _token_secret(planned: PlannedServer) -> str:
    """Return the version of the Hugging Face token: the existing one, or the newest of the stack's own secret; empty without need."""
    settings = planned.settings
    if not planned.needs_hub or not settings.has_secret(HF_TOKEN.key):
        return ""
    own = f"projects/{settings.project}/secrets/{planned.names.base}-{HF_TOKEN.name}/versions/latest"
    return settings.secret_version(HF_TOKEN.key) or own
