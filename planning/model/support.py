"""Which precision loads on which device with which version of vLLM: a table with source and date, and the look-up.

A row holds for all that it names; what it leaves open it holds for whatever stands there. The first row that matches answers.
To record what an image learned, add a row above the one that it overrules.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from planning.data.images import IMAGES
from planning.machine.hardware import Accelerator
from planning.model.spec import ModelSpec

Answer = Literal["yes", "no", "unknown"]
Loading = Literal["checkpoint", "on-load"]
"""Whether the checkpoint has the precision, or vLLM makes it while it loads."""
ModelKind = Literal["dense", "shared-kv", "experts", "pytorch"]
"""How vLLM on TPU serves a model: in JAX (plainly, with layers that read the KV cache of others, or with experts), or through PyTorch."""

_ANY_DEVELOPMENT: Final = 10**9
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:rc\d+)?(?:\.dev(\d+))?")
_TPU: Final = ("v5e", "v6e")
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


TABLE: Final = (
    Support(
        scheme="bf16",
        answer="yes",
        source="vLLM supported models; vllm-project/tpu-inference models/common/model_loader.py",
        seen_on="2026-08-22",
    ),
    Support(
        scheme="w4a16",
        devices=_TPU,
        last="0.30.0",
        answer="no",
        note="vLLM on TPU does not implement 4-bit compressed-tensors checkpoints up to 0.30.0",
        source=(
            "vllm-project/tpu-inference#3540; the wheel of tpu-inference 0.30.0; NotImplementedError on 0.29.1rc1.dev468 "
            "(xbill9/gemma4-dev, jev-tpu-31b/README.md)"
        ),
        seen_on="2026-11-21",
    ),
    Support(
        scheme="w4a16",
        devices=_TPU,
        models=("experts",),
        answer="unknown",
        note=(
            "experts in 4 bits need vllm-project/tpu-inference#3660, which is in no release up to 0.32.0 and not in the nightly of "
            "2026-10-26; image vllm-tpu-w4a16-experts has it"
        ),
        source=(
            "wheels of tpu-inference 0.31.0, 0.32.0 and 0.32.0.dev20261026; xbill9/gemma4-dev@395bf64 "
            "(26B-A4B served with that patch on v6e-1 and v6e-4)"
        ),
        seen_on="2026-11-21",
    ),
    Support(
        scheme="w4a16",
        devices=_TPU,
        models=("shared-kv",),
        answer="unknown",
        note="E2B and E4B in 4 bits need vllm-project/tpu-inference#3299 beside #3653, and 0.32.0 does not have it",
        source="gemma4.py in the wheels of tpu-inference 0.29.0 to 0.32.0; xbill9/gemma4-dev@395bf64 (served with both patches)",
        seen_on="2026-11-21",
    ),
    Support(
        scheme="w4a16",
        devices=("v6e",),
        models=("dense",),
        first="0.31.0",
        answer="yes",
        source=(
            "vllm-project/tpu-inference#3653, in the wheel of 0.31.0 and not in that of 0.30.0; xbill9/gemma4-dev@395bf64 "
            "(31B served with that patch on v6e-1)"
        ),
        seen_on="2026-11-21",
    ),
    Support(
        scheme="w4a16",
        devices=_TPU,
        answer="unknown",
        note=(
            "4-bit linear layers (vllm-project/tpu-inference#3653) are in vLLM on TPU from 0.31.0 on, and this device or version of it "
            "was not seen to serve them; image vllm-tpu-w4a16 has 0.31.0"
        ),
        source="wheels of tpu-inference 0.30.0 and 0.31.0; xbill9/gemma4-dev@395bf64 (served with that patch on v6e)",
        seen_on="2026-11-21",
    ),
    Support(
        scheme="fp8",
        devices=_TPU,
        loading="on-load",
        answer="no",
        note="vLLM on TPU does not implement quantizing Gemma 4 to fp8 while loading",
        source="xbill9/gemma4-dev, QUANTIZATION.md (qwix does not boot)",
        seen_on="2026-08-07",
    ),
    Support(
        scheme="fp8",
        devices=_TPU,
        first="0.24.0",
        answer="yes",
        is_weight_only=True,
        source="vllm-project/tpu-inference#3072, #3092; xbill9/gemma4-dev@395bf64 (26B-A4B FP8-dynamic served on v6e-1, 2026-09-26)",
        seen_on="2026-09-26",
    ),
    Support(
        scheme="nvfp4",
        devices=_TPU,
        models=("dense", "shared-kv", "experts"),
        answer="no",
        note="vLLM on TPU has NVFP4 in its PyTorch path alone, and serves this model in JAX",
        source="vllm-project/tpu-inference#3067; xbill9/gemma4-dev, jev-tpu-31b/README.md",
        seen_on="2026-09-24",
    ),
    Support(
        scheme="nvfp4",
        devices=_TPU,
        models=("pytorch",),
        answer="unknown",
        note="vLLM on TPU has NVFP4 in the PyTorch path that serves this model, and nobody was seen to try it",
        source="vllm-project/tpu-inference#3067",
        seen_on="2026-07-01",
    ),
    Support(
        scheme="w4a16",
        devices=("ampere", "ada", "hopper", "blackwell"),
        answer="yes",
        source="vllm-project/recipes#514 (Marlin kernels, Google's QAT checkpoints)",
        seen_on="2026-06-05",
    ),
    Support(
        scheme="fp8",
        devices=("ada", "hopper", "blackwell"),
        answer="yes",
        source="https://docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8/",
        seen_on="2026-11-20",
    ),
    Support(
        scheme="fp8",
        devices=("ampere",),
        models=("dense", "shared-kv", "pytorch"),
        answer="yes",
        is_weight_only=True,
        source="https://docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8/ (W8A16 with Marlin kernels)",
        seen_on="2026-11-20",
    ),
    Support(
        scheme="fp8",
        devices=("ampere",),
        models=("experts",),
        answer="unknown",
        note="vLLM documents fp8 on Ampere for linear layers, and says nothing of experts",
        source="https://docs.vllm.ai/en/v0.32.0/features/quantization/llm_compressor/fp8/",
        seen_on="2026-11-20",
    ),
    Support(
        scheme="nvfp4",
        devices=("blackwell",),
        answer="yes",
        source="vllm-project/vllm#49376 (kernel selection); #46880 (26B-A4B)",
        seen_on="2026-07-21",
    ),
    Support(
        scheme="nvfp4",
        devices=("ampere", "ada", "hopper"),
        answer="yes",
        is_weight_only=True,
        source="vllm-project/vllm#49376 (weight-only Marlin where a GPU has no FP4 arithmetic)",
        seen_on="2026-07-21",
    ),
)
"""Every row, those that overrule others first."""


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
    for row in TABLE:
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
        note=f"planning/model/support.py has no row for it, as of {max(row.seen_on for row in TABLE)}",
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
