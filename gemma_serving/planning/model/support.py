"""Supported models, precisions and features by device and vLLM version: a table with source and date, and its lookup.

A row applies to everything it names; empty fields match anything. The first matching row decides.
To record a new capability of an image, add a row to gemma_serving/planning/data/support.json, above the one that it overrides. A bound is the
first tag, or the first release's wheel, that contains the change, never the date of a merge: `python -m dev.judges.releases` compares both.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.data.images import DEFAULT_IMAGES, IMAGES, built_images
from gemma_serving.planning.data.tables import data_file, typed_file
from gemma_serving.planning.machine.hardware import Accelerator
from gemma_serving.planning.model.spec import ModelSpec

Answer = Literal["yes", "no", "unknown"]
Loading = Literal["checkpoint", "on-load"]
"""Origin of the precision: the checkpoint, or conversion by vLLM while loading."""
ModelKind = Literal["dense", "shared-kv", "experts", "pytorch"]
"""Path by which vLLM on TPU serves a model: in JAX (plain, with layers that read other layers' KV cache, or with experts), or through PyTorch."""

Feature = Literal["fp8_kv", "scaled_kv", "draft_model", "lora", "structured_output"]
"""Subjects of rows beside precisions and modalities (image, video, audio): formats of the KV cache, and the features of a server."""
VersionKey = tuple[int, int, int, int]
_RELEASE: Final = 10**9
"""Last part of the key of a release, after those of its development versions."""
_LOCAL_BUILD: Final = re.compile(r"(?:\+[a-z0-9.]+)?")
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(rc\d+)?(?:\.dev(\d+))?")


class Support(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table."""

    scheme: str
    """Precision of the weights, modality of a request, or a `Feature`; empty for all precisions and modalities."""
    devices: tuple[str, ...] = ()
    """Generations of accelerators; empty for all."""
    models: tuple[ModelKind, ...] = ()
    is_gemma4: bool = False
    """True if the row is about Gemma 4 only."""
    lacks_shared_kv: bool = False
    """True if the row is about such files only (`ModelSpec.lacks_shared_kv`)."""
    quantizes: tuple[str, ...] = ()
    """Parts of which the checkpoint quantizes one (`ModelSpec.quantizes`); empty for all."""
    loading: Loading | None = None
    packings: tuple[str, ...] = ()
    """Quantization methods of checkpoints outside the catalog (`ModelSpec.packing`); empty for all."""
    first: str = ""
    """Oldest version of vLLM that the row applies to; empty for all."""
    last: str = ""
    """Newest version of vLLM that the row applies to; empty for all."""
    answer: Answer
    is_weight_only: bool = False
    """True if the device has no arithmetic for it: weights are stored in it but computed in bf16."""
    note: str = ""
    """The missing or unknown feature, as a clause."""
    others: Mapping[str, str] = {}
    """Why another precision of the same models and releases is not affected; each that is not here has a row of its own."""
    source: str
    seen_on: str
    """Date of the source, YYYY-MM-DD."""


@cache
def support_rows() -> tuple[Support, ...]:
    """Return every row of gemma_serving/planning/data/support.json, overriding rows first."""
    return typed_file("support.json", tuple[Support, ...])


def support_of(
    scheme: str,
    spec: ModelSpec,
    accelerator: Accelerator,
    *,
    image_version: str | None = None,
    image_supports: tuple[str, ...] = (),
) -> Support:
    """Return the row for a precision of a model's weights, or for a modality of its requests, on a device.

    `image.version`: vLLM version; None for this project's image, empty or invalid if unknown.
    `image.supports`: precisions that the image's owner declares.
    """
    family = scheme.partition("-")[0]  # nvfp4-mlp is nvfp4 in fewer layers
    if family in image_supports:
        return Support(scheme=scheme, answer="yes", source="the image's `supports`", seen_on="")
    loading: Loading = "on-load" if family == "fp8" != spec.native_quantization else "checkpoint"
    for row in _rows_for(spec, accelerator, image_version):
        if row.scheme in {"", family} and row.loading in {None, loading}:
            return row
    return Support(
        scheme=scheme,
        answer="unknown",
        note=f"gemma_serving/planning/model/support.py has no row for it, as of {max(row.seen_on for row in support_rows())}",
        source="gemma_serving/planning/model/support.py",
        seen_on="",
    )


def feature_gap(
    feature: Feature, spec: ModelSpec, accelerator: Accelerator, *, image_version: str | None = None
) -> Support | None:
    """Return the row about a feature that the image's version lacks, or may lack, for a model on a device; None if no row says so."""
    row = next((row for row in _rows_for(spec, accelerator, image_version) if row.scheme == feature), None)
    return row if row is not None and row.answer != "yes" else None


def _rows_for(spec: ModelSpec, accelerator: Accelerator, image_version: str | None) -> Iterator[Support]:
    """Yield the rows that apply to a model on a device with an image, whatever they are about."""
    version = known_key(version_in_use(accelerator, image_version))
    generation, kind = accelerator.generation, kind_of_model(spec)
    for row in support_rows():
        if (
            (spec.is_gemma4 or not row.is_gemma4)
            and (spec.lacks_shared_kv or not row.lacks_shared_kv)
            and (not row.devices or generation in row.devices)
            and (not row.models or kind in row.models)
            and (not row.quantizes or not set(spec.quantizes).isdisjoint(row.quantizes))
            and (not row.packings or spec.packing in row.packings)
            and _is_within(version, row)
        ):
            yield _as_known(row, version)


def loading_image(scheme: str, spec: ModelSpec, accelerator: Accelerator) -> str | None:
    """Return the name of the image that is known to load a precision of a model on a device; None if none does.

    The target's default comes first, then those that this project builds.
    """
    if support_of(scheme, spec, accelerator).answer == "yes":
        return DEFAULT_IMAGES["tpu" if accelerator.is_tpu else "cloud-run"]
    for name, image in built_images("tpu" if accelerator.is_tpu else "cuda").items():
        if accelerator.generation not in image.generations or kind_of_model(spec) not in image.model_kinds:
            continue
        row = support_of(scheme, spec, accelerator, image_version=image.version, image_supports=image.supports)
        if row.answer == "yes":
            return name
    return None


@cache
def known_key(version: str) -> VersionKey | None:
    """Return the sortable form of a release, or of a development version between two releases; None for any other, of which nothing is known."""
    keys, key = _release_keys(), version_key(version)
    if key is None or key in keys:
        return key
    is_development = key[-1] < _RELEASE
    return key if is_development and key < keys[-1] and key[:2] in {one[:2] for one in keys} else None


@cache
def _release_keys() -> Sequence[VersionKey]:
    """Return every release, oldest first."""
    rows: dict[str, str] = data_file("flags.json")
    return sorted(key for name in f"{rows['releases']} {rows['others']}".split() if (key := version_key(name)))


@cache
def version_key(version: str) -> VersionKey | None:
    """Return a sortable form of a vLLM version: 0.29.1rc1.dev468 and 0.29.1rc1 precede 0.29.1. None if it cannot be parsed."""
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch, candidate, development = found.groups()
    last = int(development) if development else _RELEASE - bool(candidate)
    return int(major), int(minor), int(patch or 0), last


def newest_in(key: VersionKey) -> VersionKey:
    """Return the newest release whose changes a version may have: itself, or the next minor release of a development version, which is of the main branch."""
    return key if key[-1] == _RELEASE else (key[0], key[1] + 1, 0, _RELEASE)


def is_version(text: str) -> bool:
    """Return whether a text is a version of vLLM, with or without the part of a local build: 0.28.0, 0.31.1rc1.dev23+g43b4aaea3."""
    found = _VERSION.match(text)
    return found is not None and _LOCAL_BUILD.fullmatch(text[found.end() :]) is not None


def version_in_use(accelerator: Accelerator, image_version: str | None) -> str:
    """Return the vLLM version of the image: the stated one, otherwise the version of this project's image for the accelerator."""
    if image_version is not None:
        return image_version
    return IMAGES[DEFAULT_IMAGES["tpu" if accelerator.is_tpu else "cloud-run"]].version


def is_between(version: str, first: str, before: str) -> bool:
    """Return whether a version is at `first` (empty for any) or later and precedes `before` (empty for none). Only without bounds, an unknown one is."""
    if not first and not before:
        return True
    key, low, high = known_key(version), version_key(first), version_key(before)
    return key is not None and (low is None or low <= key) and (high is None or key < high)


def _as_known(row: Support, version: VersionKey | None) -> Support:
    """Return a row, which is unknown if a development version may be newer than its last one."""
    last = version_key(row.last)
    if version is None or last is None or row.answer != "no" or newest_in(version) <= last:
        return row
    return replace(row, answer="unknown", note=f"{row.note}, and this development version may be older or newer")


def _is_within(version: VersionKey | None, row: Support) -> bool:
    """Return whether a row applies to a version; a row with a bound never applies to an unknown version."""
    first, last = version_key(row.first), version_key(row.last)
    if first is None and last is None:
        return True
    if version is None:
        return False
    return (first is None or first <= version) and (last is None or version <= last)


def kind_of_model(spec: ModelSpec) -> ModelKind:
    """Return how vLLM on TPU serves a model."""
    if spec.is_moe:
        return "experts"
    if spec.tpu_torch_path:
        return "pytorch"
    return "dense" if all(group.owns_kv for group in spec.groups) else "shared-kv"
