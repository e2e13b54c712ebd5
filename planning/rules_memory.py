"""Rules of memory, precision and length: what cannot be loaded, held or served."""

from collections.abc import Iterator
from dataclasses import replace

from planning import overheads
from planning.hardware import CLOUD_RUN_GIB_PER_VCPU, CLOUD_RUN_VCPU
from planning.kv_cache import layout_of
from planning.recommendation import UTILIZATION
from planning.registry import RuleResult, change, rule
from planning.subject import Subject, is_out_of_memory
from planning.types import Remedy
from planning.units import align_to, to_gib
from planning.ways_out import other_accelerators, smaller_models, to_bf16, trillium_note, ways_out

_WORTH_HALF = 0.55
"""fp8 KV that costs no more than this part of bf16 KV delivers what people expect of it."""


def _more_utilization(subject: Subject) -> Iterator[Remedy]:
    if subject.resolved.utilization < UTILIZATION:
        yield change("vllm.gpu_memory_utilization", UTILIZATION)


@rule(
    "FIT01",
    "block",
    source="vLLM model_executor/models/gemma4.py; device memory as the driver shows it",
    what="the weights, or the peak while they load, exceed the memory of the device",
    is_acceptable=False,
)
def out_of_memory(subject: Subject) -> RuleResult | None:
    """Find a server that dies for lack of device memory."""
    memory, resolved = subject.memory, subject.resolved
    if not is_out_of_memory(memory):
        return None
    if memory.load_peak_device_gib > memory.usable_gib:
        message = (
            f"{resolved.model_id} does not fit: loading needs {memory.load_peak_device_gib:.1f} GiB on a {subject.device} "
            f"({_parts_of_loading(subject)}), and {resolved.accelerator.name} has {memory.usable_gib:.2f} GiB usable."
        )
    else:
        rest = 0.0 if resolved.is_tpu else memory.activations_gib + memory.graphs_gib
        message = (
            f"{resolved.model_id} leaves nothing for the KV cache: weights{'' if resolved.is_tpu else ', activations and graphs'} "
            f"take {memory.weights_gib + rest:.1f} GiB, and `vllm.gpu_memory_utilization` {resolved.utilization:g} gives "
            f"{memory.budget_gib:.1f} of {memory.usable_gib:.2f} GiB."
        )

    def remedies() -> Iterator[Remedy]:
        yield from _more_utilization(subject)
        yield from ways_out(subject)

    return RuleResult(message=message, remedies=remedies(), advice=trillium_note(subject))


def _parts_of_loading(subject: Subject) -> str:
    parts = [f"{subject.memory.weights_gib:.1f} GiB of weights"]
    if subject.weights.load_extra:
        head = to_gib(subject.weights.load_extra)
        parts.append(f"{head:.1f} GiB of output head that exists twice until it is tied to the embeddings")
    if not subject.resolved.is_tpu:
        parts.append(f"{overheads.CUDA_CONTEXT_GIB:.1f} GiB of CUDA context")
    return ", ".join(parts)


@rule(
    "FIT02",
    "warn",
    source="vLLM model_executor/offloader/uva.py; NVIDIA data sheet (PCIe)",
    what="offloaded weights cross PCIe for every token",
)
def offload(subject: Subject) -> RuleResult | None:
    """Find offloaded weights, which make PCIe the bottleneck."""
    if subject.memory.offloaded_gib <= 0:
        return None
    link = subject.resolved.accelerator.host_link_gb_per_s * overheads.ZERO_COPY_EFFICIENCY

    def remedies() -> Iterator[Remedy]:
        yield change("vllm.cpu_offload_gib", None)
        yield from ways_out(subject)

    return RuleResult(
        message=(
            f"{subject.memory.offloaded_gib:.1f} GiB of weights stay in host memory and cross PCIe for every token at about "
            f"{link:.1f} GB/s: expect {subject.throughput.decode_tok_per_s:.2g} tokens/s for one request."
        ),
        remedies=remedies(),
    )


@rule(
    "FIT03",
    "block",
    source="vLLM model_executor/model_loader/weight_utils.py (prefetch); Cloud Run memory limits",
    what="the host has less memory than loading needs",
)
def host_memory(subject: Subject) -> RuleResult | None:
    """Find a host that runs out of memory while the weights pass through it."""
    need, have = subject.memory.load_peak_host_gib, subject.resolved.host_memory_gib
    if need <= have:
        return None
    host = subject.resolved.host
    is_too_large = need > host.max_memory_gib
    return RuleResult(
        message=(
            f"Loading peaks at {need:.2f} GiB of host memory (a checkpoint of {subject.memory.checkpoint_gib:.2f} GiB), "
            f"and the host has {have:g} GiB."
        ),
        remedies=_larger_hosts(subject),
        last_resorts=() if is_out_of_memory(subject.memory) else ways_out(subject),  # FIT01 names them too
        advice=f"This platform has {host.max_memory_gib:g} GiB at most." if is_too_large else "",
    )


