"""Dimensions of the Gemma 4 family, and the architecture that a server loads for each checkpoint (`planning.data.checkpoints`).

Dimensions from the checkpoints' config.json (google/gemma-4-*); totals agree with the model cards: 4.65, 7.52, 11.91, 25.23 (3.82
active) and 30.70 billion parameters in the language model. Dimensions of the draft models from the config.json of google/gemma-4-*-it-assistant;
totals agree with loaded sizes: 78.5 million parameters for E4B, 939,042,560 bytes for 31B.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Final

from planning.data.checkpoints import (
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
from planning.errors import PlanningError
from planning.model.spec import Attention, Experts, LayerGroup, ModelSpec, VisionTower

VOCAB: Final = 262_144
HEAD_DIM: Final = 256
GLOBAL_HEAD_DIM: Final = 512

W4A16_EXPERT_TILE: Final = 128
"""The w4a16 checkpoint of 26B-A4B pads each expert from 704 to 768 columns, six tiles of 128, for the 4-bit kernels: servers report
an expert width of 768 and 1.1 GiB more than the unpadded arithmetic."""

AUDIO_TOWER_PARAMS: Final = (
    12 * (2 * 2 * 1_024 * 4_096 + 5 * 1_024**2 + 3 * 1_024**2 + 5 * 1_024)
    + 1_024 * 1_024
    + 1_024 * 1_536
    + 1_536 * 1_536
)
"""Conformer of 12 layers, width 1,024: two feed-forward blocks, attention with relative positions and a convolution each, then the
sub-sampling and the projections (transformers' Gemma4AudioConfig)."""

UNIFIED_EMBEDDER_PARAMS: Final = (48**2 * 3) * 3_840 + 2 * 1_120 * 3_840 + 3_840 * 3_840 + 640 * 3_840
"""Encoder-free vision and audio projections of the 12B (vLLM's gemma4_unified.py): patches of 48 x 48 pixels, two position tables."""

_SMALL_VISION: Final = VisionTower(layers=16, hidden=768, intermediate=3_072)
_LARGE_VISION: Final = VisionTower(layers=27, hidden=1_152, intermediate=4_304)


def _groups(
    *,
    layers: int,
    period: int,
    heads: int,
    kv_heads: int,
    global_kv_heads: int,
    window: int,
    mlp: int,
    shared: int = 0,
    wide_shared: bool = False,
    value_from_key: bool = False,
    experts: Experts | None = None,
) -> tuple[LayerGroup, ...]:
    """Return Gemma's pattern: every `period`-th layer has full attention, the others a window; the last `shared` layers reuse KV."""
    sliding = Attention(heads=heads, kv_heads=kv_heads, head_dim=HEAD_DIM, window=window)
    full = Attention(heads=heads, kv_heads=global_kv_heads, head_dim=GLOBAL_HEAD_DIM, value_from_key=value_from_key)
    own = layers - shared
    counts = ((sliding, own - own // period, True), (full, own // period, True))
    if shared:
        borrowed_full = layers // period - own // period
        counts += ((sliding, shared - borrowed_full, False), (full, borrowed_full, False))
    return tuple(
        LayerGroup(
            count=count,
            attention=attention,
            mlp=mlp if owns or not wide_shared else 2 * mlp,
            experts=experts,
            owns_kv=owns,
        )
        for attention, count, owns in counts
    )


_E2B: Final = ModelSpec(
    name="google/gemma-4-E2B-it",
    hidden=1_536,
    vocab=VOCAB,
    groups=_groups(
        layers=35, period=5, heads=8, kv_heads=1, global_kv_heads=1, window=512, mlp=6_144, shared=20, wide_shared=True
    ),
    layer_embedding_dim=256,
    vision=_SMALL_VISION,
    audio_params=AUDIO_TOWER_PARAMS,
    max_positions=131_072,
    rope_cache_dims=(HEAD_DIM, GLOBAL_HEAD_DIM),
    is_gemma4=True,
)
_E4B: Final = replace(
    _E2B,
    name="google/gemma-4-E4B-it",
    hidden=2_560,
    groups=_groups(layers=42, period=6, heads=8, kv_heads=2, global_kv_heads=2, window=512, mlp=10_240, shared=18),
)
_31B: Final = ModelSpec(
    name="google/gemma-4-31B-it",
    hidden=5_376,
    vocab=VOCAB,
    groups=_groups(
        layers=60, period=6, heads=32, kv_heads=16, global_kv_heads=4, window=1_024, mlp=21_504, value_from_key=True
    ),
    vision=_LARGE_VISION,
    vision_bidirectional=True,
    max_positions=262_144,
    rope_cache_dims=(HEAD_DIM, GLOBAL_HEAD_DIM),
    is_gemma4=True,
)
_12B: Final = replace(
    _31B,
    name="google/gemma-4-12B-it",
    hidden=3_840,
    groups=_groups(
        layers=48, period=6, heads=16, kv_heads=8, global_kv_heads=1, window=1_024, mlp=15_360, value_from_key=True
    ),
    vision=None,
    other_vision_params=UNIFIED_EMBEDDER_PARAMS,
    tpu_torch_path=True,
)
_26B: Final = replace(
    _31B,
    name="google/gemma-4-26B-A4B-it",
    hidden=2_816,
    groups=_groups(
        layers=30,
        period=6,
        heads=16,
        kv_heads=8,
        global_kv_heads=2,
        window=1_024,
        mlp=2_112,
        value_from_key=True,
        experts=Experts(count=128, active=8, intermediate=704),
    ),
)

MODELS: Final[Mapping[str, ModelSpec]] = {m.name: m for m in (_E2B, _E4B, _12B, _26B, _31B)}
"""The bf16 checkpoints, by Hugging Face id."""


@cache
def model_ids() -> tuple[str, ...]:
    """Return every existing id that can be served, as Hugging Face spells it."""
    return tuple(one.id for one in CHECKPOINTS.values() if not one.is_drafter)


def _drafter(target: ModelSpec, *, hidden: int, heads: int, mlp: int, centroids: int = 0) -> ModelSpec:
    """Return Google's draft model: four layers that read the target's KV cache and have none (vllm-project/vllm#41745)."""
    sliding = Attention(heads=heads, kv_heads=0, head_dim=HEAD_DIM, window=target.groups[0].attention.window)
    full = Attention(heads=heads, kv_heads=0, head_dim=GLOBAL_HEAD_DIM)
    return ModelSpec(
        name=f"{target.name}-assistant",
        hidden=hidden,
        vocab=VOCAB,
        groups=(
            LayerGroup(count=3, attention=sliding, mlp=mlp, owns_kv=False),
            LayerGroup(count=1, attention=full, mlp=mlp, owns_kv=False),
        ),
        max_positions=target.max_positions,
        is_gemma4=True,
        tpu_torch_path=target.tpu_torch_path,
        target_hidden=target.hidden,
        centroids=centroids,
    )


_DRAFTERS: Final[Mapping[str, ModelSpec]] = {
    _E2B.name: _drafter(_E2B, hidden=256, heads=4, mlp=2_048, centroids=2_048),
    _E4B.name: _drafter(_E4B, hidden=256, heads=4, mlp=2_048, centroids=2_048),
    _12B.name: _drafter(_12B, hidden=1_024, heads=16, mlp=8_192),
    _26B.name: _drafter(_26B, hidden=1_024, heads=16, mlp=8_192),
    _31B.name: _drafter(_31B, hidden=1_024, heads=32, mlp=8_192),
}
"""By the id of the model that each drafts for."""


def find_id(name: str) -> str | None:
    """Return the id that a spelling means, or None. Case is ignored, and `google/` is optional."""
    found = find_checkpoint(name)
    return found.id if found is not None and not found.is_drafter else None


def unknown_model(name: str) -> str:
    """Return the error for an id outside the catalog: similar ids, and how to plan it anyway."""
    found = find_checkpoint(name)
    if found is not None:
        return (
            f"{found.id} is a draft model for {found.architecture} and cannot serve alone. Set the model to {found.architecture} and add "
            'the draft model to `vllm.speculative_config`: {"model": "' + found.id + '", "num_speculative_tokens": 3}.'
        )
    close = similar_ids(name)[:_SHOWN_SIMILAR]
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    return (
        f'The model "{name}" is not in the catalog.{meant} See docs/reference/checkpoints.md, or plan any model with `--config FILE` '
        "(in a stack, modelConfig)."
    )


def refuse_absent(name: str) -> None:
    """Raise PlanningError if an id is known to be missing on the hub."""
    found = find_checkpoint(name)
    if found is not None and found.absent is not None:
        raise PlanningError(absent_model(found, found.absent))


def absent_model(absent: Checkpoint, page: Page) -> str:
    """Return the error for an id that is missing on the hub: the source, and the nearest existing ids."""
    near = ", ".join(with_owner(one) for one in nearest_ids(absent)[:_SHOWN_NEAR])
    return f"{absent.id} does not exist on the Hugging Face Hub: it returned 404 ({page.url}, {page.date}). Nearest existing ids: {near}."


_SHOWN_SIMILAR: Final = 2
_SHOWN_NEAR: Final = 3


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
    )
    if quantization == "w4a16" != checkpoint.scheme:
        return spec_of(stored_as(checkpoint.architecture, "w4a16")[0])
    if not checkpoint.has_padded_experts or quantization not in {None, "w4a16"}:
        return spec
    return replace(spec, groups=tuple(_with_padded_experts(group) for group in spec.groups))


def _with_padded_experts(group: LayerGroup) -> LayerGroup:
    if group.experts is None:
        return group
    width = -(-group.experts.intermediate // W4A16_EXPERT_TILE) * W4A16_EXPERT_TILE
    return replace(group, experts=replace(group.experts, intermediate=width))
