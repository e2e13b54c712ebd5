"""Where a server's files are: a mount, a folder, a bucket (`gs://`) or the hub. From there it takes weights and adapters, and `hf download` its files.

Sources of `gs://`: docs.vllm.ai, "Loading models with Run:ai Model Streamer"; vllm-project/vllm pull requests 24909 and 26464 (gs://, and the
package in the image); run-ai/runai-model-streamer, docs/src/env-vars.md and requests_iterator.py; all read 2026-11.
"""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

from localcloud.json_values import JsonObject, as_object
from localcloud.vllm import parent_watch
from localcloud.vllm.arguments import Arguments
from localcloud.vllm.recorded import GIB, Model, constant, find_card, find_model
from localcloud.vllm.refusals import EngineStartError, refusal_of, refuse
from localcloud.vllm.settings import RuntimeEnvironment

_FIRST_STREAMER: Final = (0, 11, 1)
"""First release that authenticates at Cloud Storage (Google's GKE page on the streamer). Before it, `gs://` is not a valid model name."""
_CONFIGS: Final = frozenset({"config.json", "params.json"})
_ADAPTER_CONFIG: Final = "adapter_config.json"
_FILES, _STEPS = 9, 5
_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place by its kind: the sizes of its files by name, None if they cannot be listed here; `problem`: what Google or the hub answers instead."""

    kind: str
    mb_per_s: float
    files: Mapping[str, int] | None = None
    problem: str = ""
    is_readable: bool = True
    volume_mib: int | None = None
    """Size of the in-memory volume that it lies on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A checkpoint that a server found: its size on disk, and the rate at which it is read. `host_gib`: host memory before the load, and its increase."""

    model: Model
    size_bytes: int
    mb_per_s: float
    host_gib: tuple[float, float]
    download_s: float = 0.0
    downloaded: Path | None = None
    """The file that a download creates in a hub cache on a volume. None without such a cache."""
    copied_mb_per_s: float | None = None
    """Rate at which they were copied into an in-memory volume before the server started. None if they were not."""


def find_place(name: str, environment: RuntimeEnvironment, *, revision: str = "", prefetches: bool = False) -> Place:
    """Return what is at a container's path, at a `gs://` address or in a repository of the hub."""
    network = environment.network_mb_per_s
    if name.startswith("gs://"):
        if environment.buckets is None:
            return Place(kind="stream", mb_per_s=min(constant("TPU_BUCKET_MB_PER_S"), network))
        bucket, _, prefix = name.removeprefix("gs://").partition("/")
        found = environment.buckets.get(bucket)
        files = None if found is None else _below(found.files, prefix)
        problem = "" if found is None else found.problem
        return Place(kind="bucket", mb_per_s=min(constant("STREAMER_MB_PER_S"), network), files=files, problem=problem)
    if not name.startswith("/"):
        answer = None if _is_cached(name, environment, revision) else _refusal(name, environment, revision)
        problem = "" if answer is None else hub_words("server", **answer)
        return Place(kind="hub", mb_per_s=constant("DISK_MB_PER_S"), problem=problem)
    for mount in environment.mounts:
        if f"{name}/".startswith(mount.path.rstrip("/") + "/"):
            is_cached = "cache-dir" in mount.options
            is_buffered = mount.options.get("enable-buffered-read") == "true"
            mode = "CACHED_" if is_cached else "BUFFERED_" if is_buffered else "PREFETCH_" if prefetches else ""
            # With this strategy, a mount without a file cache fetches every byte twice.
            reads = constant("PREFETCH_READS") if prefetches and not is_cached else 1.0
            return Place(
                kind="mount",
                mb_per_s=min(constant(f"FUSE_{mode}MB_PER_S"), network / reads),
                files=_below(mount.files, name[len(mount.path) :]),
                is_readable=mount.readable,
            )
    return _folder(name, environment)


def _folder(name: str, environment: RuntimeEnvironment) -> Place:
    folder = environment.folder(name)
    files: dict[str, int] = {}
    if folder is not None and folder.is_dir():
        files = {str(item.relative_to(folder)): item.stat().st_size for item in folder.rglob("*") if item.is_file()}
    volume = next((path for path in environment.memory_volumes if folder and folder.is_relative_to(path)), None)
    is_memory = volume is not None or name.startswith("/dev/shm/")  # noqa: S108 - a container's path, not ours
    return Place(
        kind="folder",
        mb_per_s=constant("MEMORY_MB_PER_S" if is_memory else "DISK_MB_PER_S"),
        files=files,
        volume_mib=None if volume is None else environment.memory_volumes[volume],
    )


