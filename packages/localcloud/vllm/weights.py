"""The weights of a server: their location, vLLM's error if they are missing, and the speed of reads.

Sources of `gs://`: docs.vllm.ai, "Loading models with Run:ai Model Streamer"; vllm-project/vllm pull requests 24909 and 26464 (gs://, and the
package in the image); run-ai/runai-model-streamer, docs/src/env-vars.md and requests_iterator.py; all read 2026-11.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from localcloud.vllm import hub
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.recorded import GIB, Model, constant, find_model
from localcloud.vllm.refusals import EngineStartError, refused, words
from localcloud.vllm.settings import Mount, RuntimeEnvironment

_FIRST_STREAMER: Final = (0, 11, 1)
"""First release that authenticates at Cloud Storage (Google's GKE page on the streamer). Before it, `gs://` is not a valid model name."""
_CONFIG: Final = "config.json"
_STREAMED_FORMATS: Final = ("runai_streamer", "runai_streamer_sharded")


class LateError(EngineStartError):
    """An error that appears only when the weights are searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A checkpoint that a server found: its size on disk, and the rate at which it is read."""

    model: Model
    size_bytes: int
    mb_per_s: float
    download_s: float = 0.0
    downloaded: Path | None = None
    """The file that a download creates in a hub cache on a volume. None without such a cache."""
    copied_mb_per_s: float | None = None
    """Rate at which they were copied into an in-memory volume before the server started. None if they were not."""
    host_gib: tuple[float, float] | None = None
    """Host memory before the load, and the increase by the load. None if the load reads through the page cache."""

    @property
    def load_gib(self) -> tuple[float, float]:
        """Return the host memory before the load, and its increase at the load's peak."""
        return (constant("LOAD_HELD_GIB"), self.size_bytes / 2**30) if self.host_gib is None else self.host_gib


def find_weights(arguments: Arguments, environment: RuntimeEnvironment) -> Weights:
    """Find the checkpoint: on a mount, on a disk, in a bucket by URI, or on the hub."""
    name = arguments.model
    if name.startswith("/"):
        for mount in environment.mounts:
            if name == mount.path or name.startswith(mount.path.rstrip("/") + "/"):
                return _mounted_weights(arguments, mount, environment.network_mb_per_s)
        return _disk_weights(arguments, environment)
    model = find_model(name)
    if not name.startswith("gs://"):
        _require_on_hub(arguments, environment)
    if model is None:
        raise refused("not_a_model", name=name)
    if name.startswith("gs://") and environment.buckets is not None:
        return _streamed_weights(arguments, environment)
    if name.startswith("gs://"):
        rate = min(constant("TPU_BUCKET_MB_PER_S"), environment.network_mb_per_s)
        return Weights(model=model, size_bytes=model.disk_bytes, mb_per_s=rate)
    return _hub_weights(arguments, model, environment)


def _streamed_weights(arguments: Arguments, environment: RuntimeEnvironment) -> Weights:
    below = _streamed_files(arguments, environment)
    weights = _folder_weights(arguments.model, below, min(constant("STREAMER_MB_PER_S"), environment.network_mb_per_s))
    buffer = _buffer_bytes(weights.model, weights.size_bytes, environment.streamer_limit)
    return replace(weights, host_gib=(constant("SERVER_HELD_GIB"), buffer / 2**30))


def _require_on_hub(arguments: Arguments, environment: RuntimeEnvironment) -> None:
    """Raise EngineStartError with the hub's message if the hub does not provide the model. A cached model needs no hub."""
    if hub.is_cached(arguments.model, environment, arguments.revision):
        return
    problem = hub.refusal(arguments.model, environment, revision=arguments.revision)
    if problem is not None:
        raise EngineStartError(problem.printed("server"))


def _hub_weights(arguments: Arguments, model: Model, environment: RuntimeEnvironment) -> Weights:
    """Load from the hub's cache (HF_HOME), after a download if the cache lacks the model or is deleted with the container."""
    downloaded = hub.cache_file(arguments.model, environment, arguments.revision)
    cached = hub.is_cached(arguments.model, environment, arguments.revision)
    return Weights(
        model=model,
        size_bytes=model.disk_bytes,
        mb_per_s=constant("DISK_MB_PER_S"),
        download_s=0.0 if cached else hub.download_s(model, environment),
        downloaded=downloaded,
        host_gib=(model.disk_bytes / 2**30, constant("SERVER_HELD_GIB")),  # an instance stores files in memory
    )


def _mounted_weights(arguments: Arguments, mount: Mount, network_mb_per_s: float) -> Weights:
    prefix = arguments.model[len(mount.path) :].strip("/")
    below = {
        name[len(prefix) :].lstrip("/"): size
        for name, size in mount.files.items()
        if not prefix or name.startswith(prefix + "/")
    }
    if below and not mount.readable:
        raise refused("not_readable", name=arguments.model)
    is_buffered, is_cached = mount.options.get("enable-buffered-read") == "true", "cache-dir" in mount.options
    prefetches = arguments.safetensors_load_strategy == "prefetch"
    mode = "CACHED_" if is_cached else "BUFFERED_" if is_buffered else "PREFETCH_" if prefetches else ""
    # With this strategy, a mount without a file cache fetches every byte twice.
    reads = constant("PREFETCH_READS") if prefetches and not is_cached else 1.0
    return _folder_weights(arguments.model, below, min(constant(f"FUSE_{mode}MB_PER_S"), network_mb_per_s / reads))


def _disk_weights(arguments: Arguments, environment: RuntimeEnvironment) -> Weights:
    folder = environment.folder(arguments.model)
    files: dict[str, int] = {}
    if folder is not None and folder.is_dir():
        files = {str(item.relative_to(folder)): item.stat().st_size for item in folder.rglob("*") if item.is_file()}
    in_memory = arguments.model.startswith("/dev/shm/")  # noqa: S108 - a container's path, not ours
    volume = next((path for path in environment.memory_volumes if folder and folder.is_relative_to(path)), None)
    weights = _folder_weights(
        arguments.model, files, constant("MEMORY_MB_PER_S") if in_memory or volume else constant("DISK_MB_PER_S")
    )
    if volume is None:
        return weights
    size_gib = weights.size_bytes / 2**30
    if size_gib * 1024 > environment.memory_volumes[volume]:
        raise refused("full", name=arguments.model)
    rate = min(constant("COPY_MB_PER_S"), environment.network_mb_per_s)
    return replace(weights, copied_mb_per_s=rate, host_gib=(size_gib, constant("SERVER_HELD_GIB")))


def _folder_weights(name: str, files: Mapping[str, int], mb_per_s: float) -> Weights:
    """Check a folder as vLLM does: first the configuration, then the weights.

    A staged file can be a placeholder of a few bytes; then the checkpoint's known size counts.
    """
    if _CONFIG not in files and "params.json" not in files:
        raise refused("not_a_model", name=name)
    weights = {file: size for file, size in files.items() if file.endswith((".safetensors", ".bin", ".pt"))}
    if not weights:
        raise LateError(words("no_weights", name=name))
    model = find_model(name)
    if model is None:
        raise refused("unknown_folder", name=name)
    known = model.disk_bytes
    total = sum(weights.values())
    return Weights(model=model, size_bytes=total if total > known // 10 else known, mb_per_s=mb_per_s)


def _streamed_files(arguments: Arguments, environment: RuntimeEnvironment) -> Mapping[str, int]:
    """Return the objects below the model's URI, by relative name. Raises EngineStartError with vLLM's or Google's message."""
    name = arguments.model
    if environment.release < _FIRST_STREAMER:
        raise refused("no_streamer", name=name)
    bucket, _, prefix = name.removeprefix("gs://").partition("/")
    found = (environment.buckets or {}).get(bucket)
    if found is None or found.problem:
        raise EngineStartError(found.problem) if found else refused("no_bucket", name=name)
    folder = prefix.strip("/") + "/"
    below = {key[len(folder) :]: size for key, size in found.files.items() if key.startswith(folder)}
    if below and arguments.load_format not in _STREAMED_FORMATS:
        # Only the files other than the weights are fetched; the default loader then finds no weights in the temporary folder.
        raise refused("no_weights", name="/tmp/model_streamer")  # noqa: S108 - vLLM's folder
    return below


def _buffer_bytes(model: Model, size_bytes: int, limit: int) -> int:
    """Return the host memory of the streamer's buffer. Raises EngineStartError if the limit is below the largest tensor."""
    largest = min(int(model.largest_tensor_gib * GIB), size_bytes)
    if limit < 0:
        return size_bytes
    if limit == 0:
        return largest
    if limit < largest:
        raise refused("small_buffer", limit=limit, largest=largest)
    return min(limit, size_bytes)
