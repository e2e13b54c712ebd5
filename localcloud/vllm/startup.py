"""The start of the engine: the source of the weights, the duration, the log lines, the failures.

Every rate and duration is simulated; its source stands beside it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from localcloud.vllm import VERSION
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.memory import EngineStartError, KvCacheSize, capacity
from localcloud.vllm.models import Model, SimulatedAccelerator, find_accelerator, find_model
from localcloud.vllm.settings import Mount, RuntimeEnvironment

_FUSE_MB_PER_S: Final = 24.8  # measured: 16.44 GB in 664.24 s over Cloud Storage FUSE with its defaults
_FUSE_PREFETCH_MB_PER_S: Final = 53.0  # measured: the same 16.44 GB prefetched in 310 s
_FUSE_BUFFERED_MB_PER_S: Final = 400.0  # assumed from published cold starts of 45-53 s with buffered reads
_HUB_MB_PER_S: Final = 300.0  # assumed: a download from the hub and the load after it
_DISK_MB_PER_S: Final = 500.0  # assumed: a balanced persistent disk
_MEMORY_MB_PER_S: Final = 3000.0  # assumed: a tmpfs
_HOST_OVERHEAD_GIB: Final = 1.46
"""Host memory at the peak of a load beyond the weights' size: 16.77 GiB were measured for 16.44 GB of weights."""

_IMPORT_S: Final = 12.0  # assumed: imports, argument checks, the model's configuration
_COMPILE_GPU_S: Final = 98.93  # measured: torch.compile of the 26B-A4B QAT checkpoint on an L4
_WARM_UP_GPU_S: Final = 4.03  # measured, same place
_COMPILE_TPU_MOE_S: Final = 1440.0  # measured: 24 minutes of XLA compilation for the 26B-A4B on a v6e-4
_COMPILE_TPU_DENSE_S: Final = 300.0  # assumed
_COMPILE_CACHED_S: Final = 9.0  # assumed: reading graphs back
_COMPILE_TINY_S: Final = 1.0


class KilledError(Exception):
    """The container exceeds its memory limit during the load; `used_mib` is its use at that time."""

    def __init__(self, used_mib: int) -> None:
        self.used_mib = used_mib
        super().__init__(f"memory limit exceeded with {used_mib} MiB used")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupStep:
    """One step of the start: wait until `at_s` (simulated seconds from the beginning), then log `line`, then raise `error` if there is one."""

    at_s: float
    line: str = ""
    error: EngineStartError | KilledError | None = None
    cache_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A planned start. `capacity` is None if it will fail."""

    steps: tuple[StartupStep, ...]
    capacity: KvCacheSize | None
    model: Model | None
    accelerator: SimulatedAccelerator

    @property
    def total_s(self) -> float:
        """Return when the last step is due, in simulated seconds."""
        return self.steps[-1].at_s if self.steps else 0.0


def plan(arguments: Arguments, environment: RuntimeEnvironment) -> Start:
    """Return the planned start; a failing step is the last. Raises EngineStartError only for an unknown accelerator."""
    accelerator = find_accelerator(environment.accelerator)
    if accelerator is None:
        raise EngineStartError(
            f"VLLM_SIM_ACCELERATOR is {environment.accelerator!r}, which the simulator does not know"
        )
    try:
        weights = _find_weights(arguments, environment)
        planned = capacity(arguments, weights.model, accelerator)
    except EngineStartError as error:
        step = StartupStep(at_s=_IMPORT_S + 20.0 if isinstance(error, _LateError) else _IMPORT_S, error=error)
        return Start(steps=(step,), capacity=None, model=None, accelerator=accelerator)
    steps = list(_steps(arguments, environment, accelerator, weights, planned))
    failed = any(step.error for step in steps)
    return Start(steps=tuple(steps), capacity=None if failed else planned, model=weights.model, accelerator=accelerator)


class _LateError(EngineStartError):
    """An error that appears only when the weights are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    model: Model
    size_bytes: int
    mb_per_s: float
    download_s: float = 0.0
    downloaded: Path | None = None
    """The file that a download leaves in a hub cache on a volume; None if there is no such cache."""


def _find_weights(arguments: Arguments, environment: RuntimeEnvironment) -> _Weights:
    """Find the checkpoint: on a mount, on a disk, in a bucket by URI, or on the hub."""
    name = arguments.model
    if name.startswith("/"):
        for mount in environment.mounts:
            if name == mount.path or name.startswith(mount.path.rstrip("/") + "/"):
                return _mounted_weights(arguments, mount, environment.network_mb_per_s)
        return _disk_weights(arguments, environment)
    model = find_model(name)
    if model is None:
        raise EngineStartError(_not_a_model(name))
    if name.startswith("gs://"):
        rate = min(_FUSE_BUFFERED_MB_PER_S, environment.network_mb_per_s)
        return _Weights(model=model, size_bytes=model.disk_bytes, mb_per_s=rate)
    return _hub_weights(name, model, environment)