def _larger_hosts(subject: Subject) -> Iterator[Remedy]:
    """Yield enough host memory, with the vCPU that Cloud Run asks for beside it."""
    resolved = subject.resolved
    host, need = resolved.host, subject.memory.load_peak_host_gib
    if resolved.platform != "cloud-run":
        yield change("host_memory_gib", float(min(int(need) + 1, host.max_memory_gib)))
        return
    usual = host.memory_gib if need <= host.memory_gib else 0
    memory_gib = max(align_to(int(need) + 1, CLOUD_RUN_GIB_PER_VCPU), host.min_memory_gib, usual)
    enough = (vcpu for vcpu in CLOUD_RUN_VCPU if vcpu * CLOUD_RUN_GIB_PER_VCPU >= memory_gib)
    vcpu = next(enough, None)
    if memory_gib > host.max_memory_gib or vcpu is None:
        return
    changes: dict[str, object] = {"host_memory_gib": float(memory_gib)}
    if resolved.vcpu < vcpu:
        changes["vcpu"] = float(vcpu)
    yield Remedy(changes=changes)


@rule(
    "FIT04",
    "block",
    source="vLLM v1/core/kv_cache_utils.py",
    what="the KV cache holds less than one request of the longest length",
)
def one_request(subject: Subject) -> RuleResult | None:
    """Find a KV cache that holds less than one request of full length."""
    memory, resolved = subject.memory, subject.resolved
    if is_out_of_memory(memory) or memory.max_concurrency >= 1:
        return None
    longest = memory.largest_max_model_len

    def remedies() -> Iterator[Remedy]:
        if longest > 0:
            yield change("vllm.max_model_len", longest)
        yield from _more_utilization(subject)
        yield from other_accelerators(subject)

    return RuleResult(
        message=(
            f"The KV cache holds {memory.kv_tokens:,} tokens ({memory.kv_gib:.2f} GiB), but one request of `vllm.max_model_len` "
            f"{resolved.max_model_len:,} needs {memory.kv_request_gib:.2f} GiB: vLLM refuses to start. "
            + (
                f"The longest request that fits has {longest:,} tokens."
                if longest
                else "No request of any length fits."
            )
        ),
        remedies=remedies(),
        last_resorts=smaller_models(subject),
    )


@rule(
    "FIT05",
    "warn",
    source="vLLM v1/worker/gpu_worker.py (determine_available_memory); tpu-inference worker/tpu_worker.py",
    what="too little device memory stays outside the budget",
)
def headroom(subject: Subject) -> RuleResult | None:
    """Find a budget that leaves too little memory for what is outside it."""
    memory, resolved = subject.memory, subject.resolved
    need = memory.activations_gib if resolved.is_tpu else overheads.MARGIN_OUTSIDE_BUDGET_GIB
    if memory.headroom_gib >= need:
        return None
    outside = (
        "compiled programs and their temporaries"
        if resolved.is_tpu
        else "the CUDA context, fragmentation and the error of the graph estimate"
    )
    fitting = max(int((1 - need / memory.usable_gib) * 100) / 100, 0.05)
    return RuleResult(
        message=(
            f"`vllm.gpu_memory_utilization` {resolved.utilization:g} leaves {memory.headroom_gib:.2f} GiB of a {subject.device} "
            f"outside the budget; {outside} need {need:.2f} GiB."
        ),
        remedies=(change("vllm.gpu_memory_utilization", fitting),),
        advice="A lower utilization also shrinks the KV cache.",
    )


@rule(
    "FIT06",
    "block",
    source="vllm-project/tpu-inference#3225",
    what="a precision that vLLM on TPU does not implement for Gemma 4",
)
def quantized_on_tpu(subject: Subject) -> RuleResult | None:
    """Find a precision that vLLM on TPU does not have for Gemma 4. Checkpoints that are fp8 already do load there."""
    resolved = subject.resolved
    loads = {"bf16", resolved.spec.native_quantization} - {"w4a16"}
    if not resolved.is_tpu or not resolved.spec.is_gemma4 or resolved.scheme.name in loads:
        return None
    missing = (
        "4-bit compressed-tensors checkpoints"
        if resolved.scheme.name == "w4a16"
        else "quantizing Gemma 4 to fp8 while loading"
    )

    def remedies() -> Iterator[Remedy]:
        if resolved.deployment.model_spec is None:
            yield Remedy(changes=to_bf16(resolved.model_id))
        yield from other_accelerators(subject)

    return RuleResult(
        message=(
            f"{resolved.model_id} as {resolved.scheme.name} does not load on {resolved.accelerator.name}: "
            f"vLLM on TPU does not implement {missing}."
        ),
        remedies=remedies(),
        last_resorts=smaller_models(subject),
    )


