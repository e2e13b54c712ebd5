"""Storage format of a checkpoint's weights, from the quantization_config of its config.json.

One format for all quantized layers; the tables of compressed-tensors may have another one. `targets` and `ignore` of compressed-tensors,
`exclude_modules` of ModelOpt, `modules_to_not_convert` of AWQ and layers of 16 bits in AutoRound's `extra_config` say which parts of the model stay in
bf16. A part counts as bf16 as soon as one of its layers does, so the plan never has less memory than the server needs. A checkpoint whose layers have
two formats is refused.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from gemma_serving.planning.data.quantization import FULL_BYTES, INT4_BYTES, SCHEMES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.config_reader import ConfigReader, shown
from gemma_serving.planning.model.spec import ModelSpec, Role, tensors

_FOUR_BITS: Final = 4
_EIGHT_BITS: Final = 8
_SIXTEEN_BITS: Final = 16
_MX_GROUP: Final = 32
_PACKINGS: Final = frozenset({"awq", "gptq", "auto-round"})
"""Methods other than compressed-tensors that store 4-bit integers."""
_LINEAR: Final[tuple[Role, ...]] = ("attention", "mlp", "experts")
_TABLES: Final[tuple[Role, ...]] = ("embedding", "layer-embedding", "lm-head")
_ALL: Final = ("Linear",)
"""Targets of a group that states none: every linear layer, by its class."""
_NVFP4: Final = ("NVFP4", "W4A16_NVFP4")
"""ModelOpt's NVFP4 with inputs in 4 bits, and in bf16."""
_WORDS: Final[Mapping[str, tuple[Role, ...]]] = {
    "vision": (),
    "visual": (),
    "audio": (),
    "router": (),
    "projector": (),
    "expert_gate": (),
    "mlp.gate.": (),
    "embed_tokens_per_layer": ("layer-embedding",),
    "embed_tokens": ("embedding",),
    "embedding": ("embedding", "layer-embedding"),
    "lm_head": ("lm-head",),
    "shared_expert": ("mlp",),
    "expert": ("experts",),
    "self_attn": ("attention",),
    "mlp": ("mlp",),
}
"""Parts of the model by a word in a layer's name or class. The first word decides. What belongs to no part is never quantized."""


class _Stored(NamedTuple):
    """The format of the quantized layers: a name of `planning.data.quantization`, bytes per parameter with scales, and the layers that have it."""

    scheme: str
    size: float
    targets: tuple[str, ...] = _ALL
    ignored: tuple[str, ...] = ()
    tables: Mapping[Role, float] = MappingProxyType({})
    """Bytes per parameter of tables with a format of their own."""


def with_quantization(spec: ModelSpec, top: ConfigReader) -> ModelSpec:
    """Return an architecture with the storage format of its checkpoint.

    Raises PlanningError for a format that the planner does not know, and for more than one.
    """
    block = top.block("quantization_config") or top.block("compression_config")
    if block is None:
        return replace(spec, native_quantization="bf16")
    stored = _stored(block, spec.name)
    present: set[Role] = {tensor.role for tensor in tensors(spec)}
    left: set[Role] = {role for text in stored.ignored for role in _roles(text) or ()}
    targeted: set[Role] = {*stored.tables, *(role for text in stored.targets for role in _targeted(text, spec.name))}
    quantized = targeted & present - left
    if not quantized:
        raise PlanningError(f"{spec.name}: no target of quantization_config names a layer of the model.")
    scheme = _scheme(stored.scheme, quantized)
    cache = _cache(block)
    sizes: dict[Role, float] = {role: stored.size if role in quantized else FULL_BYTES for role in _LINEAR}
    usual = SCHEMES[scheme].bytes_of
    tables = {role: stored.tables.get(role, stored.size) for role in _TABLES if role in quantized}
    return replace(
        spec,
        native_quantization=scheme,
        stored_bytes=(
            *((role, size) for role, size in sizes.items() if role in present and not math.isclose(size, usual(role))),
            *tables.items(),
        ),
        quantizes=tuple(sorted(_quantizes(spec, stored))) if block.text("quant_method") == "compressed-tensors" else (),
        packing=_packing(block),
        block_width=_block_width(block),
        has_fp4_activations=_has_fp4_activations(block),
        kv_cache_dtype="fp8" if cache == "fp8" else "auto",
        unmodelled=(*spec.unmodelled, *_unknown(stored, left & present, cache)),
    )


