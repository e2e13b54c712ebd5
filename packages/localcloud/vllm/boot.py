"""The start of the engine: the phases, log lines and memory of the nearest recorded boot, and what refuses first, in the words of the real one."""

import hashlib
import json
import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from localcloud.vllm import VERSION, adapters, validators
from localcloud.vllm.arguments import Arguments, known_words
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
from localcloud.vllm.refusals import CONDITIONS, EngineStartError, refused
from localcloud.vllm.settings import RuntimeEnvironment
from localcloud.vllm.weights import LateError, Weights, find_weights

_IN_TORCH_ON_TPU: Final = "12B"  # the size that vLLM serves in PyTorch there; of the others it has JAX models
_CUDA_OF: Final = {535: 12_020, 580: 13_000}
"""Branch of the driver -> its CUDA version, as PyTorch prints it."""
_CUDA_13: Final = 13_000
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
    "model", "revision", "tokenizer_revision", "load_format", "safetensors_load_strategy", "served_model_names", "host", "port",
    "api_keys", "reasoning_parser", "tool_call_parser", "enable_auto_tool_choice", "chat_template", "allowed_origins",
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
        raise refused("no_accelerator", name=environment.accelerator)
    try:
        _check_driver(environment)
        _check_words(arguments, environment, card)
        weights = find_weights(arguments, environment)
        model = (
            find_model(f"gemma-4-{weights.model.size}-fp8") if arguments.quantization == "fp8" else None
        ) or weights.model
        boot = nearest_boot(
            model, card, arguments.tensor_parallel_size, drafts=arguments.speculative_config.get("model") is not None
        )
        planned = _capacity(arguments, environment, card, stored=weights.model, model=model, boot=boot)
    except EngineStartError as error:
        late_s = 20.0 if isinstance(error, LateError) else 0.0
        step = StartupStep(at_s=constant("IMPORT_S") + late_s, error=error)
        return Start(steps=(step,), capacity=None, model=None, card=card)
    steps = _Startup(arguments, environment, card, weights=weights, planned=planned, boot=boot).steps()
    # vLLM loads adapters when the engine is up.
    is_jax = card.kind == "tpu" and model.size != _IN_TORCH_ON_TPU
    problem = None if steps[-1].error else adapters.load(arguments, environment, is_jax=is_jax)
    if problem is not None:
        steps = (*steps, StartupStep(at_s=steps[-1].at_s, error=problem))
    served = None if steps[-1].error else planned
    return Start(steps=steps, capacity=served, model=model, card=card, is_jax=is_jax)


def _check_driver(environment: RuntimeEnvironment) -> None:
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
        raise refused("mismatch")
    if is_old and not environment.uses_cuda_compatibility and environment.release >= _FIRST_WITH_CUDA_13:
        raise refused("too_old", version=driver_cuda)


def _check_words(arguments: Arguments, environment: RuntimeEnvironment, card: SimulatedCard) -> None:
    """Raise EngineStartError for a load format that the real server does not have, or arguments that contradict each other.

    The same for a chat template that is not a file of its image. An image for GPUs starts in the folder of vLLM's sources, one for TPUs beside it
    (Dockerfiles of vLLM and of tpu-inference). vLLM finds its built-in templates by name (entrypoints/chat_utils.py).
    """
    is_tpu = card.kind == "tpu"
    template = arguments.unused.get("chat_template")
    if template is not None and not any(sign in template for sign in "{}\n"):
        sources = "/workspace/vllm/" if is_tpu else "/vllm-workspace/"
        path = posixpath.join("/workspace/tpu_inference" if is_tpu else sources, template)
        real, known = environment.folder(path), known_words("chat_templates")
        is_built_in = template in known and "/" not in template
        is_mounted = any(path.removeprefix(f"{mount.path}/") in mount.files for mount in environment.mounts)
        is_there = is_mounted or (real is not None and real.is_file())
        if not (is_built_in or path.removeprefix(sources) in known or is_there):
            raise refused("template", template=template)
    own = _LOADERS_ON_TPU if is_tpu else ()
    if arguments.load_format.lower() not in {*known_words("load_formats"), *own}:
        raise refused("load_format", name=arguments.load_format.lower())
    contradiction = validators.refusal(arguments, gpus=None if is_tpu else card.devices)
    if contradiction:
        raise EngineStartError(contradiction)


