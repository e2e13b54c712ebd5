"""Features of a deployment's server beyond text."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast, get_args

from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES
from gemma_serving.planning.model.support import Support, support_of
from gemma_serving.planning.question.drafters import LOOKUPS
from gemma_serving.planning.question.extra_arguments import extra_arguments, value_of_flag
from gemma_serving.planning.question.lora import lora_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.server_flags import ServerArgument
from gemma_serving.planning.settings.vllm_args import (
    CHAT_TEMPLATE_KWARGS,
    DEFAULT_IMAGE_TOKENS,
    MM_PROCESSOR_KWARGS,
    Modality,
)
from gemma_serving.planning.settings.workload import Workload

if TYPE_CHECKING:
    from gemma_serving.contracts.features import ServedFeatures, Speculation

UNLIMITED: Final = 999
"""Items of a kind that vLLM allows in one request without a limit (vllm/config/multimodal.py)."""
SOFT_TOKENS: Final = re.compile(r"""(max_soft_tokens["']?\s*[:=]\s*)(\d{1,18})""")
"""Tokens of an image in the text of an argument."""


def served_features(resolved: Resolved) -> "ServedFeatures":
    """Return the features of a resolved deployment, from its options, its arguments and its model."""
    from gemma_serving.contracts.features import ServedFeatures  # noqa: PLC0415 - 1 ms, and a plan reads no features

    lora, options = lora_of(resolved), resolved.vllm
    modalities: tuple[Modality, ...] = get_args(Modality)
    items = {one: allowed_items(resolved, one) for one in modalities if media_support(resolved, one).answer != "no"}
    return ServedFeatures(
        images=items.get("image", 0),
        videos=items.get("video", 0),
        audios=items.get("audio", 0) if decodes_audio(resolved) is not False else 0,
        image_tokens=image_tokens(resolved),
        thinking=options.reasoning_parser is not None,
        thinks_by_default=_thinks_by_default(resolved),
        tools=bool(options.enable_auto_tool_choice),
        adapters=tuple(sorted(lora.adapters)) if lora is not None else (),
        speculation=_speculation(resolved),
        draft_tokens=resolved.speculative_tokens,
    )


def media_support(resolved: Resolved, modality: Modality) -> Support:
    """Return whether the model accepts a modality and vLLM serves it on the device, with the reason if not."""
    is_audio, spec = modality == "audio", resolved.spec
    if not (spec.accepts_audio if is_audio else spec.is_multimodal):
        others = ", as E2B, E4B and 12B do" if is_audio else ""
        note = f"{resolved.model_id} does not accept {modality}{others}"
        return Support(scheme=modality, answer="no", note=note, source="config.json", seen_on="")
    return support_of(modality, spec, resolved.accelerator, image_version=resolved.question.image_version)


def decodes_audio(resolved: Resolved) -> bool | None:
    """Return whether the image has the packages that decode audio; None if unknown."""
    image = resolved.question.settings.image
    if not (image.is_default and image.audio is None):
        return image.audio
    return IMAGES[DEFAULT_IMAGES["tpu" if resolved.is_tpu else "cloud-run"]].decodes_audio


def allowed_items(resolved: Resolved, modality: Modality) -> int:
    """Return the items of a modality that one request may have. vLLM has no default limit, so all are allowed unless the settings state one."""
    if resolved.serves_only_text:
        return 0
    return (resolved.vllm.limit_mm_per_prompt or {}).get(modality, UNLIMITED)


def largest_image_tokens(resolved: Resolved) -> int:
    """Return the tokens of the largest image that a request can have by default or by its own choice."""
    return max(resolved.vllm.max_image_tokens or 0, image_tokens(resolved))


def image_tokens(resolved: Resolved) -> int:
    """Return the tokens of an image of a request that chooses no size."""
    if resolved.vllm.image_tokens is not None:
        return resolved.vllm.image_tokens
    found = [tokens for _, tokens in soft_token_arguments(resolved)]
    return found[-1] if found else DEFAULT_IMAGE_TOKENS


def sized(workload: Workload, resolved: Resolved) -> Workload:
    """Return the workload with the server's image size where it has images and leaves their size out."""
    if not workload.images or workload.image_tokens is not None:
        return workload
    return replace(workload, image_tokens=image_tokens(resolved))


def soft_token_arguments(resolved: Resolved) -> Iterator[tuple[ServerArgument, int]]:
    """Yield each extra argument that sets `max_soft_tokens`, with its value."""
    for one in extra_arguments(resolved):
        if one.name == MM_PROCESSOR_KWARGS and one.value:
            found = SOFT_TOKENS.search(f'"{one.key}":{one.value[0]}' if one.key else one.value[0])
            if found is not None:
                yield one, int(found[2])


def _thinks_by_default(resolved: Resolved) -> bool:
    if resolved.vllm.thinks_by_default is not None:
        return resolved.vllm.thinks_by_default
    words = value_of_flag(extra_arguments(resolved), CHAT_TEMPLATE_KWARGS)
    try:
        found: object = json.loads(words[0]) if words else None
    except ValueError:
        return False
    return isinstance(found, dict) and cast("dict[str, object]", found).get("enable_thinking") is True


def _speculation(resolved: Resolved) -> "Speculation":
    config = resolved.vllm.speculative_config
    if config is None or resolved.speculative_tokens <= 0:
        return "none"
    if config.get("model") is None and config.get("method") is None:
        return "none"
    return "n-gram" if str(config.get("method", "")) in LOOKUPS else "draft-model"
