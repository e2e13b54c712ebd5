"""The environment variables that configure the simulated server."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcloud.vllm import VERSION

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_STREAMER_LIMIT = 40_000_000_000  # run-ai/runai-model-streamer, docs/src/env-vars.md: 40 GB, read 2026-11


class VariableError(Exception):
    """An environment variable of the simulator is invalid. The message names it, its value and the allowed values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A Cloud Storage volume in the container: `files` maps the names below `path` to their sizes in bytes."""

    path: str
    files: Mapping[str, int]
    options: Mapping[str, str]
    readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket that the server can name as `gs://`: `files` maps the objects' names as for a mount; `problem` is why it cannot be listed."""

    files: Mapping[str, int]
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEnvironment:
    """The simulator's configuration; docs/authors/simulated-server.md lists the variables.

    `image`: the container's image, empty if unknown; `clock_speed`: simulated seconds of the start per real second;
    `speed`: the same for serving; `ttft_s` and `tpot_s` fix the timing (real seconds at speed 1); `memory_limit_mib`: the container's
    memory; `network_mb_per_s`: the network bandwidth; `paths`: container paths and the real folders behind them; `version`: vLLM's;
    `buckets`: those that the command line names, None if `gs://` is not modeled; `memory_volumes`: real folders of in-memory volumes,
    with their size in MiB; `streamer_limit`: bytes of the streamer's buffer;
    `python_path`: real folders behind the container's PYTHONPATH; `follows_redirects`, `most_choices`, `is_developer` and
    `loads_adapters`: variables of vLLM.
    """

    accelerator: str
    image: str
    clock_speed: float
    speed: float
    ttft_s: float | None
    tpot_s: float | None
    bind_host: str | None
    bind_port: int | None
    memory_limit_mib: int | None
    network_mb_per_s: float
    mounts: tuple[Mount, ...]
    paths: Mapping[str, str]
    version: str
    buckets: Mapping[str, Bucket] | None
    memory_volumes: Mapping[str, int]
    streamer_limit: int
    lifeline: str
    faults: str
    cache_root: str | None
    hub_home: str | None
    api_key: str | None
    python_path: tuple[str, ...]
    follows_redirects: bool
    most_choices: int
    is_developer: bool
    loads_adapters: bool
    padding_gap: int = 0
    """Tokens between batch sizes of a TPU above this size; 0 doubles them (VLLM_TPU_BUCKET_PADDING_GAP)."""
    cuda_driver: int | None = None
    """Branch of the GPU's driver; None simulates none."""
    device_problem: str = ""
    """Error message of the real server if the container cannot use its TPU. Empty if it can."""
    uses_cuda_compatibility: bool = False
    """True if vLLM loads the image's own CUDA compatibility libraries (VLLM_ENABLE_CUDA_COMPATIBILITY)."""
    hub: str = ""
    """Address of the local cloud's hub. Empty for a server without a local cloud."""
    hub_token: str = ""

    @property
    def release(self) -> tuple[int, ...]:
        """Return the three numbers of vLLM's version, (0,) if it has none."""
        found = _RELEASE.match(self.version)
        return tuple(int(part or 0) for part in found.groups()) if found else (0,)

    def volume_path(self, container_path: str) -> Path | None:
        """Return the real folder behind a path on a volume. None if it is in the container's own layer, which is deleted with it."""
        volumes = (path for path in self.paths if path != "/")
        on_volume = any(container_path == path or container_path.startswith(path.rstrip("/") + "/") for path in volumes)
        return self.real_path(container_path) if on_volume else None

    def real_path(self, container_path: str) -> Path | None:
        """Return the real folder or file behind a container's path, or None if nothing is mounted there."""
        for prefix in sorted(self.paths, key=len, reverse=True):
            if container_path == prefix or container_path.startswith(prefix.rstrip("/") + "/"):
                rest = container_path[len(prefix) :].lstrip("/")
                return Path(self.paths[prefix]) / rest
        return None

    def folder(self, container_path: str) -> Path | None:
        """Return the real folder behind a container's path; the path itself for a server without a container."""
        is_bare = not self.paths and not self.mounts
        return self.real_path(container_path) or (Path(container_path) if is_bare else None)


