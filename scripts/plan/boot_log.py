"""Parse a vLLM boot log (GPU or tpu-inference) or a scrape of /metrics: flags, figures, and the outcome.

Sources of the log lines: the boot logs of xbill9/gemma4-dev (v5e-1 of 2026-08-07, v6e-1 of 2026-09-24, v6e-4 of 2026-09-26, L4 of
2026-09-29) and field report 003. vLLM changes their wording between versions. A line without a pattern is not an error, and missing
figures are reported.
"""

import ast
import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from contracts.errors import CommandRefusedError
from loadtest.client.metrics import CACHE_CONFIG, parse_metrics
from scripts.plan.public_boot import public_text

DiedAt = Literal["arguments", "loading", "memory", "programs"]

_PREFIX: Final = re.compile(r"^(?:\x1b\[[0-9;]*m|\(\w+(?: pid=\d+)?\)|\s)*")
_STAMP: Final = re.compile(r"(?:INFO|WARNING|ERROR) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[[^\]]*\]\s?")
_LONGEST_MESSAGE: Final = 300

_NUMBER: Final = r"([\d,]+(?:\.\d+)?)"
_FIGURES: Final[Mapping[str, re.Pattern[str]]] = {
    "checkpoint": re.compile(rf"Checkpoint size: {_NUMBER} GiB"),
    "weights": re.compile(rf"(?:Model loading took {_NUMBER} GiB|Init model \| hbm=\[\({_NUMBER},)"),
    "kv": re.compile(rf"(?:Available KV cache memory: {_NUMBER} GiB|total_hbm_avail_gb={_NUMBER}GiB)"),
    "kv_tokens": re.compile(rf"(?:GPU|TPU) KV cache size: {_NUMBER} tokens"),
    "kv_blocks": re.compile(rf"kv_cache_config\.num_blocks={_NUMBER}"),
    "concurrency": re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
    "download": re.compile(rf"Time spent downloading weights for \S+: {_NUMBER} seconds"),
    "reading": re.compile(rf"Loading weights took {_NUMBER} seconds"),
    "whole_load": re.compile(
        rf"(?:Model loading took [\d.]+ GiB memory and {_NUMBER} seconds|Total time to load model weights from storage to TPU: {_NUMBER} seconds)"
    ),
    "engine": re.compile(rf"init engine \([^)]*\) took {_NUMBER} s"),
    "compilation": re.compile(rf"\(compilation: {_NUMBER} s\)"),
    "hbm": re.compile(rf"total_hbm_limit_gb={_NUMBER}GiB"),
    "hbm_cap": re.compile(rf"total_hbm_limit_cap_gb={_NUMBER}GiB"),
    "chips": re.compile(rf"num_chips={_NUMBER}"),
    "graphs": re.compile(rf"Graph capturing finished in [\d.]+ secs?, took {_NUMBER} GiB"),
    "torch_compile": re.compile(rf"torch\.compile (?:takes|took) {_NUMBER} s"),
    "utilization": re.compile(rf"The current \S+={_NUMBER} is equivalent to"),
    "batched_tokens": re.compile(rf"Chunked prefill is enabled with max_num_batched_tokens={_NUMBER}"),
    "requests": re.compile(rf"Prepared request paddings: \[(?:\d+, )*{_NUMBER}\]"),
}
"""Figures by name. The first line of a kind counts; later ones repeat it for other ranks or stages."""
_WORDS: Final[Mapping[str, re.Pattern[str]]] = {
    "version": re.compile(r"(?:vLLM API server version|LLM engine \(v|\bversion)\s?([0-9][\w.+]*)"),
    "tpu": re.compile(r"tpu_type=(\S+)"),
    "arguments": re.compile(r"non-default args: (\{.*\})"),
    "model": re.compile(r"with config: model='([^']+)'"),
}
_FIRST_LINES: Final[Mapping[str, re.Pattern[str]]] = {
    "flags": re.compile(r"non-default args: \{"),
    "version": re.compile(r"vLLM API server version|[▄█▀] +version [0-9]"),
}
_SERVING: Final = re.compile(r"Application startup complete|Starting vLLM (?:API )?server")
_FAULTS: Final[tuple[tuple[re.Pattern[str], DiedAt], ...]] = (
    (re.compile(r".*RuntimeProgramAllocationFailure.*"), "programs"),
    (re.compile(r".*(?:exceeds available HBM|scoped vmem|OutOfResources).*", re.IGNORECASE), "programs"),
    (re.compile(r".*(?:OutOfMemoryError|CUDA out of memory|RESOURCE_EXHAUSTED|No available memory for the cache blocks).*"), "memory"),
    (re.compile(r".*(?:To serve at least one request|is less than desired GPU memory utilization|KV cache is needed).*"), "memory"),
    (re.compile(r".*(?:max_tokens_per_mm_item|unrecognized arguments|invalid choice|vllm: error|validation error).*"), "arguments"),
    (re.compile(r"(?:\w+\.)*(?:NotImplementedError|AttributeError|KeyError|ImportError|ModuleNotFoundError|ValueError|OSError|TypeError): .*"), "loading"),
    (re.compile(r".*(?:EngineCore failed to start|Engine core initialization failed|Engine process failed to start).*"), "loading"),
)  # fmt: skip
"""The last error messages of a server that crashes, most specific first, with the stage of the crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootReport:
    """Contents of a log."""

    arguments: Mapping[str, object]
    """The flags that vLLM prints as non-default, by vLLM's names."""
    model: str | None
    accelerator: str | None
    """The TPU slice. A log does not name a GPU."""
    version: str
    figures: Mapping[str, float]
    """By the corpus's kinds: GiB, seconds, tokens and blocks, per device."""
    notes: Mapping[str, str]
    """Derivation of figures that the log does not contain."""
    outcome: Literal["runs", "dies"]
    died_at: DiedAt | None = None
    message: str = ""
    """The last error message of a server that crashed, without secrets and names of places."""
    derived: Mapping[str, object] = field(default_factory=dict[str, object])
    """Flags derived from figures in the log, such as the effective utilization, by vLLM's names."""