def _below(files: Mapping[str, int], prefix: str) -> Mapping[str, int]:
    folder = f"{prefix.strip('/')}/".lstrip("/")
    return {name[len(folder) :]: size for name, size in files.items() if name.startswith(folder)}


def has_file(path: str, environment: RuntimeEnvironment) -> bool:
    """Return whether a container's path is a file."""
    real = environment.folder(path)
    is_mounted = any(path.removeprefix(f"{mount.path}/") in mount.files for mount in environment.mounts)
    return is_mounted or (real is not None and real.is_file())


def find_weights(arguments: Arguments, environment: RuntimeEnvironment) -> Weights:
    """Return the checkpoint of a server. Raises EngineStartError with what vLLM, Google or the hub says if it is not there.

    A staged file can be a placeholder of a few bytes; then the checkpoint's known size counts.
    """
    name, revision = arguments.model, arguments.revision
    prefetches = arguments.safetensors_load_strategy == "prefetch"
    place, model = find_place(name, environment, revision=revision, prefetches=prefetches), find_model(name)
    files, known = place.files, 0 if model is None else model.disk_bytes
    weights = [size for file, size in (files or {}).items() if file.endswith((".safetensors", ".bin", ".pt"))]
    size = sum(weights) if sum(weights) > known // 10 else known
    largest = 0 if model is None else min(int(model.largest_tensor_gib * GIB), size)
    facts: JsonObject = {
        "name": name,
        "kind": place.kind,
        "problem": place.problem or None,
        "is_readable": place.is_readable,
        "files": None if files is None else len(files),
        "has_config": None if files is None else not _CONFIGS.isdisjoint(files),
        "weights": None if files is None else len(weights),
        "model": model,
        "load_format": arguments.load_format,
        "has_streamer": environment.release >= _FIRST_STREAMER,
        "size_mib": size / 2**20,
        "volume_mib": place.volume_mib,
        "streamer_limit": environment.streamer_limit,
        "largest_bytes": largest,
    }
    refuse("weights", facts)
    assert model is not None  # noqa: S101 - an unknown model is refused
    held, size_gib = constant("SERVER_HELD_GIB"), size / GIB
    limit = environment.streamer_limit
    buffer = size if limit < 0 else min(max(limit, largest), size)
    is_hub = place.kind == "hub"
    downloads = is_hub and not _is_cached(name, environment, revision)
    return Weights(
        model=model,
        size_bytes=size,
        mb_per_s=place.mb_per_s,
        host_gib=(held, buffer / GIB)
        if place.kind == "bucket"
        # An instance stores files of the hub and of a volume in memory; those of a mount go through the page cache.
        else (size_gib, held)
        if is_hub or place.volume_mib is not None
        else (constant("LOAD_HELD_GIB"), size_gib),
        download_s=_download_s(model, environment) if downloads else 0.0,
        downloaded=_cache_file(name, environment, revision) if is_hub else None,
        copied_mb_per_s=None
        if place.volume_mib is None
        else min(constant("COPY_MB_PER_S"), environment.network_mb_per_s),
    )


def adapter_problem(
    arguments: Arguments, environment: RuntimeEnvironment, *, is_jax: bool = False
) -> EngineStartError | None:
    """Return the error of the first adapter that vLLM cannot load after the engine's start, or None.

    `is_jax`: a JAX model serves on a TPU.
    """
    common = {"enable_lora": arguments.enable_lora, "max_lora_rank": arguments.max_lora_rank, "is_jax": is_jax}
    for adapter in arguments.lora_modules:
        facts = {**common, "name": adapter.name, "path": adapter.path, "rank": _rank(adapter.path, environment)}
        row = refusal_of("adapters", facts)
        if row is not None:
            return EngineStartError(row["words"])
    return None


def _rank(path: str, environment: RuntimeEnvironment) -> int | None:
    """Return an adapter's rank, 0 if it cannot be known here, None without an adapter."""
    if not path.startswith("/"):
        return None if find_place(path, environment).problem else 0
    config = f"{path.rstrip('/')}/{_ADAPTER_CONFIG}"
    file = environment.folder(config)
    if file is None or not file.is_file():
        return 0 if has_file(config, environment) else None  # a bucket's listing has names and sizes only
    with suppress(ValueError):
        rank = as_object(json.loads(file.read_text(encoding="utf-8"))).get("r")
        return rank if isinstance(rank, int) else None
    return None


