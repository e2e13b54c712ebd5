"""Rules for the workload: requests that the server rejects, or serves only after a wait."""

import math
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from gemma_serving.planning.cost.subject import Subject, examine, is_out_of_memory
from gemma_serving.planning.machine.hardware import CLOUD_RUN_MAX_CONCURRENCY
from gemma_serving.planning.memory.adapters import adapter_options
from gemma_serving.planning.memory.budget import memory_plan
from gemma_serving.planning.memory.speculation import speculation_of, unknown_drafter_bytes
from gemma_serving.planning.question.drafters import likely_drafters
from gemma_serving.planning.question.features import (
    allowed_items,
    decodes_audio,
    largest_image_tokens,
    media_support,
    sized,
)
from gemma_serving.planning.question.lora import adapters_of, lora_of
from gemma_serving.planning.question.recommendation import roomy_length
from gemma_serving.planning.question.types import LIMIT_WORDS
from gemma_serving.planning.rules.arguments import arguments_named, kept_arguments
from gemma_serving.planning.rules.platforms.replicas import more_replicas
from gemma_serving.planning.rules.registry import RuleResult, change, rule
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.vllm_args import ENABLE_LORA, LORA_MODULES, MAX_LORA_RANK, MAX_LORAS, Modality
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.prefill import media_tokens, prompt_tokens, request_tokens
from gemma_serving.planning.speed.serving import LoadedServer, server_of
from gemma_serving.planning.units import HOUR_S, ROUGH, ceil_div, duration, figure, number_of, to_gib

_WORTH: Final = 1.25
"""Least output rate with a proposed vllm.maxModelLen, as a multiple of the present one: assumed."""
_LORA_FLAGS: Final = (ENABLE_LORA, LORA_MODULES, MAX_LORA_RANK, MAX_LORAS)


def _asked(subject: Subject) -> Workload | None:
    """Return the workload of a deployment that fits in memory; speed is irrelevant otherwise."""
    return None if is_out_of_memory(subject.memory) else subject.resolved.question.settings.workload


@rule("WRK01")
def _arrivals(subject: Subject) -> RuleResult | None:
    workload, answer = _asked(subject), subject.workload
    if workload is None or answer is None or workload.rate_per_s is None:
        return None
    rate, most = workload.rate_per_s, answer.most_requests_per_s
    band = server_of(subject.resolved, subject.memory, workload).band("rate", most)
    if rate <= band.low:
        return None
    is_certain = rate > band.high
    grows = (
        f"The queue will grow by {figure((rate - most) * HOUR_S, ROUGH)} requests per hour"
        if is_certain
        else "The queue may grow without bound"
    )
    return RuleResult(
        f"workload.ratePerS is {rate:g}, but the server processes {figure(most, ROUGH)} such requests per second "
        f"({band.words}). {grows}.",
        remedies=_more_capacity(subject, change("workload.rate_per_s", _rounded_down(band.low))),
    )


@rule("WRK02")
def _users(subject: Subject) -> RuleResult | None:
    workload, answer = _asked(subject), subject.workload
    if workload is None or answer is None or workload.users is None or workload.users <= answer.most_users:
        return None
    server, replicas = server_of(subject.resolved, subject.memory, workload), subject.resolved.dp
    run = subject.resolved.question.cloud_run
    keys = [LIMIT_WORDS[limit] for limit in answer.limits]
    limit = (
        f"the KV cache holds {number_of(answer.most_users, 'request')} of {round(server.held_tokens):,} tokens"
        if "kv-cache" in answer.limits
        else f"{' and '.join(keys)} {'are' if keys[1:] else 'is'} {server.slots:,}{f' in each of {replicas} replicas' if replicas > 1 else ''}"
    )
    more = f" unless another instance serves them (cloudRun.maxInstances is {run.max_instances})"
    return RuleResult(
        f"workload.users is {workload.users:,}, but {limit}. {workload.users - answer.most_users:,} of them will "
        f"wait, each {duration(answer.queue_s.typical)} per request"
        f"{more if server.admitted is not None and run.max_instances > 1 else ''}.",
        remedies=_more_capacity(subject, change("workload.users", answer.most_users)),
    )


