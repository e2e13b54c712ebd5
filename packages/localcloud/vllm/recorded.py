"""Recorded boots of real servers (`data/boots.json`), and the rule for what has no recording.

The nearest recordings count: those of the same card, the same kind of weights and the same model, as far as there are any. Of several, the
median counts. Weights scale with the number of chips, reading with the size of the files, compilation with programs (TPU) or layers (GPU), a
step with the bytes that a device reads and its bandwidth. 1 GiB is 2**30 bytes, 1 GB is 10**9 bytes.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from statistics import median
from typing import Any, Final

from localcloud.json_values import JsonObject, as_object, packaged, part, parts

GIB: Final = 2**30
_LEAST_BYTES: Final = 0.5625
"""Bytes of a 4-bit parameter with its scales."""
_LINEAR_BYTES: Final = {"fp8": 1.0, "nvfp4": _LEAST_BYTES}
"""Bytes of a parameter of a linear layer; 2 in bf16, _LEAST_BYTES in w4a16."""
_STORED_FORMS: Final = {"int4": "w4a16", "float8": "fp8", "float4": "nvfp4"}
"""Forms of compressed-tensors by the type and the bits of a weight."""
_ACTIVE_BYTES: Final = {"bf16": 2.0, "fp8": 1.12, "nvfp4": 0.7, "w4a16": 0.65}
"""Mean bytes of a parameter that a token reads. w4a16: about 16.4 GB over 25.23 billion parameters; fp8: 12.75 GiB of 22.7 for 12B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A checkpoint. The numbers of sliding and global layers exclude layers that share another layer's KV.

    `form`: bf16, fp8, nvfp4 or w4a16 (int4 compressed-tensors); `active_b`: billions of parameters read per token; `layers`: all layers;
    `largest_tensor_gib`: the largest tensor of the files, 0 if unknown; `stored_head_gib`: an output head that a GPU loads and then drops.
    """

    name: str
    size: str
    form: str = "bf16"
    disk_bytes: int
    active_b: float
    layers: int
    sliding_layers: int
    global_layers: int
    kv_heads_sliding: int
    kv_heads_global: int
    window: int
    max_position: int
    is_moe: bool = False
    largest_tensor_gib: float = 0.0
    stored_head_gib: float = 0.0
    shards: int = 1

    @property
    def is_w4a16(self) -> bool:
        """Return whether the weights are int4 compressed-tensors."""
        return self.form == "w4a16"

    @property
    def bytes_per_active(self) -> float:
        """Return the mean bytes of a parameter that a token reads."""
        return _ACTIVE_BYTES[self.form]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCard:
    """The hardware of the server: `devices` equal devices. Bandwidth and FLOPS are the peak of one device, from the vendors' data sheets.

    `default_block_size`: None if it depends on the length; `prefill_share`: share of the FLOPS that prompts reach; `expert_prompt_s`: time
    that a prompt token takes to reach its experts, on any number of devices; `link_s_per_layer`: added to a step with several devices;
    `sequence_s`: time that each further sequence adds to a step, 0 if recorded boots tell; `more_sequences_s`: the same beyond
    `engine.MEASURED_SEQUENCES`, rows of the last sequence and its seconds, empty if all add the same; `verified_token_s`: time that each token
    of a step with proposals adds, 0 if unknown.
    """

    key: str
    name: str
    kind: str
    devices: int
    total_gib: float
    bandwidth_gb_per_s: float
    tflops: float
    default_max_num_seqs: int
    default_max_num_batched_tokens: int
    default_block_size: int | None = None
    ttft_base_s: float
    prefill_share: float = 0.4
    expert_prompt_s: float = 0.0
    link_s_per_layer: float = 0.0
    sequence_s: float = 0.0
    more_sequences_s: tuple[tuple[int, float], ...] = ()
    verified_token_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBoot:
    """A recorded boot, with an empty compile cache; `data/boots.json` explains the fields. A figure is 0 if the recording lacks it."""

    model: Model
    card: str
    chips: int = 1
    is_text: bool = False
    weights_gib: float = 0.0
    utilization: float = 0.0
    kv_gib: float = 0.0
    compile_s: float = 0.0
    programs: int = 1
    load_s: float = 0.0
    decode: float = 0.0
    decode_16: float = 0.0

    @property
    def hardware(self) -> SimulatedCard:
        """Return the card, with the chips of this boot."""
        found = find_card(self.card) or find_card(f"{self.card}-{self.chips}")
        assert found is not None  # noqa: S101 - the table has the cards of its boots
        return found

    @property
    def is_tpu(self) -> bool:
        """Return whether it ran on a TPU."""
        return self.hardware.kind == "tpu"


@cache
def _tables() -> JsonObject:
    return packaged("localcloud.vllm", "boots.json")


def constant(name: str) -> float:
    """Return a measured or assumed value; `data/boots.json` has its source."""
    return _tables()["constants"][name]["value"]


def _row(table: str, key: str) -> dict[str, Any]:
    return {name: value for name, value in _tables()[table][key].items() if name != "sources"}


@cache
def _boots() -> tuple[RecordedBoot, ...]:
    known = {each.name for each in fields(RecordedBoot)}
    rows = [{name: row[name] for name in known & row.keys()} for row in parts(_tables(), "boots")]
    return tuple(RecordedBoot(model=_checkpoint(row.pop("model")), **row) for row in rows)


@cache
def find_card(name: str) -> SimulatedCard | None:
    """Return a card by Google's name, such as `nvidia-l4` or `v6e-4`, or None for an unknown name. `""` has practically no memory limit."""
    generation, _, chips = name.rpartition("-")
    if generation and generation in _tables()["cards"] and chips.isdecimal():
        row = _row("cards", generation)
        row |= {"name": f"{row['name']}-{chips}", "devices": int(chips)}
        row["more_sequences_s"] = tuple((last, seconds) for last, seconds in row["more_sequences_s"])
        return SimulatedCard(key=generation, **row)
    row = _row("cards", name) if name in _tables()["cards"] else {}
    return SimulatedCard(key=name, **row) if "devices" in row else None


