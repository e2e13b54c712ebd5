"""Device memory at the start of the engine: the weights as recorded, the KV cache in tokens, and vLLM's errors if they do not fit.

On a GPU a request uses its length in the full-attention layers, and at most a window and two batches in the sliding ones. On a TPU every
layer stores every token, and an fp8 KV dtype saves nothing for a single KV head per chip because the page layout pads it.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from localcloud.vllm.arguments import Arguments
from localcloud.vllm.recorded import (
    GIB,
    Model,
    SimulatedCard,
    converted,
    drafter,
    other_gib,
    published_tpu_images,
    weights_gib,
)

_HEAD_DIM_SLIDING: Final = 256
_HEAD_DIM_GLOBAL: Final = 512
_TPU_WORD_BYTES: Final = 4
"""The keys and values of the heads of one token are packed into words of this size (ragged paged attention's get_kv_cache_shape)."""
_CUDA_CONTEXT_GIB: Final = 0.33
"""The CUDA context, in use before any tensor is allocated."""
_STEPS_IN_FLIGHT: Final = 2
"""vLLM schedules the next step while one runs, so a sliding window keeps the tokens of two (vllm-project/vllm#47728, 0.26 and later)."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """KV bytes on one device: per token of the full length, and per token within the window."""

    global_bytes: int
    sliding_bytes: int
    sliding_tokens: int | None

    def request_bytes(self, length: int, block_size: int) -> int:
        """Return the KV bytes of one request of `length` tokens, rounded up to whole blocks."""
        full = _round_up(length, block_size)
        if self.sliding_tokens is None:
            return full * (self.global_bytes + self.sliding_bytes)
        # A window that starts inside a block needs one more.
        window = _round_up(min(self.sliding_tokens, length), block_size) + block_size
        return full * self.global_bytes + window * self.sliding_bytes


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def as_loaded(model: Model, card: SimulatedCard, image: str, quantization: str | None = None) -> Model:
    """Return a checkpoint as it is in device memory. Raise EngineStartError with vLLM's message if it cannot be loaded there.

    The published images reject 4-bit weights on a TPU. An image with another digest is custom-built and assumed to load them.
    `quantization` is vLLM's option. A stored precision other than bf16 must equal it; a bf16 checkpoint is converted while it loads.
    """
    stored = {"w4a16": "compressed-tensors", "bf16": None}.get(model.form, "fp8")
    if quantization not in {None, stored}:
        return _quantized(model, card, quantization, stored)
    _, _, digest = image.partition("@")
    if model.is_w4a16 and card.kind == "tpu" and (not digest or digest in published_tpu_images()):
        raise EngineStartError("NotImplementedError: No compressed-tensors compatible scheme was found.")
    return model


def _quantized(model: Model, card: SimulatedCard, quantization: str | None, stored: str | None) -> Model:
    if stored is not None:
        raise EngineStartError(
            f"ValueError: Quantization method specified in the model config ({stored}) does not match the quantization method specified in "
            f"the `quantization` argument ({quantization})."
        )
    if quantization != "fp8":
        raise EngineStartError(
            f"ValueError: the simulated server does not support --quantization {quantization}, only fp8"
        )
    if card.kind == "tpu":
        raise EngineStartError(
            "NotImplementedError: fp8 quantization is not implemented for Gemma4ForConditionalGeneration on TPU"
        )
    return converted(model, "fp8")


def capacity(arguments: Arguments, model: Model, card: SimulatedCard) -> KvCacheSize:
    """Return the KV cache. Raise EngineStartError with vLLM's message if it does not fit."""
    _check_devices(arguments, model, card)
    batched = arguments.max_num_batched_tokens or card.default_max_num_batched_tokens
    _check_multimodal(arguments, batched)
    sequences = arguments.max_num_seqs or card.default_max_num_seqs
    weights = _weights_gib(arguments, model, card)
    _check_weights(weights, model, card)
    layout = _layout(arguments, model, card, batched)
    available = _available_bytes(arguments, model, card, weights)
    block_size = arguments.block_size or card.default_block_size or _tpu_block_size(arguments, model, sequences)
    length = _max_model_len(arguments, model, layout, available, block_size)
    needed = layout.request_bytes(length, block_size)
    if needed > available:
        longest = _longest(layout, available, block_size, length)
        raise EngineStartError(
            f"ValueError: To serve at least one request with the model's max seq len ({length}), "
            f"({needed / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({available / GIB:.2f} GiB). Based on the available memory, the estimated maximum model length is {longest}. "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    blocks = _num_blocks(model, layout, available, block_size)
    tokens = blocks * block_size if layout.sliding_tokens is None else available * length // needed
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
        available_gib=available / GIB,
    )


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


def _weights_gib(arguments: Arguments, model: Model, card: SimulatedCard) -> float:
    """Return the weights of one device, with those of a draft model."""
    chips = arguments.tensor_parallel_size
    drafter_bytes, _ = drafter(str(arguments.speculative_config.get("model") or ""))
    recorded = weights_gib(model, card, chips, is_text=not arguments.takes_media)
    return max(recorded - arguments.cpu_offload_gib / chips, 0.0) + drafter_bytes / GIB


_PAGE_TABLE_ENTRIES: Final = 2**20 // 2 // 4
"""Pages of all sequences in the chip's scalar memory: half of 1 MiB, four bytes each (tpu-inference)."""
_SHORT_LENGTH: Final = 8192


def _tpu_block_size(arguments: Arguments, model: Model, sequences: int) -> int:
    """Return the tokens of a block, as tpu-inference chooses them: a sixteenth of a short length, and enough that the page table fits."""
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


def _layout(arguments: Arguments, model: Model, card: SimulatedCard, batched: int) -> _Layout:
    is_tpu = card.kind == "tpu"
    element_bytes = 2 if arguments.kv_cache_dtype in ("auto", "float16", "bfloat16") else 1
    word_bytes = _TPU_WORD_BYTES if is_tpu else 1

    def token_bytes(layers: int, heads: int, head_dim: int) -> int:
        # With fewer heads than devices, heads are replicated. The numbers of all heads fill whole words.
        numbers = 2 * max(1, heads // arguments.tensor_parallel_size) * element_bytes
        return layers * head_dim * _round_up(numbers, word_bytes)

    return _Layout(
        global_bytes=token_bytes(model.global_layers, model.kv_heads_global, _HEAD_DIM_GLOBAL),
        sliding_bytes=token_bytes(model.sliding_layers, model.kv_heads_sliding, _HEAD_DIM_SLIDING),
        sliding_tokens=None if is_tpu else model.window - 1 + _STEPS_IN_FLIGHT * batched,
    )


def _tuned_gib(arguments: Arguments, model: Model) -> float:
    """Return the copy of the embeddings on which a GPU tunes kernels: with media, only a draft model's (vllm-project/vllm#54383)."""
    if arguments.enforce_eager:
        return 0.0
    if not arguments.takes_media:
        return model.largest_tensor_gib
    return drafter(str(arguments.speculative_config.get("model") or ""))[1]


def _available_bytes(arguments: Arguments, model: Model, card: SimulatedCard, weights: float) -> int:
    if arguments.kv_cache_memory_bytes is not None:
        return arguments.kv_cache_memory_bytes
    other = other_gib(model, card, tuned_gib=_tuned_gib(arguments, model))
    available_gib = card.total_gib * arguments.gpu_memory_utilization - weights - other
    if available_gib <= 0:
        raise EngineStartError(
            f"ValueError: No available memory for the cache blocks (Available KV cache memory: {available_gib:.2f} GiB). "
            "Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    return int(available_gib * GIB)


def _max_model_len(arguments: Arguments, model: Model, layout: _Layout, available: int, block_size: int) -> int:
    requested = arguments.max_model_len
    if requested == -1:
        return _longest(layout, available, block_size, model.max_position)
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


def _longest(layout: _Layout, available: int, block_size: int, limit: int) -> int:
    """Return the largest length whose KV fits, at most `limit`. 0 if nothing fits."""
    lengths = range(1, limit + 1)
    return bisect_right(lengths, available, key=lambda length: layout.request_bytes(length, block_size))


def _num_blocks(model: Model, layout: _Layout, available: int, block_size: int) -> int:
    """Return `num_gpu_blocks`: pages of one layer group if layers differ, otherwise whole tokens.

    vLLM splits layers into groups of equal size (the size of the smaller kind), whose pages are padded to the larger kind's.
    """
    if layout.sliding_tokens is None:
        return available // ((layout.global_bytes + layout.sliding_bytes) * block_size)
    page = max(layout.global_bytes // model.global_layers, layout.sliding_bytes // model.sliding_layers) * block_size
    return available // (page * min(model.global_layers, model.sliding_layers))
