"""Checkpoints by their Hugging Face id (checkpoints.json): which architecture each holds, how its weights are stored, and who says so.

`planning.model.catalog` has the architectures. A checkpoint that is not here is planned from its config.json (`planning.model.hf_config`).
`CHECKPOINTS` has the ids that exist on the hub: whatever offers an id takes it from there. `ABSENT` has ids for which the hub answered
404; they are found by name, so that a finding can say so, and are never offered. The hub was not queried for any other id.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from planning.data.tables import Table, data_file, row_of

Kind = Literal["instruct", "base", "qat", "drafter"]
"""`instruct`: follows instructions, has a chat template. `base`: pre-trained only, has none. `qat`: `instruct` after training that makes
rounding to 4 bits harmless, stored unrounded. `drafter`: proposes tokens for another model and serves nobody alone."""

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
    """A commit of the repository that public sources state, read 2026-11; empty if none was found. `commit_source` says which. The hub was not
    asked: its main branch may be newer, and no commit disappears by that."""
    commit_source: str = ""
    absent: Page | None = None
    """The page that says that the hub answered 404 for the id; None for an id that exists."""
    source: Page
    """A page that names it."""
    note: str = ""
    """What is quantized, and sizes that were seen."""

    @property
    def is_drafter(self) -> bool:
        """Whether it only drafts for another model."""
        return self.kind == "drafter"

    @property
    def owner(self) -> str:
        """The account of the hub that the repository belongs to."""
        return self.id.partition("/")[0]


def _rows() -> Mapping[str, Checkpoint]:
    """Return Google's kinds in turn, then conversions by others; absent ones too."""
    return {row["id"]: row_of(Checkpoint, {**row, **_pages(row)}) for row in data_file("checkpoints.json")}


def _pages(row: Mapping[str, Any]) -> Mapping[str, Page]:
    return {name: Page(**row[name]) for name in ("source", "absent") if name in row}


_KNOWN: Final = Table(_rows)
CHECKPOINTS: Final[Mapping[str, Checkpoint]] = Table(
    lambda: {name: one for name, one in _KNOWN.items() if one.absent is None}
)
"""Every checkpoint that exists and that the planner knows, by id: Google's kinds in turn, then conversions by others."""
ABSENT: Final[Mapping[str, Checkpoint]] = Table(
    lambda: {name: one for name, one in _KNOWN.items() if one.absent is not None}
)
"""Ids that people name and that the hub does not have. Public reports measured files of such a name in a bucket, so each has dimensions."""

_BY_LOWER_CASE: Final[Mapping[str, Checkpoint]] = Table(lambda: {name.lower(): one for name, one in _KNOWN.items()})
_PERSONAL: Final = "a private person's"


def find_checkpoint(name: str) -> Checkpoint | None:
    """Return the checkpoint that a spelling means, or None. Case does not matter, and `google/` may be left out."""
    lower = name.strip().lower()
    return _BY_LOWER_CASE.get(lower) or _BY_LOWER_CASE.get(f"google/{lower}")


def checkpoint_of(model_id: str) -> Checkpoint:
    """Return the checkpoint of an id as the hub spells it, absent ones too. Raises KeyError for an id that the catalog does not know."""
    return _KNOWN[model_id]


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
    return next((name for name in _KNOWN if name.partition("/")[2] == bare), f"google/{bare}")


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