def _quantizes(spec: ModelSpec, stored: _Stored) -> Iterator[str]:
    """Yield what Gemma 4 has beside the layers of its language model, if a target names it by its class and `ignore` does not name it."""
    towers = "embedders" if spec.tpu_torch_path else "encoders"
    modules = {
        "router": "router" if spec.is_moe else "",
        "vision_tower": towers if spec.vision is not None else "",
        "audio_tower": towers if spec.audio_params else "",
        "embed_vision": towers if spec.is_multimodal else "",
        "embed_audio": towers if spec.accepts_audio else "",
    }
    if spec.is_gemma4 and any(target.endswith("Linear") for target in stored.targets):
        yield from {part for module, part in modules.items() if part and not _ignores(stored.ignored, module)}


def _ignores(ignored: Sequence[str], module: str) -> bool:
    """Return whether a name or a pattern means a module, or one of its layers."""
    layer = f"model.{module}.embedding_projection"
    try:
        return any(module in text or (text.startswith("re:") and re.match(text[3:], layer)) for text in ignored)
    except re.error:
        return True


def _scheme(scheme: str, quantized: set[Role]) -> str:
    """Return the scheme by the parts of the language model that stay in bf16."""
    if quantized.isdisjoint(_LINEAR):
        return "bf16"
    if scheme != "nvfp4" or "attention" in quantized:
        return scheme
    return "nvfp4-mlp" if "mlp" in quantized else "nvfp4-experts"


def _roles(text: str) -> tuple[Role, ...] | None:
    """Return the parts of the model that a name, a pattern or a class means; None if that is unknown."""
    if text.endswith("Linear"):
        return _LINEAR
    plain = re.sub(r"[\\$]", "", f"{text.lower()}.")
    return next((roles for word, roles in _WORDS.items() if word in plain), None)


def _targeted(text: str, name: str) -> tuple[Role, ...]:
    roles = _roles(text)
    if roles is None:
        raise PlanningError(
            f"{name}: which layers quantization_config means by {shown(text)} is unknown. The planner knows Linear, Embedding, and names with "
            "self_attn, mlp, experts, embed_tokens or lm_head. Measure it instead."
        )
    return roles


def _unknown(stored: _Stored, left: set[Role], cache: str) -> Iterator[str]:
    """Yield a clause for what `ignore` leaves open, and for a KV cache of unknown size."""
    if cache == "nvfp4":
        yield "the size of the NVFP4 KV cache that its quantization_config names (bf16 is planned)"
    parts = " and ".join(role for role in _LINEAR if role in left)
    if parts:
        yield f"how many layers of its {parts} stay in bf16 (all are counted)"
    lost = [text for text in stored.ignored if _roles(text) is None]
    if lost:
        yield f"which layers its quantization_config leaves in bf16 by {shown(lost[0])}"