def _more_capacity(subject: Subject, less: Remedy) -> Iterator[Remedy]:
    """Yield all requests that vLLM computes if Cloud Run sends fewer, a larger batch if it fits in the KV cache, then a smaller workload."""
    workload, resolved = subject.resolved.question.settings.workload, subject.resolved
    if workload is not None:
        server = server_of(resolved, subject.memory, workload)
        if server.slots < server.own_slots:
            yield change("cloud_run.concurrency", min(server.all_own_slots, CLOUD_RUN_MAX_CONCURRENCY))
        if server.kv_slots > resolved.max_num_seqs:
            users = ceil_div(workload.users or 0, resolved.dp)
            yield _larger_batch(server, min(server.kv_slots, max(users, 256)))
        yield from more_replicas(resolved)
    yield less


def _larger_batch(server: LoadedServer, sequences: int) -> Remedy:
    """Return the change to a larger batch. On Cloud Run it includes the concurrency, and the larger batch's own memory counts for both."""
    if server.admitted is None:
        return change("vllm.max_num_seqs", sequences)
    larger = replace(server.resolved, max_num_seqs=min(sequences, CLOUD_RUN_MAX_CONCURRENCY))
    slots = server_of(larger, memory_plan(larger), server.workload).own_slots
    return Remedy(changes={"vllm.max_num_seqs": slots, "cloud_run.concurrency": slots})


def _rounded_down(rate: float) -> float:
    """Return two significant digits of a rate, rounded down."""
    digits = 1 - math.floor(math.log10(rate))
    return math.floor(rate * 10**digits) / 10**digits


@rule("WRK03")
def _length(subject: Subject) -> RuleResult | None:
    workload, limit = subject.resolved.question.settings.workload, subject.resolved.max_model_len
    if workload is None:
        return None
    workload = sized(workload, subject.resolved)
    prompt = prompt_tokens(workload)
    need = request_tokens(workload)
    if need <= limit:
        return None

    def remedies() -> Iterator[Remedy]:
        if need <= subject.resolved.spec.max_positions:
            yield change("vllm.max_model_len", need)
        if prompt < limit:
            yield change("workload.output_tokens", limit - prompt)
        rest = limit - workload.output_tokens - (prompt - workload.input_tokens)
        if rest > 0:
            yield change("workload.input_tokens", rest)
        for longest in (subject.memory.largest_max_model_len or subject.resolved.spec.max_positions, limit):
            yield _longest_request(workload, max(longest, 2))

    return RuleResult(
        f"A workload request has {need:,} tokens ({prompt:,} in, {workload.output_tokens:,} out), but "
        f"vllm.maxModelLen is {limit:,}. The server will reject it.",
        remedies=remedies(),
    )


def _longest_request(workload: Workload, longest: int) -> Remedy:
    """Return the change to requests of at most `longest` tokens, with as much of the workload as fits in one."""
    changes: dict[str, object] = {"vllm.max_model_len": longest}
    media = media_tokens(workload)
    if media > longest - 2:
        changes |= {"workload.images": 0, "workload.videos": 0, "workload.audio_s": 0.0}
        media = 0
    outputs = min(workload.output_tokens, longest - media - 1)
    inputs = min(workload.input_tokens, longest - media - outputs)
    return Remedy(changes=changes | {"workload.input_tokens": inputs, "workload.output_tokens": outputs})


