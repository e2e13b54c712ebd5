"""Storage format of a checkpoint's weights, from the quantization_config of its config.json.

A config of compressed-tensors has groups of layers, each with a format, and a config of ModelOpt with MIXED_PRECISION has a format for
each layer. Both are matched to the model's layers by name (`planning.model.layer_names`), and each part counts at the mean of its layers.
The order of precedence is that of vLLM 0.32.0 (compressed_tensors/utils.py, should_ignore_layer and find_matched_target): `ignore`
first; then the first target that is a layer's name or a regular expression for it, in the order of the groups; then the first target
that is part of the layer's class. So the order of the groups matters only where two of them name the same layer.

AutoRound's `extra_config` has bits and group size of layers that differ from the rest, by name, end of a name or regular expression
(inc/config_parser.py), and `modules_to_not_convert` of AWQ has parts of the names of unquantized layers (auto_awq.py).
"""

import fnmatch
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from msgspec import Struct
from msgspec.structs import replace

from gemma_serving.planning.data.quantization import FULL_BYTES, INT4_BYTES, SCHEMES
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.config_reader import ConfigReader, shown
from gemma_serving.planning.model.layer_names import NamedModule, named_modules
from gemma_serving.planning.model.spec import LayerGroup, ModelSpec, Role, tensors

_FOUR_BITS: Final = 4
_EIGHT_BITS: Final = 8
_SIXTEEN_BITS: Final = 16
_MX_GROUP: Final = 32
_PACKINGS: Final = frozenset({"awq", "gptq", "auto-round"})
"""Methods other than compressed-tensors that store 4-bit integers."""
_LINEAR: Final[tuple[Role, ...]] = ("attention", "mlp", "experts")
_BF16: Final = "bf16"
_ALL: Final = ("Linear",)
"""Targets of a group that states none."""
_MIXED: Final = "MIXED_PRECISION"
_NVFP4: Final = ("NVFP4", "W4A16_NVFP4")
"""ModelOpt's NVFP4 with inputs in 4 bits, and in bf16."""
_MODELOPT: Final[Mapping[str, tuple[str, float]]] = {
    "NVFP4": ("nvfp4", SCHEMES["nvfp4"].linear_bytes),
    "W4A16_NVFP4": ("nvfp4", SCHEMES["nvfp4"].linear_bytes),
    "FP8": ("fp8", SCHEMES["fp8"].linear_bytes),
    "FP8_PB_WO": ("fp8", SCHEMES["fp8"].linear_bytes),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", SCHEMES["fp8"].linear_bytes),
    "MXFP8": ("fp8", 1.0 + 1.0 / _MX_GROUP),
}
"""Scheme and bytes per parameter of `quant_algo` of a layer (vLLM's modelopt.py)."""
_REGEX: Final = "re:"
_COUNTED_ONCE: Final = re.compile(r"(experts|audio_tower\.layers)\.\d+\.")


class LayerFormat(Struct, frozen=True):
    """Storage format of a layer: a name of `planning.data.quantization`, and bytes per parameter with scales."""

    scheme: str
    size: float


class WeightGroup(Struct, frozen=True, kw_only=True):
    """Layers of one format, by their targets."""

    name: str
    targets: tuple[str, ...]
    format: LayerFormat


_UNQUANTIZED: Final = LayerFormat(_BF16, FULL_BYTES)


_REGEX_CHARACTERS: Final = frozenset("*+?^$()[]{}|\\")
"""A key of `extra_config` with one of these is a regular expression."""


def with_quantization(spec: ModelSpec, top: ConfigReader, layers: Sequence[LayerGroup]) -> ModelSpec:
    """Return an architecture with the storage format of its checkpoint. `layers` has a group for each decoder layer, in order.

    Raises PlanningError for a format that the planner does not know, and for groups that vLLM cannot load.
    """
    block = top.block("quantization_config") or top.block("compression_config")
    if block is None:
        return replace(spec, native_quantization=_BF16)
    spec = replace(spec, has_fp4_activations=_has_fp4_activations(block))
    groups = tuple(_groups(block, spec.name))
    if groups:
        found = _by_groups(spec, block, groups, layers)
        return replace(found, block_width=_block_width(block), packing=_packing(block))
    scheme, packing = _one_scheme(block, spec.name)
    return replace(
        spec,
        native_quantization=scheme,
        packing=packing,
        stored_bytes=_packed_bytes(block, scheme),
        block_width=_block_width(block),
    )


