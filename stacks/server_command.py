"""The command line of a stack's server, without the resources of the stack: what the serving document and the judge of `gemma plan` share."""

from dataclasses import replace
from typing import Final

from gemma_serving.planning.settings.secrets import API_KEY
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import VllmOptions, vllm_arguments

PORT: Final = 8000
"""Port of the server inside its container."""
LOOPBACK: Final = "127.0.0.1"
"""Address of a machine's server without a gateway, at the end of the tunnel."""
_EVERY_ADDRESS: Final = "0.0.0.0"


def with_served_name(settings: Settings, planned: VllmOptions) -> VllmOptions:
    """Return the planned options with a default name for clients."""
    return replace(planned, served_model_name=settings.vllm.served_model_name or settings.model)


def server_arguments(settings: Settings, options: VllmOptions, *, model_or_path: str) -> tuple[str, ...]:
    """Return the words after `vllm serve`."""
    # A gateway calls the TPU VM's address in the network, and the agent the loopback address.
    is_local = settings.tpu is not None and settings.tpu.gateway is None
    return vllm_arguments(
        options,
        model_or_path=model_or_path,
        port=PORT,
        host=LOOPBACK if is_local else _EVERY_ADDRESS,
        revision=settings.served_revision,
        has_api_key=settings.has_secret(API_KEY.key),
    )
