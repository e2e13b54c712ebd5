"""Checkpoints by their Hugging Face id: which architecture each holds, how its weights are stored, and who says so.

`planning.model.catalog` has the architectures. A checkpoint that is not here is planned from its config.json (`planning.model.hf_config`).
`CHECKPOINTS` has the ids that exist on the hub: whatever offers an id takes it from there. `ABSENT` has ids for which the hub answered
404; they are found by name, so that a finding can say so, and are never offered. The hub was not queried for any other id.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Kind = Literal["instruct", "base", "qat", "drafter"]
"""`instruct`: follows instructions, has a chat template. `base`: pre-trained only, has none. `qat`: `instruct` after training that makes
rounding to 4 bits harmless, stored unrounded. `drafter`: proposes tokens for another model and serves nobody alone."""

QAT_SUFFIX: Final = "-qat-w4a16-ct"
UNQUANTIZED_SUFFIX: Final = "-qat-q4_0-unquantized"
DRAFTER_SUFFIX: Final = "-assistant"

HubAnswer = Literal["exists", "absent", "unknown"]
"""What is known of an id on the hub. `unknown`: the catalog has neither a page that names it nor one that says that it is absent."""


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
    """Name of a scheme of `planning.data.quantization`."""
    kind: Kind = "instruct"
    has_stored_head: bool = False
    """The files hold an output head although it is tied to the embeddings: they are larger and load longer, and a GPU drops it."""
    has_padded_experts: bool = False
    """The files hold each expert with more columns than the model has, up to the next tile of the 4-bit kernels."""
    is_personal: bool = False
    """The repository belongs to a private person, not to Google or a vendor."""
    commit: str = ""
    """A commit of the repository that public sources state; empty if none was found. `commit_source` says which."""
    commit_source: str = ""
    absent: Page | None = None
    """The page that says that the hub answered 404 for the id; None for an id that exists."""
    source: Page
    """A page that names it."""

    @property
    def is_drafter(self) -> bool:
        """Whether it only drafts for another model."""
        return self.kind == "drafter"

    @property
    def owner(self) -> str:
        """The account of the hub that the repository belongs to."""
        return self.id.partition("/")[0]


_POSTTRAIN: Final = "carbonteq-ai/posttrain, its plan for Gemma 4: the exact revisions that it uses"
_LOCAL_VOICE: Final = "kutaelee/local-voice-agent, scripts: download by revision, size and SHA-256"
_COMMITS: Final[Mapping[str, tuple[str, str]]] = {
    "google/gemma-4-E2B-it": ("3e22461f65e89153144f8adb70e3b8c2cc9845a7", _POSTTRAIN),
    "google/gemma-4-E4B-it": ("ee0ef6023621cff504d758262d4e04895a5af4a2", _POSTTRAIN),
    "google/gemma-4-12B-it": ("707f0a3b8a3c7ad586ed01e27eafbad8a27dd0f7", _POSTTRAIN),
    "google/gemma-4-26B-A4B-it": (
        "4d7ae4984b7db7de8f8457170b3f1a419ee76d52",
        "mishgon/decomposer, gyms/toolathlon_gym: the snapshot that it serves with vLLM",
    ),
    "google/gemma-4-31B-it": ("842da3794eaa0b77d5f08bae87a17459d91ff475", _POSTTRAIN),
    "google/gemma-4-12B-it-qat-w4a16-ct": ("1d2c2d7f2466070e69d6fb3fd5ce9a7d75f2f6ee", _LOCAL_VOICE),
    "google/gemma-4-31B-it-qat-w4a16-ct": ("52f3f65bc7a02d555763bc923bd1d9094898219d", _LOCAL_VOICE),
    "google/gemma-4-12B-it-qat-q4_0-unquantized": ("b6ed86275a6a5735884e208bfed95b445a684ca2", _LOCAL_VOICE),
    "google/gemma-4-31B-it-qat-q4_0-unquantized": ("1e4d8beecacb8b7590c1d8bedd7335f687bf311f", _LOCAL_VOICE),
    "google/gemma-4-12B-it-qat-q4_0-unquantized-assistant": ("18934064dd4c5c6cc3621f6381e7d377fc8cb7bd", _LOCAL_VOICE),
    "google/gemma-4-31B-it-qat-q4_0-unquantized-assistant": ("96d4c8ca3cb38c107a8478587878124895d1e844", _LOCAL_VOICE),
    "google/gemma-4-31B": (
        "5bbc2fb1c1b2c611d06e3d9f23c170ba21659d89",
        "torch-spyre/spyre-inference, .github/cache_config/hf_models_and_datasets.yaml",
    ),
    "google/gemma-4-E2B-it-assistant": (
        "5810c41a67974da9c7bd6f3e6c69d5d13854d9f0",
        'a public lock file: "HF API reported private=false and gated=false on 2026-05-31"',
    ),
    "xbill9/gemma-4-26B-A4B-it-qat-q4_0-w4a16-ct": (
        "2096d38dad51a19b8e982b44241c47102a8bbb00",
        "OpenConsult, how the engine bench of 7 October 2026 was run: the revision that vLLM 0.31.0 served",
    ),
}
"""Commits that public sources state, read 2026-11. The hub was not asked: its main branch may be newer, and no commit disappears by that."""
_GEMMA: Final = "google/gemma-4-"
_COLLECTION: Final = Page("https://huggingface.co/collections/google/gemma-4", "2026-07-20")
_QAT_COLLECTION: Final = Page("https://huggingface.co/collections/google/gemma-4-qat-q4-0", "2026-06-05")
_RED_HAT_RECIPES: Final = Page("https://github.com/vllm-project/recipes/pull/865", "2026-08-27")
_SIZES: Final = ("E2B", "E4B", "12B", "26B-A4B", "31B")
_HUB_LISTING: Final = Page("https://github.com/xbill9/gemma4-dev/blob/4cf2d8b/MODELS.md", "2026-07-31")
"""Lists the hub's exports by size and format, and says that the 4-bit one of 26B-A4B answers 404."""
_ABSENT_PAGES: Final[Mapping[str, Page]] = {"google/gemma-4-26B-A4B-it-qat-w4a16-ct": _HUB_LISTING}


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
            absent=_ABSENT_PAGES.get(name + QAT_SUFFIX),
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
        is_personal=True,
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
_KNOWN: Final = (*(row for rows in zip(*_FAMILIES, strict=True) for row in rows), *_CONVERSIONS)
CHECKPOINTS: Final[Mapping[str, Checkpoint]] = {
    one.id: replace(one, commit=_COMMITS[one.id][0], commit_source=_COMMITS[one.id][1]) if one.id in _COMMITS else one
    for one in _KNOWN
    if one.absent is None
}
"""Every checkpoint that exists and that the planner knows, by id: Google's kinds in turn, then conversions by others."""
ABSENT: Final[Mapping[str, Checkpoint]] = {one.id: one for one in _KNOWN if one.absent is not None}
"""Ids that people name and that the hub does not have. Public reports measured files of such a name in a bucket, so each has dimensions."""