def _one_scheme(block: ConfigReader, name: str) -> tuple[str, str]:
    """Return the scheme in which the checkpoint stores its linear layers, and its method if it is one of _PACKINGS."""
    method, packing = block.text("quant_method"), _packing(block)
    bits = block.whole("bits", "weight_bits", default=0)
    algorithm = block.text("quant_algo").upper()
    kind = block.text("data_type")
    if method == "mxfp4":
        return "mxfp4-experts", packing
    if bits == _FOUR_BITS and kind.startswith("mx"):
        return "mxfp4", packing
    if algorithm in _NVFP4 or (bits == _FOUR_BITS and kind.startswith(("float", "nv"))):
        return _nvfp4(block), packing
    if method == "fp8" or algorithm == "FP8":
        return "fp8", packing
    if packing and bits == _FOUR_BITS:
        return "w4a16", packing
    raise PlanningError(
        f'{name}: quantization "{method}" with {bits or "unknown"} bits is not supported. Supported: fp8 and 4-bit weights.'
    )


def _packing(block: ConfigReader) -> str:
    """Return the method of a checkpoint if it is one of _PACKINGS; empty for any other."""
    method = block.text("quant_method")
    if method.rpartition("/")[2].replace("-", "") == "autoround":
        return "auto-round"  # it writes its name in several ways
    return method if method in _PACKINGS else ""


def _nvfp4(block: ConfigReader) -> str:
    """Return the NVFP4 scheme of ModelOpt, by the layers of the language model that the checkpoint leaves unquantized."""
    quantized = [
        one for one in block.texts("ignore", "exclude_modules") if not one.count("vision") and not one.count("audio")
    ]
    if not any("self_attn" in one for one in quantized):
        return "nvfp4"
    return "nvfp4-experts" if any(".mlp" in one and ".mlp.gate" not in one for one in quantized) else "nvfp4-mlp"


def _has_fp4_activations(block: ConfigReader) -> bool:
    """Return whether every group of 4-bit layers has 4-bit inputs: ModelOpt's NVFP4 (not W4A16_NVFP4), or compressed-tensors that state it."""
    if block.text("quant_method").startswith("modelopt"):
        algorithm, layers = block.text("quant_algo").upper(), block.block("quantized_layers")
        if algorithm != _MIXED or layers is None:
            return algorithm == "NVFP4"
        algorithms = {one.text("quant_algo").upper() for name in layers.values if (one := layers.block(name))}
        return algorithms & {*_NVFP4} == {"NVFP4"}
    groups = block.block("config_groups")
    found = [group for name in groups.values if (group := groups.block(name))] if groups else []
    bits = [_bits(group, "input_activations") for group in found if _bits(group, "weights") == _FOUR_BITS]
    return bool(bits) and all(one == _FOUR_BITS for one in bits)


def _bits(group: ConfigReader, part: str) -> int:
    numbers = group.block(part)
    return numbers.whole("num_bits", default=0) if numbers else 0


def _packed_bytes(block: ConfigReader, scheme: str) -> tuple[tuple[Role, float], ...]:
    """Return the bytes per parameter of 4-bit layers of AWQ and GPTQ, which store a scale and a 4-bit zero point for each group."""
    group = block.values.get("group_size")
    if scheme != "w4a16" or not isinstance(group, int) or group <= 0:
        return ()
    return tuple((role, _packed_size(_FOUR_BITS, group)) for role in _LINEAR)


def _packed_size(bits: int, group: object) -> float:
    """Return the bytes per parameter of integers of 4 or 8 bits with a scale and a zero point of as many bits for each group."""
    whole = bits / 8
    return whole + (FULL_BYTES + whole) / group if isinstance(group, int) and group > 0 else whole


def _block_width(block: ConfigReader) -> int:
    """Return the weights of a row in one block of FP8; 0 with a scale for each row. Groups of compressed-tensors name it `block_structure`."""
    groups = block.block("config_groups")
    found = [group for name in groups.values if (group := groups.block(name))] if groups else []
    weights = [
        one for group in found if (one := group.block("weights")) and one.whole("num_bits", default=0) == _EIGHT_BITS
    ]
    sizes = [block.values.get("weight_block_size"), *(one.values.get("block_structure") for one in weights)]
    lasts = [cast("list[object]", size)[-1] for size in sizes if isinstance(size, list) and size]
    return next((last for last in lasts if isinstance(last, int)), 0)