def _capacity(
    arguments: Arguments,
    environment: RuntimeEnvironment,
    card: SimulatedCard,
    *,
    stored: Model,
    model: Model,
    boot: Boot,
) -> KvCacheSize:
    """Return the memory of the recorded boot. Raise EngineStartError with vLLM's sentence for what its condition refuses."""
    is_tpu, tp = card.kind == "tpu", arguments.tensor_parallel_size
    kv_tokens = min(int(boot.kv_gib / boot.request_gib * boot.max_model_len), 2**62)
    length = (
        min(kv_tokens, model.max_position)
        if arguments.max_model_len == -1
        else arguments.max_model_len or model.max_position
    )
    head_gib = model.stored_head_gib + _CUDA_CONTEXT_GIB if card.kind == "cuda" and model.stored_head_gib else 0.0
    _, _, digest = environment.image.partition("@")
    facts: Mapping[str, Any] = {
        "devices": card.devices,
        "devices_asked": tp * arguments.data_parallel_size,
        "card": card.name,
        "total_gib": card.total_gib,
        # vLLM drops the head that equals the embeddings, but only after it has loaded it.
        "weights_gib": round(max(model.disk_bytes / GIB + head_gib - arguments.cpu_offload_gib, 0.0) / tp, 2),
        "max_num_batched_tokens": arguments.max_num_batched_tokens or card.default_max_num_batched_tokens,
        "images": 0 if arguments.language_model_only else arguments.limit_mm_per_prompt.get("image", 1),
        "stored_method": _STORED.get(stored.form, "fp8"),
        "is_tpu": is_tpu,
        "is_moe": model.is_moe,
        "loads_4_bit": bool(digest) and digest not in published_tpu_images(),
        "max_position": model.max_position,
        "length": length,
        "kv_tokens": kv_tokens,
        "kv_gib": round(boot.kv_gib, 2),
        "needed_gib": round(boot.request_gib * length / boot.max_model_len, 2),
    }
    problem = validators.first_refusal(CONDITIONS, {**validators.facts_of(arguments), **facts})
    if problem:
        raise EngineStartError(problem)
    sequences = arguments.max_num_seqs or card.default_max_num_seqs
    block_size = arguments.block_size or (_block_size(length, sequences) if is_tpu else boot.block_size)
    blocks = boot.kv_blocks * boot.block_size // block_size
    given = arguments.num_gpu_blocks_override
    return KvCacheSize(
        max_model_len=length,
        max_num_seqs=sequences,
        block_size=block_size,
        num_blocks=blocks if given is None else given,
        tokens=kv_tokens if given is None else kv_tokens * given // max(blocks, 1),
        available_gib=boot.kv_gib,
    )


