"""Checkpoints by their Hugging Face id: which architecture each holds, how its weights are stored, and who says so.

`planning.catalog` has the architectures. A checkpoint that is not here is planned from its config.json (`planning.hf_config`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["instruct", "base", "qat", "drafter"]
"""`instruct`: follows instructions, has a chat template. `base`: pre-trained only, has none. `qat`: `instruct` after training that makes
rounding to 4 bits harmless, stored unrounded. `drafter`: proposes tokens for another model and serves nobody alone."""

QAT_SUFFIX: Final = "-qat-w4a16-ct"
UNQUANTIZED_SUFFIX: Final = "-qat-q4_0-unquantized"
DRAFTER_SUFFIX: Final = "-assistant"


@dataclass(frozen=True, slots=True)
class Page:
    """A public page and the day on which it said so, YYYY-MM-DD."""

    url: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One repository of the hub."""

    id: str
    architecture: str
    """Id of the bf16 checkpoint with the same dimensions; for a drafter, of the model that it drafts for."""
    scheme: str = "bf16"
    """Name of a scheme of `planning.quantization`."""
    kind: Kind = "instruct"
    has_stored_head: bool = False
    """The files hold an output head although it is tied to the embeddings: they are larger and load longer, and a GPU drops it."""
    has_padded_experts: bool = False
    """The files hold each expert with more columns than the model has, up to the next tile of the 4-bit kernels."""
    source: Page
    """A page that names it."""

    @property
    def is_drafter(self) -> bool:
        """Whether it only drafts for another model."""
        return self.kind == "drafter"


_GEMMA: Final = "google/gemma-4-"
_COLLECTION: Final = Page("https://huggingface.co/collections/google/gemma-4", "2026-07-20")
_QAT_COLLECTION: Final = Page("https://huggingface.co/collections/google/gemma-4-qat-q4-0", "2026-06-05")
_RED_HAT_RECIPES: Final = Page("https://github.com/vllm-project/recipes/pull/865", "2026-08-27")
_SIZES: Final = ("E2B", "E4B", "12B", "26B-A4B", "31B")


def _google(size: str) -> tuple[Checkpoint, ...]:
    name = f"{_GEMMA}{size}-it"
    return (
        Checkpoint(id=name, architecture=name, source=_COLLECTION),
        Checkpoint(
            id=name + QAT_SUFFIX,
            architecture=name,
            scheme="w4a16",
            has_stored_head=size != "26B-A4B",  # 31B: 23,265,352,448 bytes, 12B: 10.26 GB
            has_padded_experts=size == "26B-A4B",
            source=_QAT_COLLECTION,
        ),
        Checkpoint(id=name + UNQUANTIZED_SUFFIX, architecture=name, kind="qat", source=_QAT_COLLECTION),
        Checkpoint(id=f"{_GEMMA}{size}", architecture=name, kind="base", source=_COLLECTION),
        Checkpoint(id=name + DRAFTER_SUFFIX, architecture=name, kind="drafter", source=_COLLECTION),
        Checkpoint(
            id=name + UNQUANTIZED_SUFFIX + DRAFTER_SUFFIX, architecture=name, kind="drafter", source=_QAT_COLLECTION
        ),
    )


