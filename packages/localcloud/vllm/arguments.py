"""vLLM's command line, parsed as in vLLM, with the same messages and exit codes."""

import argparse
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from localcloud.json_values import JsonObject, as_object, packaged
from localcloud.vllm.refusals import refusal_of

_MULTIPLIERS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SERVE_PREFIXES: tuple[tuple[str, ...], ...] = (("vllm", "serve"), ("serve",))
_API_SERVER = "vllm.entrypoints.openai.api_server"
DEFAULT_SOFT_TOKENS = 280
"""Tokens of an image, unless the server or a request chooses others."""
_POSITIVE = ("max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size", "data_parallel_size")
_SPECULATIVE = "speculative_config"


class ArgumentError(Exception):
    """A value that argparse accepts but vLLM's own checks reject. vLLM exits with a traceback and exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapter:
    """An adapter of `--lora-modules`: the name that a request sends as `model`, and its location."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The values of the command line that change something here, by the names of their flags; `None` if vLLM decides.

    `max_model_len` is in tokens (-1: as long as fits), `shutdown_timeout` in seconds.
    """

    model: str
    served_model_name: Sequence[str]
    host: str | None = None
    port: int = 8000
    api_key: Sequence[str] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float = 0.92
    cpu_offload_gb: float = 0.0
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    load_format: str = "auto"
    revision: str = ""
    """Branch, tag or commit of the hub. Empty for the main branch."""
    safetensors_load_strategy: str | None = None
    quantization: str | None = None
    """Precision to which a bf16 checkpoint is converted while it loads. None keeps the stored one."""
    reasoning_parser: str | None = None
    enable_auto_tool_choice: bool = False
    language_model_only: bool = False
    limit_mm_per_prompt: Mapping[str, Any] = field(default_factory=dict[str, Any])
    mm_processor_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    enable_lora: bool = False
    lora_modules: Sequence[ServedAdapter] = ()
    max_lora_rank: int = 16
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    speculative_config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shutdown_timeout: int = 0
    allowed_origins: Sequence[str] = ("*",)
    allowed_media_domains: Sequence[str] = ()
    allowed_local_media_path: str = ""
    middleware: Sequence[str] = ()
    unused: Mapping[str, Any]
    """Values of the other flags, which change nothing here except the compiled programs."""

    @property
    def soft_tokens(self) -> int:
        """Return the maximum tokens of an image that the server was started with."""
        return int(self.mm_processor_kwargs.get("max_soft_tokens", DEFAULT_SOFT_TOKENS))


@cache
def _flags() -> JsonObject:
    """Return the flags by kind: names, types, choices, short forms. `data/flags.json` explains the kinds and lists the sources."""
    return packaged("localcloud.vllm", "flags.json")


def known_words(kind: str) -> Sequence[str]:
    """Return the words of one of vLLM's registries: load_formats, chat_templates, reasoning_parsers or tool_parsers."""
    return _flags()[kind]


def readable_int(text: str) -> int:
    """Parse `16384`, `16k` (16,000), `16K` (16,384), `auto` (-1). Raises argparse.ArgumentTypeError."""
    text = text.strip()
    if text == "auto":
        return -1
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmMgG])?", text)
    if match is None or ("." in match[1] and match[2] is None):
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid integer")
    return int(float(match[1]) * _MULTIPLIERS[match[2]]) if match[2] else int(match[1])


def _json(text: str) -> Any:  # noqa: ANN401 - JSON is any value
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to {json.loads}.") from error


_json.__name__ = "loads"


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser from the flag tables."""
    parser = argparse.ArgumentParser(prog=prog, usage=f"{prog} [model_tag] [options]", add_help=True)
    parser.add_argument("model_tag", nargs="?", default=None)

    def add(name: str, **options: Any) -> None:  # noqa: ANN401 - argparse's own options
        aliases = [_flags()["aliases"][name]] if name in _flags()["aliases"] else []
        parser.add_argument(f"--{name}", *aliases, dest=name.replace("-", "_"), default=None, **options)

    typed: dict[str, dict[str, Any]] = {
        "booleans": {"action": argparse.BooleanOptionalAction},
        "integers": {"type": int},
        "readable_integers": {"type": readable_int},
        "floats": {"type": float},
        "strings": {"type": str},
        "optional_strings": {"type": str, "nargs": "?"},
        "lists": {"nargs": "+"},
        "repeated": {"action": "append"},
        "jsons": {"type": _json},
    }
    for kind, options in typed.items():
        for name in sorted(_flags()[kind]):
            add(name, **options)
    for name, choices in sorted(_flags()["choices"].items()):
        add(name, choices=choices)
    return parser


def _normalise(argv: Sequence[str]) -> list[str]:
    """Replace underscores in flag names by dashes, and collect `--flag.key value` into one JSON object per flag."""
    out: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        head, dot, path = name.partition(".")
        flag = head.replace("_", "-") if head.startswith("--") else head
        if dot and flag.removeprefix("--") in _flags()["jsons"]:
            _set_dotted(dotted.setdefault(flag, {}), path, value if equals else next(words, ""))
        elif re.fullmatch(r"-O[0-3]", word):
            out.append(f"-O={word[2:]}")
        else:
            out.append(flag + dot + path + equals + value)
    return [*out, *(f"{flag}={json.dumps(value)}" for flag, value in dotted.items())]


def _set_dotted(target: dict[str, Any], path: str, value: str) -> None:
    *parents, last = path.split(".")
    for key in parents:
        target = target.setdefault(key, {})
    try:
        target[last] = json.loads(value)
    except json.JSONDecodeError:
        target[last] = value


def split_command(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return vLLM's entry point of a command line, with its name in messages, and the remaining arguments.

    Raises ArgumentError for a command that is neither `vllm serve` nor `python3 -m vllm.entrypoints.openai.api_server`.
    """
    words = list(argv)
    for prefix in _SERVE_PREFIXES:
        if tuple(words[: len(prefix)]) == prefix:
            return "vllm serve", words[len(prefix) :]
    if words[:1] == ["api_server"]:
        return "api_server.py", words[1:]
    if len(words) > 2 and re.fullmatch(r"(.*/)?python[\d.]*", words[0]) and words[1:3] == ["-m", _API_SERVER]:  # noqa: PLR2004
        return "api_server.py", words[3:]
    shown = " ".join(words[:4]) or "(empty)"
    raise ArgumentError(
        f"the simulated container runs `vllm serve MODEL ...` or `python3 -m {_API_SERVER} --model MODEL ...`, "
        f"not `{shown}`"
    )


