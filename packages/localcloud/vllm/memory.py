"""Device memory at the start of the engine: weights and KV cache of the nearest recorded boot, and vLLM's errors if they do not fit."""

from dataclasses import dataclass
from typing import Final

from localcloud.vllm.arguments import Arguments
from localcloud.vllm.recorded import (
    GIB,
    Boot,
    Model,
    SimulatedCard,
    as_fp8,
    constant,
    drafter_bytes,
    nearest_boot,
    published_tpu_images,
)

_CUDA_CONTEXT_GIB: Final = 0.33
"""The CUDA context, in use before any tensor is allocated."""
_GPU_BLOCK_TOKENS: Final = 16


class EngineStartError(Exception):
    """The engine cannot start. The message is the last line of vLLM's traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheSize:
    """Memory at the start of the engine. `tokens` is the `GPU KV cache size` that vLLM logs; `weights_gib` and `available_gib` are for one device."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    num_blocks: int
    tokens: int
    weights_gib: float
    available_gib: float

    @property
    def concurrency(self) -> float:
        """Return the number of concurrent full-length requests that fit."""
        return self.tokens / self.max_model_len


def as_loaded(model: Model, card: SimulatedCard, image: str, quantization: str | None = None) -> Model:
    """Return a checkpoint as it is in device memory. Raise EngineStartError with vLLM's message if it cannot be loaded there.

    The published images reject 4-bit weights on a TPU. An image with another digest is custom-built and assumed to load them.
    `quantization` is vLLM's option. A stored precision other than bf16 must equal it; a bf16 checkpoint is converted while it loads.
    """
    stored = {"w4a16": "compressed-tensors", "bf16": None}.get(model.form, "fp8")
    if quantization not in {None, stored}:
        return _quantized(model, card, quantization, stored)
    _, _, digest = image.partition("@")
    if model.form == "w4a16" and card.kind == "tpu" and (not digest or digest in published_tpu_images()):
        raise EngineStartError("NotImplementedError: No compressed-tensors compatible scheme was found.")
    return model


def _quantized(model: Model, card: SimulatedCard, quantization: str | None, stored: str | None) -> Model:
    if stored is not None:
        raise EngineStartError(
            f"ValueError: Quantization method specified in the model config ({stored}) does not match the quantization method specified in "
            f"the `quantization` argument ({quantization})."
        )
    converted = as_fp8(model) if quantization == "fp8" else None
    if converted is None:
        raise EngineStartError(
            f"ValueError: the simulated server does not support --quantization {quantization}, only fp8"
        )
    if card.kind == "tpu":
        raise EngineStartError(
            "NotImplementedError: fp8 quantization is not implemented for Gemma4ForConditionalGeneration on TPU"
        )
    return converted


def drafts(arguments: Arguments) -> bool:
    """Return whether the server has a draft model."""
    return arguments.speculative_config.get("model") is not None