def read_boot(text: str) -> BootReport:
    """Return the contents of a boot log or a scrape of /metrics. Raises CommandRefusedError if it is neither, or is incomplete."""
    if re.search(r"^vllm:cache_config_info\{", text, re.MULTILINE):
        return _read_metrics(text)
    lines = [_PREFIX.sub("", line).rstrip() for line in text.splitlines()]
    numbers = {name: _number(pattern, lines) for name, pattern in _FIGURES.items()}
    words = {name: _first(pattern, lines) for name, pattern in _WORDS.items()}
    found = {name: value for name, value in numbers.items() if value is not None}
    arguments = _arguments(words["arguments"])
    died_at, message = _fault(lines, is_loaded="kv_tokens" in found)
    serves = any(_SERVING.search(line) for line in lines)
    if not serves and died_at is None:
        raise CommandRefusedError(
            "The log has neither a line like 'Application startup complete' nor a vLLM error. Pass the log of a complete start "
            "or a saved /metrics response."
        )
    figures, notes = _figures(found, _elapsed_s(lines) if serves else None)
    model = arguments.get("model") or arguments.get("model_tag") or words["model"]
    return BootReport(
        arguments=arguments,
        model=str(model) if model else None,
        accelerator=_slice(words["tpu"]),
        version=words["version"] or "",
        figures=figures,
        notes=notes,
        outcome="runs" if serves else "dies",
        died_at=None if serves else died_at,
        message="" if serves else message,
        derived=_derived(found),
    )


def first_line(line: str) -> str:
    """Return the kind of a line that is among the first of a start, `version` or `flags`; empty for any other line."""
    return next((kind for kind, pattern in _FIRST_LINES.items() if pattern.search(line)), "")


def _read_metrics(text: str) -> BootReport:
    """Return the cache configuration that a running server reports."""
    labels = parse_metrics(text).labels(CACHE_CONFIG) or {}
    blocks = labels.get("num_gpu_blocks", "")
    derived: dict[str, object] = {}
    for name, read in _METRIC_FLAGS.items():
        value = labels.get(name, "None")
        if value != "None":
            derived["kv_cache_dtype" if name == "cache_dtype" else name] = read(value)
    model = re.search(r'model_name="([^"]+)"', text)
    return BootReport(
        arguments={},
        model=model[1] if model else None,
        accelerator=None,
        version="",
        figures={"kv_blocks": float(blocks)} if blocks.isdigit() else {},
        notes={},
        outcome="runs",
        derived=derived,
    )