def _groups(block: ConfigReader, name: str) -> Iterator[WeightGroup]:
    """Yield the groups of layers of a config that has several formats or could have; none for a method with one format."""
    method, algorithm = block.text("quant_method"), block.text("quant_algo").upper()
    if algorithm == _MIXED:
        yield from _modelopt_groups(block, name)
    elif method == "compressed-tensors" or (method.startswith("modelopt") and algorithm not in (*_NVFP4, "FP8")):
        yield from _compressed_groups(block, name)
    elif _is_packed_by_layer(block):
        yield from _packed_groups(block, name)


def _compressed_groups(block: ConfigReader, name: str) -> Iterator[WeightGroup]:
    """Yield the groups of compressed-tensors that store weights in a format of their own."""
    groups = block.block("config_groups")
    for key in groups.values if groups else ():
        group = groups and groups.block(key)
        weights = group and group.block("weights")
        if group is None or weights is None:
            continue
        targets = group.texts("targets") or _ALL
        if len(targets) == 1 and targets[0].endswith("Attention"):
            continue  # vLLM skips it too: it quantizes the KV cache
        form = _format(weights, group.text("format") or block.text("format"), f"{name}, {key}")
        yield WeightGroup(name=key, targets=targets, format=form)


def _is_packed_by_layer(block: ConfigReader) -> bool:
    """Return whether a config of AWQ or AutoRound in 4-bit integers has layers in another format."""
    method = _packing(block)
    has_others = (
        bool(block.texts("modules_to_not_convert")) if method == "awq" else block.block("extra_config") is not None
    )
    if method not in {"awq", "auto-round"} or not has_others or block.text("data_type") not in {"", "int"}:
        return False
    return block.whole("bits", "weight_bits", default=0) == _FOUR_BITS


def _packed_groups(block: ConfigReader, name: str) -> Iterator[WeightGroup]:
    """Yield the layers of AWQ or AutoRound by format: those of `extra_config`, then the rest by class."""
    usual = block.values.get("group_size")
    for key, bits, group in _extra_layers(block, name):
        if bits < _SIXTEEN_BITS:
            form = LayerFormat(
                "w4a16" if bits == _FOUR_BITS else "fp8", _packed_size(bits, usual if group is None else group)
            )
            yield WeightGroup(name=key, targets=_by_name(key), format=form)
    size = _packed_size(_FOUR_BITS, usual) if isinstance(usual, int) and usual > 0 else SCHEMES["w4a16"].linear_bytes
    yield WeightGroup(name="all other layers", targets=_ALL, format=LayerFormat("w4a16", size))


def _extra_layers(block: ConfigReader, name: str) -> Iterator[tuple[str, int, object]]:
    """Yield key, bits and group size of each layer of AutoRound's `extra_config`. Raises PlanningError for other bits than 4, 8 and 16."""
    extra = block.block("extra_config") if _packing(block) == "auto-round" else None
    for key in extra.values if extra else ():
        if extra and (layer := extra.block(key)):
            bits = layer.whole("bits", default=_FOUR_BITS)
            if bits not in {_FOUR_BITS, _EIGHT_BITS} and bits < _SIXTEEN_BITS:
                raise PlanningError(f"{name}: {shown(key)} of extra_config has {bits} bits. Supported: 4, 8 and 16.")
            yield key, bits, layer.values.get("group_size")


def _by_name(key: str) -> tuple[str, ...]:
    """Return the targets that a key of `extra_config` means: a regular expression, or a name and the end of names."""
    if _REGEX_CHARACTERS & {*key}:
        return (f"{_REGEX}.*?(?:{key})",)
    return (key,) if key.startswith(("model.", "language_model.")) else (key, rf"{_REGEX}.*\.{re.escape(key)}$")


def _ignored(block: ConfigReader, name: str) -> tuple[str, ...]:
    """Return names and patterns of the layers that a config leaves unquantized."""
    parts = block.texts("modules_to_not_convert") if _packing(block) == "awq" else ()
    extra = [target for key, bits, _ in _extra_layers(block, name) if bits >= _SIXTEEN_BITS for target in _by_name(key)]
    return (*block.texts("ignore", "exclude_modules"), *(f"{_REGEX}.*{re.escape(part)}" for part in parts), *extra)