@rule("WRK04")
def _items(subject: Subject) -> RuleResult | None:
    resolved, workload = subject.resolved, subject.resolved.question.settings.workload
    if workload is None:
        return None
    asked: dict[Modality, int] = {"image": workload.images, "video": workload.videos}
    unserved = {kind: one.note for kind in asked if (one := media_support(resolved, kind)).answer == "no"}
    allowed = {kind: 0 if kind in unserved else allowed_items(resolved, kind) for kind in asked}
    refused = {kind: count for kind, count in asked.items() if count > allowed[kind]}
    audio = media_support(resolved, "audio")
    has_audio = audio.answer == "yes" and allowed_items(resolved, "audio") > 0
    texts = [
        f"{count} {kind}s, but {unserved.get(kind, f'{allowed[kind]} are allowed')}" for kind, count in refused.items()
    ]
    if workload.audio_s > 0 and not has_audio:
        texts.append(f"{workload.audio_s:g} s of audio, but {audio.note or 'none is allowed'}")
    size, largest = workload.image_tokens or 0, largest_image_tokens(resolved)
    is_larger = workload.images > 0 and size > largest
    if is_larger:
        texts.append(
            f"images of {size} tokens, but a request may choose at most {largest} (vllm.multimodal.maxImageTokens)"
        )
    if not texts:
        return None

    def remedies() -> Iterator[Remedy]:
        if not unserved.keys() & refused.keys():
            limits = {**(resolved.vllm.limit_mm_per_prompt or {}), **refused}
            larger = {"vllm.max_image_tokens": size} if is_larger else {}
            yield Remedy(changes={**({"vllm.limit_mm_per_prompt": limits} if refused else {}), **larger})
        fewer: dict[str, object] = {f"workload.{kind}s": allowed[kind] for kind in refused}
        fewer |= {"workload.image_tokens": largest} if is_larger else {}
        yield Remedy(changes=fewer if has_audio or not workload.audio_s else fewer | {"workload.audio_s": 0.0})

    will = "may" if audio.answer == "unknown" and not refused else "will"
    return RuleResult(f"A workload request has {'; '.join(texts)}. The server {will} reject it.", remedies=remedies())


@rule("WRK05")
def _adapters(subject: Subject) -> RuleResult | None:
    resolved, workload = subject.resolved, subject.resolved.question.settings.workload
    if workload is None or not workload.adapters or lora_of(resolved) is not None:
        return None
    wanted = {f"vllm.{name}": value for name, value in adapter_options(workload).items()}
    return RuleResult(
        f"workload.adapters is {workload.adapters}, but the server has no LoRA (vllm.lora.adapters).",
        remedies=(Remedy(changes=wanted), change("workload.adapters", 0)),
    )


@rule("WRK06")
def _unknown_drafter(subject: Subject) -> RuleResult | None:
    drafter = speculation_of(subject.resolved)
    if drafter is None or not subject.resolved.has_unknown_drafter:
        return None
    resolved = subject.resolved
    config, meant = resolved.vllm.speculative_config or {}, likely_drafters(drafter.model or "", resolved.spec)
    return RuleResult(
        f"{resolved.question.vllm_key('speculative_config')} names the draft model {drafter.model}, which is not in the catalog. The plan "
        f"assumes {to_gib(unknown_drafter_bytes(resolved)):.2f} GiB of a device for it and one layer in the KV cache, "
        "but not the time of its proposals.",
        remedies=(
            *(change("vllm.speculative_config", {**config, "model": one}) for one in meant),
            change("vllm.speculative_config", None),
        ),
        advice="Or pass its config.json (gemma plan --draft-config FILE; draftConfig in a stack).",
    )


@rule("WRK07")
def _unheard_audio(subject: Subject) -> RuleResult | None:
    question = subject.resolved.question
    limits = dict(question.settings.vllm.limit_mm_per_prompt or {})
    workload = question.settings.workload
    cannot_decode = question.settings.image.audio is False
    has_recordings = workload is not None and workload.audio_s > 0 and cannot_decode
    items = limits.get("audio", 0)
    if not items and not has_recordings:
        return None
    reason, advice = _why_unheard(subject)
    if not reason:
        return None
    changes: dict[str, object] = {"vllm.limit_mm_per_prompt": {**limits, "audio": 0}} if items else {}
    if has_recordings:
        changes["workload.audio_s"] = 0.0
    asked = (
        f"{question.vllm_key('limit_mm_per_prompt')} allows audio ({items} per request)"
        if items
        else f"A workload request has {workload.audio_s if workload else 0:g} s of audio"
    )
    return RuleResult(f"{asked}. Requests with audio {reason}.", remedies=(Remedy(changes=changes),), advice=advice)