def _hub_weights(name: str, model: Model, environment: RuntimeEnvironment) -> _Weights:
    """Load from the hub's cache (HF_HOME), after a download if the cache lacks the model or goes with the container."""
    home = environment.volume_path(environment.hub_home) if environment.hub_home else None
    downloaded = None if home is None else home / "hub" / f"models--{name.replace('/', '--')}" / "simulated-download"
    rates = (_DISK_MB_PER_S, min(_HUB_MB_PER_S, environment.network_mb_per_s))
    load_s, both_s = (model.disk_bytes / (rate * 1e6) for rate in rates)
    cached = downloaded is not None and downloaded.is_file()
    return _Weights(
        model=model,
        size_bytes=model.disk_bytes,
        mb_per_s=_DISK_MB_PER_S,
        download_s=0.0 if cached else both_s - load_s,
        downloaded=downloaded,
    )


def _not_a_model(name: str) -> str:
    return (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        f"  Value error, Invalid repository ID or local directory specified: '{name}'.\n"
        "Please verify the following requirements:\n"
        "1. Provide a valid Hugging Face repository ID.\n"
        "2. Specify a local directory that contains a recognized configuration file.\n"
    )


def _mounted_weights(arguments: Arguments, mount: Mount, network_mb_per_s: float) -> _Weights:
    prefix = arguments.model[len(mount.path) :].strip("/")
    below = {
        name[len(prefix) :].lstrip("/"): size
        for name, size in mount.files.items()
        if not prefix or name.startswith(prefix + "/")
    }
    if below and not mount.readable:
        raise EngineStartError(f"PermissionError: [Errno 13] Permission denied: '{arguments.model}/config.json'")
    prefetch = arguments.safetensors_load_strategy == "prefetch"
    buffered = mount.options.get("enable-buffered-read") == "true" or "cache-dir" in mount.options
    rate = _FUSE_BUFFERED_MB_PER_S if buffered else _FUSE_PREFETCH_MB_PER_S if prefetch else _FUSE_MB_PER_S
    return _folder_weights(arguments.model, below, min(rate, network_mb_per_s))


def _disk_weights(arguments: Arguments, environment: RuntimeEnvironment) -> _Weights:
    folder = environment.real_path(arguments.model) or (
        Path(arguments.model) if not environment.paths and not environment.mounts else None
    )
    files: dict[str, int] = {}
    if folder is not None and folder.is_dir():
        files = {str(item.relative_to(folder)): item.stat().st_size for item in folder.rglob("*") if item.is_file()}
    in_memory = arguments.model.startswith("/dev/shm/")  # noqa: S108 - a container's path, not ours
    return _folder_weights(arguments.model, files, _MEMORY_MB_PER_S if in_memory else _DISK_MB_PER_S)