def capacity(arguments: Arguments, model: Model, card: SimulatedCard) -> KvCacheSize:
    """Return the KV cache of the nearest boot, scaled. Raise EngineStartError with vLLM's message if it does not fit.

    Memory scales with the card, the utilization and the chips; the KV cache with its type; a request with its length.
    """
    _check_devices(arguments, model, card)
    batched = arguments.max_num_batched_tokens or card.default_max_num_batched_tokens
    _check_multimodal(arguments, batched)
    sequences = arguments.max_num_seqs or card.default_max_num_seqs
    boot = nearest_boot(model, card, arguments.tensor_parallel_size, drafts=drafts(arguments))
    weights = _weights_gib(arguments, model, boot)
    _check_weights(weights, model, card)
    available = _available_gib(arguments, card, weights, boot.other_gib)
    share = _kv_share(arguments, boot)
    token_gib = boot.token_kib * share / 2**20
    fixed_gib = max(boot.request_gib * share - token_gib * boot.max_model_len, 0.0)
    longest = min(max(int((available - fixed_gib) / token_gib), 0), model.max_position)
    length = longest if arguments.max_model_len == -1 else _max_model_len(arguments.max_model_len, model)
    needed = fixed_gib + token_gib * length
    if needed > available:
        raise EngineStartError(
            f"ValueError: To serve at least one request with the model's max seq len ({length}), "
            f"({needed:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({available:.2f} GiB). Based on the available memory, the estimated maximum model length is {longest}. "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    block_size = arguments.block_size or _block_size(arguments, model, card, sequences)
    blocks = int(boot.kv_blocks * available / boot.kv_gib / share * boot.block_size / block_size)
    tokens = int(available / needed * length)
    if arguments.num_gpu_blocks_override is not None:
        tokens = tokens * arguments.num_gpu_blocks_override // max(blocks, 1)
        blocks = arguments.num_gpu_blocks_override
    return KvCacheSize(
        max_model_len=length,
        max_num_seqs=sequences,
        max_num_batched_tokens=batched,
        block_size=block_size,
        num_blocks=blocks,
        tokens=tokens,
        weights_gib=weights,
        available_gib=available,
    )


def _kv_share(arguments: Arguments, boot: Boot) -> float:
    """Return the bytes of the KV cache's type by those of the boot's."""

    def share(dtype: str) -> float:
        return 1.0 if dtype in ("auto", "float16", "bfloat16") else boot.fp8_share

    return share(arguments.kv_cache_dtype) / share(boot.kv_cache_dtype)


def _check_devices(arguments: Arguments, model: Model, card: SimulatedCard) -> None:
    """Reject more devices than the machine has, replicas that leave some idle, and replicas of a mixture of experts on a TPU."""
    tp, dp = arguments.tensor_parallel_size, arguments.data_parallel_size
    if tp * dp > card.devices:
        raise EngineStartError(
            f"ValueError: World size ({tp * dp}) is larger than the number of available devices ({card.devices}) "
            f"on {card.name}. If this is intentional and you are using: ray, set "
            "'--distributed-executor-backend ray'."
        )
    if dp == 1 or card.kind != "tpu":
        return
    if tp * dp < card.devices:
        raise EngineStartError(
            f"ValueError: data_parallel_size ({dp}) x tensor_parallel_size ({tp}) is not the number of chips ({card.devices}) "
            f"of {card.name}."
        )
    if model.is_moe:
        # vllm-project/tpu-inference#3015
        raise EngineStartError(
            "    assert num_tokens is not None\nAssertionError\nRuntimeError: Engine core initialization failed."
        )


IMAGE_TOKENS: Final = 2496
"""The maximum tokens of one image, at full resolution."""


def _check_multimodal(arguments: Arguments, batched: int) -> None:
    """Reject, as vLLM does at startup, a batch that is smaller than one image if images must not be split."""
    images = arguments.limit_mm_per_prompt.get("image", 1)
    if arguments.language_model_only or images == 0 or not arguments.disable_chunked_mm_input:
        return
    if batched < IMAGE_TOKENS:
        raise EngineStartError(
            "ValueError: Chunked MM input disabled but max_tokens_per_mm_item "
            f"({IMAGE_TOKENS}) is larger than max_num_batched_tokens ({batched}). Please increase max_num_batched_tokens."
        )


def _weights_gib(arguments: Arguments, model: Model, boot: Boot) -> float:
    """Return the weights of one device: the boot's, or the size of the files if the boot is another checkpoint's."""
    of_all_gib = model.disk_bytes / GIB + constant("BEYOND_FILES_GIB")
    if boot.model == model.name:
        of_all_gib = boot.weights_gib * boot.chips
    if not boot.drafts:
        of_all_gib += drafter_bytes(str(arguments.speculative_config.get("model") or "")) / GIB
    return max(of_all_gib - arguments.cpu_offload_gib, 0.0) / arguments.tensor_parallel_size


_PAGE_TABLE_ENTRIES: Final = 2**20 // 2 // 4
"""Pages of all sequences in the chip's scalar memory: half of 1 MiB, four bytes each (tpu-inference)."""
_SHORT_LENGTH: Final = 8192


def _block_size(arguments: Arguments, model: Model, card: SimulatedCard, sequences: int) -> int:
    """Return the tokens of a block. tpu-inference chooses a sixteenth of a short length, and enough that the page table fits."""
    if card.kind != "tpu":
        return _GPU_BLOCK_TOKENS
    length = model.max_position if arguments.max_model_len in (None, -1) else max(arguments.max_model_len, 1)
    by_length = 16 if length > _SHORT_LENGTH else min(max(_power_of_two(length) // 16, 16), 256)
    return max(by_length, _power_of_two(-(-length // max(_PAGE_TABLE_ENTRIES // sequences, 1))))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _check_weights(needed_gib: float, model: Model, card: SimulatedCard) -> None:
    if card.kind == "cuda" and model.stored_head_gib:
        # vLLM drops the head that equals the embeddings, but only after it has loaded it.
        needed_gib += model.stored_head_gib + _CUDA_CONTEXT_GIB
    if needed_gib <= card.total_gib:
        return
    if card.kind == "tpu":
        raise EngineStartError(
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate "
            f"{needed_gib:.2f}G. That was not possible. There are {card.total_gib:.2f}G free.; (0x0x0_HBM0)"
        )
    raise EngineStartError(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {(needed_gib - card.total_gib) * 1024:.2f} MiB. "
        f"GPU 0 has a total capacity of {card.total_gib:.2f} GiB of which 0.00 MiB is free. "
        f"Of the allocated memory {card.total_gib:.2f} GiB is allocated by PyTorch."
    )


def _available_gib(arguments: Arguments, card: SimulatedCard, weights_gib: float, other_gib: float) -> float:
    if arguments.kv_cache_memory_bytes is not None:
        return arguments.kv_cache_memory_bytes / GIB
    available_gib = card.total_gib * arguments.gpu_memory_utilization - weights_gib - other_gib
    if available_gib <= 0:
        raise EngineStartError(
            f"ValueError: No available memory for the cache blocks (Available KV cache memory: {available_gib:.2f} GiB). "
            "Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    return available_gib


def _max_model_len(requested: int | None, model: Model) -> int:
    if requested is None:
        return model.max_position
    if requested > model.max_position:
        raise EngineStartError(
            f"ValueError: User-specified max_model_len ({requested}) is greater than the derived max_model_len "
            f"(max_position_embeddings={model.max_position} or model_max_length=None in model's config.json). "
            "To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    if requested < 1:
        raise EngineStartError(f"ValueError: max_model_len must be a positive integer, got {requested}.")
    return requested