def find_model(name: str) -> Model | None:
    """Return a checkpoint by its Hugging Face id or by the last part of a path, or None for an unknown model."""
    base = re.sub(r"-[0-9a-f]{16}$", "", name.rstrip("/").rsplit("/", 1)[-1])  # a staged folder can end in its hash
    if name == "simulated/tiny":
        return _checkpoint("tiny")
    match = re.fullmatch(r"gemma-4-(E2B|E4B|12B|26B-A4B|31B)((?:-[a-z0-9_]+)*)", base, re.IGNORECASE)
    if match is None:
        return _named_by_size(name)
    size, suffix = match[1].upper(), match[2].lower()
    if "-fp8" in suffix or "-nvfp4" in suffix:
        # NVIDIA's NVFP4 leaves attention in bf16 and weighs as much as FP8: 31.0 GiB were logged for 31B.
        is_nvfp4 = "-nvfp4" in suffix and not name.lower().startswith("nvidia/")
        made = converted(_checkpoint(size), "nvfp4" if is_nvfp4 else "fp8")
        return replace(made, disk_bytes=int(_unrecorded_gib(made) * GIB))
    if "w4a16" not in suffix and ("qat" not in suffix or "unquantized" in suffix):
        return _checkpoint(size)
    repacked = f"{size}-q4_0-w4a16"
    return _checkpoint(repacked if "q4_0" in suffix and repacked in _tables()["checkpoints"] else f"{size}-w4a16")


