"""vLLM's command line, parsed as in vLLM, with the same messages and exit codes."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from localcloud.json_values import JsonObject, as_object, packaged

_MULTIPLIERS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_SERVE_PREFIXES: tuple[tuple[str, ...], ...] = (("vllm", "serve"), ("serve",))
_API_SERVER = "vllm.entrypoints.openai.api_server"
SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Tokens of an image that a server or a request can choose."""
DEFAULT_SOFT_TOKENS = 280


class ArgumentError(Exception):
    """A value that argparse accepts but vLLM's own checks reject. vLLM exits with a traceback and exit code 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The values of the command line; `None` if vLLM decides.

    `max_model_len` is in tokens (-1: as long as fits), `shutdown_timeout` in seconds, `cpu_offload_gib` and `gpu_memory_utilization` as vLLM names them.
    """

    model: str
    served_model_names: tuple[str, ...]
    host: str | None = None
    port: int = 8000
    api_keys: tuple[str, ...]
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    gpu_memory_utilization: float
    cpu_offload_gib: float
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    enforce_eager: bool = False
    load_format: str
    revision: str
    """Branch, tag or commit of the hub. Empty for the main branch."""
    safetensors_load_strategy: str | None = None
    quantization: str | None = None
    """Precision to which a bf16 checkpoint is converted while it loads. None keeps the stored one."""
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    enable_auto_tool_choice: bool = False
    disable_chunked_mm_input: bool = False
    language_model_only: bool = False
    limit_mm_per_prompt: dict[str, Any]
    mm_processor_kwargs: dict[str, Any]
    enable_lora: bool = False
    lora_modules: tuple[str, ...]
    max_lora_rank: int = 16
    default_chat_template_kwargs: dict[str, Any]
    speculative_config: dict[str, Any]
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    max_queued_requests: int | None
    seed: int = 0
    shutdown_timeout: int = 0
    allowed_origins: tuple[str, ...]
    allowed_media_domains: tuple[str, ...]
    allowed_local_media_path: str = ""
    middleware: tuple[str, ...]
    unused: dict[str, Any]
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
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            out.append(f"-O={word[2:]}" if re.fullmatch(r"-O[0-3]", word) else word)
            continue
        name, equals, value = word.partition("=")
        head, dot, path = name.partition(".")
        head = head.replace("_", "-")
        if dot and head[2:] in _flags()["jsons"]:
            if not equals:
                value = rest.pop(0) if rest else ""
            _set_dotted(dotted.setdefault(head, {}), path, value)
        else:
            out.append(head + dot + path + equals + value)
    return [*out, *(f"{head}={json.dumps(value)}" for head, value in dotted.items())]


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
    model = found.model_tag or found.model
    if not model:
        raise ArgumentError("the simulated server has no default model. Pass one: `vllm serve MODEL`")
    if found.config:
        raise ArgumentError("the simulated server does not read --config files. Pass the flags instead")
    _check_parsers(found)
    utilisation = 0.92 if found.gpu_memory_utilization is None else found.gpu_memory_utilization
    if not 0 < utilisation <= 1:
        raise ArgumentError(
            "1 validation error for CacheConfig\ngpu_memory_utilization\n  "
            f"Input should be greater than 0 and less than or equal to 1 [input_value={utilisation}]"
        )
    for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size", "data_parallel_size"):
        _check_positive(name, getattr(found, name))
    _check_lora(found)
    size: object = as_object(found.mm_processor_kwargs).get("max_soft_tokens", DEFAULT_SOFT_TOKENS)
    if size not in SOFT_TOKENS:
        raise ArgumentError(f"ValueError: Unsupported max_soft_tokens value: {size}. Valid values are {SOFT_TOKENS}.")
    own: dict[str, Any] = {
        "model": model,
        "served_model_names": tuple(found.served_model_name or [model]),
        "api_keys": tuple(found.api_key or ()),
        "gpu_memory_utilization": utilisation,
        "cpu_offload_gib": found.cpu_offload_gb or 0.0,
        "load_format": found.load_format or "auto",
        "revision": found.revision or "",
        "limit_mm_per_prompt": found.limit_mm_per_prompt or {},
        "mm_processor_kwargs": found.mm_processor_kwargs or {},
        "lora_modules": tuple(found.lora_modules or ()),
        "default_chat_template_kwargs": found.default_chat_template_kwargs or {},
        "speculative_config": found.speculative_config or {},
        "max_queued_requests": found.max_num_queued_reqs,
        "allowed_origins": ("*",) if found.allowed_origins is None else tuple(found.allowed_origins),
        "allowed_media_domains": tuple(found.allowed_media_domains or ()),
        "middleware": tuple(found.middleware or ()),
    }
    # The other fields have the names of their flags.
    same = {each.name: getattr(found, each.name) for each in fields(Arguments) if each.name not in {*own, "unused"}}
    known = {"model_tag", "served_model_name", "api_key", "cpu_offload_gb", "max_num_queued_reqs", *own, *same}
    unused = {name: value for name, value in vars(found).items() if name not in known and value is not None}
    return Arguments(**own, **{name: value for name, value in same.items() if value is not None}, unused=unused)


def given_arguments(arguments: Arguments) -> dict[str, Any]:
    """Return the arguments that differ from vLLM's defaults, by the names that vLLM logs."""
    named = {"model": "model_tag", "served_model_names": "served_model_name", "api_keys": "api_key"}
    values = {each.name: getattr(arguments, each.name) for each in fields(Arguments)}
    values.update(values.pop("unused"))
    given = {name: value for name, value in values.items() if value not in (None, "", (), {}, False, ("*",))}
    return {named.get(name, name): value for name, value in given.items()}


def _check_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ArgumentError(f"{name} must be greater than or equal to 1, got {value}")


def _check_lora(found: argparse.Namespace) -> None:
    """Reject malformed adapters and ranks that vLLM's configuration does not have."""
    for word in found.lora_modules or ():
        if not ({"name", "path"} <= set(_adapter_json(word)) if word.startswith("{") else "=" in word):
            raise ArgumentError(f"Invalid --lora-modules item {word!r}: expected NAME=PATH or JSON with name and path")
    if found.max_lora_rank is not None and found.max_lora_rank not in _LORA_RANKS:
        allowed = ", ".join(map(str, _LORA_RANKS[:-1]))
        raise ArgumentError(
            f"1 validation error for LoRAConfig\nmax_lora_rank\n  Input should be {allowed} or {_LORA_RANKS[-1]} "
            f"[type=literal_error, input_value={found.max_lora_rank}, input_type=int]"
        )


def _adapter_json(word: str) -> dict[str, Any]:
    try:
        return as_object(json.loads(word))
    except json.JSONDecodeError:
        return {}


def _check_parsers(found: argparse.Namespace) -> None:
    """Reject unknown parsers, as vLLM does before it starts the engine."""
    if found.enable_auto_tool_choice and not found.tool_call_parser:
        raise ArgumentError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    for what, parser, plugin in (
        ("tool call", found.enable_auto_tool_choice and found.tool_call_parser, found.tool_parser_plugin),
        ("reasoning", found.reasoning_parser, found.reasoning_parser_plugin),
    ):
        known = known_words(f"{what.partition(' ')[0]}_parsers")
        if parser and parser not in known and not plugin:
            raise ArgumentError(f"invalid {what} parser: {parser} (chose from {{ {','.join(sorted(known))} }})")