def _stored(block: ConfigReader, name: str) -> _Stored:
    """Return the format of the quantized layers, and which layers have it."""
    method, algorithm = block.text("quant_method"), block.text("quant_algo").upper()
    bits, kind, packing = block.whole("bits", "weight_bits", default=0), block.text("data_type"), _packing(block)
    ignored = block.texts("ignore", "exclude_modules")
    if method == "mxfp4":
        return _Stored("mxfp4-experts", SCHEMES["mxfp4-experts"].linear_bytes, ("experts",), ignored)
    if bits == _FOUR_BITS and kind.startswith("mx"):
        return _Stored("mxfp4", SCHEMES["mxfp4"].linear_bytes, ignored=ignored)
    if algorithm in _NVFP4 or (bits == _FOUR_BITS and kind.startswith(("float", "nv"))):
        return _Stored("nvfp4", SCHEMES["nvfp4"].linear_bytes, ignored=ignored)
    if method == "fp8" or algorithm == "FP8":
        return _Stored("fp8", SCHEMES["fp8"].linear_bytes, ignored=ignored)
    if packing and bits == _FOUR_BITS:
        return _packed(block, name, ignored)
    if algorithm != "MIXED_PRECISION" and (method == "compressed-tensors" or method.startswith("modelopt")):
        return _compressed(block, name, ignored)
    if algorithm == "MIXED_PRECISION":
        raise _several(name, ("MIXED_PRECISION",))
    raise PlanningError(
        f'{name}: quantization "{method}" with {bits or "unknown"} bits is not supported. Supported: fp8 and 4-bit weights.'
    )


def _several(name: str, formats: Sequence[str]) -> PlanningError:
    return PlanningError(
        f"{name}: quantization_config has several formats ({', '.join(formats)}), and the planner reads checkpoints whose layers have one. "
        "Measure it instead."
    )


def _compressed(block: ConfigReader, name: str, ignored: tuple[str, ...]) -> _Stored:
    """Return the format of the groups of compressed-tensors."""
    found: dict[tuple[str, float], list[str]] = {}
    for key, group in _config_groups(block):
        weights, targets = group.block("weights"), group.texts("targets") or _ALL
        # vLLM skips a group of attention too: it quantizes the KV cache.
        if weights is not None and not (len(targets) == 1 and targets[0].endswith("Attention")):
            form = _format(weights, group.text("format") or block.text("format"), f"{name}, {key}")
            found.setdefault(form, []).extend(targets)
    roles: dict[tuple[str, float], set[Role]] = {
        form: {role for text in targets for role in _targeted(text, name)} for form, targets in found.items()
    }
    apart = [form for form in found if len(found) > 1 and roles[form].issubset(_TABLES)]
    tables: dict[Role, float] = {role: form[1] for form in apart for role in roles[form]}
    layers = {form: tuple(targets) for form, targets in found.items() if form not in apart}
    if len(layers) > 1:
        raise _several(name, [f"{scheme} of {size:.4g} bytes" for scheme, size in found])
    for (scheme, size), targets in layers.items():
        return _Stored(scheme, size, targets, ignored, tables)
    raise PlanningError(f"{name}: no target of quantization_config names a layer of the model.")


def _config_groups(block: ConfigReader) -> Iterator[tuple[str, ConfigReader]]:
    groups = block.block("config_groups")
    for key in groups.values if groups else ():
        if groups and (group := groups.block(key)):
            yield key, group


def _packed(block: ConfigReader, name: str, ignored: tuple[str, ...]) -> _Stored:
    """Return the format of 4-bit integers of AWQ, GPTQ or AutoRound, which store a scale and a 4-bit zero point for each group."""
    packing, usual = _packing(block), block.values.get("group_size")
    extra = block.block("extra_config") if packing == "auto-round" else None
    others = block.texts("modules_to_not_convert") if packing == "awq" else ()
    for key in extra.values if extra else ():
        if extra and (layer := extra.block(key)):
            bits, group = layer.whole("bits", default=_FOUR_BITS), layer.values.get("group_size", usual)
            if bits < _SIXTEEN_BITS and (bits, group) != (_FOUR_BITS, usual):
                raise _several(name, ("4 bits", f"{bits} bits in groups of {shown(group)} for {shown(key)}"))
            others = (*others, key) if bits >= _SIXTEEN_BITS else others
    size = SCHEMES["w4a16"].linear_bytes
    if isinstance(usual, int) and usual > 0:
        size = INT4_BYTES + (FULL_BYTES + INT4_BYTES) / usual
    return _Stored("w4a16", size, ignored=(*ignored, *others))


