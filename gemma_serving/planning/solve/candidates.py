"""Deployable candidates: checkpoints, accelerators with locations and prices, hosts, and settings."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, cast

from msgspec import Struct

from gemma_serving.planning.data.checkpoints import CHECKPOINTS, Checkpoint, family, find_checkpoint
from gemma_serving.planning.data.images import built_images, shipped_options
from gemma_serving.planning.data.prices import (
    LIST_PRICES,
    HourlyPart,
    PriceBook,
    instance_parts,
    region_of,
    slice_parts,
)
from gemma_serving.planning.data.quantization import QUANTIZED_BY_VLLM
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import (
    ACCELERATORS,
    CLOUD_RUN_GIB_PER_VCPU,
    Accelerator,
    cloud_run_vcpu,
    find_accelerator,
    host_of,
    known_places,
)
from gemma_serving.planning.memory.adapters import adapter_options
from gemma_serving.planning.memory.resolve import filled_in
from gemma_serving.planning.model.catalog import refuse_absent, spec_of, unknown_model
from gemma_serving.planning.model.support import loading_image
from gemma_serving.planning.question.recommendation import (
    LEAST_CONTEXT,
    MAX_MODEL_LEN,
    MAX_NUM_SEQS,
    SMALL_DEVICE_GIB,
    SMALL_DEVICE_MAX_NUM_SEQS,
    TEXT_ONLY,
    needs_text_alone,
    roomy_length,
)
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.settings.image import NO_IMAGE, named_image
from gemma_serving.planning.settings.question import Platform, Question
from gemma_serving.planning.settings.vllm_args import VllmOptions
from gemma_serving.planning.settings.workload import Workload
from gemma_serving.planning.speed.prefill import request_tokens
from gemma_serving.planning.units import align_to, next_power_of_two

PROVISIONING: Final = "flex-start"
"""Provisioning model of slices, the default of a question: the cheapest that Google does not preempt."""
_SEQUENCES_STEP: Final = 8
_LENGTH_STEP: Final = 256
"""Largest block that vLLM on TPU chooses; a length that it divides fills its blocks."""
_USUAL_IMAGES: Final = 4
"""Images per request that the planner recommends."""
_CENTS: Final = 6
"""Decimal places after which prices count as equal."""


class Served(Struct, frozen=True, kw_only=True):
    """A checkpoint with the precision that it is served in."""

    checkpoint: Checkpoint
    quantization: str | None = None
    """Scheme to which vLLM converts it while loading; None for its own."""

    @property
    def words(self) -> str:
        """The checkpoint's id, with the precision if converted while loading."""
        return f"{self.checkpoint.id} as {self.quantization}" if self.quantization else self.checkpoint.id


class HostShape(Struct, frozen=True, kw_only=True):
    """An accelerator in its cheapest location, with its host."""

    accelerator: Accelerator
    platform: Platform
    places: tuple[str, ...]
    """Zones of a slice, or the one region of a service."""
    usd_per_hour: float
    vcpu: int = 0
    """Host of a service; 0 for a slice, whose host is fixed."""
    memory_mib: int = 0

    def host(self, question: Question) -> Question:
        """Return the question with the block of this slice or service."""
        name, run = self.accelerator.cloud_run.name, question.cloud_run
        if self.platform == "cloud-run":
            run = dataclasses.replace(run, region=self.places[0], gpu=name, cpu=self.vcpu, memory_mib=self.memory_mib)
            return question.changed(cloud_run=run)
        tpu = dataclasses.replace(question.tpu, accelerator_type=self.accelerator.name, zones=self.places)
        return question.changed(tpu=tpu)