_BY_LOWER_CASE: Final[Mapping[str, str]] = {one.id.lower(): one.id for one in _KNOWN}
_PERSONAL: Final = "a private person's"


def find_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint that a spelling means, or None. Case does not matter, and `google/` may be left out."""
    lower = name.strip().lower()
    found = _BY_LOWER_CASE.get(lower) or _BY_LOWER_CASE.get(f"google/{lower}")
    return checkpoint_of(found) if found else None


def checkpoint_of(model_id: str) -> Checkpoint:
    """Return the checkpoint of an id as the hub spells it, absent ones too. Raises KeyError for an id that the catalog does not know."""
    return ABSENT[model_id] if model_id in ABSENT else CHECKPOINTS[model_id]


def hub_answer(name: str) -> HubAnswer:
    """Return whether the hub has an id, as far as the catalog knows."""
    found = find_checkpoint(name)
    if found is None:
        return "unknown"
    return "exists" if found.absent is None else "absent"


def original_of(model_id: str) -> str:
    """Return the id of the bf16 checkpoint that a quantized one was made of, and of any other the id itself."""
    found = checkpoint_of(model_id)
    return found.id if found.scheme == "bf16" else found.architecture


def stored_as(architecture: str, scheme: str) -> tuple[str, ...]:
    """Return the ids that exist of a model in a precision, those of private persons last."""
    found = [one for one in CHECKPOINTS.values() if (one.architecture, one.scheme) == (architecture, scheme)]
    return tuple(one.id for one in sorted(found, key=lambda one: one.is_personal) if one.kind in {"instruct", "qat"})


def nearest_ids(absent: Checkpoint) -> tuple[str, ...]:
    """Return the ids that exist and come nearest to an absent one: the same model in the same precision, then in others."""
    same = [
        one
        for one in CHECKPOINTS.values()
        if one.architecture == absent.architecture and one.kind in {absent.kind, "instruct"}
    ]
    return tuple(one.id for one in sorted(same, key=lambda one: (one.scheme != absent.scheme, one.is_personal)))


def near_ids(name: str) -> tuple[str, ...]:
    """Return up to three ids that exist near one that the hub does not show; none for an id that is known to exist."""
    answer = hub_answer(name)
    if answer == "unknown":
        return similar_ids(name)
    found = find_checkpoint(name)
    return nearest_ids(found)[:3] if found is not None and answer == "absent" else ()


def other_ids(name: str) -> tuple[str, ...]:
    """Return up to three other ids that exist, for one that the hub did not show although the catalog may have it."""
    return near_ids(name) or tuple(one for one in similar_ids(name) if one != name)


def with_owner(model_id: str) -> str:
    """Return an id for a message, with a note where the repository is a private person's."""
    found = find_checkpoint(model_id)
    return f"{model_id} ({_PERSONAL})" if found is not None and found.is_personal else model_id


def id_of_folder(name: str) -> str:
    """Return the id whose files a folder of this name holds: the one of the catalog that ends so, else Google's.

    The hash that staging adds to the name of a folder says nothing about it.
    """
    bare = _STAGED_HASH.sub("", name)
    return next((one.id for one in _KNOWN if one.id.partition("/")[2] == bare), f"google/{bare}")


def near_spellings(name: str) -> tuple[str, ...]:
    """Return up to two ids that exist and whose spelling, the owner's too, is almost that of an id outside the catalog."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a model outside the catalog needs it

    whole = {one.lower(): one for one in CHECKPOINTS}
    return tuple(whole[one] for one in get_close_matches(name.strip().lower(), whole, n=2, cutoff=_ALMOST))


_STAGED_HASH: Final = re.compile(r"-[0-9a-f]{16}$")
_ALMOST: Final = 0.95
"""Similarity from which two ids are more likely one with a typing error than two models: one character in forty changed is 0.975."""


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
