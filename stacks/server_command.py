"""A stack's server as words, without the resources of the stack: what its deployments and the judge of `gemma plan` share."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gemma_serving.contracts.naming import Names
from gemma_serving.contracts.serving_document import BucketWeights
from gemma_serving.contracts.staged_weights import HASH_VARIABLE, MODELS_FOLDER, folder_uri
from gemma_serving.planning.question.server_flags import flag_table
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import OPTIONS, SHUTDOWN_FLAG, VllmOptions, vllm_arguments
from gemma_serving.stacks.extra_checkpoints import ExtraCheckpoint, extra_checkpoints, with_local_folders

PORT: Final = 8000
"""Port of the server inside its container."""
LOOPBACK: Final = "127.0.0.1"
"""Address of a machine's server, at the end of the tunnel."""
_EVERY_ADDRESS: Final = "0.0.0.0"
MEMORY_FOLDER: Final = "/mnt/weights"
"""Folder of a Cloud Run container with a copy of the weights in memory."""
COMMAND: Final = ("vllm", "serve")
"""Command of the server, before its arguments."""
_HUB_ID: Final = re.compile(r"(?<![\w./:@-])[A-Za-z0-9][\w.-]*/[\w.-]+(?![\w./-])")
"""ORG/NAME in an argument, but not as part of a path or a URI."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedServer:
    """The server of a stack: the words that its settings and its plan give it."""

    settings: Settings
    plan: Plan
    names: Names
    in_pod: bool = False
    """True for a Pod of GKE, which mounts the bucket and which other Pods reach."""

    @property
    def model_path(self) -> str:
        """Folder of the container with the weights, or their URI if vLLM reads the bucket itself."""
        mode = self.settings.cloud_run.mount.mode if self.settings.cloud_run else ""
        if mode == "streamer":
            return self.weights_uri
        if mode == "memory":
            return f"{MEMORY_FOLDER}/{self.settings.weights_name}".rstrip("/")
        # A mount shows the bucket's own folders. A machine's copy is replaced file by file, so its disk needs space for only one.
        is_mounted = self.in_pod or self.settings.cloud_run is not None
        folder = self.settings.weights_prefix if is_mounted else self.settings.weights_name
        return f"{MODELS_FOLDER}/{folder}".rstrip("/")

    @property
    def weights_uri(self) -> str:
        """Folder of the bucket with the weights, as gs://BUCKET/FOLDER."""
        return folder_uri(self.settings.bucket_name(self.names.stack), self.settings.weights_prefix)

    @property
    def weights_to_load(self) -> str:
        """Weights for the server to load: the model's id on the hub, a folder of the container, or the URI of a folder in the bucket."""
        settings = self.settings
        if settings.streams_on_tpu:
            return self.weights_uri
        return self.model_path if settings.weights == "bucket" else settings.model

    @property
    def needs_hub(self) -> bool:
        """True if the server downloads from the Hugging Face hub: weights, or a file named by an argument.

        An argument that only resembles a name on the hub counts too.
        """
        words = vllm_arguments(self.vllm, model_or_path=self.weights_to_load)
        # The model name that clients send is not a download.
        served_name = OPTIONS["servedModelName"].flag
        named = any(_HUB_ID.search(word) for word in words[1:] if not word.startswith(served_name))
        return self.settings.weights == "hub" or named

    @property
    def vllm(self) -> VllmOptions:
        """The vLLM options in effect, with a default name for clients and local folders of staged parts."""
        return with_local_folders(with_served_name(self.settings, self.plan.vllm), self.parts, self.parts_root)

    @property
    def parts(self) -> tuple[ExtraCheckpoint, ...]:
        """Drafters and adapters that staging copies to the bucket."""
        return extra_checkpoints(self.settings)

    @property
    def parts_root(self) -> str:
        """Folder of the TPU VM or container with the staged parts."""
        run = self.settings.cloud_run
        return MEMORY_FOLDER if run is not None and not run.mount.mounts else MODELS_FOLDER

    @property
    def part_copies(self) -> tuple[BucketWeights, ...]:
        """Copies of staged parts that are made before the server starts. A mount needs none."""
        run = self.settings.cloud_run
        if run is not None and run.mount.mounts:
            return ()
        bucket = self.settings.bucket_name(self.names.stack)
        return tuple(
            BucketWeights(folder_uri(bucket, extra.folder), f"{self.parts_root}/{extra.folder}")
            for extra in self.parts
            if extra.folder is not None
        )

    @property
    def arguments(self) -> Sequence[str]:
        """Words after `vllm serve`."""
        return server_arguments(self.settings, self.vllm, model_or_path=self.weights_to_load, in_pod=self.in_pod)

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables without secrets."""
        environment = dict(self.plan.environment)
        digest = self.settings.bucket.manifest_hash if self.settings.weights == "bucket" else None
        if digest is not None:
            environment[HASH_VARIABLE] = digest  # other weights are a new document and revision
        if self.parts and not self.needs_hub:
            environment["HF_HUB_OFFLINE"] = "1"  # a server with staged parts requests them from the hub
        return environment


def with_served_name(settings: Settings, planned: VllmOptions) -> VllmOptions:
    """Return the planned options with a default name for clients."""
    return replace(planned, served_model_name=settings.vllm.served_model_name or settings.model)


def server_arguments(
    settings: Settings, options: VllmOptions, *, model_or_path: str, in_pod: bool = False
) -> tuple[str, ...]:
    """Return the words after `vllm serve`."""
    is_local = settings.tpu is not None and not in_pod
    return vllm_arguments(
        options,
        model_or_path=model_or_path,
        port=PORT,
        host=LOOPBACK if is_local else _EVERY_ADDRESS,
        revision=settings.served_revision,
        has_api_key=settings.has_secret(API_KEY.key),
    )


def supports_draining(settings: Settings) -> bool:
    """Return whether the image has the flag for draining. With an unknown one the server does not start."""
    table = flag_table(settings.image.version or None)
    return table.is_certain and SHUTDOWN_FLAG in table.flags
