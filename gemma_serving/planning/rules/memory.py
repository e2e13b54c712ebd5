"""Rules for memory, precision and length."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import cast

from msgspec.structs import replace

from gemma_serving.contracts.collector import COLLECTOR_MIN_GIB
from gemma_serving.planning.cost.subject import Subject, is_out_of_memory
from gemma_serving.planning.data.checkpoints import checkpoint_of, original_of, stored_as
from gemma_serving.planning.data.overheads import constant
from gemma_serving.planning.memory import margins
from gemma_serving.planning.memory.activations import item_tokens
from gemma_serving.planning.memory.budget import comfortable_utilization, memory_plan, verification_gib
from gemma_serving.planning.memory.host_memory import smallest_instance, with_margin_gib
from gemma_serving.planning.memory.kv_cache import largest_model_len, layout_of
from gemma_serving.planning.memory.speculation import unknown_drafter_bytes
from gemma_serving.planning.memory.tpu_programs import warm_up_gib
from gemma_serving.planning.model.spec import VisionTower
from gemma_serving.planning.model.support import Feature, feature_gap, support_of
from gemma_serving.planning.question.lora import lora_of
from gemma_serving.planning.question.recommendation import FEWER_SEQUENCES, UTILIZATION
from gemma_serving.planning.question.releases import KEEPS_WARM_UP_INPUTS, tokens_in_flight
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.rules.alternatives import (
    DEFAULT_IMAGE,
    alternatives_for,
    house_image,
    models_here,
    other_accelerators,
    served_as,
    smaller_models,
)
from gemma_serving.planning.rules.arguments import arguments_named, kept_arguments
from gemma_serving.planning.rules.platforms.replicas import fewer_replicas, more_replicas, replicas_remedy
from gemma_serving.planning.rules.registry import RuleResult, change, instance_size, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.vllm_args import ADDITIONAL_CONFIG, SCALED_KV_SUFFIX
from gemma_serving.planning.units import CLOSE, ROUGH, figure, from_gib, next_power_of_two, number_of, to_gib

_LONGEST_BLOCK = 256
"""Tokens of the longest block that vLLM on TPU chooses; a length that it divides fills its blocks."""
_WORTH_KEEPING = 1.25
"""Times the tokens from which an fp8 KV cache that does not double them is worth its loss of precision (assumed)."""
_SPLIT_ON_TPU = (
    "With vllm.disableChunkedMmInput false the server starts, but vLLM on TPU warns of failures when it splits "
    "an item (tpu-inference platforms/tpu_platform.py). Set it to false only if clients send text."
)
_WORTH_HALF = 0.55
"""An fp8 KV cache of at most this fraction of the bf16 size delivers about what users expect."""


def _more_memory(subject: Subject) -> Iterator[Remedy]:
    """Yield a larger budget, and on GPU serving images too, which spares the compiler its copy of the embeddings."""
    if subject.resolved.utilization < UTILIZATION:
        yield change("vllm.gpu_memory_utilization", UTILIZATION)
    if subject.resolved.serves_only_text and not subject.resolved.is_tpu:
        title = "serve images too, so compiling takes no copy of the embeddings"
        yield Remedy(changes={"vllm.limit_mm_per_prompt": None}, title=title)


@rule("FIT01")
def _out_of_memory(subject: Subject) -> RuleResult | None:
    memory, resolved = subject.memory, subject.resolved
    if not is_out_of_memory(memory):
        return None
    if memory.load_peak_device_gib > memory.usable_gib:
        message = (
            f"{resolved.model_id} does not fit on {resolved.accelerator.name}: loading needs "
            f"{memory.load_peak_device_gib:.1f} GiB of "
            f"{subject.device} memory ({_parts_of_loading(subject)}), {memory.usable_gib:.2f} GiB is usable."
        )
    else:
        rest = 0.0 if resolved.is_tpu else memory.activations_gib + memory.graphs_gib
        message = (
            f"No memory is left for the KV cache: weights{'' if resolved.is_tpu else ', activations and graphs'} need "
            f"{memory.weights_gib + rest:.1f} GiB, but vllm.gpuMemoryUtilization {resolved.utilization:g} allows "
            f"{memory.budget_gib:.1f} of {memory.usable_gib:.2f} GiB."
        )
    remedies = chain(
        _more_memory(subject), _smaller_batches(resolved), fewer_replicas(resolved), alternatives_for(subject)
    )
    return RuleResult(message, remedies=remedies)


def _parts_of_loading(subject: Subject) -> str:
    parts = [f"{subject.memory.weights_gib:.1f} GiB of weights"]
    if subject.weights.load_extra:
        extra = to_gib(subject.weights.load_extra)
        what = (
            "the bf16 form of the layers until they are converted"
            if subject.resolved.is_tpu
            else "a second copy of the output head until it is tied to the embeddings"
        )
        parts.append(f"{extra:.1f} GiB for {what}")
    if not subject.resolved.is_tpu:
        parts.append(f"{constant('CUDA_CONTEXT_GIB'):.1f} GiB of CUDA context")
    return ", ".join(parts)


@rule("FIT02")
def _offload(subject: Subject) -> RuleResult | None:
    if subject.memory.offloaded_gib <= 0:
        return None
    link = subject.resolved.accelerator.host_link_gb_per_s * constant("ZERO_COPY_EFFICIENCY")
    return RuleResult(
        f"{subject.memory.offloaded_gib:.1f} GiB of weights stay in host memory and cross PCIe for every token at "
        f"about {link:.1f} GB/s. One request will get about {figure(subject.throughput.decode_tok_per_s, ROUGH)} tokens/s.",
        remedies=chain((change("vllm.cpu_offload_gib", None),), alternatives_for(subject)),
    )


@rule("FIT03")
def _host_memory(subject: Subject) -> RuleResult | None:
    host, need = subject.resolved.host, subject.memory.load_peak_host_gib
    have = min(subject.resolved.server_memory_gib, host.max_memory_gib)  # HST01 rejects more
    enough = with_margin_gib(need)
    if enough <= have:
        return None
    loading = f"Loading the {subject.memory.checkpoint_gib:.2f} GiB checkpoint needs {need:.2f} GiB of host memory"
    if need <= have:
        return RuleResult(
            f"{loading}, and {enough - need:.2f} GiB should stay free, but the host has {have:g} GiB. Starts will be killed at random.",
            severity="warn",
            remedies=_larger_hosts(subject),
        )
    is_too_large = need > host.max_memory_gib
    return RuleResult(
        f"{loading}, but the host has {have:g} GiB.",
        severity="block",
        remedies=_larger_hosts(subject),
        last_resorts=() if is_out_of_memory(subject.memory) else alternatives_for(subject),  # FIT01 lists them too
        advice=f"The platform maximum is {host.max_memory_gib:g} GiB." if is_too_large else "",
    )


def _larger_hosts(subject: Subject) -> Iterator[Remedy]:
    """Yield sufficient host memory, with the vCPUs that Cloud Run requires for it."""
    resolved, peak_gib = subject.resolved, subject.memory.load_peak_host_gib
    host, need_gib = resolved.host, with_margin_gib(peak_gib)
    if resolved.platform != "cloud-run":
        yield from fewer_replicas(resolved)
        return
    if resolved.collects_on_cloud_run:
        yield change("metrics.enabled", False)
    most_gib = host.max_memory_gib - (COLLECTOR_MIN_GIB if resolved.collects_on_cloud_run else 0)
    size = smallest_instance(resolved, min(need_gib, most_gib))
    if size is not None and peak_gib <= most_gib:  # a start at the maximum has less than its margin
        yield Remedy(changes=instance_size(max(size[1], resolved.vcpu), size[0]))


@rule("FIT04")
def _one_request(subject: Subject) -> RuleResult | None:
    memory, resolved = subject.memory, subject.resolved
    is_short = margins.one_request(memory).is_short
    if is_out_of_memory(memory) or not is_short or resolved.max_model_len > resolved.spec.max_positions:
        return None  # LEN03 shortens requests that no model of this kind supports
    longest = memory.largest_max_model_len
    shorter = tuple(_shorter_requests(subject))[-1:]  # a length that only just fits would end in FIT09
    if not shorter and longest > 0:
        shorter = (change("vllm.max_model_len", longest),)
    replicas = fewer_replicas(resolved)
    return RuleResult(
        f"The KV cache ({memory.kv_tokens:,} tokens, {memory.kv_gib:.2f} GiB) is smaller than one request of "
        f"vllm.maxModelLen {resolved.max_model_len:,} ({memory.kv_request_gib:.2f} GiB). vLLM will not start. "
        + (f"Largest value that fits: {longest:,}." if longest else "No request of any length fits."),
        remedies=chain(shorter, _more_memory(subject), replicas, other_accelerators(subject)),
        last_resorts=smaller_models(subject),
    )


@rule(margins.OUTSIDE_RULE)
def _headroom(subject: Subject) -> RuleResult | None:
    edge, resolved = margins.edge_outside_budget(subject.memory), subject.resolved
    if not edge.is_short and not edge.may_fail:
        return None
    left = f"vllm.gpuMemoryUtilization {resolved.utilization:g} leaves {edge.available_gib:.2f} GiB of a {subject.device} outside the budget"
    if edge.is_short:
        with_graphs = " with CUDA graphs" if edge.minimum_gib > constant("CUDA_CONTEXT_GIB") else ""
        fact = (
            f"compiled programs need at least {edge.minimum_gib:.2f} GiB there. The server will crash while it loads "
            "them."
            if resolved.is_tpu
            else f"the CUDA context{with_graphs} needs at least {edge.minimum_gib:.2f} GiB there. The server will not start."
        )
    else:
        outside = "compiled programs" if resolved.is_tpu else _outside_of_a_gpu(subject)
        when = "during the start or under load" if resolved.is_tpu else "during the start"
        fact = f"{outside} need {edge.minimum_gib:.2f} to {edge.recommended_gib:.2f} GiB there. The server may crash {when}."
    return RuleResult(
        f"{left}, but {fact}{_speculation_part(resolved)}",
        severity="block" if edge.is_short else "warn",
        remedies=chain(_smaller_batches(resolved), _smaller_budgets(subject)),
        last_resorts=alternatives_for(subject) if edge.is_short else (),
        advice="A lower utilization also shrinks the KV cache.",
    )


def _outside_of_a_gpu(subject: Subject) -> str:
    """Return the memory of a GPU outside the budget."""
    if not subject.resolved.has_unknown_drafter:
        return "the CUDA context, fragmentation and CUDA graphs"
    assumed_gib = to_gib(unknown_drafter_bytes(subject.resolved))
    return f"the CUDA context, fragmentation, CUDA graphs and a draft model of unknown size ({assumed_gib:.2f} GiB assumed)"


def _speculation_part(resolved: Resolved) -> str:
    """Return what speculative decoding needs of the memory outside the budget; empty without it, and on a GPU."""
    started_gib, verified_gib = warm_up_gib(resolved), verification_gib(resolved)
    if started_gib > verified_gib:
        return (
            f" Speculative decoding with vllm.maxNumSeqs {resolved.max_num_seqs} takes {started_gib:.2f} GiB of it while the server starts, "
            f"because vLLM on TPU {KEEPS_WARM_UP_INPUTS} and later keeps the inputs of its programs until all have run."
        )
    return (
        f" Verifying proposed tokens takes {verified_gib:.2f} GiB of it, because each chip holds their logits whole."
        if verified_gib
        else ""
    )


def _smaller_batches(resolved: Resolved) -> Iterator[Remedy]:
    """Yield, for speculative decoding on a TPU, the same without it, and with fewer sequences, most first."""
    if not warm_up_gib(resolved):
        return
    yield change("vllm.speculative_config", None)
    fewer = (sequences for sequences in FEWER_SEQUENCES if sequences < resolved.max_num_seqs)
    yield from (change("vllm.max_num_seqs", sequences) for sequences in fewer)


def _smaller_budgets(subject: Subject) -> Iterator[Remedy]:
    """Yield a utilization that leaves enough memory outside the budget, then the same with a length that still fits."""
    resolved = subject.resolved
    utilization = comfortable_utilization(resolved)
    yield change("vllm.gpu_memory_utilization", utilization)
    longest = memory_plan(replace(resolved, utilization=utilization)).largest_max_model_len
    if 0 < longest < resolved.max_model_len:
        yield Remedy(changes={"vllm.gpu_memory_utilization": utilization, "vllm.max_model_len": longest})


@rule("FIT06")
def _support(subject: Subject) -> RuleResult | None:
    resolved, question = subject.resolved, subject.resolved.question
    if resolved.is_tpu and not resolved.spec.is_gemma4:
        return None  # the table covers the models with a JAX class in vLLM on TPU
    scheme = resolved.scheme.name
    version, supports = question.image_version, question.settings.image.supports
    row = support_of(scheme, resolved.spec, resolved.accelerator, image_version=version, image_supports=supports)
    served = f"{resolved.model_id} as {scheme}"
    source = f"{row.source}, {row.seen_on}" if row.seen_on else row.source
    gap = min(_feature_gaps(subject), key=lambda one: one.severity != "block", default=None)
    if gap is not None and (row.answer == "yes" or (row.answer == "unknown" and gap.severity == "block")):
        return gap
    if row.answer == "yes":
        if resolved.is_tpu or not row.is_weight_only:
            return None
        return RuleResult(
            f"{served} computes in bf16 on {resolved.accelerator.name}, which has no {scheme} "
            "arithmetic. It saves memory but not time.",
            severity="info",
            source=source,
        )

    is_converted = resolved.scheme.is_of_qwix

    def remedies() -> Iterator[Remedy]:
        if is_converted:
            rules = arguments_named(subject, {ADDITIONAL_CONFIG})
            kept = {"vllm.extra_args": kept_arguments(subject, rules)} if rules else {}
            yield Remedy(changes={"vllm.tpu_quantization": None, **kept})
        yield from _images_that_load(resolved, scheme)
        if resolved.question.facts.model_spec is None:
            yield Remedy(changes=served_as(original_of(resolved.model_id)))
            if resolved.scheme.name != "w4a16":
                yield from models_here(subject, stored_as(checkpoint_of(resolved.model_id).architecture, "w4a16"))
        yield from other_accelerators(subject)

    loads = "does not load" if row.answer == "no" else "is untested"
    return RuleResult(
        f"{served} {loads} on {resolved.accelerator.name}: {row.note}.",
        remedies=remedies(),
        last_resorts=smaller_models(subject),
        advice="" if is_converted else "If your image loads it, add it to image.supports.",
        severity="block" if row.answer == "no" else "warn",
        source=source,
    )


def _feature_gaps(subject: Subject) -> Iterator[RuleResult]:
    """Yield a finding for each feature of the server that the image lacks, or may lack."""
    resolved, version = subject.resolved, subject.resolved.question.image_version
    for feature, words, without in _features(resolved):
        row = feature_gap(feature, resolved.spec, resolved.accelerator, image_version=version)
        if row is None:
            continue
        is_in_default = feature_gap(feature, resolved.spec, resolved.accelerator) is None
        works = "does not work" if row.answer == "no" else "is untested"
        yield RuleResult(
            f"{resolved.model_id} with {words} {works} on {resolved.accelerator.name}: {row.note}.",
            remedies=(Remedy(changes=DEFAULT_IMAGE), *without) if version and is_in_default else without,
            advice="If your image has it, accept this finding.",
            severity="block" if row.answer == "no" else "warn",
            source=f"{row.source}, {row.seen_on}",
        )


def _features(resolved: Resolved) -> Iterator[tuple[Feature, str, tuple[Remedy, ...]]]:
    """Yield each feature of the server that the table may have rows about, with its name and the changes that turn it off."""
    dtype, usual = resolved.kv_dtype, _plain_kv(resolved)
    if dtype.endswith(SCALED_KV_SUFFIX):
        yield "scaled_kv", f"vllm.kvCacheDtype {dtype}", (usual,)
    elif dtype.startswith("fp8") and not resolved.is_tpu:
        yield (
            "fp8_kv",
            f"vllm.kvCacheDtype {_kv_type(resolved)}",
            (usual, change("vllm.kv_cache_dtype", "int8_per_token_head")),
        )
    if resolved.drafter is not None and resolved.drafter.is_gemma4:
        yield "draft_model", "a draft model", (change("vllm.speculative_config", None),)
    if lora_of(resolved) is not None:
        yield "lora", "LoRA adapters", ()
    yield "structured_output", "structured output", ()


def _kv_type(resolved: Resolved) -> str:
    """Return the type of the KV cache, and where it comes from if no setting names it."""
    is_set = resolved.vllm.kv_cache_dtype not in {None, "auto"}
    return resolved.kv_dtype if is_set else f"{resolved.kv_dtype} (from the checkpoint's quantization_config)"


def _plain_kv(resolved: Resolved) -> Remedy:
    """Return the change to a KV cache in 16 bits."""
    return change("vllm.kv_cache_dtype", None if resolved.spec.kv_cache_dtype == "auto" else "bfloat16")


def _images_that_load(resolved: Resolved, scheme: str) -> Iterator[Remedy]:
    spec = resolved.spec
    accelerator = resolved.accelerator
    if resolved.question.image_version and support_of(scheme, spec, accelerator).answer == "yes":
        yield Remedy(changes=DEFAULT_IMAGE)
    if image := house_image(scheme, spec, accelerator):
        yield Remedy(changes=image)


@rule("FIT07")
def _small_kv(subject: Subject) -> RuleResult | None:
    resolved, memory = subject.resolved, subject.memory
    if resolved.kv_bytes != 1:
        return None
    plain_gib = memory_plan(replace(resolved, kv_bytes=2, kv_dtype="auto")).kv_request_gib
    packed_gib = memory.kv_request_gib
    if packed_gib <= plain_gib * _WORTH_HALF:
        return None
    times = plain_gib / packed_gib
    gain = "no more than" if times == 1 else f"{times:.2f} times as many as"
    why = (
        "A chip with one KV head pads fp8 to the width of bf16."
        if resolved.is_tpu
        else "With a scale per head, the pages of one kind of layer do not divide those of the other, so vLLM pads them."
    )
    return RuleResult(
        f"vllm.kvCacheDtype is {_kv_type(resolved)}, but it does not double the KV cache on {resolved.accelerator.name}. "
        f"It holds {figure(memory.kv_tokens, CLOSE)} tokens of {memory.kv_bytes_per_token / 1024:.0f} KiB, "
        f"{gain} with bf16. {why}",
        severity="info" if times >= _WORTH_KEEPING else "warn",
        remedies=(_plain_kv(resolved), *more_replicas(resolved, kv_cache_dtype=None)),
        advice="" if times == 1 else "Keep it if the gain justifies the loss of precision.",
    )


@rule("FIT08")
def _parallelism(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    heads, devices = resolved.spec.groups[0].attention.heads, resolved.accelerator.devices
    if not resolved.is_tpu and resolved.tp * resolved.dp > devices:
        fact = f"{resolved.accelerator.name} on {resolved.platform} has {number_of(devices, 'GPU')}"
    elif heads % resolved.tp:
        fact = f"{resolved.model_id} has {heads} attention heads, which it does not divide"
    elif (tower := _undivided_tower(resolved)) is not None:
        fact = (
            f"the image encoder of {resolved.model_id} has {tower.heads} attention heads, which it does not divide. vLLM on TPU divides them "
            "over the chips, also if the server gets only text"
        )
    else:
        return None
    divisors = (None, *(count for count in range(devices, 0, -1) if heads % count == 0 and not resolved.is_tpu))
    usual, *others = [change("vllm.tensor_parallel_size", count) for count in divisors]
    if resolved.is_tpu:
        others = list(more_replicas(resolved))
    replicas = f" and vllm.dataParallelSize is {resolved.dp}" if resolved.dp > 1 else ""
    return RuleResult(
        f"vllm.tensorParallelSize is {resolved.tp}{replicas}, but {fact}.",
        remedies=(usual, *([replicas_remedy(None)] if resolved.dp > 1 else []), *others),
        last_resorts=alternatives_for(subject),
    )


def _undivided_tower(resolved: Resolved) -> VisionTower | None:
    """Return the image encoder if the tensor parallelism does not divide its heads on a TPU; else None. 12B's PyTorch path has none."""
    tower = resolved.spec.vision
    return tower if tower is not None and resolved.runtime == "tpu-jax" and tower.heads % resolved.tp else None


