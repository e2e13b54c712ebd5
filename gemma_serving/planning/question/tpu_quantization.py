"""The precision to which vLLM on TPU converts weights while it loads them: rules of qwix in `--additional-config`, or `vllm.tpuQuantization`.

Source: tpu-inference 0.29 to 0.32, models/common/model_loader.py and models/jax/utils/qwix/qwix_utils.py; qwix, _src/qconfig.py. The rules are applied
to the loaded bf16 model, and only to a model with a JAX implementation. The first rule whose pattern matches the whole path of a module decides.
Only what the language model multiplies is converted: embeddings, output head, and towers stay in bf16 (dev/docs/compiled.md).
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from gemma_serving.contracts.fields import as_mapping, as_sequence
from gemma_serving.planning.data.quantization import QWIX, Scheme
from gemma_serving.planning.numbers import read_json
from gemma_serving.planning.question.server_flags import ServerArgument, flag_table, parse_arguments
from gemma_serving.planning.settings.vllm_args import ADDITIONAL_CONFIG, OPTIONS, VllmOptions

_ANY: Final = ".*"
"""qwix's own pattern for a rule without one."""
_NAMES: Final[Mapping[str, str]] = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "int8": "int8"}
"""Types of one byte, by qwix's names, with the last word of the scheme's name."""
_LAYER: Final = "model/language_model/layers/0/"
_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": tuple(f"{_LAYER}self_attn/{name}_proj" for name in "qkvo"),
    "mlp": tuple(f"{_LAYER}mlp/{name}_proj" for name in ("gate", "up", "down")),
}
"""Paths of the modules of each role in a decoder layer (tpu-inference, models/jax/gemma4.py)."""
_EXPERTS: Final = frozenset({"experts"})
"""Roles that the rules leave in bf16: the kernel of experts multiplies outside the operations that qwix converts."""


def converted_scheme(options: VllmOptions) -> Scheme | None:
    """Return the precision of the converted weights; None without rules, or with rules that the plan does not know."""
    return _scheme(_stated(options))


def is_planned(argument: ServerArgument) -> bool:
    """Return whether an argument is only rules whose effect is planned."""
    return argument.name == ADDITIONAL_CONFIG and not argument.key and _scheme(argument.value[-1:]) is not None


def _stated(options: VllmOptions) -> tuple[str, ...]:
    """Return the JSON text that vLLM uses; empty without one. The last argument replaces the others."""
    own = OPTIONS["tpuQuantization"].spell(options.tpu_quantization)
    words = (*own, *(options.extra_args if "additional" in " ".join(options.extra_args) else ()))
    read = parse_arguments(words, flag_table(None)) if words else ()
    found = [one for one in read if one.name == ADDITIONAL_CONFIG]
    return found[-1].value[-1:] if found and not any(one.key for one in found) else ()


@lru_cache(maxsize=64)
def _scheme(texts: tuple[str, ...]) -> Scheme | None:
    rules = _rules(texts[0]) if texts else ()
    types = {role: {_type_of(path, rules) for path in paths} for role, paths in _MODULES.items()}
    found = set[str]().union(*types.values()) - {""}
    names = {_NAMES.get(name, "") for name in found}
    if len(names) != 1 or "" in names or any(len(one) > 1 for one in types.values()):
        return None
    left = frozenset(role for role, one in types.items() if one == {""})
    [name] = names
    return Scheme(name=f"{QWIX}-{name}", linear_bytes=1.0, unquantized=left | _EXPERTS)


def _rules(text: str) -> Sequence[Mapping[str, object]]:
    """Return the rules of a JSON text that has nothing else; empty for any other text."""
    try:
        found = read_json(text)
    except ValueError:
        return ()
    for key in ("quantization", QWIX, "rules"):
        inner = as_mapping(found)
        if {*inner} != {key}:
            return ()
        found = inner[key]
    rules = [as_mapping(one) for one in as_sequence(found)]
    return rules if all(map(_is_rule, rules)) else ()


def _is_rule(rule: Mapping[str, object]) -> bool:
    """Return whether a rule has only what decides the bytes of weights, and a pattern that can be read."""
    pattern = rule.get("module_path", _ANY)
    if not rule or not rule.keys() <= {"module_path", "weight_qtype", "act_qtype"} or not isinstance(pattern, str):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _type_of(path: str, rules: Sequence[Mapping[str, object]]) -> str:
    """Return the type to which a module's weights are converted; empty if they are not."""
    for rule in rules:
        if re.fullmatch(str(rule.get("module_path", _ANY)), path):
            return str(rule.get("weight_qtype") or "")
    return ""