def read(environment: Mapping[str, str]) -> RuntimeEnvironment:
    """Read the simulator's variables. Raises VariableError."""
    return RuntimeEnvironment(
        accelerator=environment.get("VLLM_SIM_ACCELERATOR", ""),
        image=environment.get("VLLM_SIM_IMAGE", ""),
        clock_speed=_positive(environment, "VLLM_SIM_CLOCK_SPEED", 200.0),
        speed=_positive(environment, "VLLM_SIM_SPEED", 1.0),
        ttft_s=_number(environment, "VLLM_SIM_TTFT_S"),
        tpot_s=_number(environment, "VLLM_SIM_TPOT_S"),
        bind_host=environment.get("VLLM_SIM_BIND_HOST"),
        bind_port=_integer(environment, "VLLM_SIM_BIND_PORT"),
        memory_limit_mib=_integer(environment, "VLLM_SIM_MEMORY_LIMIT_MIB"),
        network_mb_per_s=_positive(environment, "VLLM_SIM_NETWORK_MB_PER_S", math.inf),
        mounts=_mounts(environment),
        paths=_json(environment, "VLLM_SIM_PATHS", dict) or {},
        version=environment.get("VLLM_SIM_VERSION") or VERSION,
        buckets=_buckets(environment),
        memory_volumes=_json(environment, "VLLM_SIM_MEMORY_VOLUMES", dict) or {},
        streamer_limit=_whole(environment, "RUNAI_STREAMER_MEMORY_LIMIT", _STREAMER_LIMIT),
        lifeline=environment.get("VLLM_SIM_LIFELINE", ""),
        faults=environment.get("VLLM_SIM_FAULTS", ""),
        cache_root=environment.get("VLLM_XLA_CACHE_PATH") or environment.get("VLLM_CACHE_ROOT"),
        hub_home=environment.get("HF_HOME"),
        api_key=environment.get("VLLM_API_KEY"),
        python_path=tuple(filter(None, environment.get("VLLM_SIM_PYTHONPATH", "").split(":"))),
        follows_redirects=_whole(environment, "VLLM_MEDIA_URL_ALLOW_REDIRECTS", 1) != 0,
        most_choices=_whole(environment, "VLLM_MAX_N_SEQUENCES", 16_384),
        is_developer=_whole(environment, "VLLM_SERVER_DEV_MODE", 0) != 0,
        loads_adapters=environment.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0").strip().lower() in {"1", "true"},
        padding_gap=_integer(environment, "VLLM_TPU_BUCKET_PADDING_GAP") or 0,
        device_problem=environment.get("VLLM_SIM_DEVICE_PROBLEM", ""),
        cuda_driver=_integer(environment, "VLLM_SIM_CUDA_DRIVER"),
        uses_cuda_compatibility=environment.get("VLLM_ENABLE_CUDA_COMPATIBILITY", "").strip().lower() in {"1", "true"},
        hub=environment.get("VLLM_SIM_HUB", ""),
        hub_token=environment.get("HF_TOKEN", "").strip(),
    )


def _number(environment: Mapping[str, str], name: str) -> float | None:
    text = environment.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise VariableError(f"{name} is {text!r}, expected a number of 0 or more")
    return value


def _whole(environment: Mapping[str, str], name: str, default: int) -> int:
    """Read a variable of vLLM or its streamer, as they do."""
    text = environment.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise VariableError(f"{name} is {text!r}, expected a whole number") from error


def _positive(environment: Mapping[str, str], name: str, default: float) -> float:
    value = _number(environment, name)
    if value == 0:
        raise VariableError(f"{name} is 0, expected a number greater than 0")
    return default if value is None else value


def _integer(environment: Mapping[str, str], name: str) -> int | None:
    value = _number(environment, name)
    return None if value is None else int(value)


def _json(environment: Mapping[str, str], name: str, kind: type, *, in_file: bool = False) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON value of a variable, or of the file that it names. None if it is not set."""
    text = environment.get(name)
    if not text:
        return None
    try:
        value: object = json.loads(Path(text).read_text(encoding="utf-8") if in_file else text)
    except OSError as error:
        raise VariableError(f"{name} names {text}, which cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise VariableError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise VariableError(f"{name} must be a JSON {'object' if kind is dict else 'list'}")
    return value


def _mounts(environment: Mapping[str, str]) -> tuple[Mount, ...]:
    """Read the mounts from the file that VLLM_SIM_MOUNTS_FILE names. A bucket's listing is too long for a variable."""
    return tuple(Mount(**item) for item in _json(environment, "VLLM_SIM_MOUNTS_FILE", list, in_file=True) or ())


def _buckets(environment: Mapping[str, str]) -> Mapping[str, Bucket] | None:
    """Read the buckets from the file that VLLM_SIM_BUCKETS_FILE names. None if it is not set."""
    listed = _json(environment, "VLLM_SIM_BUCKETS_FILE", dict, in_file=True)
    return None if listed is None else {name: Bucket(**item) for name, item in listed.items()}
