"""The start of the engine: the phases, log lines and memory of the nearest recorded boot, and what refuses first, in the words of the real one."""

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from localcloud.json_values import JsonObject, packaged, parts
from localcloud.vllm import VERSION
from localcloud.vllm.arguments import Arguments, facts_of, known_words
from localcloud.vllm.places import Weights, adapter_problem, find_weights, has_file
from localcloud.vllm.recorded import (
    GIB,
    Boot,
    Model,
    SimulatedCard,
    constant,
    find_card,
    find_model,
    nearest_boot,
    published_tpu_images,
)
from localcloud.vllm.refusals import EngineStartError, all_hold, configuration_refusal, refuse
from localcloud.vllm.settings import RuntimeEnvironment

_LOG: Final = parts(packaged("localcloud.vllm", "start.toml"), "log")
_IN_TORCH_ON_TPU: Final = "12B"  # the size that vLLM serves in PyTorch there; of the others it has JAX models
_CUDA_OF: Final = {535: 12_020, 580: 13_000}
"""Branch of the driver -> its CUDA version, as PyTorch prints it."""
_FIRST_WITH_CUDA_13: Final = (0, 20)
"""vLLM 0.20 is the first release whose image has CUDA 13 by default (its release notes name cu129 for older drivers); 12.x runs on driver 535."""
_LOADERS_ON_TPU: Final = ("jax_dummy", "pathways_dummy", "tpu_streaming_loader")
"""Loaders of tpu-inference 0.27.0 (register_model_loader)."""
_STORED: Final = {"bf16": None, "w4a16": "compressed-tensors"}
"""Form of a checkpoint -> quantization method that its config.json states; of the others it is fp8."""
_CUDA_CONTEXT_GIB: Final = 0.33
"""The CUDA context, in use before any tensor is allocated."""
_PAGE_TABLE_ENTRIES: Final = 2**20 // 2 // 4
"""Pages of all sequences in the chip's scalar memory: half of 1 MiB, four bytes each (tpu-inference)."""
_SHORT_LENGTH: Final = 8192
_NEUTRAL: Final = frozenset({
    "model", "revision", "tokenizer_revision", "load_format", "safetensors_load_strategy", "served_model_name", "host", "port",
    "api_key", "reasoning_parser", "tool_call_parser", "enable_auto_tool_choice", "chat_template", "allowed_origins",
    "allowed_media_domains", "middleware", "enable_log_requests", "disable_log_requests", "disable_log_stats",
})  # fmt: skip
"""Arguments of the HTTP server and of loading. XLA's cache knows a program by its contents, with the shapes of its inputs: KV cache
(utilization, type, block size), block table (longest request), batch sizes, sequences (tpu-inference, runner/compilation_manager.py and
kv_cache_manager.py). vLLM hashes its configurations (`compute_hash`). Any other argument is assumed to change a program."""


