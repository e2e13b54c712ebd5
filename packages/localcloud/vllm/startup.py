"""The start of the engine: the source of the weights, the duration, the log lines, the failures.

Every rate and duration is simulated, with its source in a comment.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from localcloud.charges import Charge
from localcloud.vllm import VERSION, adapters, measured_starts
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.memory import EngineStartError, KvCacheSize, as_loaded, capacity
from localcloud.vllm.models import Model, SimulatedAccelerator, find_accelerator
from localcloud.vllm.settings import RuntimeEnvironment
from localcloud.vllm.weights import FUSE_BUFFERED_MB_PER_S, LateError, Weights, find_weights

_GRAPHS_MB: Final = 490.0  # 466 MiB of VLLM_CACHE_ROOT in a public note of 2026; assumed for every model, and that compression saves nothing
_COPY_HELD_GIB: Final = 0.6  # 16 ranges of 32 MiB in flight, and the interpreter
_IMPORT_S: Final = 12.0  # assumed: imports, argument checks, the model's configuration
_SPECULATION_FACTOR: Final = 1.5
"""Measured: 1,440 s until the first answer of 26B-A4B with speculation on a v6e-4 (field report 001). Without the image's pull, imports, processor and
load of the boots without a cache, about 960 s for 26 programs, 1.5 times the 24.6 s of dense-26b-v6e-4."""
_COMPILE_CACHED_S: Final = 9.0  # assumed: reading graphs back
_COMPILE_TPU_CACHED_SHARE: Final = 0.40
"""Measured: 235 s of 595 s for E2B on a v5e-1 with a warm cache (public report of 2026-08-09). Programs are traced, loaded and run once."""
_CACHED_W4A16_PROGRAM_S: Final = {"v5litepod": 24.4}
"""Measured: 97.64 s for four programs of 12B in four bits on a v5e-1 with a restored cache (public boot log of 2026-09-30). Other TPUs are
assumed to take half: their hosts compile in half the time."""
_CACHED_W4A16_OTHERS_S: Final = 12.2
_TPU_SMALLEST_BATCH: Final = 16
_TPU_BATCH: Final = 1024  # vLLM's default on v6e
_TPU_IMPORT_S: Final = 39.0  # of the 69 s that 12B for text took in addition to loading and its engine (public boot log of 2026-09-26); the split is assumed
_TPU_SERVER_S: Final = 30.0  # the rest of them, until /health responds
_TPU_PROCESSOR_S: Final = (
    55.0  # measured: 124 s instead of 69 s if images, video or audio are served (the boot e2b-text-v6e-1)
)
_TPU_BUCKET_MB_PER_S: Final = 400.0  # assumed: runai_streamer from gs://; 56 MB/s and more than 1 GB/s are published
_COMPILE_TINY_S: Final = 1.0


_CUDA_OF: Final = {535: 12_020, 580: 13_000}
"""Branch of the driver -> its CUDA version, as PyTorch prints it."""
DRIVERS: Final = tuple(_CUDA_OF)
"""Driver branches that the simulator supports."""
_CUDA_13: Final = 13_000
_FIRST_WITH_CUDA_13: Final = (0, 20)
"""vLLM 0.20 is the first release whose image has CUDA 13 by default (its release notes name cu129 for older drivers); 12.x runs on driver 535."""
_MISMATCH: Final = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might "
    "have already set an error? Error 803: system has unsupported display driver / cuda driver combination"
)
_TOO_OLD: Final = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version {version}). Please update your GPU driver by downloading and "
    "installing a new version from the URL: http://www.nvidia.com/Download/index.aspx Alternatively, go to: https://pytorch.org to install a "
    "PyTorch version that has been compiled with your version of the CUDA driver."
)


_CAPTURED: Final = (
    "RuntimeError: Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
_WIDTHS: Final = "RuntimeError: a and b must have same reduction dim, but got [s47, 3840] X [5632, 1024]."
_DIES: Final = {
    "gemma-4-12B-it-assistant": ((0, 25), (0, 29), _CAPTURED),  # vllm-project/vllm#53884; not with --enforce-eager
    "gemma-4-26B-A4B-it-assistant": ((0, 25), (0, 27), _WIDTHS),  # vllm-project/vllm#48848
}
"""Draft model -> first release that dies with it on a GPU, first one that does not, and the engine's message."""


