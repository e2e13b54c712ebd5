"""`TpuServer`: a model on a TPU slice, as a component for programs in any language."""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import pulumi

from contracts.outputs import StackOutputs, Tunnel
from hosted.kinds import TPU
from hosted.server_component import ServerComponent


class TpuServerArgs(TypedDict):
    """Inputs of a TpuServer."""

    model: str
    """Hugging Face id of the checkpoint, such as `google/gemma-4-E4B-it`."""
    accelerator: str
    """Slice with at most 8 chips, such as `v6e-4`."""
    zones: list[str]
    """Zones in order of preference. The provider deletes its request in one zone before it tries the next."""
    project: NotRequired[str]
    """Google Cloud project. Default: `gcp:project` of the stack, or `GOOGLE_CLOUD_PROJECT`."""
    provisioning: NotRequired[str]
    """Provisioning model: `flex-start`, `spot`, `standard` or `reservation`. Default: `flex-start`."""
    max_run_duration: NotRequired[str]
    """Time after which Google deletes the machine, such as `4h`. Required with `flex-start`."""
    tunnel_members: NotRequired[list[str]]
    """Members that may open the tunnel, such as `group:ml@example.com`. Project owners need no entry."""
    hf_token: NotRequired[pulumi.Input[str]]
    """Hugging Face token, for checkpoints that require one. It is stored in Secret Manager."""
    api_key: NotRequired[pulumi.Input[str]]
    """API key that each request to the server then needs. It is stored in Secret Manager."""
    settings: NotRequired[dict[str, Any]]
    """More settings, with the keys of a settings file of gemma-serving (docs/reference/settings.md), such as `{"vllm": {"maxModelLen": 8192}}`."""


class TpuServer(ServerComponent):
    """Gemma 4 behind vLLM on a TPU slice that a queued resource provides, in a private network.

    The plan runs before any resource is declared: a model that does not fit, or settings that cannot work, stop the program with the reason and
    the change that helps. `pulumi up` waits for capacity and for the server. `pulumi destroy` deletes everything.
    """

    endpoint: pulumi.Output[str]
    """URL at the local end of the tunnel."""
    tunnel_command: pulumi.Output[str]
    """Command that opens the tunnel to the server."""
    served_model: pulumi.Output[str]
    """Name to send as `model` in requests."""
    image: pulumi.Output[str]
    """The server's image, by digest."""
    zone: pulumi.Output[str]
    """Zone that granted the capacity."""
    state: pulumi.Output[str]
    """State of the queued resource, such as `ACTIVE`."""
    deadline: pulumi.Output[str]
    """Time at which Google deletes the machine (RFC 3339, UTC); empty without a run limit."""
    usd_per_hour: pulumi.Output[float]
    """Planned price of the slice in US dollars per hour."""
    plan: pulumi.Output[dict[str, Any]]
    """The plan in figures: memory, start-up time, throughput and cost."""

    def __init__(self, name: str, args: TpuServerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        """Plan and declare the server. Raises RefusedError."""
        super().__init__(TPU, name, args, opts)

    def _outputs(self, outputs: StackOutputs) -> Mapping[str, object]:
        return {
            "tunnel_command": pulumi.Output.from_input(outputs.tunnel).apply(_command),
            "zone": outputs.zone,
            "state": outputs.state,
            "deadline": pulumi.Output.from_input(outputs.deadline).apply(lambda text: text or ""),
        }


def _command(tunnel: Tunnel | Mapping[str, Any] | None) -> str:
    """Return the command of a tunnel, which is JSON once the machine is known."""
    argv: list[str] = [] if tunnel is None else list(tunnel.argv if isinstance(tunnel, Tunnel) else tunnel["argv"])
    return " ".join(argv)
