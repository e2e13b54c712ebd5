"""Recorded boots of real servers (`data/boots.json`), and the rule for a server that has none.

The nearest boot counts: of the same kind of card, then of the same checkpoint, size, card and number of chips. Its rate is multiplied by the
ratio of the bandwidths of the two machines; all other figures are the boot's. 1 GiB is 2**30 bytes.
"""

import re
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Final

from localcloud.json_values import JsonObject, packaged, parts

GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint: a row of `checkpoints` and that of its size in `models`, which `data/boots.json` explains."""

    name: str
    size: str
    form: str = "bf16"
    disk_bytes: int
    window: int
    max_position: int
    is_moe: bool = False
    largest_tensor_gib: float = 0.0
    stored_head_gib: float = 0.0
    shards: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCard:
    """The hardware of the server: `devices` equal devices, with the memory and the bandwidth of one."""

    key: str
    name: str
    kind: str
    devices: int
    total_gib: float
    bandwidth_gb_per_s: float
    default_max_num_seqs: int
    default_max_num_batched_tokens: int
    ttft_base_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """A boot without a compile cache; `data/boots.json` explains the fields. Memory is that of one device."""

    model: str
    card: str
    chips: int = 1
    drafts: bool = False
    weights_gib: float
    kv_gib: float
    kv_blocks: int
    block_size: int
    max_model_len: int
    request_gib: float
    import_s: float
    read_s: float = 0.0
    compile_s: float
    cached_s: float
    warm_up_s: float
    step_s: float
    sequence_s: float
    prompt_tok_per_s: float

    @property
    def hardware(self) -> SimulatedCard:
        """Return the card, with the chips of this boot."""
        found = find_card(self.card) or find_card(f"{self.card}-{self.chips}")
        assert found is not None  # noqa: S101 - the table has the cards of its boots
        return found

    def read_s_of(self, size_bytes: int) -> float:
        """Return the seconds in which a TPU reads this many bytes."""
        return self.read_s * size_bytes / _checkpoint(self.model).disk_bytes

    def is_of(self, model: Model, card: SimulatedCard, chips: int) -> bool:
        """Return whether it is a boot of this model on these chips."""
        return (self.model, self.card, self.chips) == (model.name, card.key, chips)

    def slower(self, card: SimulatedCard, chips: int) -> float:
        """Return how many times as long a step takes on these chips as it did in the boot: the ratio of the bandwidths."""
        return self.chips * self.hardware.bandwidth_gb_per_s / (chips * card.bandwidth_gb_per_s)


@cache
def _tables() -> JsonObject:
    return packaged("localcloud.vllm", "boots.json")


def constant(name: str) -> float:
    """Return a measured or assumed value; `data/boots.json` has its source."""
    return _tables()["constants"][name]["value"]


def _row(table: str, key: str) -> dict[str, Any]:
    return {name: value for name, value in _tables()[table][key].items() if name != "sources"}


@cache
def _boots() -> tuple[Boot, ...]:
    known = {each.name for each in fields(Boot)}
    return tuple(Boot(**{name: row[name] for name in known & row.keys()}) for row in parts(_tables(), "boots"))


def nearest_boot(model: Model, card: SimulatedCard, chips: int, *, drafts: bool = False) -> Boot:
    """Return the boot whose figures a server has."""

    def likeness(boot: Boot) -> tuple[bool, ...]:
        hardware = boot.hardware
        return (
            (hardware.kind == "tpu") == (card.kind == "tpu"),
            boot.model == model.name,
            _checkpoint(boot.model).size == model.size,
            boot.card == card.key,
            boot.chips == chips,
            boot.drafts == drafts,
        )

    return max(_boots(), key=likeness)


@cache
def find_card(name: str) -> SimulatedCard | None:
    """Return a card by Google's name, such as `nvidia-l4` or `v6e-4`, or None for an unknown name. `""` has practically no memory limit."""
    generation, _, chips = name.rpartition("-")
    if generation and generation in _tables()["cards"] and chips.isdecimal():
        row = _row("cards", generation)
        row |= {"name": f"{row['name']}-{chips}", "devices": int(chips)}
        return SimulatedCard(key=generation, **row)
    row = _row("cards", name) if name in _tables()["cards"] else {}
    return SimulatedCard(key=name, **row) if "devices" in row else None


def find_model(name: str) -> Model | None:
    """Return a checkpoint by its Hugging Face id or by the last part of a path, or None for an unknown model: the first of `names` that fits."""
    base = re.sub(r"-[0-9a-f]{16}$", "", name.rstrip("/"))  # a staged folder can end in its hash
    for pattern, checkpoint in _tables()["names"]:
        found = re.search(pattern, base, re.IGNORECASE)
        if found is not None:
            return _checkpoint(checkpoint.format(size=(found.groupdict().get("size") or "").upper()))
    return _named_by_size(name)


def _checkpoint(key: str) -> Model:
    row = _row("checkpoints", key)
    return Model(name=key, **_row("models", row["size"]), **row)


def _named_by_size(name: str) -> Model | None:
    """Return a bf16 model whose id or folder states its billions of parameters (`org/other-8b`): the dense model of the nearest size.

    None for any other model, and for any Gemma.
    """
    owner, _, base = name.rstrip("/").rpartition("/")
    match = re.fullmatch(r"[\w.-]*?(\d+(?:\.\d+)?)b(?:-[\w.-]+)?", base, re.IGNORECASE)
    if match is None or not owner or base.lower().startswith("gemma"):
        return None
    stored_bytes = int(float(match[1]) * 2e9)
    dense = map(_checkpoint, ("E2B", "E4B", "12B", "31B"))
    nearest = min(dense, key=lambda model: abs(model.disk_bytes - stored_bytes))
    return replace(nearest, name=name, disk_bytes=stored_bytes)


def drafter_bytes(name: str) -> int:
    """Return the bytes of Google's draft model with this id; 0 for any other id."""
    named = name.rpartition("/")[2]
    sizes = _tables()["drafters"].items() if "assistant" in named else ()
    return next((size_bytes for size, size_bytes in sizes if f"-{size}-it" in named), 0)


def published_tpu_images() -> frozenset[str]:
    """Return the digests of the TPU images that cannot load 4-bit weights."""
    return frozenset(_tables()["published_tpu_images"])
