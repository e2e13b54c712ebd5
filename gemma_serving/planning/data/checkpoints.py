"""Checkpoints by Hugging Face id (checkpoints.json): architecture, weight format and source of each.

`planning.model.catalog` has the architectures. A checkpoint not listed here is planned from its config.json (`planning.model.hf_config`).
`CHECKPOINTS` has the ids that exist on the hub, the only ones that are ever suggested. `ABSENT` has ids for which the hub returned
404, so a finding can report them. The hub was not queried for any other id.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from gemma_serving.contracts.chat_template import TemplateAge
from gemma_serving.planning.data.tables import Table, typed_file

Kind = Literal["instruct", "base", "qat", "drafter"]
"""`instruct`: follows instructions, has a chat template. `base`: pre-trained only, without one. `qat`: `instruct` after training that
tolerates rounding to 4 bits, stored unrounded. `drafter`: proposes tokens for another model and cannot serve alone."""


class Page(Struct, frozen=True, forbid_unknown_fields=True):
    """A public page and its date, YYYY-MM-DD."""

    url: str
    date: str


class Checkpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A repository on the hub."""

    id: str
    architecture: str
    """Id of the bf16 checkpoint with the same dimensions; for a draft model, of the model that it drafts for."""
    scheme: str = "bf16"
    """Name of a scheme of `planning.data.quantization`."""
    kind: Kind = "instruct"
    has_stored_head: bool = False
    """True if the files store an output head although it is tied to the embeddings. Such files are larger and load longer; a GPU drops the head."""
    lacks_shared_kv: bool = False
    """True if the files have no keys and values of layers that read another layer's KV cache (headers in vllm-project/tpu-inference#3299)."""
    has_fp4_activations: bool = False
    """True if the files say how a server rounds the inputs of NVFP4 layers to 4 bits (W4A4, not W4A16)."""
    kv_cache_dtype: str = "auto"
    """Type of the KV cache that the files ask for (`kv_cache_scheme`)."""
    block_width: int = 0
    """Weights of a row in one block of FP8, which has one scale; 0 with a scale for each row."""
    has_padded_experts: bool = False
    """True if the files pad each expert's columns to the next tile of the 4-bit kernels."""
    is_personal: bool = False
    """True if the repository belongs to an individual, not to Google or a vendor."""
    commit: str = ""
    """A commit of the repository from public sources, read 2026-11; empty if none was found. `commit_source` names the source. The hub was not
    queried: its main branch may be newer, but commits do not disappear."""
    commit_source: str = ""
    template: TemplateAge = "unknown"
    """Newest of Google's fixes that the chat template at `commit` has, by its SHA-256 in `template_source`."""
    template_source: str = ""
    runs_on: tuple[str, ...] = ()
    """Cards and TPU generations on which a public log shows a server with these files, in their own precision; a test counts the logs again."""
    absent: Page | None = None
    """Page that reports the hub's 404 for the id; None for an id that exists."""
    source: Page
    """A page that names it."""
    note: str = ""
    """Quantized layers and observed sizes."""

    @property
    def is_drafter(self) -> bool:
        """True if it only drafts for another model."""
        return self.kind == "drafter"


_KNOWN: Final = Table(lambda: {row.id: row for row in typed_file("checkpoints.json", tuple[Checkpoint, ...])})
"""Google's kinds in turn, then conversions by others, including absent ones."""
CHECKPOINTS: Final[Mapping[str, Checkpoint]] = Table(
    lambda: {name: one for name, one in _KNOWN.items() if one.absent is None}
)
"""Every known checkpoint that exists, by id."""
ABSENT: Final[Mapping[str, Checkpoint]] = Table(
    lambda: {name: one for name, one in _KNOWN.items() if one.absent is not None}
)
"""Ids in use that the hub does not have. Public reports measured files of these names in buckets, so each has dimensions."""

_BY_LOWER_CASE: Final[Mapping[str, Checkpoint]] = Table(lambda: {name.lower(): one for name, one in _KNOWN.items()})
_FAMILY_WORDS: Final = re.compile(r"^(google/)?gemma-?4-")
"""Start of a family's name that adds nothing to its size."""


