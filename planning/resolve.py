"""From what a person wrote to what a server would be started with: names found, defaults filled in, contradictions refused."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from planning import overheads
from planning.catalog import MODEL_IDS, QAT_SUFFIX, find_id, spec_of
from planning.errors import PlanningError
from planning.hardware import ACCELERATORS, Accelerator, Host, find_accelerator, host_of
from planning.model import ModelSpec
from planning.prices import LIST_PRICES, PriceBook
from planning.quantization import SCHEMES, Scheme
from planning.recommendation import MAX_NUM_SEQS, UTILIZATION, recommended_options
from planning.types import Deployment, Platform, WeightsMode
from planning.vllm_args import VllmOptions, check_options

Runtime = Literal["cuda", "tpu-jax", "tpu-torch"]

WEIGHTS_MODES: Final = ("hub", "disk", "memory", "fuse", "fuse-buffered", "fuse-cached", "streamer", "image")
_KV_BYTES: Final = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A deployment without gaps: every figure that the formulas need."""

    deployment: Deployment
    model_id: str
    spec: ModelSpec
    scheme: Scheme
    accelerator: Accelerator
    platform: Platform
    host: Host
    runtime: Runtime
    vllm: VllmOptions
    tp: int
    utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_dtype: str
    kv_bytes: int
    """Bytes of one number in the KV cache."""
    eager: bool
    speculative_tokens: int
    offload_gib: float
    host_memory_gib: float
    vcpu: float
    weights_mode: WeightsMode
    prices: PriceBook

    @property
    def is_tpu(self) -> bool:
        """Whether vLLM runs on TPU."""
        return self.accelerator.is_tpu

    def item_limit(self, modality: str) -> int:
        """Return the items of a modality that one request may carry; unlimited counts as one."""
        limits = cast("Mapping[str, int] | None", self.vllm.limit_mm_per_prompt)
        return 1 if limits is None else limits.get(modality, 1)

    @property
    def serves_images_or_video(self) -> bool:
        """Whether images or videos are served at all."""
        return self.spec.is_multimodal and (self.item_limit("image") > 0 or self.item_limit("video") > 0)

    @property
    def serves_audio(self) -> bool:
        """Whether audio is served at all."""
        return self.spec.audio_params > 0 and self.item_limit("audio") > 0


def resolve(deployment: Deployment) -> Resolved:
    """Fill in everything that the deployment leaves open.

    Raises:
        PlanningError: for an unknown name, a value out of range, or settings that contradict each other.
    """
    check_options(deployment.vllm)
    accelerator = _accelerator(deployment.accelerator)
    platform = _platform(deployment.platform, accelerator)
    model_id, spec, scheme, quantize_on_load = _model(deployment)
    mode = _weights_mode(deployment, platform)
    base = recommended_options(
        spec,
        accelerator,
        weights_mode=mode,
        quantize_on_load=quantize_on_load and not accelerator.is_tpu,
        offloads=bool(deployment.vllm.cpu_offload_gib),
    )
    options = deployment.vllm.merged_over(base)
    host = host_of(accelerator, platform)
    runtime: Runtime = "cuda" if not accelerator.is_tpu else "tpu-torch" if spec.tpu_torch_path else "tpu-jax"
    max_model_len = options.max_model_len or spec.max_positions
    max_num_seqs = options.max_num_seqs or MAX_NUM_SEQS
    batched = options.max_num_batched_tokens or _default_batch(spec, accelerator)
    kv_dtype = options.kv_cache_dtype or "auto"
    block = options.block_size or _default_block(accelerator, max_model_len, max_num_seqs)
    offload = options.cpu_offload_gib or 0.0
    if offload and accelerator.is_tpu:
        raise PlanningError(
            f"`vllm.cpu_offload_gib` is {offload:g}, but vLLM on TPU cannot offload weights; leave it out."
        )
    memory_gib = deployment.host_memory_gib if deployment.host_memory_gib is not None else host.memory_gib
    if memory_gib <= 0:
        raise PlanningError(f"`host_memory_gib` is {memory_gib:g}; it must be above 0.")
    return Resolved(
        deployment=deployment,
        model_id=model_id,
        spec=spec,
        scheme=scheme,
        accelerator=accelerator,
        platform=platform,
        host=host,
        runtime=runtime,
        vllm=replace(options, max_model_len=max_model_len),
        tp=options.tensor_parallel_size or accelerator.devices,
        utilization=options.gpu_memory_utilization or UTILIZATION,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=batched,
        block_size=block,
        kv_dtype=kv_dtype,
        kv_bytes=_KV_BYTES[kv_dtype],
        eager=bool(options.enforce_eager),
        speculative_tokens=_speculative_tokens(options),
        offload_gib=offload,
        host_memory_gib=memory_gib,
        vcpu=deployment.vcpu if deployment.vcpu is not None else host.vcpu,
        weights_mode=mode,
        prices=deployment.prices or LIST_PRICES,
    )