def _boolean(text: str) -> bool:
    return text == "True"


_METRIC_FLAGS: Final[Mapping[str, Callable[[str], object]]] = {
    "block_size": int,
    "gpu_memory_utilization": float,
    "cache_dtype": str,
    "enable_prefix_caching": _boolean,
}


def _first(pattern: re.Pattern[str], lines: list[str]) -> str | None:
    match = next((found for line in lines if (found := pattern.search(line))), None)
    return None if match is None else next(group for group in match.groups() if group is not None)


def _number(pattern: re.Pattern[str], lines: list[str]) -> float | None:
    text = _first(pattern, lines)
    return None if text is None else float(text.replace(",", ""))


def _arguments(text: str | None) -> Mapping[str, object]:
    if text is None:
        return {}
    try:
        found: object = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {}
    return cast("Mapping[str, object]", found) if isinstance(found, dict) else {}


def _slice(name: str | None) -> str | None:
    """Return the planner's name for a TPU type: v5litepod-1 is v5e-1."""
    return None if name is None else name.replace("v5litepod", "v5e")


def _fault(lines: list[str], *, is_loaded: bool) -> tuple[DiedAt | None, str]:
    """Return the stage at which the server crashed, and its most specific log line."""
    plain = [_STAMP.sub("", line) for line in lines]
    for pattern, died_at in _FAULTS:
        for number, line in enumerate(plain):
            if pattern.fullmatch(line):
                following = plain[number + 1] if line.endswith(":") and number + 1 < len(plain) else ""
                # Before it is cut, because a secret without its end is not recognized.
                message = public_text(f"{line} {following}".strip())[:_LONGEST_MESSAGE]
                return ("programs" if died_at == "loading" and is_loaded else died_at), message
    return None, ""


def _figures(found: Mapping[str, float], elapsed_s: float | None) -> tuple[dict[str, float], dict[str, str]]:
    """Return the figures of the corpus, and how those missing from the log are derived."""
    figures = {name: found[name] for name in ("checkpoint", "weights", "kv_tokens", "kv_blocks") if name in found}
    notes: dict[str, str] = {}
    chips = found.get("chips", 1)
    if "kv" in found:
        figures["kv"] = found["kv"] / chips if "hbm" in found else found["kv"]
        if "hbm" in found and chips > 1:
            notes["kv"] = f"{found['kv']:g} GiB on {chips:g} chips"
    if "whole_load" in found:
        figures["load"] = found["whole_load"]
    elif "reading" in found:
        figures["load"] = found["reading"] + found.get("download", 0)
        if "download" in found:
            notes["load"] = f"{found['download']:g} s of download and {found['reading']:g} s of reading"
    if "engine" in found:
        figures["compile"] = found.get("compilation", found["engine"]) if "hbm" in found else found["engine"]
    if elapsed_s:
        figures["restart"] = elapsed_s
        notes["restart"] = "from the first line of the log to the first one of the server"
    return figures, notes


def _derived(found: Mapping[str, float]) -> dict[str, object]:
    derived: dict[str, object] = {}
    if "hbm" in found and "hbm_cap" in found:
        derived["gpu_memory_utilization"] = round(found["hbm_cap"] / found["hbm"], 2)
    elif "utilization" in found:
        derived["gpu_memory_utilization"] = found["utilization"]
    if "batched_tokens" in found:
        derived["max_num_batched_tokens"] = int(found["batched_tokens"])
    if "requests" in found:
        derived["max_num_seqs"] = int(found["requests"])
    return derived


def _elapsed_s(lines: list[str]) -> float | None:
    """Return the seconds from the first time stamp to the last one before the server is ready."""
    first = last = None
    for line in lines:
        if match := _STAMP.search(line):
            month, day, hour, minute, second = (int(part) for part in match.groups())
            # The logs have no year, and a leap year has every day.
            last = dt.datetime(2024, month, day, hour, minute, second, tzinfo=dt.UTC)
            first = first or last
        if _SERVING.search(line):
            break
    return (last - first).total_seconds() if first and last and last > first else None