def find_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint that a spelling means, or None. Case is ignored, and `google/` is optional.

    A family's name (`31B`, `gemma 4 31b`) means its bf16 original.
    """
    lower = name.strip().lower()
    found = _BY_LOWER_CASE.get(lower) or _BY_LOWER_CASE.get(f"google/{lower}")
    if found is not None or "/" in lower:
        return found
    return next(iter(family(name)), None)


def checkpoint_of(model_id: str) -> Checkpoint:
    """Return the checkpoint of an id as the hub spells it, including absent ones. Raises KeyError for an id outside the catalog."""
    return _KNOWN[model_id]


def owner_of(commit: str) -> Checkpoint | None:
    """Return the checkpoint whose repository has this commit, or None if no listed one is known to have it."""
    return next((one for one in _KNOWN.values() if commit and one.commit == commit), None)


def family(name: str) -> tuple[Checkpoint, ...]:
    """Return the instruction-tuned checkpoints of a family, such as `12B`, `26B-A4B` or `gemma 4 26b`, its original first.

    None for any other name and for an id.
    """
    lower = name.strip().lower()
    if lower in _BY_LOWER_CASE or f"google/{lower}" in _BY_LOWER_CASE:
        return ()
    wanted = _FAMILY_WORDS.sub("", re.sub(r"[\s_]+", "-", lower)).removesuffix("-it")
    members = [one for one in CHECKPOINTS.values() if one.kind == "instruct" and wanted in _families(one)]
    return tuple(sorted(members, key=lambda one: one.id != one.architecture))


def _families(checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the names of a checkpoint's family: its size, with and without the number of active parameters."""
    size = checkpoint.architecture.rpartition("gemma-4-")[2].removesuffix("-it").lower()
    return size, size.partition("-")[0]


def original_of(model_id: str) -> str:
    """Return the id of the bf16 original of a checkpoint that was quantized or trained for it; any other id unchanged."""
    found = _KNOWN.get(model_id)
    return model_id if found is None or (found.scheme == "bf16" and found.kind != "qat") else found.architecture


def stored_as(architecture: str, scheme: str) -> tuple[str, ...]:
    """Return the ids that exist of a model in a precision, those from individuals last."""
    found = [one for one in CHECKPOINTS.values() if (one.architecture, one.scheme) == (architecture, scheme)]
    return tuple(one.id for one in sorted(found, key=lambda one: one.is_personal) if one.kind in {"instruct", "qat"})


def nearest_ids(absent: Checkpoint) -> tuple[str, ...]:
    """Return the existing ids nearest to an absent one: the same model in the same precision, then in others."""
    same = [one for one in CHECKPOINTS.values() if one.architecture == absent.architecture]
    same = [one for one in same if one.kind in {absent.kind, "instruct"}]
    return tuple(one.id for one in sorted(same, key=lambda one: (one.scheme != absent.scheme, one.is_personal)))


def near_ids(name: str) -> tuple[str, ...]:
    """Return up to three existing ids near one that the hub does not show; none for an id that is known to exist."""
    found = find_checkpoint(name)
    if found is None:
        return similar_ids(name)
    return nearest_ids(found)[:3] if found.absent is not None else ()


def other_ids(name: str) -> tuple[str, ...]:
    """Return up to three other existing ids, for one that the hub did not show although the catalog may list it."""
    return near_ids(name) or tuple(one for one in similar_ids(name) if one != name)


def with_owner(model_id: str) -> str:
    """Return an id for a message, with a note if the repository belongs to an individual."""
    found = find_checkpoint(model_id)
    return f"{model_id} (an individual's repack)" if found is not None and found.is_personal else model_id


def near_spellings(name: str) -> tuple[str, ...]:
    """Return up to two existing ids whose spelling, including the owner's, almost matches an id outside the catalog."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a model outside the catalog needs it

    whole = {one.lower(): one for one in CHECKPOINTS}
    return tuple(whole[one] for one in get_close_matches(name.strip().lower(), whole, n=2, cutoff=_ALMOST))


_ALMOST: Final = 0.95
"""Similarity above which two ids are more likely a typing error than two models: one changed character in forty is 0.975."""


def similar_ids(name: str, *, drafters: bool = False) -> tuple[str, ...]:
    """Return up to three ids that a wrong spelling may mean, the most likely first."""
    from difflib import get_close_matches  # noqa: PLC0415 - only an error needs it

    ids = [one.id for one in CHECKPOINTS.values() if one.is_drafter is drafters]
    bare = {one.lower().rpartition("/")[2]: one for one in ids}
    given = name.strip().lower().rpartition("/")[2]
    # Users often omit the ending: `gemma-4-12b` is the instruction-tuned model.
    close = [f"{given}-it", *get_close_matches(given, bare, n=3, cutoff=0.75)]
    return tuple(dict.fromkeys(bare[one] for one in close if one in bare))[:3]
