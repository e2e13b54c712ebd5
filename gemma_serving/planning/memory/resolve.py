"""Resolve a question for a server: resolve names, fill in defaults, reject conflicts."""

import dataclasses
from typing import Final, cast

from msgspec.structs import replace as replace_struct

from gemma_serving.planning.data.checkpoints import find_checkpoint, stored_as, with_owner
from gemma_serving.planning.data.overheads import VIDEO_TOKENS, VLLM_DEFAULT_BLOCK
from gemma_serving.planning.data.prices import LIST_PRICES
from gemma_serving.planning.data.quantization import QUANTIZED_BY_VLLM, SCHEMES, Scheme
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import (
    ACCELERATORS,
    Accelerator,
    find_accelerator,
    host_of,
    tpu_offer,
    why_not_planned,
)
from gemma_serving.planning.memory.budget import comfortable_utilization, memory_plan
from gemma_serving.planning.memory.host_memory import smallest_instance, with_margin_gib
from gemma_serving.planning.memory.margins import edges_of_memory, one_request
from gemma_serving.planning.memory.tpu_programs import warm_up_gib
from gemma_serving.planning.model.catalog import spec_of, unknown_model
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.question.drafters import drafter_of
from gemma_serving.planning.question.recommendation import (
    FEWER_SEQUENCES,
    MAX_NUM_SEQS,
    SHORTEST_MODEL_LEN,
    SMALL_DEVICE_MAX_NUM_SEQS,
    SMALL_NUM_BATCHED_TOKENS,
    UTILIZATION,
    recommended_options,
)
from gemma_serving.planning.question.resolved import Resolved, Runtime
from gemma_serving.planning.question.tpu_quantization import converted_scheme
from gemma_serving.planning.question.validators import taken_together
from gemma_serving.planning.settings.paths import require_consistent_blocks
from gemma_serving.planning.settings.question import NO_SERVICE, Platform, Question, WeightsMode
from gemma_serving.planning.settings.vllm_args import (
    KEY_OF,
    SCALED_KV_SUFFIX,
    TPU_BUCKET_PADDING_GAP,
    VllmOptions,
)
from gemma_serving.planning.units import ceil_div, next_power_of_two