class KilledError(Exception):
    """The container exceeds its memory limit during the load; `used_mib` is its use at that time."""

    def __init__(self, used_mib: int) -> None:
        self.used_mib = used_mib
        super().__init__(f"memory limit exceeded with {used_mib} MiB used")


_NEUTRAL: Final = frozenset({
    "model", "revision", "tokenizer_revision", "load_format", "safetensors_load_strategy", "served_model_names", "host", "port",
    "api_keys", "reasoning_parser", "tool_call_parser", "enable_auto_tool_choice", "chat_template", "allowed_origins",
    "allowed_media_domains", "middleware", "enable_log_requests", "disable_log_requests", "disable_log_stats",
})  # fmt: skip
"""Arguments of the HTTP server and of loading. XLA's cache knows a program by its contents, with the shapes of its inputs: KV cache
(utilization, type, block size), block table (longest request), batch sizes, sequences (tpu-inference, runner/compilation_manager.py and
kv_cache_manager.py). vLLM hashes its configurations (`compute_hash`). Any other argument is assumed to change a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupStep:
    """One step of the start: wait until `at_s` (simulated seconds from the start), then log `line`, then raise `error` if one exists."""

    at_s: float
    line: str = ""
    error: EngineStartError | KilledError | None = None
    cache_file: Path | None = None
    charge: Charge | None = None
    """Kind of the wait before this step."""
    is_of_engine: bool = False
    """True if each engine logs the line."""


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
            f"VLLM_SIM_ACCELERATOR is {environment.accelerator!r}, which the simulator does not support"
        )
    try:
        _check_devices(environment)
        weights = find_weights(arguments, environment)
        loaded = as_loaded(weights.model, accelerator, environment.image, arguments.quantization)
        planned = capacity(arguments, loaded, accelerator)
        if accelerator.kind != "tpu":
            _check_drafter(arguments, _release(environment.version))
    except EngineStartError as error:
        step = StartupStep(at_s=_IMPORT_S + 20.0 if isinstance(error, LateError) else _IMPORT_S, error=error)
        return Start(steps=(step,), capacity=None, model=None, accelerator=accelerator)
    steps = list(_steps(arguments, environment, accelerator, weights, planned))
    failed = any(step.error for step in steps)
    # vLLM loads adapters when the engine is up.
    refused = None if failed else adapters.load(arguments, environment)
    if refused is not None:
        steps.append(StartupStep(at_s=steps[-1].at_s, error=refused))
    failed = any(step.error for step in steps)
    return Start(steps=tuple(steps), capacity=None if failed else planned, model=loaded, accelerator=accelerator)


def _check_devices(environment: RuntimeEnvironment) -> None:
    """Raise EngineStartError with the real server's message if it cannot use its TPU or GPU. Without a simulated driver it can.

    With `VLLM_ENABLE_CUDA_COMPATIBILITY`, vLLM loads the image's own libcuda before the driver's (vllm/env_override.py). An older driver needs
    that. A driver as new as the image's libraries rejects them, with the message of gpustack/gpustack#4678. The message of an old driver is
    PyTorch's (c10/cuda/CUDAFunctions.cpp).
    """
    if environment.device_problem:
        raise EngineStartError(environment.device_problem)
    driver_cuda = _CUDA_OF.get(environment.cuda_driver or 0)
    if driver_cuda is None:
        return
    is_old = driver_cuda < _CUDA_13
    if environment.uses_cuda_compatibility and not is_old:
        raise EngineStartError(_MISMATCH)
    if is_old and not environment.uses_cuda_compatibility and _has_cuda_13(environment.version):
        raise EngineStartError(_TOO_OLD.format(version=driver_cuda))


def _check_drafter(arguments: Arguments, release: tuple[int, ...]) -> None:
    """Raise EngineStartError with the real server's message if its release dies with the draft model."""
    name = str(arguments.speculative_config.get("model") or "").rpartition("/")[2]
    first, fixed, message = _DIES.get(name, ((), (), ""))
    if first <= release < fixed and not (message == _CAPTURED and arguments.enforce_eager):
        raise EngineStartError(message)