def _folder_weights(name: str, files: Mapping[str, int], mb_per_s: float) -> _Weights:
    """Check a folder as vLLM does: first the configuration, then the weights.

    A staged file may be a placeholder of a few bytes: then the checkpoint's known size counts.
    """
    if "config.json" not in files and "params.json" not in files:
        raise EngineStartError(_not_a_model(name))
    weights = {file: size for file, size in files.items() if file.endswith((".safetensors", ".bin", ".pt"))}
    if not weights:
        raise _LateError(f"RuntimeError: Cannot find any model weights with `{name}`")
    model = find_model(name)
    if model is None:
        raise EngineStartError(
            f"ValueError: the simulated server does not know the checkpoint in '{name}': "
            "its folder has to be named like the checkpoint, as in gemma-4-E2B-it"
        )
    known = model.disk_bytes
    total = sum(weights.values())
    return _Weights(model=model, size_bytes=total if total > known // 10 else known, mb_per_s=mb_per_s)


def _steps(
    arguments: Arguments,
    environment: RuntimeEnvironment,
    accelerator: SimulatedAccelerator,
    weights: _Weights,
    planned: KvCacheSize,
) -> Iterator[StartupStep]:
    model = weights.model
    tiny = model.name == "tiny"
    now = 0.0

    def logged(*lines: str) -> list[StartupStep]:
        return [StartupStep(at_s=now, line=line) for line in lines]

    yield from logged(
        f"[api_server.py:1] vLLM API server version {VERSION}",
        f"[model.py:1] Resolved architecture: Gemma4ForConditionalGeneration ({model.name})",
        f"[model.py:1] Using max model len {planned.max_model_len}",
        f"[scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens={planned.max_num_batched_tokens}.",
    )
    now += 0.5 if tiny else _IMPORT_S
    yield from logged(
        f"[core.py:1] Initializing a V1 LLM engine (v{VERSION}) on {accelerator.name}",
        f"[gpu_model_runner.py:1] Starting to load model {arguments.model}...",
    )
    if weights.download_s:
        now += weights.download_s
        line = f"[weight_utils.py:1] Time spent downloading weights for {arguments.model}: {weights.download_s:.6f} seconds"
        yield StartupStep(at_s=now, line=line, cache_file=weights.downloaded)
    load_s = weights.size_bytes / (weights.mb_per_s * 1e6)
    for shard in range(1, model.shards + 1):
        done = shard / model.shards
        killed = _killed(environment, weights.size_bytes, (shard - 1) / model.shards, done)
        if killed is not None:
            at, error = killed
            yield StartupStep(at_s=now + load_s * at, error=error)
            return
        line = f"Loading safetensors checkpoint shards: {done:4.0%} Completed | {shard}/{model.shards}"
        yield StartupStep(at_s=now + load_s * done, line=line)
    now += load_s
    yield from logged(
        f"[default_loader.py:1] Loading weights took {load_s:.2f} seconds",
        f"[gpu_model_runner.py:1] Model loading took {planned.weights_gib:.2f} GiB memory and {load_s:.6f} seconds",
    )
    now, steps = _compile(arguments, environment, accelerator, model, now)
    yield from steps
    yield from logged(
        f"[gpu_worker.py:1] Available KV cache memory: {planned.available_gib:.2f} GiB",
        f"[kv_cache_utils.py:1] GPU KV cache size: {planned.tokens:,} tokens",
        f"[kv_cache_utils.py:1] Maximum concurrency for {planned.max_model_len:,} tokens per request: {planned.concurrency:.2f}x",
    )
    now += 0.5 if tiny else _WARM_UP_GPU_S
    yield from logged(f"[core.py:1] init engine (profile, create kv cache, warmup model) took {now:.2f} seconds")


def _killed(
    environment: RuntimeEnvironment, size_bytes: int, from_share: float, to_share: float
) -> tuple[float, KilledError] | None:
    """Return the share of the load, between the two given ones, at which the container exceeds its memory, and the error; else None."""
    limit = environment.memory_limit_mib
    if limit is None:
        return None
    overhead_mib, size_mib = _HOST_OVERHEAD_GIB * 1024, size_bytes / 2**20
    if overhead_mib + size_mib <= limit:
        return None
    share = max(limit - overhead_mib, 0.0) / size_mib
    if not from_share <= share <= to_share:
        return None
    # The kernel kills on the allocation that crosses the limit, so the reported use is slightly above it.
    used = min(int(limit * 1.025), int(overhead_mib + size_mib))
    return share, KilledError(max(used, limit + 1))


def _compile(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, model: Model, now: float
) -> tuple[float, list[StartupStep]]:
    """Plan the compilation: no time with --enforce-eager, seconds if the cache has the key, else the full time."""
    if arguments.enforce_eager:
        return now, [
            StartupStep(at_s=now, line="[vllm.py:1] Enforce eager set, disabling torch.compile and CUDAGraphs.")
        ]
    cache = _cache_file(arguments, environment, accelerator, model)
    if cache is not None and cache.is_file():
        took = min(_COMPILE_CACHED_S, _full_compile_s(accelerator, model))
        line = f"[backends.py:1] Directly load the compiled graph(s) from the cache, took {took:.3f} s"
        return now + took, [StartupStep(at_s=now + took, line=line)]
    took = _full_compile_s(accelerator, model)
    begun = StartupStep(at_s=now, line="[backends.py:1] Compiling a graph for dynamic shape")
    done = StartupStep(
        at_s=now + took, line=f"[monitor.py:1] torch.compile takes {took:.2f} s in total", cache_file=cache
    )
    return now + took, [begun, done]


def _full_compile_s(accelerator: SimulatedAccelerator, model: Model) -> float:
    if model.name == "tiny":
        return _COMPILE_TINY_S
    if accelerator.kind == "tpu":
        return _COMPILE_TPU_MOE_S if model.is_moe else _COMPILE_TPU_DENSE_S
    return _COMPILE_GPU_S


def _cache_file(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, model: Model
) -> Path | None:
    """Return the file that marks a compiled graph: keyed by all that changes one (version, model, devices, lengths, batch)."""
    root = environment.cache_root
    if root is None:
        return None
    folder = environment.real_path(root) or (Path(root) if not environment.paths and not environment.mounts else None)
    if folder is None:
        return None
    key = json.dumps(
        [
            VERSION,
            model.name,
            accelerator.name,
            arguments.tensor_parallel_size,
            arguments.kv_cache_dtype,
            arguments.max_model_len,
            arguments.max_num_seqs,
            arguments.max_num_batched_tokens,
            arguments.block_size,
        ]
    )
    return folder / f"simulated-{hashlib.sha256(key.encode()).hexdigest()[:16]}.graph"
