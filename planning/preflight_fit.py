"""Preflight rules of memory and length: what cannot be loaded, held or served."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from planning import overheads
from planning.catalog import QAT_SUFFIX
from planning.cost import hourly_parts
from planning.kv_cache import layout_of
from planning.subject import Subject, is_out_of_memory
from planning.types import Finding, MemoryPlan
from planning.units import align_to, duration, to_gib
from planning.ways_out import WayOut, other_accelerators, smaller_models, trillium_note
from planning.weights import weights_of

_VLLM_KV: Final = "vLLM v1/core/kv_cache_utils.py"
_WORTH_HALF: Final = 0.55
"""fp8 KV that costs no more than this part of bf16 KV delivers what people expect of it."""


def _listed(ways: list[WayOut]) -> str:
    return "; ".join(way.text for way in ways) or "none in the catalog"


def _longest(memory: MemoryPlan) -> str:
    if memory.largest_max_model_len <= 0:
        return "no request fits at any length"
    return f"the largest maxModelLen that fits is {memory.largest_max_model_len:,}"


def fit01_weights(s: Subject) -> Finding | None:
    """The device runs out of memory."""
    if not is_out_of_memory(s.memory):
        return None
    m, r = s.memory, s.r
    if m.load_peak_device_gib > m.usable_gib:
        head = to_gib(weights_of(r).load_extra)
        parts = f"{m.weights_gib:.1f} GiB of weights"
        if head:
            parts += f", {head:.1f} GiB of output head that exists twice until it is tied to the embeddings"
        if not r.is_tpu:
            parts += f", {overheads.CUDA_CONTEXT_GIB:.1f} GiB of CUDA context"
        message = (
            f"{r.model_id} does not fit: loading needs {m.load_peak_device_gib:.1f} GiB on a {s.device} ({parts}), "
            f"and {r.accelerator.name} has {m.usable_gib:.2f} GiB usable."
        )
    else:
        used = m.weights_gib + (0.0 if r.is_tpu else m.activations_gib + m.graphs_gib)
        message = (
            f"{r.model_id} leaves nothing for the KV cache: weights{'' if r.is_tpu else ', activations and graphs'} take {used:.1f} GiB, and "
            f"gpuMemoryUtilization {r.utilization:g} gives {m.budget_gib:.1f} of {m.usable_gib:.2f} GiB."
        )
    remedy = f"Ways out: {_listed([*other_accelerators(r), *smaller_models(r)])}.{trillium_note(r)}"
    return Finding(
        id="FIT01",
        severity="block",
        message=message,
        remedy=remedy,
        source="vLLM model_executor/models/gemma4.py; device memory as the driver shows it",
    )


def fit02_offload(s: Subject) -> Finding | None:
    """Offloaded weights make PCIe the bottleneck."""
    if s.memory.offloaded_gib <= 0:
        return None
    link = s.r.accelerator.host_link_gb_per_s * overheads.ZERO_COPY_EFFICIENCY
    return Finding(
        id="FIT02",
        severity="warn",
        message=(
            f"{s.memory.offloaded_gib:.1f} GiB of weights stay in host memory and cross PCIe for every token at about {link:.1f} GB/s: "
            f"expect {s.throughput.decode_tok_per_s:.2g} tokens/s for one request."
        ),
        remedy=f"Do without cpuOffloadGib: {_listed([*other_accelerators(s.r)[:2], *smaller_models(s.r)])}.",
        source="vLLM model_executor/offloader/uva.py; NVIDIA data sheet (PCIe)",
    )


def fit03_host_memory(s: Subject) -> Finding | None:
    """The host runs out of memory while weights pass through it."""
    need, have = s.memory.load_peak_host_gib, s.r.host_memory_gib
    if need <= have:
        return None
    step = 4 if s.r.platform == "cloud-run" else 1
    enough = max(align_to(int(need) + 1, step), s.r.host.min_memory_gib)
    if enough > s.r.host.max_memory_gib:
        remedy = f"This platform has {s.r.host.max_memory_gib:g} GiB at most: take a smaller checkpoint or another accelerator."
    else:
        offered = 32 if enough <= 32 <= s.r.host.max_memory_gib else int(enough)  # noqa: PLR2004 - the next size that Cloud Run sells with 8 vCPU
        more = replace(s.r, host_memory_gib=float(offered))
        price = sum(usd for _, usd in hourly_parts(more)) - s.cost.usd_per_hour
        remedy = f"Set hostMemoryGib to {offered} GiB (${s.cost.usd_per_hour + price:.2f}/h, ${price:.2f}/h more)."
    return Finding(
        id="FIT03",
        severity="block",
        message=f"Loading peaks at {need:.2f} GiB of host memory (a checkpoint of {s.memory.checkpoint_gib:.2f} GiB), and the host has {have:g} GiB.",
        remedy=remedy,
        source="vLLM model_executor/model_loader/weight_utils.py (prefetch); Cloud Run memory limits",
    )


def fit04_one_request(s: Subject) -> Finding | None:
    """The KV cache holds less than one request of full length."""
    m, r = s.memory, s.r
    if is_out_of_memory(m) or m.max_concurrency >= 1:
        return None
    return Finding(
        id="FIT04",
        severity="block",
        message=(
            f"The KV cache holds {m.kv_tokens:,} tokens ({m.kv_gib:.2f} GiB), but one request of maxModelLen {r.max_model_len:,} "
            f"needs {m.kv_request_gib:.2f} GiB: vLLM refuses to start."
        ),
        remedy=f"Lower maxModelLen: {_longest(m)}. Or raise gpuMemoryUtilization, or take another accelerator: "
        f"{_listed(other_accelerators(r))}.",
        source=_VLLM_KV,
    )


def fit05_headroom(s: Subject) -> Finding | None:
    """Too little memory stays outside the budget."""
    m, r = s.memory, s.r
    need = m.activations_gib if r.is_tpu else overheads.MARGIN_OUTSIDE_BUDGET_GIB
    if m.headroom_gib >= need:
        return None
    what = (
        "compiled programs and their temporaries"
        if r.is_tpu
        else "the CUDA context, fragmentation and the error of the graph estimate"
    )
    fitting = max(int((1 - need / m.usable_gib) * 100) / 100, 0.05)
    return Finding(
        id="FIT05",
        severity="warn",
        message=f"gpuMemoryUtilization {r.utilization:g} leaves {m.headroom_gib:.2f} GiB of a {s.device} outside the budget; {what} want {need:.2f} GiB.",
        remedy=f"Set gpuMemoryUtilization to {fitting:g} or less{'' if r.is_tpu or r.eager else ', or enforceEager: true, which needs no graphs'}.",
        source="tpu-inference worker/tpu_worker.py"
        if r.is_tpu
        else "vLLM v1/worker/gpu_worker.py (determine_available_memory)",
    )


def fit06_quantized_on_tpu(s: Subject) -> Finding | None:
    """A precision that vLLM on TPU does not have for Gemma 4. Checkpoints that are fp8 already do load there."""
    r = s.r
    if not r.is_tpu or not r.spec.is_gemma4 or r.scheme.name in {"bf16", r.spec.native_quantization} - {"w4a16"}:
        return None
    works = r.model_id.removesuffix(QAT_SUFFIX)
    what = (
        "4-bit compressed-tensors checkpoints"
        if r.scheme.name == "w4a16"
        else "quantizing Gemma 4 to fp8 while loading"
    )
    return Finding(
        id="FIT06",
        severity="block",
        message=f"{r.model_id} as {r.scheme.name} does not load on {r.accelerator.name}: vLLM on TPU does not implement {what}.",
        remedy=f"Serve {works} as bf16 there, or stay with {r.scheme.name} on a GPU: {_listed(other_accelerators(r, kind='gpu'))}.",
        source="vllm-project/tpu-inference#3225",
    )


def fit07_fp8_kv_on_tpu(s: Subject) -> Finding | None:
    """fp8 KV on TPU brings less than twice the tokens."""
    r = s.r
    if not r.is_tpu or r.kv_bytes != 1:
        return None
    plain = layout_of(replace(r, kv_bytes=2)).bytes_per_token
    packed = layout_of(r).bytes_per_token
    if packed <= plain * _WORTH_HALF:
        return None
    factor = plain / packed
    gain = "not one more" if packed == plain else f"{factor:.2f} times as many"
    return Finding(
        id="FIT07",
        severity="warn",
        message=(
            f"kvCacheDtype {r.kv_dtype} does not double the KV cache on {r.accelerator.name}: {s.memory.kv_tokens:,} tokens at {packed / 1024:.0f} KiB each, "
            f"{gain} than with bf16. A chip with a single KV head pads its fp8 to the width of bf16."
        ),
        remedy="Leave kvCacheDtype out: the same tokens without the loss of precision."
        if packed == plain
        else "Keep it for the layers that gain, or leave it out for full precision.",
        source="tpu-inference kernels/ragged_paged_attention (get_kv_cache_shape)",
    )


def fit08_parallelism(s: Subject) -> Finding | None:
    """Tensor parallelism that the GPUs or the attention heads do not allow."""
    r = s.r
    heads = r.spec.groups[0].attention.heads
    if not r.is_tpu and r.tp > r.accelerator.devices:
        message = f"tensorParallelSize is {r.tp}, and {r.accelerator.name} on {r.platform} has {r.accelerator.devices} GPU(s)."
        remedy = f"Set tensorParallelSize to {r.accelerator.devices}, or leave it out."
    elif heads % r.tp:
        message = f"tensorParallelSize is {r.tp}, which does not divide the {heads} attention heads of {r.model_id}."
        remedy = f"Set tensorParallelSize to one of {', '.join(str(n) for n in range(1, r.accelerator.devices + 1) if heads % n == 0)}."
    else:
        return None
    return Finding(
        id="FIT08",
        severity="block",
        message=message,
        remedy=remedy,
        source="vLLM model_executor/models/gemma4.py (Gemma4Attention)",
    )


def len02_multimodal_item(s: Subject) -> Finding | None:
    """An image, audio or video item that fits into no step."""
    r = s.r
    whole_items = r.spec.vision_bidirectional or bool(r.vllm.disable_chunked_mm_input)
    items = longest_item(s)
    if not whole_items or items is None or items[1] <= r.max_num_batched_tokens:
        return None
    modality, tokens = items
    return Finding(
        id="LEN02",
        severity="block",
        message=(
            f"An item of {modality} is up to {tokens:,} tokens long and cannot be split over steps, "
            f"but maxNumBatchedTokens is {r.max_num_batched_tokens:,}: the engine stops at start."
        ),
        remedy=f"Set maxNumBatchedTokens to {tokens:,} or more, or limitMmPerPrompt {modality}: 0.",
        source="vLLM multimodal encoder budget; gemma4_mm.py (32 frames of 70 + 8 tokens)",
    )


def longest_item(s: Subject) -> tuple[str, int] | None:
    """The longest item that the limits allow, as modality and tokens."""
    r = s.r
    if not r.spec.is_gemma4 or not r.spec.is_multimodal:
        return None
    lengths = {"video": overheads.VIDEO_TOKENS, "image": overheads.IMAGE_TOKENS}
    if r.spec.audio_params:
        lengths["audio"] = overheads.AUDIO_TOKENS
    allowed = {name: tokens for name, tokens in lengths.items() if r.item_limit(name) > 0}
    return max(allowed.items(), key=lambda item: item[1]) if allowed else None


def len03_model_length(s: Subject) -> Finding | None:
    """Requests longer than the model was made for."""
    r = s.r
    if r.max_model_len <= r.spec.max_positions:
        return None
    return Finding(
        id="LEN03",
        severity="block",
        message=f"maxModelLen is {r.max_model_len:,}, and {r.model_id} was made for {r.spec.max_positions:,} tokens: vLLM refuses to start.",
        remedy=f"Set maxModelLen to {r.spec.max_positions:,} or less.",
        source="config.json of the checkpoint (max_position_embeddings)",
    )


def tpu06_compile_cache(s: Subject) -> Finding | None:
    """Restarts that compile everything again."""
    if not s.r.is_tpu or s.r.deployment.tpu.compile_cache_path is not None:
        return None
    return Finding(
        id="TPU06",
        severity="warn",
        message=f"No compile cache is kept, so every restart compiles for {duration(s.startup.compile_s)} again instead of {overheads.XLA_CACHED_S} s.",
        remedy="Keep the cache in shared memory or on disk (VLLM_XLA_CACHE_PATH=/dev/shm/vllm_cache, the default).",
        source="tpu-inference (VLLM_XLA_CACHE_PATH)",
    )