class KilledError(Exception):
    """The container exceeds its memory limit during the load; `used_mib` is its use at that time."""

    def __init__(self, used_mib: int) -> None:
        self.used_mib = used_mib
        super().__init__(f"memory limit exceeded with {used_mib} MiB used")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheSize:
    """Memory at the start of the engine, as recorded. `tokens` is the `GPU KV cache size` that vLLM logs; `available_gib` is for one device."""

    max_model_len: int
    max_num_seqs: int
    block_size: int
    num_blocks: int
    tokens: int
    available_gib: float

    @property
    def concurrency(self) -> float:
        """Return the number of concurrent full-length requests that fit."""
        return self.tokens / self.max_model_len


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupStep:
    """One step of the start: wait until `at_s` (simulated seconds from the start), then log `line`, then raise `error` if one exists."""

    at_s: float
    line: str = ""
    error: EngineStartError | KilledError | None = None
    cache_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A planned start. `capacity` is None if it will fail; `is_jax`: a JAX model serves on a TPU."""

    steps: tuple[StartupStep, ...]
    capacity: KvCacheSize | None
    model: Model | None
    card: SimulatedCard
    is_jax: bool = False

    @property
    def total_s(self) -> float:
        """Return when the last step is due, in simulated seconds."""
        return self.steps[-1].at_s if self.steps else 0.0


def plan(arguments: Arguments, environment: RuntimeEnvironment) -> Start:
    """Return the planned start; a failing step is the last. Raises EngineStartError only for an unknown accelerator."""
    card = find_card(environment.accelerator)
    if card is None:
        raise EngineStartError(
            f"VLLM_SIM_ACCELERATOR is '{environment.accelerator}', which the simulator does not support"
        )
    try:
        return _planned(arguments, environment, card)
    except EngineStartError as error:
        step = StartupStep(at_s=constant("IMPORT_S") + error.late_s, error=error)
        return Start(steps=(step,), capacity=None, model=None, card=card)


def _planned(arguments: Arguments, environment: RuntimeEnvironment, card: SimulatedCard) -> Start:
    is_tpu, chips = card.kind == "tpu", arguments.tensor_parallel_size
    refuse("machine", _facts_of_machine(arguments, environment, is_tpu=is_tpu))
    given = facts_of(arguments)
    contradiction = configuration_refusal({**given, "is_tpu": is_tpu, **({} if is_tpu else {"gpus": card.devices})})
    if contradiction:
        raise EngineStartError(contradiction)
    weights = find_weights(arguments, environment)
    converted = find_model(f"gemma-4-{weights.model.size}-fp8") if arguments.quantization == "fp8" else None
    model = converted or weights.model
    boot = nearest_boot(model, card, chips, drafts=arguments.speculative_config.get("model") is not None)
    facts = _facts_of_memory(arguments, environment, card, stored=weights.model, model=model, boot=boot)
    refuse("memory", {**given, **facts})
    capacity = _capacity(arguments, card, boot, length=facts["length"], kv_tokens=facts["kv_tokens"])
    is_jax = is_tpu and model.size != _IN_TORCH_ON_TPU
    graphs = _graphs(arguments, environment, weights.model, card)
    logged: JsonObject = {
        **_facts_of_log(environment, weights, boot, graphs),
        "version": VERSION,
        "arguments": arguments,
        "checkpoint": weights.model.name,
        "card": card,
        "boot": boot,
        "capacity": capacity,
        "is_tpu": is_tpu,
        "is_jax": is_jax,
        "enforce_eager": arguments.enforce_eager,
        "data_parallel_size": arguments.data_parallel_size,
        **({} if boot.is_of(weights.model, card, chips) else {"faster": 1 / boot.slower(card, chips)}),
    }
    steps = _steps(logged, {"graphs": graphs, "download": weights.downloaded})
    # vLLM loads adapters when the engine is up.
    problem = None if steps[-1].error else adapter_problem(arguments, environment, is_jax=is_jax)
    if problem is not None:
        steps = (*steps, StartupStep(at_s=steps[-1].at_s, error=problem))
    served = None if steps[-1].error else capacity
    return Start(steps=steps, capacity=served, model=model, card=card, is_jax=is_jax)


def _facts_of_machine(arguments: Arguments, environment: RuntimeEnvironment, *, is_tpu: bool) -> JsonObject:
    """Return the facts of the driver, the chat template and the load format. Without a simulated driver, the GPU works.

    With `VLLM_ENABLE_CUDA_COMPATIBILITY`, vLLM loads the image's own libcuda before the driver's (vllm/env_override.py). An older driver needs
    that; a driver as new as the image's libraries rejects them.
    """
    return {
        "device_problem": environment.device_problem or None,
        "driver_cuda": _CUDA_OF.get(environment.cuda_driver or 0),
        "uses_cuda_compatibility": environment.uses_cuda_compatibility,
        "has_cuda_13": environment.release >= _FIRST_WITH_CUDA_13,
        "template": _absent_template(arguments.unused.get("chat_template"), environment, is_tpu=is_tpu),
        "load_format": arguments.load_format.lower(),
        "load_formats": (*known_words("load_formats"), *(_LOADERS_ON_TPU if is_tpu else ())),
    }


def _absent_template(template: str | None, environment: RuntimeEnvironment, *, is_tpu: bool) -> str | None:
    """Return a chat template that is not a file of its image. A text is none.

    An image for GPUs starts in the folder of vLLM's sources, one for TPUs beside it (Dockerfiles of vLLM and of tpu-inference). vLLM finds its
    built-in templates by name (entrypoints/chat_utils.py).
    """
    if template is None or any(sign in template for sign in "{}\n"):
        return None
    sources = "/workspace/vllm/" if is_tpu else "/vllm-workspace/"
    path = posixpath.join("/workspace/tpu_inference" if is_tpu else sources, template)
    known = known_words("chat_templates")
    is_built_in = (template in known and "/" not in template) or path.removeprefix(sources) in known
    return None if is_built_in or has_file(path, environment) else template


def _facts_of_memory(
    arguments: Arguments,
    environment: RuntimeEnvironment,
    card: SimulatedCard,
    *,
    stored: Model,
    model: Model,
    boot: Boot,
) -> JsonObject:
    """Return the memory of the recorded boot, and what it must hold."""
    chips = arguments.tensor_parallel_size
    kv_tokens = min(int(boot.kv_gib / boot.request_gib * boot.max_model_len), 2**62)
    longest = min(kv_tokens, model.max_position)
    length = longest if arguments.max_model_len == -1 else arguments.max_model_len or model.max_position
    head_gib = model.stored_head_gib + _CUDA_CONTEXT_GIB if card.kind == "cuda" and model.stored_head_gib else 0.0
    _, _, digest = environment.image.partition("@")
    return {
        "devices": card.devices,
        "devices_asked": chips * arguments.data_parallel_size,
        "card": card.name,
        "total_gib": card.total_gib,
        # vLLM drops the head that equals the embeddings, but only after it has loaded it.
        "weights_gib": round(max(model.disk_bytes / GIB + head_gib - arguments.cpu_offload_gb, 0.0) / chips, 2),
        "max_num_batched_tokens": arguments.max_num_batched_tokens or card.default_max_num_batched_tokens,
        "images": 0 if arguments.language_model_only else arguments.limit_mm_per_prompt.get("image", 1),
        "stored_method": _STORED.get(stored.form, "fp8"),
        "is_tpu": card.kind == "tpu",
        "is_moe": model.is_moe,
        "loads_4_bit": bool(digest) and digest not in published_tpu_images(),
        "max_position": model.max_position,
        "length": length,
        "kv_tokens": kv_tokens,
        "kv_gib": round(boot.kv_gib, 2),
        "needed_gib": round(boot.request_gib * length / boot.max_model_len, 2),
    }


def _capacity(arguments: Arguments, card: SimulatedCard, boot: Boot, *, length: int, kv_tokens: int) -> KvCacheSize:
    sequences = arguments.max_num_seqs or card.default_max_num_seqs
    by_card = _block_size(length, sequences) if card.kind == "tpu" else boot.block_size
    block_size = arguments.block_size or by_card
    return KvCacheSize(
        max_model_len=length,
        max_num_seqs=sequences,
        block_size=block_size,
        num_blocks=boot.kv_blocks * boot.block_size // block_size,
        tokens=kv_tokens,
        available_gib=boot.kv_gib,
    )


def _block_size(length: int, sequences: int) -> int:
    """Return the tokens of a block on a TPU: tpu-inference chooses a sixteenth of a short length, and enough that the page table fits."""
    by_length = 16 if length > _SHORT_LENGTH else min(max(_power_of_two(length) // 16, 16), 256)
    return max(by_length, _power_of_two(-(-length // max(_PAGE_TABLE_ENTRIES // sequences, 1))))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _graphs(arguments: Arguments, environment: RuntimeEnvironment, model: Model, card: SimulatedCard) -> Path | None:
    """Return the file that marks compiled graphs. Its key covers everything that may change them: all arguments but _NEUTRAL."""
    folder = environment.folder(environment.cache_root) if environment.cache_root else None
    if folder is None:
        return None
    given = asdict(arguments)
    given |= given.pop("unused")
    kept = {name: value for name, value in given.items() if name not in _NEUTRAL}
    key = json.dumps([VERSION, model.name, card.name, environment.padding_gap, kept], sort_keys=True)
    return folder / f"simulated-{hashlib.sha256(key.encode()).hexdigest()[:16]}.graph"


def _facts_of_log(
    environment: RuntimeEnvironment, weights: Weights, boot: Boot, graphs: Path | None
) -> Mapping[str, object]:
    """Return the simulated seconds of each phase, and the memory that the container holds before a load, with its increase.

    Before the server, a program unpacks an archive of graphs, then copies the weights into memory. It has moved placeholders of a few bytes,
    so its own time is meaningless.
    """
    has_graphs, megabytes = graphs is not None and graphs.is_file(), weights.size_bytes / 1e6
    is_restored = graphs is not None and any(graphs.is_relative_to(path) for path in environment.memory_volumes)
    rate = min(constant("FUSE_BUFFERED_MB_PER_S"), environment.network_mb_per_s)
    return {
        **asdict(boot),
        "has_graphs": has_graphs,
        "restore_s": constant("GRAPHS_MB") / rate if has_graphs and is_restored else 0.0,
        "copy_s": 0.0 if weights.copied_mb_per_s is None else megabytes / weights.copied_mb_per_s,
        "copy_gib": (constant("COPY_HELD_GIB"), weights.size_bytes / GIB),
        "download_s": weights.download_s,
        # On a TPU each tensor is sharded while it is loaded, which is slower than a disk or a memory.
        "load_s": max(megabytes / weights.mb_per_s, boot.read_s_of(weights.size_bytes)),
        "load_gib": weights.host_gib,
        "shards": weights.model.shards,
        "memory_limit_mib": environment.memory_limit_mib,
    }


def _steps(facts: JsonObject, written: Mapping[str, Path | None]) -> tuple[StartupStep, ...]:
    """Return the steps of a server whose weights were found and fit, from the rows of the log. A load that exceeds the memory ends them."""
    now_s = 0.0
    steps: list[StartupStep] = []
    for row in (row for row in _LOG if all_hold(row.get("if", ()), facts)):
        took_s: float = facts[row["after"]] if "after" in row else 0.0
        times: int = facts[row["times"]] if "times" in row else 1
        killed = _killed(facts["memory_limit_mib"], facts[row["memory"]]) if "memory" in row else None
        for number in range(1, times + 1):
            done = number / times
            if killed is not None and killed[0] <= done:
                return (*steps, StartupStep(at_s=now_s + took_s * killed[0], error=killed[1]))
            at_s = now_s + took_s * done
            line = row["line"].format(**facts, done=done, number=number, at_s=at_s)
            steps.append(StartupStep(at_s=at_s, line=line, cache_file=written.get(row.get("writes", ""))))
        now_s += took_s
    return tuple(steps)


def _killed(limit_mib: int | None, host_gib: tuple[float, float]) -> tuple[float, KilledError] | None:
    """Return the fraction of a load at which the container exceeds its memory, and the error. None if the load fits.

    `host_gib` is the memory before the load, and the increase by the load.
    """
    before_mib, increase_mib = (1024 * part for part in host_gib)
    if limit_mib is None or before_mib + increase_mib <= limit_mib:
        return None
    # The kernel kills the process on the allocation that crosses the limit, so the reported use is slightly above it.
    used = min(int(limit_mib * 1.025), int(before_mib + increase_mib))
    return max(limit_mib - before_mib, 0.0) / increase_mib, KilledError(max(used, limit_mib + 1))