def _format(weights: ConfigReader, form: str, where: str) -> LayerFormat:
    """Return the format of a group of compressed-tensors by its bits, type and groups of weights that share a scale."""
    bits, kind = weights.whole("num_bits", default=0), weights.text("type")
    width = weights.values.get("group_size")
    group = width if isinstance(width, int) and width > 0 else 0
    is_mx = form.startswith("mx") or (kind == "float" and group == _MX_GROUP)
    if bits == _FOUR_BITS and (kind == "float" or is_mx):
        scheme = "mxfp4" if is_mx else "nvfp4"
        return LayerFormat(scheme, SCHEMES[scheme].linear_bytes)
    if bits == _FOUR_BITS:
        zeros = 0.0 if weights.flag("symmetric", default=True) else INT4_BYTES
        is_channel = weights.text("strategy") == "channel"
        size = INT4_BYTES + (FULL_BYTES + zeros) / group if group else INT4_BYTES
        return LayerFormat("w4a16", size if group or is_channel else SCHEMES["w4a16"].linear_bytes)
    if bits == _EIGHT_BITS:
        scale = (1.0 if is_mx else FULL_BYTES) / group if group else SCHEMES["fp8"].linear_bytes - 1.0
        return LayerFormat("fp8", 1.0 + scale)
    raise PlanningError(
        f'{where}: quantization "compressed-tensors" with {bits or "unknown"} bits is not supported. '
        "Supported: 4 and 8 bits."
    )


def _modelopt_groups(block: ConfigReader, name: str) -> Iterator[WeightGroup]:
    """Yield the layers of ModelOpt's mixed precision by format."""
    layers = block.block("quantized_layers")
    by_algorithm: dict[str, list[str]] = {}
    for layer in layers.values if layers else ():
        info = layers and layers.block(layer)
        by_algorithm.setdefault(info.text("quant_algo").upper() if info else "", []).append(layer)
    if not by_algorithm:
        raise PlanningError(
            f'{name}: "quant_algo" is {_MIXED}, which needs "quantized_layers" with the format of each layer.'
        )
    for algorithm, names in by_algorithm.items():
        if algorithm not in _MODELOPT:
            raise PlanningError(
                f'{name}: "quant_algo" of {shown(names[0])} is {shown(algorithm)}. Supported: {", ".join(_MODELOPT)}.'
            )
        yield WeightGroup(name=algorithm, targets=tuple(names), format=LayerFormat(*_MODELOPT[algorithm]))


class LayerPatterns:
    """Targets of groups or entries of `ignore`, in order: names of layers, regular expressions for them, and parts of class names."""

    def __init__(self, texts: Sequence[str], where: str) -> None:
        self._places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        self._patterns = {text: _compiled(text, where) for text in self._places if _is_pattern(text)}
        self._classes = tuple(text for text in self._places if text in self._patterns or "." not in text)

    def first(self, names: Sequence[str]) -> str | None:
        """Return the first entry that is one of a layer's names, or a regular expression for one."""
        exact = [name for name in names if name in self._places and not _is_pattern(name)]
        found = min(exact, key=lambda one: self._places[one], default=None)
        for text, pattern in self._patterns.items():
            if found is not None and self._places[found] < self._places[text]:
                break
            if any(pattern.match(name) for name in names):
                return text
        return found

    def first_of(self, module: NamedModule) -> str | None:
        """Return the first entry for a module: by the name that its matrix has in vLLM, else by its own."""
        return self.first(module.fused_names) or self.first(module.names)

    def first_of_class(self, classes: Sequence[str]) -> str | None:
        """Return the first entry that is part of one of these class names, in any case, or a regular expression for one."""
        for text in self._classes if classes else ():
            pattern = self._patterns.get(text)
            if any(pattern.match(one) if pattern else text.lower() in one.lower() for one in classes):
                return text
        return None


def _is_pattern(text: str) -> bool:
    return text.startswith(_REGEX) or "*" in text


def _compiled(text: str, where: str) -> re.Pattern[str]:
    """Return the pattern of `re:` and a regular expression, or of ModelOpt's wildcards. Raises PlanningError."""
    try:
        return re.compile(text.removeprefix(_REGEX) if text.startswith(_REGEX) else fnmatch.translate(text))
    except (re.error, OverflowError, RecursionError) as error:
        raise PlanningError(f"{where}: {shown(text)} is not a regular expression: {error}.") from None


def _by_groups(
    spec: ModelSpec, block: ConfigReader, groups: Sequence[WeightGroup], layers: Sequence[LayerGroup]
) -> ModelSpec:
    """Return an architecture whose parts have the mean bytes of their layers, each in the format of the group that names it."""
    # As in vLLM, a target of two groups keeps its first place and has the format of the last.
    formats = {text: group.format for group in groups for text in group.targets}
    targets = LayerPatterns(tuple(formats), spec.name)
    ignored = LayerPatterns(_ignored(block, spec.name), spec.name)
    modules = tuple(named_modules(spec, layers))
    fused: dict[str, str] = {}
    params: dict[tuple[Role, LayerFormat], int] = {}
    for module in modules:
        found = targets.first_of(module) or targets.first_of_class(module.classes)
        is_left = module.role == "router" or ignored.first_of(module) is not None
        form = _UNQUANTIZED if found is None or is_left else formats[found]
        _check_fused(module, form, fused, spec.name)
        params[module.role, form] = params.get((module.role, form), 0) + module.params
    return _with_parts(spec, params, tuple(_unmatched(groups, modules, spec.name)))


