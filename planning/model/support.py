"""Which precision loads on which device with which version of vLLM: a table with source and date, and the look-up.

A row holds for all that it names; what it leaves open it holds for whatever stands there. The first row that matches answers.
To record what an image learned, add a row to planning/data/support.json, above the one that it overrules.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from planning.data.images import IMAGES
from planning.data.tables import data_file, row_of
from planning.machine.hardware import Accelerator
from planning.model.spec import ModelSpec

Answer = Literal["yes", "no", "unknown"]
Loading = Literal["checkpoint", "on-load"]
"""Whether the checkpoint has the precision, or vLLM makes it while it loads."""
ModelKind = Literal["dense", "shared-kv", "experts", "pytorch"]
"""How vLLM on TPU serves a model: in JAX (plainly, with layers that read the KV cache of others, or with experts), or through PyTorch."""

_ANY_DEVELOPMENT: Final = 10**9
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:rc\d+)?(?:\.dev(\d+))?")
_GENERATIONS: Final = {
    "L4": "ada",
    "L4x2": "ada",
    "RTX PRO 6000": "blackwell",
    "A100-80GB": "ampere",
    "H100": "hopper",
    "H200": "hopper",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """One row."""

    scheme: str
    devices: tuple[str, ...] = ()
    """Generations of accelerators; empty for all."""
    models: tuple[ModelKind, ...] = ()
    loading: Loading | None = None
    first: str = ""
    """Oldest version of vLLM that the row holds for; empty for all."""
    last: str = ""
    """Newest version of vLLM that the row holds for; empty for all."""
    answer: Answer
    is_weight_only: bool = False
    """The device has no arithmetic for it: weights are stored so, and computed in bf16."""
    note: str = ""
    """What is missing, or not known, as a clause."""
    source: str
    seen_on: str
    """Date of the source, YYYY-MM-DD."""


@cache
def support_rows() -> tuple[Support, ...]:
    """Return every row of planning/data/support.json, those that overrule others first."""
    return tuple(row_of(Support, row) for row in data_file("support.json"))


def support_of(
    scheme: str,
    spec: ModelSpec,
    accelerator: Accelerator,
    *,
    image_version: str | None = None,
    image_supports: tuple[str, ...] = (),
) -> Support:
    """Return the row for a precision of a model on a device.

    `image_version`: vLLM's version; None for that of this project's image, empty or unreadable if it is not known.
    `image_supports`: precisions that the image has by what its owner says.
    """
    family = scheme.partition("-")[0]  # nvfp4-mlp is nvfp4 in fewer layers
    if family in image_supports:
        return Support(scheme=scheme, answer="yes", source="the image's `supports`", seen_on="")
    version = version_key(version_in_use(accelerator, image_version))
    loading: Loading = "on-load" if family == "fp8" != spec.native_quantization else "checkpoint"
    generation, kind = generation_of(accelerator), kind_of_model(spec)
    for row in support_rows():
        if (
            row.scheme == family
            and (not row.devices or generation in row.devices)
            and (not row.models or kind in row.models)
            and row.loading in {None, loading}
            and _is_within(version, row)
        ):
            return row
    return Support(
        scheme=scheme,
        answer="unknown",
        note=f"planning/model/support.py has no row for it, as of {max(row.seen_on for row in support_rows())}",
        source="planning/model/support.py",
        seen_on="",
    )


def generation_of(accelerator: Accelerator) -> str:
    """Return the generation of an accelerator as the table names it; empty for one that it does not know."""
    return accelerator.name.partition("-")[0] if accelerator.is_tpu else _GENERATIONS.get(accelerator.name, "")


def version_key(version: str) -> tuple[int, int, int, int] | None:
    """Return a version of vLLM in a form that sorts: 0.29.1rc1.dev468 is before 0.29.1. None if it is not readable."""
    found = _VERSION.match(version)
    if found is None:
        return None
    major, minor, patch, development = found.groups()
    return int(major), int(minor), int(patch or 0), int(development) if development else _ANY_DEVELOPMENT


def version_in_use(accelerator: Accelerator, image_version: str | None) -> str:
    """Return vLLM's version in the image: the given one, else that of this project's image for the accelerator."""
    if image_version is not None:
        return image_version
    platform = "tpu" if accelerator.is_tpu else "cuda"
    return next(image.version for image in IMAGES.values() if image.platform == platform)


def _is_within(version: tuple[int, int, int, int] | None, row: Support) -> bool:
    """Return whether a row holds for a version; a row with a bound never holds for a version that is not known."""
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