def _refusal(model: str, environment: RuntimeEnvironment, revision: str) -> JsonObject | None:
    """Ask the local cloud's hub whether a model can be downloaded. Return its error, or None; a server without a local cloud has no hub."""
    paths = [f"{quote(model)}/auth-check"] + (
        [f"{quote(model)}/revision/{quote(revision, safe='')}"] if revision else []
    )
    token = environment.hub_token.strip()
    answers = (_answer(f"{environment.hub}/api/models/{path}", token) for path in paths if environment.hub)
    return next(({"model": model, "revision": revision, **one} for one in answers if one is not None), None)


def _answer(url: str, token: str) -> JsonObject | None:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310 - a loopback address
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_LIMIT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            try:
                message = str(as_object(json.loads(error.read())).get("error") or "")
            except ValueError:
                message = ""
            return {"status": error.code, "code": error.headers.get("X-Error-Code"), "message": message}
    except OSError:
        return {"status": 0}


def hub_words(client: str, *, model: str, status: int, revision: str = "", code: str = "", message: str = "") -> str:
    """Return what a client prints for an answer of the hub: vLLM (`server`), or `hf download` (`command`). `status` is 0 without an answer."""
    facts: JsonObject = {
        "model": model,
        "status": status,
        "code": code or None,
        "message": message,
        "quoted": quote(revision, safe=""),
        "is_hidden": status == HTTPStatus.NOT_FOUND or message == "Invalid username or password.",
        "kind": "Client" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "Server",
        "reason": HTTPStatus(status).phrase if status else "",
    }
    return str((refusal_of("hub", facts) or {})[client])


def _cache_file(name: str, environment: RuntimeEnvironment, revision: str = "") -> Path | None:
    """Return the file that a download of a model creates in the hub's cache (HF_HOME). None if the cache is deleted with the container.

    Each revision has one. The real cache shares files between revisions; here the second one is downloaded completely.
    """
    home = environment.volume_path(environment.hub_home) if environment.hub_home else None
    file = f"simulated-download-{revision.replace('/', '--')}" if revision else "simulated-download"
    return None if home is None else home / "hub" / f"models--{name.replace('/', '--')}" / file


def _is_cached(name: str, environment: RuntimeEnvironment, revision: str = "") -> bool:
    """Return whether the hub's cache has a model: after a simulated download, or as the real files of a snapshot."""
    kept = _cache_file(name, environment, revision)
    if kept is None or kept.is_file():
        return kept is not None
    ref = kept.parent / "refs" / (revision or "main")
    commit = ref.read_text(encoding="utf-8") if ref.is_file() else revision or "-"
    return (kept.parent / "snapshots" / commit).is_dir()


def _download_s(model: Model, environment: RuntimeEnvironment) -> float:
    """Return the simulated seconds of a download from the hub, without the load after it."""
    card, megabytes = find_card(environment.accelerator), model.disk_bytes / 1e6
    if card is not None and card.kind == "tpu":
        return megabytes / min(constant("TPU_HUB_MB_PER_S"), environment.network_mb_per_s)
    both_s = megabytes / min(constant("HUB_MB_PER_S"), environment.network_mb_per_s)
    return both_s - megabytes / constant("DISK_MB_PER_S")


def download(words: Sequence[str], environment: RuntimeEnvironment) -> int:
    """Run `hf download MODEL`. Return its exit code: 1 if the hub does not have the model."""
    parent_watch.hold(environment.lifeline)
    parser = argparse.ArgumentParser(prog="hf download", allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--revision", default="")
    parser.add_argument("--exclude")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(list(words))
    answer = _refusal(given.model, environment, given.revision)
    model = find_model(given.model)
    if model is None or answer is not None:
        # The simulator can only serve known models.
        unknown: JsonObject = {"model": given.model, "status": int(HTTPStatus.NOT_FOUND)}
        print(hub_words("command", **(answer or unknown)), file=sys.stderr)
        return 1
    has = _is_cached(given.model, environment, given.revision)
    if given.dry_run:
        left = 0.0 if has else model.disk_bytes / 1e9
        print(f"[dry-run] Will download {0 if has else _FILES} files (out of {_FILES}) totalling {left:.1f}G.")
    elif not has:
        _download(model, environment, _cache_file(given.model, environment, given.revision))
    return 0


def _download(model: Model, environment: RuntimeEnvironment, kept: Path | None) -> None:
    step_s = _download_s(model, environment) / _STEPS / environment.clock_speed
    for step in range(1, _STEPS + 1):
        time.sleep(step_s)
        print(f"Fetching {_FILES} files: {step / _STEPS:4.0%} of {model.disk_bytes / GIB:.1f} GiB", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("content of the hub's file\n", encoding="utf-8")