def _unmatched(groups: Sequence[WeightGroup], modules: Sequence[NamedModule], name: str) -> Iterator[str]:
    """Yield a clause for each group with a target that names no module of the model."""
    names = {name: None for module in modules for name in (*module.names, *module.fused_names)}
    classes = tuple({one: None for module in modules for one in module.classes})
    for group in groups:
        lost = [text for text in group.targets if not _names_one(text, names, classes, name)]
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            yield f"which layers {group.name} of its quantization_config means by {shown(lost[0])}{more}"


def _names_one(text: str, names: Mapping[str, None], classes: Sequence[str], where: str) -> bool:
    if not _is_pattern(text) and _of_first(text) in names:
        return True
    alone = LayerPatterns((text,), where)
    return alone.first_of_class(classes) is not None or (_is_pattern(text) and alone.first(tuple(names)) is not None)


def _of_first(text: str) -> str:
    """Return a name with the number of the first expert, and of the first layer of the audio tower, which count for all."""
    return _COUNTED_ONCE.sub(r"\1.0.", text)


def _check_fused(module: NamedModule, form: LayerFormat, fused: dict[str, str], name: str) -> None:
    """Raise PlanningError if two modules that are one matrix in vLLM have different formats."""
    if module.fused and fused.setdefault(module.fused, form.scheme) != form.scheme:
        raise PlanningError(
            f"{name}: {module.names[0]} is {form.scheme}, but vLLM fuses it with a projection that is "
            f"{fused[module.fused]}. Both need the same format in quantization_config."
        )


def _with_parts(
    spec: ModelSpec, params: Mapping[tuple[Role, LayerFormat], int], unmatched: tuple[str, ...]
) -> ModelSpec:
    """Return an architecture with parts in these formats, by role and format with the parameters of each."""
    quantized: set[tuple[Role, str]] = {(role, form.scheme) for role, form in params if form.scheme != _BF16}
    parts = tuple(sorted(quantized))
    if not parts:
        raise PlanningError(f"{spec.name}: no target of quantization_config names a layer of the model.")
    by_scheme: dict[str, int] = {}
    for (role, form), count in params.items():
        if role in _LINEAR and form.scheme != _BF16:
            by_scheme[form.scheme] = by_scheme.get(form.scheme, 0) + count
    # The scheme of most parameters names the checkpoint, whatever the order of its groups.
    main = max(sorted(by_scheme), key=lambda one: by_scheme[one], default=_BF16)
    scheme = _without_attention(parts) if main == "nvfp4" else main
    stored: dict[Role, float] = {}
    roles: dict[Role, None] = {role: None for role, _ in params}
    for role in roles:
        size = _mean_bytes(spec, role, params)
        usual = SCHEMES[scheme].bytes_of(role) if role in _LINEAR else FULL_BYTES
        if not math.isclose(size, usual):
            stored[role] = size
    return replace(
        spec,
        native_quantization=scheme,
        stored_bytes=tuple(stored.items()),
        parts=parts if len({one for _, one in parts}) > 1 else (),
        unmodelled=(*spec.unmodelled, *unmatched),
    )


def _without_attention(parts: Sequence[tuple[Role, str]]) -> str:
    """Return the NVFP4 scheme by the parts of the language model that stay in bf16."""
    quantized = {role for role, _ in parts}
    if "attention" in quantized:
        return "nvfp4"
    return "nvfp4-mlp" if "mlp" in quantized else "nvfp4-experts"


def _mean_bytes(spec: ModelSpec, role: Role, params: Mapping[tuple[Role, LayerFormat], int]) -> float:
    """Return the mean bytes per parameter of a part. What no config can name, such as a tower's tables, is in bf16."""
    named = {form: count for (one, form), count in params.items() if one == role}
    whole = sum(tensor.params for tensor in tensors(spec) if tensor.role == role and not tensor.copy)
    rest = max(whole - sum(named.values()), 0)
    total = sum(named.values()) + rest
    return (
        (sum(form.size * count for form, count in named.items()) + FULL_BYTES * rest) / total if total else FULL_BYTES
    )