# FP8: every linear layer of the language model, one scale for each output row (Dynamic) or each block of 128 x 128 (block). NVFP4 of
# Red Hat: the same layers in 4-bit floating point. NVFP4 of NVIDIA: feed-forward blocks and experts only; attention stays bf16.
# Red Hat's Dynamic and NVFP4 files hold the output head: 26.67 GiB were seen for 26B-A4B FP8-Dynamic, about 10 GB for 12B NVFP4.
# xbill9's repack has Google's QAT weights of 26B-A4B as compressed-tensors, groups of 32, without a stored head: 15.29 GiB.
_CONVERSIONS: Final = (
    Checkpoint(
        id="xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct",
        architecture="google/gemma-4-26B-A4B-it",
        scheme="w4a16",
        source=Page("https://huggingface.co/xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct", "2026-09-27"),
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-12B-it-FP8-Dynamic",
        architecture="google/gemma-4-12B-it",
        scheme="fp8",
        has_stored_head=True,
        source=_RED_HAT_RECIPES,
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic",
        architecture="google/gemma-4-26B-A4B-it",
        scheme="fp8",
        has_stored_head=True,
        source=Page("https://huggingface.co/RedHatAI/gemma-4-26B-A4B-it-FP8-Dynamic", "2026-10-08"),
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-31B-it-FP8-Dynamic",
        architecture="google/gemma-4-31B-it",
        scheme="fp8",
        has_stored_head=True,
        source=Page("https://github.com/cloudrift-ai/emmy/pull/133", "2026-05-15"),
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-31B-it-FP8-block",
        architecture="google/gemma-4-31B-it",
        scheme="fp8",
        source=_RED_HAT_RECIPES,
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-12B-it-NVFP4",
        architecture="google/gemma-4-12B-it",
        scheme="nvfp4",
        has_stored_head=True,
        source=_RED_HAT_RECIPES,
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-26B-A4B-it-NVFP4",
        architecture="google/gemma-4-26B-A4B-it",
        scheme="nvfp4",
        has_stored_head=True,
        source=Page("https://github.com/redhat-performance/configiq/pull/103", "2026-09-15"),
    ),
    Checkpoint(
        id="RedHatAI/gemma-4-31B-it-NVFP4",
        architecture="google/gemma-4-31B-it",
        scheme="nvfp4",
        has_stored_head=True,
        source=_RED_HAT_RECIPES,
    ),
    Checkpoint(
        id="nvidia/Gemma-4-26B-A4B-NVFP4",
        architecture="google/gemma-4-26B-A4B-it",
        scheme="nvfp4-mlp",
        source=Page("https://github.com/NVIDIA-AI-IOT/jetson-ai-lab/issues/394", "2026-05-07"),
    ),
    Checkpoint(
        id="nvidia/Gemma-4-31B-IT-NVFP4",
        architecture="google/gemma-4-31B-it",
        scheme="nvfp4-mlp",
        source=Page("https://huggingface.co/nvidia/Gemma-4-31B-IT-NVFP4", "2026-04-02"),
    ),
)

_FAMILIES: Final = tuple(_google(size) for size in _SIZES)
CHECKPOINTS: Final[Mapping[str, Checkpoint]] = {
    one.id: one for one in (*(row for rows in zip(*_FAMILIES, strict=True) for row in rows), *_CONVERSIONS)
}
"""Every checkpoint that the planner knows, by id: Google's kinds in turn, then conversions by others."""

_BY_LOWER_CASE: Final[Mapping[str, str]] = {name.lower(): name for name in CHECKPOINTS}


def find_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint that a spelling means, or None. Case does not matter, and `google/` may be left out."""
    lower = name.strip().lower()
    found = _BY_LOWER_CASE.get(lower) or _BY_LOWER_CASE.get(f"google/{lower}")
    return CHECKPOINTS[found] if found else None


def original_of(model_id: str) -> str:
    """Return the id of the bf16 checkpoint that a quantized one was made of, and of any other the id itself."""
    found = CHECKPOINTS[model_id]
    return found.id if found.scheme == "bf16" else found.architecture


def similar_ids(name: str, *, drafters: bool = False) -> tuple[str, ...]:
    """Return up to three ids that a wrong spelling may mean, the most likely first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a refusal needs it

    bare: dict[str, str] = {
        one.id.lower().rpartition("/")[2]: one.id for one in CHECKPOINTS.values() if one.is_drafter is drafters
    }
    asked = name.strip().lower()
    given = asked.rpartition("/")[2]
    # A name without its ending is what people leave out: `gemma-4-12b` is the model that follows instructions.
    with_ending = bare.get(f"{given}-it")
    close: list[str] = get_close_matches(given, bare, n=3, cutoff=0.75)
    likely: list[str] = [*([with_ending] if with_ending else []), *(bare[one] for one in close)]
    return tuple(dict.fromkeys(likely))[:3]