def _has_cuda_13(version: str) -> bool:
    return _release(version) >= _FIRST_WITH_CUDA_13


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a release; empty if unknown."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _steps(
    arguments: Arguments,
    environment: RuntimeEnvironment,
    accelerator: SimulatedAccelerator,
    weights: Weights,
    planned: KvCacheSize,
) -> Iterator[StartupStep]:
    model = weights.model
    tiny = model.name == "tiny"
    is_tpu = accelerator.kind == "tpu" and not tiny
    now = 0.0

    def logged(*lines: str) -> list[StartupStep]:
        return [StartupStep(at_s=now, line=line) for line in lines]

    def by_engine(*lines: str) -> list[StartupStep]:
        return [replace(step, is_of_engine=True) for step in logged(*lines)]

    now, before = _before_the_server(arguments, environment, accelerator, weights)
    yield from before
    if before and before[-1].error:
        return
    yield from logged(
        f"[api_server.py:1] vLLM API server version {VERSION}",
        f"[model.py:1] Resolved architecture: Gemma4ForConditionalGeneration ({model.name})",
        f"[model.py:1] Using max model len {planned.max_model_len}",
        f"[scheduler.py:1] Chunked prefill is enabled with max_num_batched_tokens={planned.max_num_batched_tokens}.",
    )
    if arguments.enforce_eager:
        yield from logged("[vllm.py:1] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.")
    if arguments.data_parallel_size > 1:
        yield from logged(
            f"[serve.py:1] Defaulting api_server_count to data_parallel_size ({arguments.data_parallel_size})."
        )
    import_s = 0.5 if tiny else _TPU_IMPORT_S if is_tpu else _IMPORT_S
    now += import_s
    yield StartupStep(at_s=now, charge=Charge(what="process", name="imports and configuration", seconds=import_s))
    yield from by_engine(
        f"[core.py:1] Initializing a V1 LLM engine (v{VERSION}) on {accelerator.name}",
        f"[gpu_model_runner.py:1] Starting to load model {arguments.model}...",
    )
    if weights.download_s:
        now += weights.download_s
        line = f"[weight_utils.py:1] Time spent downloading weights for {arguments.model}: {weights.download_s:.6f} seconds"
        hub = Charge(what="hub", name=arguments.model, seconds=weights.download_s, bytes=model.disk_bytes)
        yield StartupStep(at_s=now, line=line, cache_file=weights.downloaded, charge=hub)
    load_s = weights.size_bytes / (_load_mb_per_s(weights, accelerator, is_tpu=is_tpu) * 1e6)
    for shard in range(1, model.shards + 1):
        done = shard / model.shards
        killed = _killed(environment, weights.load_gib, (shard - 1) / model.shards, done)
        if killed is not None:
            at, error = killed
            yield StartupStep(at_s=now + load_s * at, error=error)
            return
        line = f"Loading safetensors checkpoint shards: {done:4.0%} Completed | {shard}/{model.shards}"
        yield StartupStep(at_s=now + load_s * done, line=line)
    now += load_s
    read = Charge(
        what="bucket" if weights.streamed else "load",
        name=arguments.model,
        seconds=load_s,
        bytes=weights.size_bytes if weights.streamed else 0,
    )
    yield StartupStep(at_s=now, charge=read)
    yield from by_engine(
        f"[default_loader.py:1] Loading weights took {load_s:.2f} seconds",
        f"[gpu_model_runner.py:1] Model loading took {planned.weights_gib:.2f} GiB memory and {load_s:.6f} seconds",
    )
    now, steps = _compile(arguments, environment, accelerator, model, now)
    yield from steps
    yield from by_engine(
        f"[gpu_worker.py:1] Available KV cache memory: {planned.available_gib:.2f} GiB",
        f"[kv_cache_utils.py:1] GPU KV cache size: {planned.tokens:,} tokens",
        f"[kv_cache_utils.py:1] Maximum concurrency for {planned.max_model_len:,} tokens per request: {planned.concurrency:.2f}x",
    )
    end_s = 0.5 if tiny else _tpu_end_s(arguments) if is_tpu else measured_starts.WARM_UP_GPU_S
    now += end_s
    yield StartupStep(at_s=now, charge=Charge(what="process", name="warm-up and HTTP server", seconds=end_s))
    yield from by_engine(f"[core.py:1] init engine (profile, create kv cache, warmup model) took {now:.2f} seconds")