def in_stored_form(model: Model, config: str) -> Model:
    """Return a checkpoint in the precision that its config.json states; unchanged if the text states none that is known, as that of a placeholder."""
    try:
        document = as_object(json.loads(config))
    except ValueError:
        return model
    groups = part(part(document, "quantization_config"), "config_groups").values()
    weights = part(as_object(next(iter(groups), None)), "weights")
    is_plain = "model_type" in document and "quantization_config" not in document
    form = "bf16" if is_plain else _STORED_FORMS.get(f"{weights.get('type')}{weights.get('num_bits')}", model.form)
    return (find_model(f"gemma-4-{model.size}-{form}") if form != model.form else None) or model


def _checkpoint(key: str) -> Model:
    size = key.removesuffix("-w4a16").removesuffix("-q4_0")
    form = "w4a16" if key.endswith("-w4a16") else "bf16"
    return Model(name=key, size=size, form=form, **{**_row("models", size), **_row("checkpoints", key)})


def converted(model: Model, form: str) -> Model:
    """Return a bf16 checkpoint as it is in memory in another form."""
    return replace(model, name=f"{model.size}-{form}", form=form)


def _named_by_size(name: str) -> Model | None:
    """Return a bf16 model whose id or folder states its billions of parameters (`org/other-8b`): the dense model of the nearest size, scaled.

    None for any other model, and for any Gemma.
    """
    owner, _, base = name.rstrip("/").rpartition("/")
    match = re.fullmatch(r"[\w.-]*?(\d+(?:\.\d+)?)b(?:-[\w.-]+)?", base, re.IGNORECASE)
    if match is None or not owner or base.lower().startswith("gemma"):
        return None
    billions = float(match[1])
    nearest = min(map(_checkpoint, ("E2B", "E4B", "12B", "31B")), key=lambda model: abs(model.active_b - billions))
    return replace(nearest, name=name, size=name, active_b=billions, disk_bytes=int(billions * 2e9))


def drafter(name: str) -> tuple[int, float]:
    """Return the bytes of Google's draft model with this id, and the GiB of the embeddings that it shares; zeros for any other id."""
    named = name.rpartition("/")[2]
    if "assistant" in named:
        for size, row in _tables()["drafters"].items():
            if f"-{size}-it" in named:
                return row["bytes"], row["embeddings_gib"]
    return 0, 0.0


def published_tpu_images() -> frozenset[str]:
    """Return the digests of the TPU images that cannot load 4-bit weights."""
    return frozenset(_tables()["published_tpu_images"])


def weights_gib(model: Model, card: SimulatedCard, chips: int, *, is_text: bool) -> float:
    """Return the weights of one device: as recorded for this checkpoint, else by the size of its files."""
    rows = [boot for boot in _with("weights_gib", card) if boot.model.name == model.name]
    if not rows:
        return _unrecorded_gib(model) / chips
    best = min(rows, key=lambda boot: (boot.is_text != is_text, abs(boot.chips - chips)))
    return best.weights_gib * best.chips / chips


def _unrecorded_gib(model: Model) -> float:
    """Return the weights on one GPU. FP8 and NVFP4 lie between bf16 and 4 bits by the bytes of a linear layer's parameter."""
    if model.form not in _LINEAR_BYTES:
        return model.disk_bytes / GIB + constant("BEYOND_FILES_GIB")
    linear_bytes = _LINEAR_BYTES[model.form]
    keys = [key for key in _tables()["checkpoints"] if key.startswith(f"{model.size}-")]
    if not keys:
        return model.disk_bytes / GIB * linear_bytes / 2 + constant("BEYOND_FILES_GIB")
    full, *least = (_on_gpu_gib(_checkpoint(key)) for key in (model.size, *keys))
    return full - (full - min(least)) * (2 - linear_bytes) / (2 - _LEAST_BYTES)


def _on_gpu_gib(model: Model) -> float:
    gpu = find_card("")
    assert gpu is not None  # noqa: S101 - a row of the table
    return weights_gib(model, gpu, 1, is_text=False)