@rule(
    "FIT07",
    "warn",
    source="tpu-inference kernels/ragged_paged_attention (get_kv_cache_shape)",
    what="fp8 KV on TPU does not double the tokens",
)
def fp8_kv_on_tpu(subject: Subject) -> RuleResult | None:
    """Find fp8 KV on TPU that brings less than twice the tokens."""
    resolved = subject.resolved
    if not resolved.is_tpu or resolved.kv_bytes != 1:
        return None
    plain = layout_of(replace(resolved, kv_bytes=2)).bytes_per_token
    packed = layout_of(resolved).bytes_per_token
    if packed <= plain * _WORTH_HALF:
        return None
    gain = "not one more" if packed == plain else f"{plain / packed:.2f} times as many"
    return RuleResult(
        message=(
            f"`vllm.kv_cache_dtype` {resolved.kv_dtype} does not double the KV cache on {resolved.accelerator.name}: "
            f"{subject.memory.kv_tokens:,} tokens at {packed / 1024:.0f} KiB each, {gain} than with bf16. "
            "A chip with a single KV head pads its fp8 to the width of bf16."
        ),
        remedies=(change("vllm.kv_cache_dtype", None),),
        advice="" if packed == plain else "Keep it if the gain is worth the loss of precision.",
    )


@rule(
    "FIT08",
    "block",
    source="vLLM model_executor/models/gemma4.py (Gemma4Attention)",
    what="tensor parallelism that the GPUs or the attention heads do not allow",
)
def parallelism(subject: Subject) -> RuleResult | None:
    """Find tensor parallelism that the GPUs or the attention heads do not allow."""
    resolved = subject.resolved
    heads, devices = resolved.spec.groups[0].attention.heads, resolved.accelerator.devices
    if not resolved.is_tpu and resolved.tp > devices:
        fact = f"{resolved.accelerator.name} on {resolved.platform} has {devices} GPU(s)"
    elif heads % resolved.tp:
        fact = f"that does not divide the {heads} attention heads of {resolved.model_id}"
    else:
        return None

    def remedies() -> Iterator[Remedy]:
        yield change("vllm.tensor_parallel_size", None)
        divisors = [count for count in range(devices, 0, -1) if heads % count == 0]
        yield from (change("vllm.tensor_parallel_size", count) for count in divisors)

    return RuleResult(
        message=f"`vllm.tensor_parallel_size` is {resolved.tp}, and {fact}.",
        remedies=remedies(),
        last_resorts=ways_out(subject),
    )


@rule(
    "LEN02",
    "block",
    source="vLLM multimodal encoder budget; gemma4_mm.py (32 frames of 70 + 8 tokens)",
    what="a multimodal item is longer than one step",
)
def multimodal_item(subject: Subject) -> RuleResult | None:
    """Find an image, audio or video item that fits into no step."""
    resolved = subject.resolved
    whole_items = resolved.spec.vision_bidirectional or bool(resolved.vllm.disable_chunked_mm_input)
    lengths = item_lengths(subject)
    too_long = {name: tokens for name, tokens in lengths.items() if tokens > resolved.max_num_batched_tokens}
    if not whole_items or not too_long:
        return None
    modality, tokens = max(too_long.items(), key=lambda item: item[1])
    limits = {**(resolved.vllm.limit_mm_per_prompt or {}), **dict.fromkeys(too_long, 0)}
    return RuleResult(
        message=(
            f"One {modality} item has up to {tokens:,} tokens and cannot be split over steps, but `vllm.max_num_batched_tokens` is "
            f"{resolved.max_num_batched_tokens:,}: the engine stops at start."
        ),
        remedies=(
            change("vllm.max_num_batched_tokens", tokens),
            change("vllm.limit_mm_per_prompt", limits),
        ),
        last_resorts=ways_out(subject),
    )


def item_lengths(subject: Subject) -> dict[str, int]:
    """Return the tokens of the longest item of each modality that the limits allow."""
    resolved = subject.resolved
    if not resolved.spec.is_gemma4 or not resolved.spec.is_multimodal:
        return {}
    lengths = {"video": overheads.VIDEO_TOKENS, "image": overheads.IMAGE_TOKENS}
    if resolved.spec.audio_params:
        lengths["audio"] = overheads.AUDIO_TOKENS
    return {name: tokens for name, tokens in lengths.items() if resolved.item_limit(name) > 0}


@rule(
    "LEN03",
    "block",
    source="config.json of the checkpoint (max_position_embeddings)",
    what="requests longer than the model was made for",
)
def model_length(subject: Subject) -> RuleResult | None:
    """Find requests longer than the model was made for."""
    resolved = subject.resolved
    longest = resolved.spec.max_positions
    if resolved.max_model_len <= longest:
        return None
    return RuleResult(
        message=(
            f"`vllm.max_model_len` is {resolved.max_model_len:,}, and {resolved.model_id} was made for {longest:,} tokens: "
            "vLLM refuses to start."
        ),
        remedies=(change("vllm.max_model_len", longest),),
        last_resorts=ways_out(subject),
    )