def _before_the_server(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, weights: Weights
) -> tuple[float, list[StartupStep]]:
    """Return the simulated seconds of a program before the server: unpacking an archive of graphs, then copying the weights into memory.

    The program itself has moved placeholders of a few bytes, so its own time is meaningless.
    """
    now, steps = 0.0, list[StartupStep]()
    cache = _cache_file(arguments, environment, accelerator, weights.model)
    in_volume = cache is not None and any(cache.is_relative_to(path) for path in environment.memory_volumes)
    if cache is not None and in_volume and cache.is_file():
        now += _GRAPHS_MB / min(FUSE_BUFFERED_MB_PER_S, environment.network_mb_per_s)
        steps.append(StartupStep(at_s=now, line=f"[simulated] restoring compiled graphs took {now:.2f} seconds"))
    if weights.copied_mb_per_s is None:
        return now, steps
    copy_s = weights.size_bytes / (weights.copied_mb_per_s * 1e6)
    killed = _killed(environment, (_COPY_HELD_GIB, weights.size_bytes / 2**30), 0.0, 1.0)
    if killed is not None:
        return now, [*steps, StartupStep(at_s=now + copy_s * killed[0], error=killed[1])]
    line = f"[simulated] copying the weights into memory took {copy_s:.2f} seconds"
    return now + copy_s, [*steps, StartupStep(at_s=now + copy_s, line=line)]


def _load_mb_per_s(weights: Weights, accelerator: SimulatedAccelerator, *, is_tpu: bool) -> float:
    """Return the rate of a load. On a TPU the weights are sharded while loading, which is slower than a disk or a tmpfs."""
    if not is_tpu:
        return weights.mb_per_s
    if weights.streamed:
        return min(_TPU_BUCKET_MB_PER_S, weights.mb_per_s)
    return min(measured_starts.tpu_load_mb_per_s(weights.model, accelerator), weights.mb_per_s)


def _tpu_end_s(arguments: Arguments) -> float:
    return _TPU_SERVER_S + (_TPU_PROCESSOR_S if arguments.takes_media else 0.0)


def _killed(
    environment: RuntimeEnvironment, host_gib: tuple[float, float], from_share: float, to_share: float
) -> tuple[float, KilledError] | None:
    """Return the fraction of the load, between the two given ones, at which the container exceeds its memory, and the error. Otherwise return None.

    `host_gib` is the memory before the load, and the increase by the load.
    """
    limit = environment.memory_limit_mib
    if limit is None:
        return None
    overhead_gib, size_gib = host_gib
    overhead_mib = overhead_gib * 1024
    size_mib = size_gib * 1024
    if overhead_mib + size_mib <= limit:
        return None
    share = max(limit - overhead_mib, 0.0) / size_mib
    if not from_share <= share <= to_share:
        return None
    # The kernel kills the process on the allocation that crosses the limit, so the reported use is slightly above it.
    used = min(int(limit * 1.025), int(overhead_mib + size_mib))
    return share, KilledError(max(used, limit + 1))