def other_gib(model: Model, card: SimulatedCard, *, tuned_gib: float) -> float:
    """Return the memory of a device, within its utilization, that is neither weights nor KV cache. A TPU has none.

    `tuned_gib`: embeddings that a GPU's first start copies to tune its kernels, 0 without a copy.
    """
    if card.kind == "tpu":
        return 0.0
    near = _nearest(
        [boot for boot in _with("kv_gib", card) if not boot.is_text],
        lambda boot: boot.card == card.key,
        lambda boot: boot.model.size == model.size,
    )
    served = median(_left_over_gib(boot) for boot in near)
    return max(served, tuned_gib + constant("BESIDE_TUNED_GIB")) if tuned_gib else served


def _left_over_gib(boot: RecordedBoot) -> float:
    weights = weights_gib(boot.model, boot.hardware, 1, is_text=boot.is_text)
    return boot.hardware.total_gib * boot.utilization - weights - boot.kv_gib


def compile_s(model: Model, card: SimulatedCard, programs: int) -> float:
    """Return the seconds of a compilation and warm-up, on a TPU of this number of XLA programs."""
    alike = _alike(_with("compile_s", card), model, card)
    if card.kind == "tpu":
        return median(boot.compile_s / boot.programs for boot in alike) * programs
    return median(boot.compile_s / boot.model.layers for boot in alike) * model.layers


def tpu_read_mb_per_s(model: Model, card: SimulatedCard) -> float:
    """Return the rate at which a TPU reads a model after its download."""
    return median(_read_mb_per_s(boot) for boot in _alike(_with("load_s", card), model, card))


def _read_mb_per_s(boot: RecordedBoot) -> float:
    megabytes = boot.model.disk_bytes / 1e6
    return megabytes / (boot.load_s - megabytes / constant("TPU_HUB_MB_PER_S"))


def step_s(model: Model, card: SimulatedCard, chips: int) -> float:
    """Return the time of a step with one request: recorded ones, by the bytes that a device reads and its bandwidth."""
    alike = _alike(_with("decode", card), model, card)
    read_share = median(1 / boot.decode / _read_s(boot.model, boot.hardware, boot.chips) for boot in alike)
    link_s = card.link_s_per_layer * model.layers if chips > 1 else 0.0
    return _read_s(model, card, chips) * read_share + link_s


def _read_s(model: Model, card: SimulatedCard, chips: int) -> float:
    return model.active_b * model.bytes_per_active / chips / card.bandwidth_gb_per_s


def sequence_s(model: Model, card: SimulatedCard, chips: int) -> float:
    """Return the time that each further request adds to a step: recorded ones with 16 requests, divided by the chips."""
    rows = [boot for boot in _with("decode_16", card) if boot.model.is_moe == model.is_moe]
    if not rows:
        return card.sequence_s / chips
    alike = _nearest(_alike(rows, model, card), lambda boot: boot.chips == chips)
    return median(_more_s(boot) * boot.chips / chips for boot in alike)


def _more_s(boot: RecordedBoot) -> float:
    return (16 / boot.decode_16 - step_s(boot.model, boot.hardware, boot.chips)) / 15


def _with(figure: str, card: SimulatedCard) -> Sequence[RecordedBoot]:
    """Return the boots on the card's kind of hardware that have a figure."""
    return [boot for boot in _boots() if getattr(boot, figure) and boot.is_tpu == (card.kind == "tpu")]


def _alike(rows: Sequence[RecordedBoot], model: Model, card: SimulatedCard) -> Sequence[RecordedBoot]:
    return _nearest(
        rows,
        lambda boot: boot.model.is_w4a16 == model.is_w4a16,
        lambda boot: boot.card == card.key,
        lambda boot: boot.model.size == model.size,
    )


def _nearest(rows: Sequence[RecordedBoot], *likes: Callable[[RecordedBoot], bool]) -> Sequence[RecordedBoot]:
    """Return the rows that are alike in as many ways as possible, the first way first."""
    for like in likes:
        rows = [row for row in rows if like(row)] or rows
    return rows
