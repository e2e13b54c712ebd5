"""Reusable component resources. Each takes one frozen arguments object and an explicit provider, and is independent of stacks and settings.

`gemma_serving/` has a link to this folder, because every import begins with `gemma_serving`.
A module is imported when a program uses one of its names, because all of them take 2 s.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gemma_serving.components.checks import InvalidArgumentError
    from gemma_serving.components.cloud_run_gpu_service import CloudRunGpuService, CloudRunGpuServiceArgs, DirectVpc
    from gemma_serving.components.gke_model_server import GkeModelServer, GkeModelServerArgs, workload_member
    from gemma_serving.components.model_bucket import ModelBucket, ModelBucketArgs
    from gemma_serving.components.private_network import PrivateNetwork, PrivateNetworkArgs
    from gemma_serving.components.stored_secret import (
        ApiKeySecret,
        ExistingSecret,
        ExistingSecretArgs,
        HuggingFaceToken,
        StoredSecretArgs,
    )
    from gemma_serving.components.tpu_queued_resource import TpuQueuedResource, TpuQueuedResourceArgs
    from gemma_serving.components.vllm_server import VllmServer

__all__ = [
    "ApiKeySecret",
    "CloudRunGpuService",
    "CloudRunGpuServiceArgs",
    "DirectVpc",
    "ExistingSecret",
    "ExistingSecretArgs",
    "GkeModelServer",
    "GkeModelServerArgs",
    "HuggingFaceToken",
    "InvalidArgumentError",
    "ModelBucket",
    "ModelBucketArgs",
    "PrivateNetwork",
    "PrivateNetworkArgs",
    "StoredSecretArgs",
    "TpuQueuedResource",
    "TpuQueuedResourceArgs",
    "VllmServer",
    "workload_member",
]

_MODULES: Final = (
    *("checks", "stored_secret", "gke_model_server", "private_network", "vllm_server"),
    *("tpu_queued_resource", "model_bucket", "cloud_run_gpu_service"),
)
"""Modules of the names, the fastest to import first."""


def __getattr__(name: str) -> object:
    """Return a public name from the first module that has it."""
    for module in _MODULES if name in __all__ else ():
        found = import_module(f"{__name__}.{module}")
        if hasattr(found, name):
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