def _compile(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, model: Model, now: float
) -> tuple[float, list[StartupStep]]:
    """Plan the compilation: no time with --enforce-eager, seconds if the cache has the key, otherwise the full time."""
    if arguments.enforce_eager:
        return now, []
    cache = _cache_file(arguments, environment, accelerator, model)
    full_s = full_compile_s(arguments, environment, accelerator, model)
    if cache is not None and cache.is_file():
        on_tpu = accelerator.kind == "tpu" and model.name != "tiny"
        took = min(_COMPILE_CACHED_S, full_s)
        if on_tpu:
            took = min(_tpu_cached_s(arguments, environment, accelerator, model), full_s)
        line = f"[backends.py:1] Directly load the compiled graph(s) from the cache, took {took:.3f} s"
        charge = Charge(what="cached", name=cache.name, seconds=took)
        return now + took, [StartupStep(at_s=now + took, line=line, charge=charge)]
    took = full_s
    compiling = StartupStep(at_s=now, line="[backends.py:1] Compiling a graph for dynamic shape")
    done = StartupStep(
        at_s=now + took,
        line=f"[monitor.py:1] torch.compile takes {took:.2f} s in total",
        cache_file=cache,
        charge=Charge(what="compile", name=cache.name if cache is not None else "", seconds=took),
    )
    return now + took, [compiling, done]


def full_compile_s(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, model: Model
) -> float:
    """Return the seconds of a compilation without a cache."""
    if model.name == "tiny":
        return _COMPILE_TINY_S
    if accelerator.kind != "tpu":
        return measured_starts.gpu_engine_s(model, accelerator) - measured_starts.WARM_UP_GPU_S
    programs = _programs(arguments, environment)
    speculation = _SPECULATION_FACTOR if arguments.speculative_config else 1.0
    return programs * measured_starts.program_s(model, accelerator) * speculation


def _tpu_cached_s(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, model: Model
) -> float:
    """Return the seconds to load a TPU's programs from a cache."""
    if not model.is_w4a16:
        return full_compile_s(arguments, environment, accelerator, model) * _COMPILE_TPU_CACHED_SHARE
    generation = measured_starts.generation_of(accelerator)
    return _programs(arguments, environment) * _CACHED_W4A16_PROGRAM_S.get(generation, _CACHED_W4A16_OTHERS_S)


def _programs(arguments: Arguments, environment: RuntimeEnvironment) -> int:
    """Return the number of XLA programs: one per batch size, and another with embeddings as input for media."""
    batches = _batch_sizes(arguments.max_num_batched_tokens or _TPU_BATCH, environment.padding_gap)
    return batches * (2 if arguments.takes_media else 1)


def _batch_sizes(most: int, padding_gap: int) -> int:
    """Return the number of batch sizes: powers of two up to the gap, then multiples of it (VLLM_TPU_BUCKET_PADDING_GAP; 0 for powers alone)."""
    sizes, size = 1, _TPU_SMALLEST_BATCH
    while size < most:
        size = size + padding_gap if 0 < padding_gap <= size else size * 2
        sizes += 1
    return sizes


def _cache_file(
    arguments: Arguments, environment: RuntimeEnvironment, accelerator: SimulatedAccelerator, model: Model
) -> Path | None:
    """Return the file that marks a compiled graph. Its key covers everything that may change the graph: all arguments but _NEUTRAL."""
    root = environment.cache_root
    folder = None if root is None else environment.folder(root)
    if folder is None:
        return None
    given = {name: value for name, value in asdict(arguments).items() if name not in _NEUTRAL}
    unused = {name: value for name, value in arguments.unused.items() if name not in _NEUTRAL}
    key = json.dumps(
        [VERSION, model.name, accelerator.name, environment.padding_gap, {**given, "unused": unused}], sort_keys=True
    )
    return folder / f"simulated-{hashlib.sha256(key.encode()).hexdigest()[:16]}.graph"
