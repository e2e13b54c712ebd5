"""Memory that vLLM's profiling run finds on one GPU, by release and model runner.

At start-up vLLM runs one step of the largest size before it allocates the KV cache (v1/worker/gpu_worker.py, determine_available_memory).
Its peak is the largest of four parts that follow each other:

- the encoder, for as many items of the longest modality as one step can hold (multimodal/encoder_budget.py, MultiModalBudget);
- the language model at a full batch;
- the compiler, at a start without a compile cache;
- the sampler at the largest number of sequences.

The encoder's output stays until the end of the run, and with the first model runner also its input. The second one allocates counts for
penalties in advance. Read in vLLM 0.20.0 to 0.30.0.
"""

from collections.abc import Mapping
from typing import Final, cast

from gemma_serving.planning.data.overheads import (
    AUDIO_TOKENS,
    FRAME_TOKENS,
    PATCH_PIXELS,
    PATCHES_PER_TOKEN,
    VIDEO_FRAMES,
    VIDEO_TOKENS,
    constant,
)
from gemma_serving.planning.model.spec import LayerGroup, Role
from gemma_serving.planning.question.drafters import named_drafter
from gemma_serving.planning.question.features import UNLIMITED, largest_image_tokens
from gemma_serving.planning.question.releases import (
    COUNTS_BUFFERS,
    ENCODES_TOGETHER,
    OTHER_NVFP4_EXPERTS,
    TUNES_WHILE_COMPILING,
    Runner,
    is_before,
    profiles_encoder,
    runners,
    sampler_bytes_per_logit,
    sampler_programs,
)
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.units import ceil_div, from_gib, to_gib

_BF16: Final = 2
_INT32: Final = 4
_FP32: Final = 4
_BITS_OF_A_WORD: Final = 32
_COLORS: Final = 3
_RESIDUAL_COPIES: Final = 6
"""Live hidden states at the peak: residual, normed input, block output, and their successors."""
_TOWER_INNER: Final = 3
_TOWER_HIDDEN: Final = 4
"""Live values of a vision layer per patch, in widths of its feed-forward block and of its hidden state: transformers' Gemma4VisionEncoderLayer."""


def gpu_activation_gib(resolved: Resolved) -> float:
    """Return the memory that vLLM keeps free for one step on a GPU, in GiB; the larger figure if the model runner is unknown."""
    fixed_gib = constant("NON_TORCH_GIB") + (constant("NCCL_GIB") if resolved.tp > 1 else 0.0)
    return to_gib(max(_profiled_bytes(resolved, runner) for runner in runners(resolved))) + fixed_gib


def item_tokens(resolved: Resolved) -> dict[str, int]:
    """Return the tokens of the longest item of each modality; empty for models other than Gemma 4."""
    spec = resolved.spec
    if not spec.is_gemma4 or not spec.is_multimodal:
        return {}
    lengths = {"video": VIDEO_TOKENS, "image": largest_image_tokens(resolved)}
    return {**lengths, "audio": AUDIO_TOKENS} if spec.accepts_audio else lengths