def parse(argv: Sequence[str]) -> Arguments:
    """Parse a whole command line.

    Raises SystemExit(2) with argparse's message on stderr for unknown flags and bad values, ArgumentError for values that vLLM's later checks reject.
    """
    prog, words = split_command(argv)
    parser = build_parser(prog)
    found, unknown = parser.parse_known_args(_normalise(words))
    if unknown:
        # vLLM reports unknown flags in the outermost parser, which is named `vllm`.
        parser.prog = "vllm" if prog == "vllm serve" else prog
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return _arguments(found)


def _arguments(found: argparse.Namespace) -> Arguments:
    given: JsonObject = {name: value for name, value in vars(found).items() if value is not None}
    given["model"] = model = given.pop("model_tag", None) or found.model
    row = refusal_of("arguments", {**given, **_parsers(given)})
    if row is not None:
        raise ArgumentError(row["words"])
    for name in _POSITIVE:
        if given.get(name, 1) < 1:
            raise ArgumentError(f"{name} must be greater than or equal to 1, got {given[name]}")
    given["served_model_name"] = given.get("served_model_name", [model])
    given["lora_modules"] = tuple(map(_adapter, given.get("lora_modules", ())))
    own = {each.name for each in fields(Arguments)}
    unused = {name: value for name, value in given.items() if name not in own}
    return Arguments(**{name: value for name, value in given.items() if name in own}, unused=unused)


def _parsers(given: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the facts of the parsers, which vLLM checks before it starts the engine, and of the size of an image."""
    facts: dict[str, object] = {"soft_tokens": as_object(given.get("mm_processor_kwargs")).get("max_soft_tokens")}
    for kind in ("tool_parsers", "reasoning_parsers"):
        facts |= {kind: known_words(kind), f"{kind}_listed": ",".join(sorted(known_words(kind)))}
    return facts


def _adapter(word: str) -> ServedAdapter:
    """Read an adapter that is given as `NAME=PATH` or as JSON. Raises ArgumentError."""
    name, equals, path = word.partition("=")
    if word.startswith("{"):
        with suppress(ValueError):
            value = as_object(json.loads(word))
            name, equals, path = str(value.get("name", "")), str(value.get("path", "")), str(value.get("path", ""))
    if not name or not equals:
        raise ArgumentError(f"Invalid --lora-modules item {word!r}: expected NAME=PATH or JSON with name and path")
    return ServedAdapter(name=name, path=path)


def _by_flag(arguments: Arguments) -> JsonObject:
    values: JsonObject = {each.name: getattr(arguments, each.name) for each in fields(Arguments)}
    return values | values.pop("unused")


def given_arguments(arguments: Arguments) -> JsonObject:
    """Return the arguments that differ from vLLM's defaults, by the names that vLLM logs."""
    values = _by_flag(arguments)
    values["model_tag"] = values.pop("model")
    return {name: value for name, value in values.items() if value not in (None, "", (), {}, False, ("*",))}


def facts_of(arguments: Arguments) -> JsonObject:
    """Return the given values by flag, and those of each key of the speculation."""
    facts = _by_flag(arguments)
    config: JsonObject = facts[_SPECULATIVE]
    facts[_SPECULATIVE] = config or None
    facts |= {f"{_SPECULATIVE}.{key}": value for key, value in config.items()}
    parts = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
    facts["world_size"] = math.prod(facts.get(part, 1) for part in parts)
    proposed, sequences = config.get("num_speculative_tokens"), facts["max_num_seqs"]
    if isinstance(proposed, int) and sequences is not None:
        facts["proposed_tokens"] = sequences * (proposed + 1)
    return {name: value for name, value in facts.items() if value is not None}