def _block_size(length: int, sequences: int) -> int:
    """Return the tokens of a block on a TPU: tpu-inference chooses a sixteenth of a short length, and enough that the page table fits."""
    by_length = 16 if length > _SHORT_LENGTH else min(max(_power_of_two(length) // 16, 16), 256)
    return max(by_length, _power_of_two(-(-length // max(_PAGE_TABLE_ENTRIES // sequences, 1))))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


class _Startup:
    """The start of a server whose weights were found and fit. Each stage adds steps, in the order of simulated time."""

    def __init__(
        self,
        arguments: Arguments,
        environment: RuntimeEnvironment,
        card: SimulatedCard,
        *,
        weights: Weights,
        planned: KvCacheSize,
        boot: Boot,
    ) -> None:
        self._arguments, self._environment, self._card = arguments, environment, card
        self._weights, self._planned, self._boot = weights, planned, boot
        self._is_tpu = card.kind == "tpu"
        self._cache = self._cache_file()
        self._now_s = 0.0
        self._steps: list[StartupStep] = []

    def steps(self) -> tuple[StartupStep, ...]:
        """Return the steps; a failing one is the last."""
        stages = (self._before_the_server, self._imports, self._download, self._load, self._compile, self._warm_up)
        for stage in stages:
            stage()
            if self._steps and self._steps[-1].error is not None:
                break
        return tuple(self._steps)

    def _log(self, *lines: str, cache_file: Path | None = None) -> None:
        self._steps += [StartupStep(at_s=self._now_s, line=line, cache_file=cache_file) for line in lines]

    def _fail(self, error: KilledError, after_s: float) -> None:
        self._steps.append(StartupStep(at_s=self._now_s + after_s, error=error))

    def _cache_file(self) -> Path | None:
        """Return the file that marks a compiled graph. Its key covers everything that may change the graph: all arguments but _NEUTRAL."""
        root = self._environment.cache_root
        folder = None if root is None else self._environment.folder(root)
        if folder is None:
            return None
        given = {name: value for name, value in asdict(self._arguments).items() if name not in _NEUTRAL}
        unused = {name: value for name, value in self._arguments.unused.items() if name not in _NEUTRAL}
        gap = self._environment.padding_gap
        key = json.dumps(
            [VERSION, self._weights.model.name, self._card.name, gap, {**given, "unused": unused}], sort_keys=True
        )
        return folder / f"simulated-{hashlib.sha256(key.encode()).hexdigest()[:16]}.graph"

    def _before_the_server(self) -> None:
        """Plan a program before the server: it unpacks an archive of graphs, then copies the weights into memory.

        The program itself has moved placeholders of a few bytes, so its own time is meaningless.
        """
        environment, weights, cache = self._environment, self._weights, self._cache
        in_volume = cache is not None and any(cache.is_relative_to(path) for path in environment.memory_volumes)
        if cache is not None and in_volume and cache.is_file():
            self._now_s += constant("GRAPHS_MB") / min(constant("FUSE_BUFFERED_MB_PER_S"), environment.network_mb_per_s)
            self._log(f"[simulated] restoring compiled graphs took {self._now_s:.2f} seconds")
        if weights.copied_mb_per_s is None:
            return
        copy_s = weights.size_bytes / (weights.copied_mb_per_s * 1e6)
        killed = _killed(environment, (constant("COPY_HELD_GIB"), weights.size_bytes / GIB))
        if killed is not None:
            self._fail(killed[1], copy_s * killed[0])
            return
        self._now_s += copy_s
        self._log(f"[simulated] copying the weights into memory took {copy_s:.2f} seconds")

    def _imports(self) -> None:
        arguments, card, boot = self._arguments, self._card, self._boot
        self._log(
            f"[api_server.py:1] vLLM API server version {VERSION}",
            f"[model.py:1] Resolved architecture: Gemma4ForConditionalGeneration ({self._weights.model.name})",
            f"[model.py:1] Using max model len {self._planned.max_model_len}",
        )
        if arguments.enforce_eager:
            self._log("[vllm.py:1] Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.")
        if arguments.data_parallel_size > 1:
            self._log(
                f"[serve.py:1] Defaulting api_server_count to data_parallel_size ({arguments.data_parallel_size})."
            )
        if not boot.is_of(self._weights.model, card, arguments.tensor_parallel_size):
            times = 1 / boot.slower(card, arguments.tensor_parallel_size)
            self._log(
                f"[simulated] no recording of this model and card: the figures are those of {boot.model} on {boot.hardware.name}, and the rate "
                f"is {times:.2f} times its rate, the ratio of the bandwidths"
            )
        self._now_s += boot.import_s
        self._log(
            f"[core.py:1] Initializing a V1 LLM engine (v{VERSION}) on {card.name}",
            f"[gpu_model_runner.py:1] Starting to load model {arguments.model}...",
        )

    def _download(self) -> None:
        """Plan the download of a hub model that is not in the cache."""
        name, weights = self._arguments.model, self._weights
        if weights.download_s:
            self._now_s += weights.download_s
            line = f"[weight_utils.py:1] Time spent downloading weights for {name}: {weights.download_s:.6f} seconds"
            self._log(line, cache_file=weights.downloaded)

    def _load(self) -> None:
        """Plan the load, shard by shard. The kernel kills the container if it exceeds its memory."""
        weights = self._weights
        # On a TPU each tensor is sharded while it is loaded, which is slower than a disk or a memory.
        load_s = max(weights.size_bytes / (weights.mb_per_s * 1e6), self._boot.read_s_of(weights.size_bytes))
        killed = _killed(self._environment, weights.load_gib)
        shards, began_s = weights.model.shards, self._now_s
        for shard in range(1, shards + 1):
            done = shard / shards
            if killed is not None and killed[0] <= done:
                self._now_s = began_s
                self._fail(killed[1], load_s * killed[0])
                return
            self._now_s = began_s + load_s * done
            self._log(f"Loading safetensors checkpoint shards: {done:4.0%} Completed | {shard}/{shards}")
        self._log(
            f"[default_loader.py:1] Loading weights took {load_s:.2f} seconds",
            f"[gpu_model_runner.py:1] Model loading took {self._boot.weights_gib:.2f} GiB memory and {load_s:.6f} seconds",
        )

    def _compile(self) -> None:
        """Plan the compilation: no time with --enforce-eager, less if the cache has the key."""
        if self._arguments.enforce_eager:
            return
        if self._is_tpu and self._weights.model.size != _IN_TORCH_ON_TPU:
            self._log(
                "[compilation_manager.py:1] AOT lower skipped for worker0 backbone (not a jit); will compile in warmup."
            )
        cache = self._cache
        full_s, took_s = self._boot.compile_s, self._boot.cached_s
        if cache is not None and cache.is_file():
            self._now_s += took_s
            self._log(f"[backends.py:1] Directly load the compiled graph(s) from the cache, took {took_s:.3f} s")
            return
        self._log("[backends.py:1] Compiling a graph for dynamic shape")
        self._now_s += full_s
        self._log(f"[monitor.py:1] torch.compile takes {full_s:.2f} s in total", cache_file=cache)

    def _warm_up(self) -> None:
        planned = self._planned
        self._log(
            f"[gpu_worker.py:1] Available KV cache memory: {planned.available_gib:.2f} GiB",
            f"[kv_cache_utils.py:1] GPU KV cache size: {planned.tokens:,} tokens",
            f"[kv_cache_utils.py:1] Maximum concurrency for {planned.max_model_len:,} tokens per request: {planned.concurrency:.2f}x",
        )
        if not self._is_tpu and not self._arguments.enforce_eager:
            self._log("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%")
        self._now_s += self._boot.warm_up_s
        self._log(
            f"[core.py:1] init engine (profile, create kv cache, warmup model) took {self._now_s:.2f} seconds",
        )


def _killed(environment: RuntimeEnvironment, host_gib: tuple[float, float]) -> tuple[float, KilledError] | None:
    """Return the fraction of a load at which the container exceeds its memory, and the error. None if the load fits.

    `host_gib` is the memory before the load, and the increase by the load.
    """
    limit = environment.memory_limit_mib
    before_mib, increase_mib = (1024 * part for part in host_gib)
    if limit is None or before_mib + increase_mib <= limit:
        return None
    share = max(limit - before_mib, 0.0) / increase_mib
    # The kernel kills the process on the allocation that crosses the limit, so the reported use is slightly above it.
    used = min(int(limit * 1.025), int(before_mib + increase_mib))
    return share, KilledError(max(used, limit + 1))
