"""The architecture that a server loads for each checkpoint of the Gemma 4 family (`planning.data.checkpoints`).

models.json has the dimensions as in each checkpoint's config.json (google/gemma-4-*, google/gemma-4-*-it-assistant). Totals agree with the model
cards: 4.65, 7.52, 11.91, 25.23 (3.82 active) and 30.70 billion parameters in the language model; the draft models' with loaded sizes:
78.5 million parameters for E4B, 939,042,560 bytes for 31B.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Final

from msgspec.structs import replace

from gemma_serving.planning.data.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    Page,
    checkpoint_of,
    find_checkpoint,
    nearest_ids,
    similar_ids,
    stored_as,
    with_owner,
)
from gemma_serving.planning.data.tables import Table, data_file
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.hf_config import model_from_config
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.units import align_to

_W4A16_EXPERT_TILE: Final = 128
"""The w4a16 checkpoint of 26B-A4B pads each expert from 704 to 768 columns, six tiles of 128, for the 4-bit kernels: servers report
an expert width of 768 and 1.1 GiB more than the unpadded arithmetic."""


def _read(config: Mapping[str, object], **stated: object) -> ModelSpec:
    """Return the architecture of a config in the catalog, which nothing is unknown of; `stated` has fields that the config does not have."""
    spec = model_from_config(config, name="google/gemma-4")
    return replace(spec, native_quantization=None, unmodelled=(), **stated)  # pyright: ignore[reportArgumentType] - names of fields


MODELS: Final[Mapping[str, ModelSpec]] = Table(
    lambda: {name: _read(row["config"], name=name) for name, row in data_file("models.json").items()}
)
"""The bf16 checkpoints, by Hugging Face id."""
_DRAFTERS: Final[Mapping[str, ModelSpec]] = Table(
    lambda: {
        name: _read(row["drafter"], name=f"{name}-assistant", rope_cache_dims=())
        for name, row in data_file("models.json").items()
    }
)
"""Google's draft models, by the id of the model that each drafts for. They read its KV cache and have none (vllm-project/vllm#41745)."""


@cache
def model_ids() -> tuple[str, ...]:
    """Return every existing id that can be served, as Hugging Face spells it."""
    return tuple(one.id for one in CHECKPOINTS.values() if not one.is_drafter)


def unknown_model(name: str) -> str:
    """Return the error for an id outside the catalog: similar ids, and how to plan it anyway."""
    found = find_checkpoint(name)
    if found is not None:
        return (
            f"{found.id} is a draft model for {found.architecture} and cannot serve alone. Set the model to {found.architecture} and add "
            'the draft model to vllm.speculativeConfig: {"model": "' + found.id + '", "num_speculative_tokens": 3}.'
        )
    close = similar_ids(name)[:2]
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    if "gguf" in name.lower():
        return f'The model "{name}" has GGUF files, which the planner does not support.{meant} Set the model to a checkpoint in safetensors.'
    return (
        f'The model "{name}" is not in the catalog.{meant} Choose one of docs/reference/checkpoints.md, or set modelConfig to its config.json. '
        "`gemma plan` alone takes `--from-hub` or `--config FILE`."
    )


def refuse_absent(name: str) -> None:
    """Raise PlanningError if an id is known to be missing on the hub."""
    found = find_checkpoint(name)
    if found is not None and found.absent is not None:
        raise PlanningError(absent_model(found, found.absent))


def absent_model(absent: Checkpoint, page: Page) -> str:
    """Return the error for an id that is missing on the hub: the source, and the nearest existing ids."""
    near = ", ".join(with_owner(one) for one in nearest_ids(absent)[:3])
    return f"{absent.id} does not exist on the Hugging Face Hub, which returned 404 ({page.url}, {page.date}). Nearest existing ids: {near}."


@lru_cache(maxsize=64)
def spec_of(model_id: str, quantization: str | None = None) -> ModelSpec:
    """Return the architecture that a server of this checkpoint loads. `model_id` is an id of `planning.data.checkpoints`.

    `quantization` is the scheme of the stored weights; None uses the checkpoint's own, and w4a16 means the existing 4-bit export.
    """
    checkpoint = checkpoint_of(model_id)
    if checkpoint.is_drafter:
        return replace(_DRAFTERS[checkpoint.architecture], name=model_id)
    spec = replace(
        MODELS[checkpoint.architecture],
        native_quantization=checkpoint.scheme,
        head_in_checkpoint=checkpoint.has_stored_head,
        lacks_shared_kv=checkpoint.lacks_shared_kv,
        has_fp4_activations=checkpoint.has_fp4_activations,
        kv_cache_dtype=checkpoint.kv_cache_dtype,
        block_width=checkpoint.block_width,
    )
    if quantization == "w4a16" != checkpoint.scheme:
        return spec_of(stored_as(checkpoint.architecture, "w4a16")[0])
    if not checkpoint.has_padded_experts or quantization not in {None, "w4a16"}:
        return spec
    groups = list(spec.groups)
    for place, group in enumerate(groups):
        if group.experts is not None:
            width = align_to(group.experts.intermediate, _W4A16_EXPERT_TILE)
            groups[place] = replace(group, experts=replace(group.experts, intermediate=width))
    return replace(spec, groups=tuple(groups))