@rule(margins.CLOSE_RULE)
def _close_to_an_edge(subject: Subject) -> RuleResult | None:
    memory = subject.memory
    load, request = margins.edge_while_loading(memory), margins.one_request(memory)
    if is_out_of_memory(memory) or request.is_short:
        return None
    if load.may_fail:
        message = (
            f"Loading needs {load.minimum_gib:.2f} of {load.available_gib:.2f} GiB of {subject.device} memory. "
            "Measured weights differ from "
            f"planned ones by up to {constant('WEIGHTS_SCATTER'):.0%}. The server may crash while it loads."
        )
    elif request.may_fail:
        side = "more" if memory.kv_gib >= memory.kv_request_gib else "less"
        message = (
            f"The KV cache of {memory.kv_gib:.2f} GiB holds little {side} than one request of "
            f"vllm.maxModelLen {subject.resolved.max_model_len:,} ({memory.kv_request_gib:.2f} GiB). Measured caches have up to "
            f"{memory.kv_margin_gib:.2f} GiB less or {memory.kv_excess_gib:.2f} GiB more than such a plan. The server may run out of KV cache."
        )
    else:
        return None
    shorter = () if load.may_fail else _shorter_requests(subject)
    return RuleResult(message, remedies=chain(shorter, alternatives_for(subject)))


