"""Candidate remedies that move a deployment to another accelerator or a smaller model.

These are changes only. `planning.rules.findings` plans each as a whole and lists those that fit.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from gemma_serving.planning.cost.costs import most_usd_per_hour
from gemma_serving.planning.cost.subject import Subject
from gemma_serving.planning.data.checkpoints import checkpoint_of, original_of, stored_as, with_owner
from gemma_serving.planning.data.images import built_images, built_name, image_words, shipped_options
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.machine.hardware import ACCELERATORS, Accelerator, known_places, machine_type_of
from gemma_serving.planning.memory.resolve import filled_in
from gemma_serving.planning.model.catalog import MODELS, spec_of
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.model.support import loading_image, support_of
from gemma_serving.planning.question.recommendation import (
    MAX_NUM_SEQS,
    SMALL_DEVICE_GIB,
    SMALL_DEVICE_MAX_NUM_SEQS,
    TEXT_ONLY,
    needs_text_alone,
    recommended_options,
)
from gemma_serving.planning.rules.registry import instance_size
from gemma_serving.planning.settings.finding import Remedy
from gemma_serving.planning.settings.image import NO_IMAGE, ImageSettings, named_image
from gemma_serving.planning.settings.paths import with_changes
from gemma_serving.planning.settings.question import Question
from gemma_serving.planning.units import HOUR_S

_SHORT_REQUEST = 8_192
_RUN_S = 4 * 3_600
_PLACES = {"cloud-run": " on Cloud Run", "gce": " on Compute Engine", "tpu-vm": "", "own": ""}
_DEPLOYABLE = ("cloud-run", "tpu-vm")
"""Platforms that this project can deploy to."""
_HARDWARE_OPTIONS = (
    "vllm.tensor_parallel_size",
    "vllm.data_parallel_size",
    "vllm.gpu_memory_utilization",
    "vllm.max_num_seqs",
    "vllm.max_num_batched_tokens",
    "vllm.block_size",
    "vllm.cpu_offload_gib",
)
"""Options chosen for the current hardware. After a move, the recommended values apply."""

Changes = dict[str, object]
DEFAULT_IMAGE: Changes = {"image": None}


def alternatives_for(subject: Subject) -> Iterator[Remedy]:
    """Yield the same model elsewhere, then smaller models on the same hardware."""
    return chain(other_accelerators(subject), smaller_models(subject))


def other_accelerators(subject: Subject, *, only_deployable: bool = False) -> Iterator[Remedy]:
    """Yield the same model on each other accelerator with a known price that is not only planned, cheapest first.

    On TPUs, a quantized model that no image of this project loads becomes its bf16 original. `only_deployable`: only what this project can
    deploy.
    """
    question = subject.resolved.question
    candidates: list[tuple[float, Remedy]] = []
    for accelerator in ACCELERATORS.values():
        is_here = accelerator.name == subject.resolved.accelerator.name
        is_deployable = accelerator.platforms[0] in _DEPLOYABLE  # a move is to the first platform
        if is_here or accelerator.plan_only or (only_deployable and not is_deployable):
            continue
        moved = _moved(subject, accelerator)
        if moved is None:
            continue
        try:
            after = filled_in(with_changes(question, moved))
            if after.platform == "cloud-run" and question.facts.platform is not None:
                moved |= instance_size(after.vcpu, after.host_memory_gib)
        except PlanningError:
            continue
        usd_per_hour = most_usd_per_hour(after)
        if usd_per_hour is None:
            continue
        precision = f" as {after.scheme.name}" if after.scheme is not subject.resolved.scheme else ""
        title = f"{accelerator.name}{_PLACES[after.platform]}{precision}{_with_image(moved)}"
        remedy = Remedy(changes=moved, move="accelerator", title=title, is_deployable=is_deployable)
        candidates.append((usd_per_hour, remedy))
    yield from (remedy for _, remedy in sorted(candidates, key=lambda candidate: candidate[0]))


def smaller_models(subject: Subject) -> Iterator[Remedy]:
    """Yield models that may fit on the same hardware: the same model in 4 bits, then the largest smaller models."""
    resolved = subject.resolved
    question = resolved.question
    if question.facts.model_spec is not None:
        return
    base, names = checkpoint_of(resolved.model_id).architecture, list(MODELS)
    only_in_4_bits = resolved.scheme.name == "w4a16" and not resolved.is_tpu
    candidates: list[str] = [] if only_in_4_bits else [*stored_as(base, "w4a16")]
    for name in reversed(names[: names.index(base)]):
        candidates += [*([] if only_in_4_bits else [name]), *stored_as(name, "w4a16")]
    yield from models_here(subject, candidates)


def models_here(subject: Subject, model_ids: Iterable[str]) -> Iterator[Remedy]:
    """Yield other models on the same hardware: with the current options, the usual ones, and shorter requests."""
    resolved, question = subject.resolved, subject.resolved.question
    short = {"vllm.max_model_len": _SHORT_REQUEST} if resolved.max_model_len > _SHORT_REQUEST else {}
    usual = dict.fromkeys(_HARDWARE_OPTIONS, None)
    for name in model_ids:
        image = _image_here(subject, name)
        if image is None:
            continue
        # On a TPU such an image compiles the encoders for 20 minutes, so its shipped stacks serve text.
        is_text = (
            image and not question.settings.vllm.limit_mm_per_prompt and needs_text_alone(question.settings.workload)
        )
        text = {"vllm.limit_mm_per_prompt": TEXT_ONLY} if is_text else {}
        model = served_as(name) | image | text
        shipped = dict(shipped_options(version_of(image), resolved.accelerator.name, name)) if text else {}
        for change in (model | usual | shipped, model, model | usual, model | usual | short):
            yield Remedy(
                changes=change,
                move="model",
                title=f"{with_owner(name)} here{_with_image(image)}{', text only' if text else ''}",
                is_deployable=resolved.platform in _DEPLOYABLE,
            )


def _image_here(subject: Subject, model_id: str) -> Changes | None:
    """Return the changes of image that a smaller model needs on the same hardware; None if no image is known to load it on this TPU."""
    resolved, spec = subject.resolved, spec_of(model_id)
    scheme = spec.native_quantization or "bf16"
    if not resolved.is_tpu or _loads(subject, resolved.accelerator, scheme, spec):
        return {}
    return house_image(scheme, spec, resolved.accelerator)


def _with_image(changes: Changes) -> str:
    """Return the end of a title that names an image of this project, if the changes select one."""
    name = built_name(version_of(changes))
    return f" with image {image_words(name)}" if name else ""


def house_image(scheme: str, spec: ModelSpec, accelerator: Accelerator) -> Changes | None:
    """Return the changes to an image that this project builds and that loads a precision there; None if it builds none."""
    image = built_images("tpu" if accelerator.is_tpu else "cuda").get(loading_image(scheme, spec, accelerator) or "")
    return None if image is None else {"image": named_image(image)}


def version_of(changes: Mapping[str, object]) -> str | None:
    """Return the vLLM version of the image that the changes select; None for the default image or without a change of image."""
    image = changes.get("image")
    return image.version if isinstance(image, ImageSettings) else None


def served_as(model_id: str) -> Changes:
    """Return the changes that serve a checkpoint in its own precision."""
    return {"model": model_id, "quantization": None, "vllm.quantization": None}


def _moved(subject: Subject, accelerator: Accelerator) -> Changes | None:
    """Return the changes for a move to the recommended setup on another accelerator; None if its weights cannot load there."""
    resolved = subject.resolved
    question = resolved.question
    platform = accelerator.platforms[0]
    usual = recommended_options(resolved.spec, accelerator, weights_mode="hub")
    changes: Changes = {"accelerator": accelerator.name}
    if question.facts.device is not None:
        changes["device"] = None
    for path in _HARDWARE_OPTIONS:
        name = path.partition(".")[2]
        if getattr(question.settings.vllm, name) != getattr(usual, name):  # an option that is already right there stays
            changes[path] = None
    if question.facts.platform is not None:
        changes["platform"] = platform
    if accelerator.is_tpu != resolved.is_tpu and question.settings.image != NO_IMAGE:
        changes |= DEFAULT_IMAGE
    if accelerator.is_tpu and not _loads(subject, accelerator, resolved.scheme.name, resolved.spec):
        image = house_image(resolved.scheme.name, resolved.spec, accelerator)
        if image is None and question.facts.model_spec is not None:
            return None
        changes |= served_as(original_of(resolved.model_id)) if image is None else image
    if platform != resolved.platform and question.facts.weights_mode not in {None, "hub"}:
        from_bucket = question.facts.weights_mode != "image"
        bucket_mode = "fuse-buffered" if platform == "cloud-run" else "disk"
        changes["weights_mode"] = bucket_mode if from_bucket else "hub"
    changes |= _cloud_run(question, accelerator) if platform == "cloud-run" else _machine(question, accelerator)
    return changes


def _loads(subject: Subject, accelerator: Accelerator, scheme: str, spec: ModelSpec) -> bool:
    """Return whether a precision of a model is known to load there. Another kind of accelerator uses this project's image."""
    question, is_same_kind = subject.resolved.question, accelerator.is_tpu == subject.resolved.is_tpu
    row = support_of(
        scheme,
        spec,
        accelerator,
        image_version=question.image_version if is_same_kind else None,
        image_supports=question.settings.image.supports if is_same_kind else (),
    )
    return row.answer == "yes"


