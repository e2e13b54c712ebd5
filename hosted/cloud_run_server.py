"""`CloudRunServer`: a model on a Cloud Run GPU, as a component for programs in any language."""

from typing import Any, NotRequired, TypedDict

import pulumi

from hosted.kinds import CLOUD_RUN
from hosted.server_component import ServerComponent


class CloudRunServerArgs(TypedDict):
    """Inputs of a CloudRunServer."""

    model: str
    """Hugging Face id of the checkpoint, such as `google/gemma-4-E4B-it`."""
    region: str
    """Region with the GPU, such as `us-east4`."""
    gpu: str
    """GPU of each instance: `nvidia-l4` or `nvidia-rtx-pro-6000`."""
    project: NotRequired[str]
    """Google Cloud project. Default: `gcp:project` of the stack, or `GOOGLE_CLOUD_PROJECT`."""
    concurrency: NotRequired[int]
    """Maximum concurrent requests per instance. Default: 16."""
    min_instances: NotRequired[int]
    """Instances that always run, and cost money when idle. Default: 0."""
    max_instances: NotRequired[int]
    """Maximum number of instances. Default: 1."""
    invokers: NotRequired[list[str]]
    """Members that may call the service, such as `group:ml@example.com`. Project owners need no entry."""
    hf_token: NotRequired[pulumi.Input[str]]
    """Hugging Face token, for checkpoints that require one. It is stored in Secret Manager."""
    api_key: NotRequired[pulumi.Input[str]]
    """API key that each request to the server then needs. It is stored in Secret Manager."""
    settings: NotRequired[dict[str, Any]]
    """More settings, with the keys of a settings file of gemma-serving (docs/reference/settings.md), such as `{"vllm": {"maxModelLen": 8192}}`."""


class CloudRunServer(ServerComponent):
    """Gemma 4 behind vLLM on Cloud Run GPUs. Callers need an identity token.

    The plan runs before any resource is declared: a model that does not fit, or settings that cannot work, stop the program with the reason and
    the change that helps. `pulumi up` waits until a revision serves. `pulumi destroy` deletes everything.
    """

    endpoint: pulumi.Output[str]
    """URL of the service."""
    served_model: pulumi.Output[str]
    """Name to send as `model` in requests."""
    image: pulumi.Output[str]
    """The server's image, by digest."""
    usd_per_hour: pulumi.Output[float]
    """Planned price of one instance in US dollars per hour."""
    plan: pulumi.Output[dict[str, Any]]
    """The plan in figures: memory, start-up time, throughput and cost."""

    def __init__(self, name: str, args: CloudRunServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Plan and declare the server. Raises RefusedError."""
        super().__init__(CLOUD_RUN, name, args, opts)