def _why_unheard(subject: Subject) -> tuple[str, str]:
    """Return why the server does not support audio, and what else helps; empty if it does."""
    resolved = subject.resolved
    audio = media_support(resolved, "audio")
    if audio.answer != "yes":
        advice = "Serve it on a GPU." if resolved.is_tpu and resolved.spec.accepts_audio else ""
        return f"{'will' if audio.answer == 'no' else 'may'} fail, because {audio.note}", advice
    decodes = decodes_audio(resolved)
    if decodes:
        return "", ""
    build = "Build an image whose Dockerfile installs vllm[audio] (image.buildContext) and set image.audio: true."
    if decodes is False:
        return "will fail, because the image lacks vLLM's packages that decode audio (vllm[audio])", build
    return (
        "will fail unless the image has vLLM's packages that decode audio (vllm[audio]), which is unknown",
        f"If it has them, set image.audio: true. {build}",
    )


@rule("WRK08")
def _unstaged_adapter(subject: Subject) -> RuleResult | None:
    question = subject.resolved.question
    adapters = question.settings.vllm.lora_adapters or {}
    left = {name: place for name, place in adapters.items() if place.startswith("gs://")}
    left = {name: place for name, place in left.items() if place not in question.facts.staged_parts}
    if not left:
        return None
    kept = {name: place for name, place in adapters.items() if name not in left}
    return RuleResult(
        f"vllm.lora.adapters names {number_of(len(left), 'adapter')} in a bucket without a staged copy "
        f"({', '.join(left.values())}). vLLM cannot read gs://, so the server will not start.",
        remedies=(change("vllm.lora_adapters", kept),),
        advice="To stage them, run gemma stage_model, which adds their hash to bucket.parts.",
    )


@rule("WRK09")
def _lora_on_jax(subject: Subject) -> RuleResult | None:
    resolved = subject.resolved
    if resolved.runtime != "tpu-jax" or lora_of(resolved) is None:
        return None
    changes: dict[str, object] = {"vllm.lora_adapters": None, "vllm.max_lora_rank": None, "vllm.max_loras": None}
    dropped = arguments_named(subject, _LORA_FLAGS)
    if dropped:
        changes["vllm.extra_args"] = kept_arguments(subject, dropped)
    workload = resolved.question.settings.workload
    if workload is not None and workload.adapters:
        changes["workload.adapters"] = 0
    return RuleResult(
        f"vLLM on TPU serves {resolved.model_id} with its JAX implementation, which loads no LoRA adapters (0 of "
        f"{len(adapters_of(resolved))}). The server will fail when it loads one.",
        remedies=(Remedy(changes=changes),),
        advice="Serve adapters on a GPU.",
    )


@rule("WRK10")
def _long_limit(subject: Subject) -> RuleResult | None:
    resolved, workload, answer = subject.resolved, _asked(subject), subject.workload
    if workload is None or answer is None:
        return None
    length = roomy_length(request_tokens(sized(workload, resolved)))
    if length >= resolved.max_model_len:
        return None
    shorter = change("vllm.max_model_len", length)
    after = examine(with_changes(resolved.question, shorter.changes)).workload
    if after is None:
        return None
    slow, fast = answer.output_tok_per_s, after.output_tok_per_s
    # What is unexplained is in the low ends, and no shorter length saves it.
    times = min(fast.typical / slow.typical, fast.low / slow.low)
    if times < _WORTH:
        return None
    usd = answer.usd_per_million_output_tokens.typical
    less_usd = max(after.usd_per_million_output_tokens.typical, usd / times)
    return RuleResult(
        f"For each request, vLLM on TPU computes attention over whole chunks of up to vllm.maxModelLen tokens ({resolved.max_model_len:,}). "
        f"With {length:,}, this workload would have {times:.1f} times its output rate, for ${figure(less_usd, ROUGH)} "
        f"instead of ${figure(usd, ROUGH)} per million output tokens, and the server would reject longer requests.",
        remedies=(shorter,),
    )


@rule("WRK11")
def _adapter_of_the_same_name(subject: Subject) -> RuleResult | None:
    options = subject.resolved.vllm
    name = options.served_model_name or subject.resolved.model_id
    if name not in (options.lora_adapters or {}):
        return None
    return RuleResult(
        f"{name} is the name of an adapter in vllm.lora and of the model (vllm.servedModelName). A request with that name reaches the model, "
        "never the adapter.",
        remedies=(change("vllm.served_model_name", None),),
    )