def _cloud_run(question: Question, accelerator: Accelerator) -> Changes:
    """Return the settings that a Cloud Run service with this GPU needs. Settings that the deployment leaves unset stay unset."""
    run, is_explicit = question.cloud_run, question.facts.platform is not None
    regions = known_places(accelerator)
    is_small = accelerator.usable_gib < SMALL_DEVICE_GIB
    usual_concurrency = (SMALL_DEVICE_MAX_NUM_SEQS if is_small else MAX_NUM_SEQS) if is_explicit else 0
    usual_timeout_s = HOUR_S if is_explicit else 0
    return {
        "cloud_run.memory_mib": 0,
        "cloud_run.cpu": 0,
        "cloud_run.startup_probe": None,
        "cloud_run.cuda_compatibility": None,
        "cloud_run.region": run.region if run.region in regions or not is_explicit else regions[0],
        "cloud_run.concurrency": run.concurrency or usual_concurrency,
        "cloud_run.request_timeout_s": run.request_timeout_s or usual_timeout_s,
    }


def _machine(question: Question, accelerator: Accelerator) -> Changes:
    """Return the settings that a machine with this accelerator needs: for a TPU, a zone and a run limit."""
    changes: Changes = {}
    tpu = question.tpu
    if not accelerator.is_tpu:
        return changes
    known = known_places(accelerator)
    if question.facts.platform is not None:
        kept = tuple(zone for zone in tpu.zones if zone in known)
        changes["tpu.zones"] = kept or known
        if not kept:
            changes["tpu.existing_network"] = None  # an existing subnet is in the region of the current zones
    if tpu.api == "compute-engine" and not machine_type_of(accelerator.name):
        changes["tpu.api"] = "cloud-tpu"
    if tpu.max_run_duration_s is None:
        changes["tpu.max_run_duration_s"] = _RUN_S
    return changes