def _packing(block: ConfigReader) -> str:
    """Return the method of a checkpoint if it is one of _PACKINGS; empty for any other."""
    method = block.text("quant_method")
    if method.rpartition("/")[2].replace("-", "") == "autoround":
        return "auto-round"  # it writes its name in several ways
    return method if method in _PACKINGS else ""


def _has_fp4_activations(block: ConfigReader) -> bool:
    """Return whether every group of 4-bit layers has 4-bit inputs: ModelOpt's NVFP4 (not W4A16_NVFP4), or compressed-tensors that state it."""
    if block.text("quant_method").startswith("modelopt"):
        return block.text("quant_algo").upper() == "NVFP4"
    groups = [group for _, group in _config_groups(block)]
    bits = [_bits(group, "input_activations") for group in groups if _bits(group, "weights") == _FOUR_BITS]
    return bool(bits) and all(one == _FOUR_BITS for one in bits)


def _cache(block: ConfigReader) -> str:
    """Return the type of the KV cache that vLLM takes from a checkpoint: fp8, nvfp4, or empty.

    As in vLLM 0.22.1 to 0.32.0 (utils/torch_utils.py, get_kv_cache_quant_algo_string, and attention.py for compressed-tensors).
    """
    method, inner = block.text("quant_method"), block.block("quantization") or block
    scheme = inner.block("kv_cache_scheme") or block.block("kv_cache_scheme")
    if method == "compressed-tensors":
        return "fp8" if scheme else ""
    if not method.startswith("modelopt"):
        return ""
    if scheme is None:
        return (inner.text("kv_cache_quant_algo") or block.text("kv_cache_quant_algo")).lower()
    if scheme.text("type") != "float":
        return ""
    return {_EIGHT_BITS: "" if scheme.flag("dynamic", default=True) else "fp8", _FOUR_BITS: "nvfp4"}.get(
        scheme.whole("num_bits", default=0), ""
    )


def _bits(group: ConfigReader, part: str) -> int:
    numbers = group.block(part)
    return numbers.whole("num_bits", default=0) if numbers else 0


def _block_width(block: ConfigReader) -> int:
    """Return the weights of a row in one block of FP8; 0 with a scale for each row. Groups of compressed-tensors name it `block_structure`."""
    groups = [group.block("weights") for _, group in _config_groups(block) if _bits(group, "weights") == _EIGHT_BITS]
    sizes = [
        block.values.get("weight_block_size"),
        *(weights.values.get("block_structure") for weights in groups if weights),
    ]
    lasts = [cast("list[object]", size)[-1] for size in sizes if isinstance(size, list) and size]
    return next((last for last in lasts if isinstance(last, int)), 0)


def _format(weights: ConfigReader, form: str, where: str) -> tuple[str, float]:
    """Return scheme and bytes of a group of compressed-tensors by its bits, type and groups of weights that share a scale."""
    bits, kind = weights.whole("num_bits", default=0), weights.text("type")
    width = weights.values.get("group_size")
    group = width if isinstance(width, int) and width > 0 else 0
    is_mx = form.startswith("mx") or (kind == "float" and group == _MX_GROUP)
    if bits == _FOUR_BITS and (kind == "float" or is_mx):
        scheme = "mxfp4" if is_mx else "nvfp4"
        return scheme, SCHEMES[scheme].linear_bytes
    if bits == _FOUR_BITS:
        zeros = 0.0 if weights.flag("symmetric", default=True) else INT4_BYTES
        is_channel = weights.text("strategy") == "channel"
        size = INT4_BYTES + (FULL_BYTES + zeros) / group if group else INT4_BYTES
        return "w4a16", size if group or is_channel else SCHEMES["w4a16"].linear_bytes
    if bits == _EIGHT_BITS:
        scale = (1.0 if is_mx else FULL_BYTES) / group if group else SCHEMES["fp8"].linear_bytes - 1.0
        return "fp8", 1.0 + scale
    raise PlanningError(
        f'{where}: quantization "compressed-tensors" with {bits or "unknown"} bits is not supported. '
        "Supported: 4 and 8 bits."
    )
