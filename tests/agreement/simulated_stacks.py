"""A shipped stack as planned, and as the local cloud's simulated server starts it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma_serving.contracts.settings_files import settings_file, shipped_files
from gemma_serving.planning.cost.subject import Subject, examine
from gemma_serving.planning.settings.stack import Settings
from gemma_serving.planning.settings.vllm_args import vllm_arguments
from gemma_serving.stacks.loading import from_file
from gemma_serving.stacks.planned import to_deployment
from localcloud.vllm.arguments import Arguments, parse
from localcloud.vllm.engine import TokenTiming, timing
from localcloud.vllm.memory import EngineStartError, KvCacheSize, as_loaded, capacity
from localcloud.vllm.recorded import Model, SimulatedCard, find_card, find_model
from localcloud.vllm.speculation import Speculation
from tests.records import replace

ROOT = Path(__file__).resolve().parents[2]
STACKS = sorted(path.name.removeprefix("Pulumi.").removesuffix(".yaml") for path in shipped_files(ROOT))
BUILT_IMAGE = f"registry/vllm-tpu@sha256:{'1' * 64}"
"""An image that loads 4-bit weights on a TPU."""


@dataclass(frozen=True)
class Served:
    """A stack at one length, as planned and as the simulator starts it."""

    subject: Subject
    arguments: Arguments
    model: Model
    card: SimulatedCard
    burst_requests: int

    def capacity(self) -> KvCacheSize | None:
        """Return what the simulated server has; None if it refuses to start."""
        try:
            return capacity(self.arguments, self.model, self.card)
        except EngineStartError as error:
            assert "To serve at least one request" in str(error)
            return None

    def speculation(self) -> Speculation | None:
        """Return the server's proposals."""
        config = self.arguments.speculative_config
        return Speculation(config) if config else None

    def pace(self) -> TokenTiming:
        """Return the server's timing."""
        return timing(
            self.model,
            self.card,
            tensor_parallel=self.arguments.tensor_parallel_size,
            offload_gib=self.arguments.cpu_offload_gib,
            speed=1,
            ttft_s=None,
            tpot_s=None,
        )


def settings_of(stack: str) -> Settings:
    return from_file(settings_file(stack, ROOT), project="local-project")


def served(stack: str, length: int | None = None, **options: object) -> Served:
    """Return a stack with a length and other vLLM options, or with its own ones."""
    settings = settings_of(stack)
    deployment = to_deployment(settings, ROOT)
    changed: Mapping[str, object] = {**options, **({} if length is None else {"max_model_len": length})}
    subject = examine(replace(deployment, vllm=replace(deployment.vllm, **changed)))  # pyright: ignore[reportArgumentType]
    arguments = parse(
        ["vllm", "serve", *vllm_arguments(subject.resolved.vllm, model_or_path=subject.resolved.model_id)]
    )
    model, card = find_model(arguments.model), find_card(hardware_of(settings))
    assert model is not None
    assert card is not None
    return Served(
        subject=subject,
        arguments=arguments,
        model=as_loaded(model, card, BUILT_IMAGE),
        card=card,
        burst_requests=settings.smoke.burst_requests,
    )


def hardware_of(settings: Settings) -> str:
    if settings.tpu is not None:
        return settings.tpu.accelerator_type
    assert settings.cloud_run is not None
    return settings.cloud_run.gpu
