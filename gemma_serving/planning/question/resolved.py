"""A deployment with all defaults filled in by `planning.memory.resolve`: the input of memory, speed, cost and rules."""

from collections.abc import Mapping
from typing import Final, Literal, cast

from msgspec import Struct

from gemma_serving.contracts.collector import server_share
from gemma_serving.planning.data.prices import PriceBook
from gemma_serving.planning.data.quantization import Scheme
from gemma_serving.planning.machine.hardware import Accelerator, Host
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.settings.cloud_run import CloudRunSettings
from gemma_serving.planning.settings.question import Platform, Question, WeightsMode
from gemma_serving.planning.settings.tpu import TpuSettings
from gemma_serving.planning.settings.vllm_args import VllmOptions

Runtime = Literal["cuda", "tpu-jax", "tpu-torch"]
_PEERS: Final = 2


class Resolved(Struct, frozen=True, kw_only=True):
    """A deployment with every value that the formulas need."""

    question: Question
    model_id: str
    spec: ModelSpec
    scheme: Scheme
    accelerator: Accelerator
    is_tpu: bool
    """True if vLLM runs on TPU: the kind of the accelerator, which the formulas of one plan read 100,000 times in a search."""
    platform: Platform
    host: Host
    runtime: Runtime
    vllm: VllmOptions
    tp: int
    dp: int
    """Copies of the model, each with its own engine, weights and KV cache on `tp` devices."""
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_dtype: str
    kv_bytes: int
    """Bytes of one number in the KV cache."""
    padding_gap: int
    """Tokens between step buckets on TPU above this size; 0 doubles them (VLLM_TPU_BUCKET_PADDING_GAP, which the stacks set)."""
    eager: bool
    speculative_tokens: int
    offload_gib: float
    host_memory_gib: float
    vcpu: float
    weights_mode: WeightsMode
    service: CloudRunSettings
    """The block of the Cloud Run service with its defaults; an empty one on other platforms."""
    capacity: TpuSettings
    """The block of the TPU with its defaults; an empty one on other platforms."""
    prices: PriceBook
    drafter: ModelSpec | None = None
    """The draft model of the served one."""

    @property
    def collects(self) -> bool:
        """True if a collector of metrics runs next to the server."""
        return self.question.collects_on(self.platform)

    @property
    def collects_on_cloud_run(self) -> bool:
        """True if the collector shares the Cloud Run instance with the server."""
        return self.platform == "cloud-run" and self.collects

    @property
    def server_memory_gib(self) -> float:
        """Host memory of the server alone. An instance without room for the collector is rejected (OBS03) and counts as a whole."""
        return self._share[1] if self.has_room_for_collector else self.host_memory_gib

    @property
    def has_room_for_collector(self) -> bool:
        """True if the instance has a collector, and the server keeps what its GPU requires."""
        vcpu, memory_gib = self._share
        has_enough = vcpu >= self.host.min_vcpu and memory_gib >= self.host.min_memory_gib
        return self.collects_on_cloud_run and has_enough

    @property
    def _share(self) -> tuple[float, float]:
        return server_share(self.vcpu, self.host_memory_gib)

    @property
    def reduces_over_pcie(self) -> bool:
        """True if NCCL adds up the sums of several cards over PCIe.

        vLLM's own all-reduce needs NVLink for more than two cards, and peer access for two (custom_all_reduce.py).
        """
        return not self.is_tpu and self.tp > _PEERS and not self.accelerator.has_nvlink

    @property
    def unpacks_int4(self) -> bool:
        """True if the device unpacks 4-bit weights before each product, and the host before it sends them (vLLM on TPU)."""
        return self.is_tpu and self.scheme.name == "w4a16"

    @property
    def skips_compilation(self) -> bool:
        """True if the server compiles each program at the first request that needs it: vLLM on TPU with enforceEager.

        Source: tpu-inference 0.12.0 to 0.27.0, runner/compilation_manager.py (capture_model).
        """
        return self.is_tpu and self.eager

    @property
    def has_unknown_drafter(self) -> bool:
        """True if a draft model is used whose architecture is unknown."""
        return self.speculative_tokens > 0 and self.drafter is None and named_drafter(self.vllm) is not None

    def item_limit(self, modality: str) -> int:
        """Return the items of a modality that one request may have; unlimited counts as one."""
        limits = cast("Mapping[str, int] | None", self.vllm.limit_mm_per_prompt)
        return 1 if limits is None else limits.get(modality, 1)

    @property
    def serves_only_text(self) -> bool:
        """True if vLLM serves text only.

        On a TPU every stated limit has to be 0 (tpu-inference b8692ff, runner/tpu_runner.py). On a GPU the limit of every modality that the model
        supports has to be 0, and one that is not stated is unlimited: Gemma 4 supports video wherever it supports images (vLLM,
        multimodal/registry.py, supports_multimodal_inputs, and models/gemma4_mm.py, get_supported_mm_limits).
        """
        limits = self.vllm.limit_mm_per_prompt
        is_stated = bool(limits) and not any((limits or {}).values())
        if not self.spec.is_multimodal or self.is_tpu or not self.spec.is_gemma4:
            return not self.spec.is_multimodal or is_stated
        supported = ("image", "video", "audio") if self.spec.accepts_audio else ("image", "video")
        return all(self.item_limit(modality) == 0 for modality in supported)

    @property
    def serves_images_or_video(self) -> bool:
        """True if images or videos are served."""
        return self.spec.is_multimodal and (self.item_limit("image") > 0 or self.item_limit("video") > 0)

    @property
    def serves_audio(self) -> bool:
        """True if audio is served."""
        return self.spec.accepts_audio and self.item_limit("audio") > 0

    @property
    def has_processor(self) -> bool:
        """True if vLLM loads a processor for images, video and audio: some limit is not 0, or one is not set."""
        return self.serves_images_or_video or self.serves_audio