def _accelerator(name: str) -> Accelerator:
    found = find_accelerator(name)
    if found is None:
        raise PlanningError(f'The accelerator "{name}" is unknown; allowed are {", ".join(ACCELERATORS)}.')
    return found


def _platform(name: str | None, accelerator: Accelerator) -> Platform:
    if name is None:
        return cast("Platform", accelerator.platforms[0])
    if name.lower() not in accelerator.platforms:
        allowed = ", ".join(accelerator.platforms)
        raise PlanningError(f'The platform "{name}" does not have {accelerator.name}; allowed for it are {allowed}.')
    return cast("Platform", name.lower())


def _model(deployment: Deployment) -> tuple[str, ModelSpec, Scheme, bool]:
    """Return id, architecture, precision, and whether vLLM has to quantize while loading."""
    asked = deployment.quantization or deployment.vllm.quantization
    asked = asked.lower() if asked else None
    if asked is not None and asked not in SCHEMES:
        raise PlanningError(f'The quantization "{asked}" is unknown; allowed are {", ".join(SCHEMES)}.')
    if deployment.model_spec is not None:
        spec = deployment.model_spec
        native = spec.native_quantization or "bf16"
        scheme = SCHEMES[asked or native]
        if asked == "w4a16" and native != "w4a16":
            raise PlanningError(
                f'The quantization "w4a16" needs a checkpoint that is quantized already, and {spec.name} is {native}; ask for bf16 or fp8.'
            )
        return (
            spec.name,
            replace(spec, checkpoint_bytes=None) if scheme.name != native else spec,
            scheme,
            scheme.name == "fp8" != native,
        )
    model_id = find_id(deployment.model)
    if model_id is None:
        raise PlanningError(
            f'The model "{deployment.model}" is not in the catalog; known are {", ".join(MODEL_IDS)}; '
            "`python -m scripts.plan --config FILE` plans any other from its config.json."
        )
    is_qat = model_id.endswith(QAT_SUFFIX)
    if is_qat and asked not in {None, "w4a16"}:
        raise PlanningError(
            f'The checkpoint {model_id} is w4a16, so `quantization` "{asked}" contradicts it; '
            f"leave quantization out, or take {model_id.removesuffix(QAT_SUFFIX)}."
        )
    quantization = asked or ("w4a16" if is_qat else "bf16")
    return model_id, spec_of(model_id, quantization), SCHEMES[quantization], quantization == "fp8"


def _weights_mode(deployment: Deployment, platform: str) -> WeightsMode:
    mode = deployment.weights_mode or ("fuse" if platform == "cloud-run" else "hub")
    if mode not in WEIGHTS_MODES:
        raise PlanningError(f'`weights_mode` is "{mode}"; allowed are {", ".join(WEIGHTS_MODES)}.')
    return mode


def _default_batch(spec: ModelSpec, accelerator: Accelerator) -> int:
    """Return vLLM's own max-num-batched-tokens (engine/arg_utils.py), raised if one item has to fit into one step."""
    tpu_batch = 1_024 if accelerator.name.startswith("v6e") else 512
    gpu_batch = 8_192 if accelerator.is_large else 2_048
    batch = tpu_batch if accelerator.is_tpu else gpu_batch
    return max(batch, overheads.VIDEO_TOKENS) if spec.vision_bidirectional else batch


def _default_block(accelerator: Accelerator, max_model_len: int, max_num_seqs: int) -> int:
    """Return the block size that vLLM chooses: 16 on GPUs; on TPU by the length, so that page tables stay small (tpu-inference)."""
    if not accelerator.is_tpu:
        return overheads.VLLM_DEFAULT_BLOCK
    from planning.units import ceil_div, next_power_of_two  # noqa: PLC0415 - only this path needs them

    by_length = 16 if max_model_len > 8_192 else min(max(next_power_of_two(max_model_len) // 16, 16), 256)  # noqa: PLR2004 - tpu-inference
    pages = max((1024 * 1024 // 2) // max_num_seqs // 4, 1)
    return max(by_length, next_power_of_two(ceil_div(max_model_len, pages)))


def _speculative_tokens(options: VllmOptions) -> int:
    config = options.speculative_config
    if config is None:
        return 0
    tokens = config.get("num_speculative_tokens", 1)
    return int(tokens) if isinstance(tokens, int | float) else 1