def profiled_items(resolved: Resolved) -> tuple[str, int]:
    """Return the modality that vLLM profiles, the one with the longest item, and how many; ("", 0) if no modality is allowed.

    A step encodes at least one item, and at most as many as one step's tokens or all its sequences can have.
    """
    allowed = {name: n for name, n in item_tokens(resolved).items() if resolved.item_limit(name) > 0}
    if not allowed:
        return "", 0
    modality, tokens = max(allowed.items(), key=lambda item: item[1])
    limits = cast("Mapping[str, int]", resolved.vllm.limit_mm_per_prompt or {})
    limit = limits.get(modality, UNLIMITED)
    per_request = max(1, min(limit, resolved.max_model_len // tokens))
    in_a_step = max(resolved.max_num_batched_tokens, tokens) // tokens
    return modality, max(1, min(in_a_step, per_request * resolved.max_num_seqs))


def _profiled_bytes(resolved: Resolved, runner: Runner) -> float:
    """Return the peak of the profiling run in addition to the weights, and the runner's own buffers."""
    spec = resolved.spec
    vocab = resolved.spec.vocab
    tokens = resolved.max_num_batched_tokens
    batch = min(resolved.max_num_seqs, tokens)
    sampler = vocab * (
        batch * sampler_bytes_per_logit(resolved, runner) + _FP32 * sampler_programs(resolved, runner, batch)
    )
    widest = max(_layer_width(group, resolved) for group in spec.groups)
    forward = tokens * _BF16 * (_RESIDUAL_COPIES * spec.hidden + widest)
    encoder, kept = _encoder_bytes(resolved, runner)
    peak = max(encoder, forward, sampler, _compiler_bytes(resolved)) + kept
    if runner == 1 or is_before(resolved, COUNTS_BUFFERS):
        return peak
    # Counts of generated tokens and bits of prompt tokens, for each sequence (sample/penalties.py).
    return peak + resolved.max_num_seqs * _INT32 * (vocab + ceil_div(vocab, _BITS_OF_A_WORD))


def _layer_width(group: LayerGroup, resolved: Resolved) -> float:
    """Return the values per token that a layer holds at its peak in addition to the residual stream: in attention or feed-forward."""
    heads = group.attention.heads + max(group.attention.kv_heads, resolved.tp)
    attention = 2 * heads * group.attention.head_dim / resolved.tp
    feed_forward = 3 * group.mlp / resolved.tp
    experts = group.experts
    if experts is not None:
        # A mixture-of-experts kernel has two workspaces, each with room for its output, and FP8 has both inputs in 8 bits (workspace_shapes and apply of
        # TritonExperts in fused_moe/fused_moe.py; Marlin and FlashInfer have the same shapes).
        width, hidden = experts.intermediate / resolved.tp, resolved.spec.hidden
        inputs = (experts.active * width + hidden) / 2 if resolved.scheme.name == "fp8" else 0
        copies = max(2 * width, hidden) + max(width, hidden) + _expert_copies(resolved) * hidden
        feed_forward += experts.active * copies + inputs
        feed_forward += 3 * experts.shared_intermediate / resolved.tp
    return max(attention, feed_forward)


def _expert_copies(resolved: Resolved) -> int:
    """Return the copies of each expert's input and output outside both workspaces: of vLLM's CUTLASS kernel for NVFP4, which Gemma 4 had on RTX cards.

    The sorted input, the output in the order of tokens, and that times its weights (run_cutlass_moe_fp4 in 0.19.1 and 0.20.2). Logs of two RTX 5090 have
    them: 26B-A4B with 16,384 tokens per step has 2.5 GiB less KV cache than without, and 1.0 with 8,192.
    """
    is_cutlass = resolved.scheme.name.startswith("nvfp4") and is_before(resolved, OTHER_NVFP4_EXPERTS)
    return 3 if is_cutlass and resolved.accelerator.generation == "blackwell" else 0


def _compiler_bytes(resolved: Resolved) -> float:
    """Return the memory of the compiler's largest kernel; 0 in eager mode, and if no compiled model reads a table of embeddings.

    A first start compiles the model in the profiling run. Inductor tunes each kernel there, on random tensors of its arguments' sizes (torch
    2.9.1 to 2.13, standalone_compile.py and generate_and_run_autotune_block of codegen/wrapper.py). The largest reads a table of embeddings and
    has two rows for each token: a public compile cache of Qwen3-14B names (151936, 5120) and twice (8192, 5120). A packed table is an argument of
    its packed size (compressed_tensors_embedding.py): E2B with both tables in 4 bits logged a peak of 1.86 GiB on a T4. If a model serves images, only
    its draft model reads the table there (v1/spec_decode/llm_base_proposer.py). A start with a compile cache has more KV cache
    (vllm-project/vllm#54122 and #54383).

    Logs prove the copy of a server for text only: 17 of 17 KV caches are closer with it, and one contradicts it. With a draft model it is only
    derived: one row is for it, and one against (dev/docs/planner-internals.md has the rows).
    """
    spec, drafts = resolved.spec, resolved.speculative_tokens > 0 and named_drafter(resolved.vllm) is not None
    if resolved.eager or is_before(resolved, TUNES_WHILE_COMPILING):
        return 0.0
    tables: dict[Role, int] = {}
    if resolved.serves_only_text:
        tables = {"embedding": spec.hidden, "layer-embedding": spec.layers * spec.layer_embedding_dim}
    elif drafts:
        tables = {"embedding": spec.hidden}
    rows = spec.vocab / resolved.tp
    return max(
        (
            width * (rows * spec.table_bytes(table) + 2 * resolved.max_num_batched_tokens * _BF16)
            for table, width in tables.items()
        ),
        default=0.0,
    )


def _encoder_bytes(resolved: Resolved, runner: Runner) -> tuple[float, float]:
    """Return the encoder's peak over the profiled items, and the memory that stays until the profiling run finishes. Encoders are whole on each device.

    Before `ENCODES_TOGETHER`, each frame and image goes through the encoder alone, which is never the peak. From then on, it gets as many as a tenth of
    the device's memory holds positions of, one-hot in 8 bytes four times (gemma4_mm.py, _encoder_chunk; half of the free memory is not modelled).
    """
    modality, items = profiled_items(resolved)
    if not items or not profiles_encoder(resolved, runner):
        return 0.0, 0.0
    kept = items * item_tokens(resolved)[modality] * resolved.spec.hidden * _BF16
    if modality == "audio":
        return 0.0, kept
    # A video has other tokens between its frames, which the encoder does not compute.
    soft = VIDEO_FRAMES * FRAME_TOKENS if modality == "video" else largest_image_tokens(resolved)
    tower = resolved.spec.vision
    patches = items * soft * (PATCHES_PER_TOKEN if tower is None else tower.patches_per_token)
    if runner == 1:
        side = PATCH_PIXELS if tower is None else tower.patch_pixels
        kept += patches * _COLORS * side**2 * _BF16
    if tower is None or is_before(resolved, ENCODES_TOGETHER):
        return 0.0, kept
    one_hot_bytes = 4 * 8 * tower.positions
    together = (
        min(patches, from_gib(resolved.accelerator.usable_gib) / 10 / one_hot_bytes) if one_hot_bytes else patches
    )
    return together * _BF16 * (_TOWER_INNER * tower.intermediate + _TOWER_HIDDEN * tower.hidden), kept