def _shorter_requests(subject: Subject) -> Iterator[Remedy]:
    """Yield the longest request that fits in the KV cache even with the largest possible shortfall."""
    resolved, memory = subject.resolved, subject.memory
    certain_gib = memory.kv_gib - memory.kv_margin_gib
    longest = largest_model_len(
        layout_of(resolved),
        from_gib(max(certain_gib, 0.0)),
        tokens_in_flight=tokens_in_flight(resolved),
        limit=resolved.max_model_len,
    )
    for length in dict.fromkeys((longest, longest - longest % _LONGEST_BLOCK)):
        if length > 0:
            yield change("vllm.max_model_len", length)


@rule("LEN02")
def _multimodal_item(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    whole_items = resolved.spec.vision_bidirectional or bool(resolved.vllm.disable_chunked_mm_input)
    lengths = {name: tokens for name, tokens in item_tokens(resolved).items() if resolved.item_limit(name) > 0}
    too_long = {name: tokens for name, tokens in lengths.items() if tokens > resolved.max_num_batched_tokens}
    if not whole_items or not too_long:
        return None
    modality, tokens = max(too_long.items(), key=lambda item: item[1])
    limits = {**(resolved.vllm.limit_mm_per_prompt or {}), **dict.fromkeys(too_long, 0)}
    is_chosen = not resolved.spec.vision_bidirectional
    default = " by this project's default" if resolved.question.settings.vllm.disable_chunked_mm_input is None else ""
    why = f" because vllm.disableChunkedMmInput is true{default}" if is_chosen else ""

    def remedies() -> Iterator[Remedy]:
        yield change("vllm.max_num_batched_tokens", tokens)
        if is_chosen and not resolved.is_tpu:
            yield change("vllm.disable_chunked_mm_input", False)
        yield change("vllm.limit_mm_per_prompt", limits)

    return RuleResult(
        f"One {modality} item has up to {tokens:,} tokens and cannot be split over steps{why}, but "
        f"vllm.maxNumBatchedTokens is {resolved.max_num_batched_tokens:,}. vLLM will not start.",
        remedies=remedies(),
        last_resorts=alternatives_for(subject),
        advice=_SPLIT_ON_TPU if is_chosen and resolved.is_tpu else "",
    )


@rule("LEN04")
def _all_items(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    limits = cast("Mapping[str, int]", resolved.question.settings.vllm.limit_mm_per_prompt or {})
    lengths = {name: tokens for name, tokens in item_tokens(resolved).items() if limits.get(name, 0) > 0}
    tokens = sum(limits[name] * one for name, one in lengths.items())
    if tokens < resolved.max_model_len:
        return None
    return RuleResult(
        f"A request with all items that {resolved.question.vllm_key('limit_mm_per_prompt')} allows has up to {tokens:,} tokens, but vllm.maxModelLen "
        f"is {resolved.max_model_len:,}. vLLM answers it with 400.",
        remedies=(
            change("vllm.max_model_len", next_power_of_two(tokens + 1)),
            change("vllm.limit_mm_per_prompt", {**limits, **dict.fromkeys(lengths, 1)}),
        ),
    )


@rule("LEN03")
def _model_length(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    longest = resolved.spec.max_positions
    if resolved.max_model_len <= longest:
        return None
    return RuleResult(
        f"vllm.maxModelLen is {resolved.max_model_len:,}, but {resolved.model_id} supports {longest:,} tokens. "
        "vLLM will not start.",
        remedies=(change("vllm.max_model_len", longest),),
        last_resorts=alternatives_for(subject),
    )