def checkpoints_of(wanted: str | None) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of a family (`12B`) or an id; without either, all instruction-tuned ones.

    Base and unrounded QAT checkpoints are found by id only, because the first cannot chat and the second are as large as the original.
    Raises PlanningError for a model outside the catalog, missing on the hub, or only usable as a draft model.
    """
    if wanted is None:
        return tuple(one for one in CHECKPOINTS.values() if one.kind == "instruct")
    members = family(wanted)
    if members:
        return members
    found = find_checkpoint(wanted)
    if found is None or found.is_drafter:
        raise PlanningError(unknown_model(wanted))
    refuse_absent(found.id)
    return (found,)


def servings_of(checkpoints: tuple[Checkpoint, ...]) -> Iterator[Served]:
    """Yield each checkpoint in its own precision, then in those to which vLLM converts a bf16 one."""
    for checkpoint in checkpoints:
        yield Served(checkpoint=checkpoint)
        if checkpoint.scheme == "bf16":
            for scheme in QUANTIZED_BY_VLLM:
                yield Served(checkpoint=checkpoint, quantization=scheme)


def image_for(served: Served, accelerator: Accelerator) -> str | None:
    """Return the image that is known to load the precision: the target's default, or one of this project."""
    return loading_image(served.quantization or served.checkpoint.scheme, spec_of(served.checkpoint.id), accelerator)


def rentable_accelerators(
    regions: tuple[str, ...], *, accelerator: str | None = None, prices: PriceBook | None = None
) -> tuple[tuple[HostShape, ...], ...]:
    """Return the available accelerators with their hosts, cheapest first, in the cheapest known locations of these regions (none: all).

    Raises PlanningError for an accelerator that this project cannot deploy, or a region that has none of them.
    """
    named = deployable_accelerators(accelerator)
    known = {region_of(place) for one in named for place in known_places(one)}
    for region in regions:
        if region not in known:
            what = named[0].name if accelerator else "an accelerator that this project deploys"
            raise PlanningError(
                f"--region {region} is not listed for {what}. Listed: {', '.join(sorted(filter(None, known)))}."
            )
    found = [hosts for one in named if (hosts := tuple(_hosts(one, regions, prices or LIST_PRICES)))]
    if accelerator and not found:
        raise PlanningError(
            f'--accelerator is "{accelerator}", whose price is unknown, so a search cannot rank it. Remove --accelerator, or plan it without --solve.'
        )
    return tuple(found)


def deployable_accelerators(name: str | None, *, option: str = "--accelerator") -> tuple[Accelerator, ...]:
    """Return the accelerator with this name, or all that this project deploys. Raises PlanningError naming the option for any other."""
    deployable = tuple(
        one for one in ACCELERATORS.values() if (one.is_tpu and not one.plan_only) or "cloud-run" in one.platforms
    )
    if name is None:
        return deployable
    found = find_accelerator(name)
    if found is not None and found.plan_only:
        raise PlanningError(
            f'{option} is "{name}". {found.plan_only}. Choose one of {", ".join(one.name for one in deployable)}.'
        )
    if found not in deployable:
        raise PlanningError(f'{option} is "{name}". This project deploys {", ".join(one.name for one in deployable)}.')
    return (found,)


def _hosts(accelerator: Accelerator, regions: tuple[str, ...], prices: PriceBook) -> Iterator[HostShape]:
    places = tuple(place for place in known_places(accelerator) if not regions or region_of(place) in regions)
    if not places:
        return
    if accelerator.is_tpu:
        slice_ = partial(
            slice_parts, prices, generation=accelerator.generation, chips=accelerator.chips, provisioning=PROVISIONING
        )
        parts = {place: slice_(place=place) for place in places}
        if not all(parts.values()):
            return
        cheapest, usd = _cheapest(parts)
        yield HostShape(accelerator=accelerator, platform="tpu-vm", places=cheapest, usd_per_hour=usd)
        return
    host = host_of(accelerator, "cloud-run")
    instance = partial(instance_parts, prices, gpu=accelerator.name, zonal_redundancy=False)
    for gib in range(int(host.min_memory_gib), int(host.max_memory_gib) + 1, CLOUD_RUN_GIB_PER_VCPU):
        vcpu = next((one for one in cloud_run_vcpu(host) if one * CLOUD_RUN_GIB_PER_VCPU >= gib), None)
        if vcpu is not None:
            parts = {place: instance(vcpu=vcpu, memory_gib=gib, place=place) for place in places}
            if not all(parts.values()):
                return
            cheapest, usd = _cheapest(parts)
            yield HostShape(
                accelerator=accelerator,
                platform="cloud-run",
                places=cheapest[:1],
                usd_per_hour=usd,
                vcpu=vcpu,
                memory_mib=gib * 1024,
            )