_KV_BYTES: Final = {
    **dict.fromkeys(("auto", "bfloat16", "float16"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_per_token_head", "int8_per_token_head"), 1),
}


def resolve(question: Question) -> Resolved:
    """Fill in everything that the question leaves unset. Raises PlanningError for an unknown name, a value out of range, or a conflict."""
    require_consistent_blocks(question)
    return filled_in(question)


def filled_in(question: Question) -> Resolved:
    """Return `resolve` of a question whose values are within their ranges, such as the planner's own candidates."""
    accelerator = question.facts.device or _accelerator(question.accelerator_name, question.facts.platform)
    platform = _platform(question.facts.platform, accelerator)
    model_id, spec, scheme, quantize_on_load = _model(question, accelerator)
    mode: WeightsMode = question.facts.weights_mode or ("fuse-buffered" if platform == "cloud-run" else "hub")
    dp = question.settings.vllm.data_parallel_size or 1
    base = recommended_options(
        spec,
        accelerator,
        weights_mode=mode,
        quantize_on_load=quantize_on_load and not accelerator.is_tpu,
        offloads=bool(question.settings.vllm.cpu_offload_gib),
        replicas=dp,
    )
    options = taken_together(question.settings.vllm, base)
    host = host_of(accelerator, platform)
    run = question.cloud_run if platform == "cloud-run" else NO_SERVICE
    runtime: Runtime = "cuda" if not accelerator.is_tpu else "tpu-torch" if spec.tpu_torch_path else "tpu-jax"
    max_model_len = options.max_model_len or spec.max_positions
    max_num_seqs = options.max_num_seqs or MAX_NUM_SEQS
    given = options.kv_cache_dtype or "auto"
    kv_dtype = spec.kv_cache_dtype if given == "auto" else given
    _check_together(options, accelerator)
    found = Resolved(
        question=question,
        model_id=model_id,
        spec=spec,
        scheme=scheme,
        accelerator=accelerator,
        is_tpu=accelerator.is_tpu,
        platform=platform,
        host=host,
        runtime=runtime,
        vllm=options,
        tp=options.tensor_parallel_size or accelerator.devices,
        dp=dp,
        utilization=options.gpu_memory_utilization or UTILIZATION,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens or _default_batch(spec, accelerator),
        block_size=options.block_size or _default_block(accelerator, max_model_len, max_num_seqs),
        kv_dtype=kv_dtype,
        kv_bytes=_KV_BYTES[kv_dtype],
        padding_gap=TPU_BUCKET_PADDING_GAP if accelerator.is_tpu and spec.is_moe else 0,
        eager=bool(options.enforce_eager),
        speculative_tokens=_speculative_tokens(options),
        offload_gib=options.cpu_offload_gib or 0.0,
        host_memory_gib=run.memory_mib / 1024 or host.memory_gib,
        vcpu=run.cpu or host.vcpu,
        weights_mode=mode,
        service=run.with_defaults(
            mode=mode if platform == "cloud-run" else "",
            has_own_bucket=question.settings.bucket.existing is None,
            fetches_media=bool(question.settings.vllm.allowed_media_domains),
        ),
        capacity=question.tpu.with_defaults(has_own_bucket=question.settings.bucket.existing is None),
        prices=question.facts.price_book or LIST_PRICES,
        drafter=drafter_of(options, question.facts.draft_spec),
    )
    found = _with_fewer_sequences(_far_from_the_edge(_with_room_for_programs(found) if accelerator.is_tpu else found))
    return _on_smallest_instance(found) if platform == "cloud-run" and not run.memory_mib else found


def _on_smallest_instance(resolved: Resolved) -> Resolved:
    """Return the same on the smallest Cloud Run instance that loads the weights, as a new settings file has; on the default one if none does."""
    size = smallest_instance(resolved, with_margin_gib(memory_plan(resolved).load_peak_host_gib))
    if size is None:
        return resolved
    return replace_struct(resolved, host_memory_gib=size[0], vcpu=resolved.question.cloud_run.cpu or size[1])


def _check_together(options: VllmOptions, accelerator: Accelerator) -> None:
    """Raise PlanningError for values that exclude each other, or that the accelerator does not have."""
    offload, kv_dtype = options.cpu_offload_gib, options.kv_cache_dtype or "auto"
    if offload and accelerator.is_tpu:
        raise PlanningError(f"vllm.cpuOffloadGib is {offload:g}, but vLLM on TPU cannot offload weights. Remove it.")
    if options.tpu_quantization and not accelerator.is_tpu:
        raise PlanningError(
            f"vllm.tpuQuantization is {options.tpu_quantization}, but {accelerator.name} is a GPU. Remove it or set vllm.quantization to fp8."
        )
    if kv_dtype.endswith(SCALED_KV_SUFFIX) and accelerator.is_tpu:
        raise PlanningError(f"vllm.kvCacheDtype is {kv_dtype}, which vLLM on TPU does not have. Remove it or set fp8.")
    if options.load_format == "gguf":
        raise PlanningError("vllm.loadFormat is gguf, which the planner does not support. Use safetensors.")
    for name in ("max_lora_rank", "max_loras"):
        limit = getattr(options, name)
        if limit is not None and options.lora_adapters is None:
            raise PlanningError(
                f"vllm.{KEY_OF[name]} is {limit}, but the server has no LoRA. Set vllm.lora.adapters ({{}} without adapters at the start)."
            )


def _far_from_the_edge(resolved: Resolved) -> Resolved:
    """Return the same with smaller steps, then with shorter requests, if the default length barely fits or does not fit.

    A request holds the tokens of two steps in each of its sliding windows (`planning.question.releases.tokens_in_flight`). If neither fits,
    nothing changes.
    """
    question = resolved.question
    if question.settings.vllm.max_model_len is not None:
        return resolved
    memory = memory_plan(resolved)
    edge = one_request(memory)
    given = dataclasses.replace(question.settings.vllm, max_num_seqs=resolved.max_num_seqs)
    may_shrink = question.settings.vllm.max_num_batched_tokens is None and not resolved.is_tpu
    if may_shrink and resolved.max_num_batched_tokens > SMALL_NUM_BATCHED_TOKENS and (edge.may_fail or edge.is_short):
        smaller = dataclasses.replace(given, max_num_batched_tokens=SMALL_NUM_BATCHED_TOKENS)
        found = replace_struct(filled_in(question.changed(vllm=smaller)), question=question)
        if memory_plan(found).max_concurrency >= 1:
            return found
    if memory.max_concurrency < 1:
        return resolved
    length = resolved.max_model_len
    found = resolved
    while edge.may_fail and length > SHORTEST_MODEL_LEN:
        length //= 2
        shorter = dataclasses.replace(given, max_model_len=length, max_num_batched_tokens=found.max_num_batched_tokens)
        found = replace_struct(filled_in(question.changed(vllm=shorter)), question=question)
        edge = one_request(memory_plan(found))
    return found


def _with_fewer_sequences(resolved: Resolved) -> Resolved:
    """Return the same with the most sequences that leave enough memory, if the recommended ones do not and fewer do.

    On a GPU those of a small one; on a TPU only with speculative decoding, whose start needs memory for each sequence.
    """
    question = resolved.question
    if resolved.is_tpu:
        tried = FEWER_SEQUENCES if warm_up_gib(resolved) else ()
    else:
        tried = (SMALL_DEVICE_MAX_NUM_SEQS,) if resolved.max_num_seqs > SMALL_DEVICE_MAX_NUM_SEQS else ()
    if question.settings.vllm.max_num_seqs is not None or not tried or not _dies(resolved):
        return resolved
    for sequences in tried:
        fewer = dataclasses.replace(question.settings.vllm, max_num_seqs=sequences)
        found = replace_struct(filled_in(question.changed(vllm=fewer)), question=question)
        if not _dies(found):
            return found
    return resolved


def _dies(resolved: Resolved) -> bool:
    memory = memory_plan(resolved)
    return memory.max_concurrency < 1 or any(edge.is_short for edge in edges_of_memory(memory))


def _with_room_for_programs(resolved: Resolved) -> Resolved:
    """Return the same with a lower utilization if the default one leaves too little for the compiled programs of a TPU, and the lower one holds the weights."""
    if resolved.question.settings.vllm.gpu_memory_utilization is not None:
        return resolved
    utilization = min(resolved.utilization, comfortable_utilization(resolved))
    budget_gib = utilization * resolved.accelerator.usable_gib
    if warm_up_gib(resolved) and budget_gib < memory_plan(resolved).weights_gib:
        return resolved  # FIT05 names fewer sequences
    return replace_struct(
        resolved, utilization=utilization, vllm=dataclasses.replace(resolved.vllm, gpu_memory_utilization=utilization)
    )


def _accelerator(name: str, platform: str | None) -> Accelerator:
    found = find_accelerator(name)
    if found is None:
        fitting = [one.name for one in ACCELERATORS.values() if (platform or "").lower() in one.platforms]
        named = why_not_planned(name)
        if named:
            raise PlanningError(f'The accelerator "{name}": {named}.')
        raise PlanningError(f'The accelerator "{name}" is unknown. Allowed: {", ".join(fitting or ACCELERATORS)}.')
    return found


def _platform(name: str | None, accelerator: Accelerator) -> Platform:
    if name is None:
        return cast("Platform", accelerator.platforms[0])
    if name.lower() not in accelerator.platforms:
        allowed = ", ".join(accelerator.platforms)
        raise PlanningError(f'The platform "{name}" does not have {accelerator.name}. Allowed: {allowed}.')
    return cast("Platform", name.lower())


def _model(question: Question, accelerator: Accelerator) -> tuple[str, ModelSpec, Scheme, bool]:
    """Return id, architecture, precision, and whether vLLM must quantize while loading."""
    converted = converted_scheme(question.settings.vllm) if accelerator.is_tpu else None
    wanted = question.settings.quantization or question.settings.vllm.quantization
    wanted = wanted.lower() if wanted else None
    if converted is not None and wanted is not None:
        raise PlanningError(
            f'The quantization "{wanted}" conflicts with {converted.name}, to which vLLM on TPU converts the weights. Remove one of them.'
        )
    if wanted is not None and wanted not in SCHEMES:
        raise PlanningError(f'The quantization "{wanted}" is unknown. Allowed: {", ".join(SCHEMES)}.')
    checkpoint = find_checkpoint(question.settings.model)
    if question.facts.model_spec is not None:
        spec, architecture = question.facts.model_spec, ""
    elif checkpoint is None or checkpoint.is_drafter:
        raise PlanningError(unknown_model(question.settings.model))
    else:
        spec, architecture = spec_of(checkpoint.id), checkpoint.architecture
    model_id = spec.name if question.facts.model_spec is not None or checkpoint is None else checkpoint.id
    native = spec.native_quantization or "bf16"
    scheme = converted or SCHEMES[wanted or native]
    if scheme.name != native:
        _check_conversion(scheme, native, model_id, architecture)
        spec = replace_struct(spec, checkpoint_bytes=None)
    return model_id, spec, scheme, scheme.name != native


def _check_conversion(scheme: Scheme, native: str, model_id: str, architecture: str) -> None:
    """Raise PlanningError if vLLM cannot serve a checkpoint in another precision than its own."""
    if native != "bf16":
        instead = f" or use {architecture}" if architecture else ""
        key = "vllm.tpuQuantization" if scheme.is_of_qwix else "quantization"
        raise PlanningError(
            f'The checkpoint {model_id} is {native}, which conflicts with {key} "{scheme.name}". Remove {key}{instead}.'
        )
    if scheme.name in QUANTIZED_BY_VLLM or scheme.is_of_qwix:
        return
    ready = [with_owner(one) for one in stored_as(architecture, scheme.name)]
    instead = f"Use {' or '.join(ready)}" if ready else f"Choose {' or '.join(('bf16', *QUANTIZED_BY_VLLM))}"
    raise PlanningError(
        f'The quantization "{scheme.name}" needs an already quantized checkpoint, but {model_id} is {native}. {instead}.'
    )


def _default_batch(spec: ModelSpec, accelerator: Accelerator) -> int:
    """Return vLLM's own max-num-batched-tokens (engine/arg_utils.py), raised if one item must fit in one step."""
    batch = 8_192 if accelerator.is_large else 2_048
    if accelerator.is_tpu:
        batch = tpu_offer(accelerator).default_batched_tokens or batch
    return max(batch, VIDEO_TOKENS) if spec.vision_bidirectional else batch


def _default_block(accelerator: Accelerator, max_model_len: int, max_num_seqs: int) -> int:
    """Return the block size that vLLM chooses: 16 on GPUs; on TPU by the length, to limit page tables (tpu-inference)."""
    if not accelerator.is_tpu:
        return VLLM_DEFAULT_BLOCK
    by_length = 16 if max_model_len > 8_192 else min(max(next_power_of_two(max_model_len) // 16, 16), 256)  # noqa: PLR2004 - tpu-inference
    pages = max((1024 * 1024 // 2) // max_num_seqs // 4, 1)
    return max(by_length, next_power_of_two(ceil_div(max_model_len, pages)))


def _speculative_tokens(options: VllmOptions) -> int:
    config = options.speculative_config
    if config is None:
        return 0
    tokens = config.get("num_speculative_tokens", 1)
    return int(tokens) if isinstance(tokens, int | float) else 1