def _cheapest(parts: dict[str, tuple[HourlyPart, ...]]) -> tuple[tuple[str, ...], float]:
    """Return the locations with the lowest price, and that price. A known price precedes an assumed one."""
    ranks = {
        place: (round(sum(part.usd_per_hour for part in each), _CENTS), any(part.price.is_assumed for part in each))
        for place, each in parts.items()
    }
    best = min(ranks.values())
    return tuple(place for place, rank in ranks.items() if rank == best), best[0]


def longest_request(workload: Workload, min_context: int | None) -> int:
    """Return the minimum length of a request in tokens: the workload's own, or `min_context`."""
    return max(request_tokens(workload), min_context or LEAST_CONTEXT)


def settings_of(question: Question, need: int, users: int) -> Iterator[Question]:
    """Yield the question with settings for requests of `need` tokens from `users` concurrent users: at most three.

    First the planner's own length of a request, or a longer one if `need` exceeds it. Then the shortest length, which needs the least memory.
    Then an fp8 KV cache too, which costs precision. `users` is 0 if only a rate is known.
    """
    resolved = filled_in(question)
    limit = resolved.spec.max_positions
    shortest = min(align_to(need, _LENGTH_STEP), limit)
    length = max(_own_length(resolved), shortest) if need <= MAX_MODEL_LEN else min(next_power_of_two(need), limit)
    sequences = _sequences(resolved.accelerator, users)
    for tokens, kv_cache_dtype in dict.fromkeys(((length, None), (shortest, None), (shortest, "fp8"))):
        options: dict[str, Any] = {"max_model_len": tokens, "max_num_seqs": sequences, "kv_cache_dtype": kv_cache_dtype}
        yield question.changed(vllm=dataclasses.replace(question.settings.vllm, **options))


def _own_length(resolved: Resolved) -> int:
    """Return the length of a request that the planner proposes for the workload."""
    workload, length = resolved.question.settings.workload, min(MAX_MODEL_LEN, resolved.spec.max_positions)
    return min(length, roomy_length(request_tokens(workload))) if resolved.is_tpu and workload else length


def _sequences(accelerator: Accelerator, users: int) -> int | None:
    """Return the concurrent requests to allow; None for the recommended number. `users` is 0 if only a rate is known."""
    is_small = not accelerator.is_tpu and accelerator.usable_gib < SMALL_DEVICE_GIB
    usual = SMALL_DEVICE_MAX_NUM_SEQS if is_small else MAX_NUM_SEQS
    needed = align_to(users, _SEQUENCES_STEP) if users else MAX_NUM_SEQS
    return needed if needed > usual else None


def question_of(served: Served, place: HostShape, workload: Workload, prices: PriceBook | None) -> Question:
    """Return the question of a checkpoint there, with the options that the workload's requests need."""
    image = built_images("tpu").get(image_for(served, place.accelerator) or "")
    options = dict(adapter_options(workload))
    if workload.images > _USUAL_IMAGES:
        audio = {"audio": int(workload.audio_s > 0)} if spec_of(served.checkpoint.id).accepts_audio else {}
        options["limit_mm_per_prompt"] = {"image": workload.images, **audio}
    elif image and needs_text_alone(workload):
        options["limit_mm_per_prompt"] = TEXT_ONLY
        shipped = shipped_options(image.version, place.accelerator.name, served.checkpoint.id)
        options["max_num_batched_tokens"] = shipped.get("vllm.max_num_batched_tokens")
    question = Question().changed(
        model=served.checkpoint.id,
        platform=place.platform,
        quantization=served.quantization,
        vllm=VllmOptions(**cast("dict[str, Any]", options)),
        workload=workload,
        image=named_image(image) if image else NO_IMAGE,
        price_book=prices,
    )
    return place.host(question)
