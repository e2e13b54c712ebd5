"""The environment variables that configure the simulated server: a field of `RuntimeEnvironment` for each, with its name and its reader."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

from localcloud.json_values import JsonObject
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


def _text(_name: str, text: str) -> str:
    return text


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise VariableError(f"{name} is {text!r}, expected a number of 0 or more")
    return value


def _positive(name: str, text: str) -> float:
    value = _number(name, text)
    if value == 0:
        raise VariableError(f"{name} is 0, expected a number greater than 0")
    return value


def _whole(name: str, text: str) -> int:
    try:
        return int(float(text))
    except (ValueError, OverflowError) as error:
        raise VariableError(f"{name} is {text!r}, expected a whole number") from error


def _switch(_name: str, text: str) -> bool:
    return text.strip().lower() not in {"0", "false", ""}


def _folders(_name: str, text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(":")))


def _json(name: str, text: str) -> Any:  # noqa: ANN401 - JSON is any value
    try:
        return json.loads(text)
    except ValueError as error:
        raise VariableError(f"{name} is not JSON: {error}") from error


def _listing(name: str, text: str) -> Any:  # noqa: ANN401 - JSON is any value
    """Read the JSON file that a variable names. A bucket's listing is too long for a variable."""
    try:
        return _json(name, Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise VariableError(f"{name} names {text}, which cannot be read: {error}") from error


def _mounts(name: str, text: str) -> tuple[Mount, ...]:
    return tuple(Mount(**item) for item in cast("list[JsonObject]", _listing(name, text)))


def _buckets(name: str, text: str) -> Mapping[str, Bucket]:
    return {bucket: Bucket(**item) for bucket, item in cast("JsonObject", _listing(name, text)).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEnvironment:
    """The simulator's configuration; dev/docs/simulated-server.md lists its own variables, the others are vLLM's and its libraries'."""

    accelerator: Annotated[str, _text, "VLLM_SIM_ACCELERATOR"] = ""
    image: Annotated[str, _text, "VLLM_SIM_IMAGE"] = ""
    clock_speed: Annotated[float, _positive, "VLLM_SIM_CLOCK_SPEED"] = 200.0
    speed: Annotated[float, _positive, "VLLM_SIM_SPEED"] = 1.0
    ttft_s: Annotated[float | None, _number, "VLLM_SIM_TTFT_S"] = None
    tpot_s: Annotated[float | None, _number, "VLLM_SIM_TPOT_S"] = None
    bind_host: Annotated[str, _text, "VLLM_SIM_BIND_HOST"] = ""
    bind_port: Annotated[int | None, _whole, "VLLM_SIM_BIND_PORT"] = None
    memory_limit_mib: Annotated[int | None, _whole, "VLLM_SIM_MEMORY_LIMIT_MIB"] = None
    network_mb_per_s: Annotated[float, _positive, "VLLM_SIM_NETWORK_MB_PER_S"] = math.inf
    mounts: Annotated[tuple[Mount, ...], _mounts, "VLLM_SIM_MOUNTS_FILE"] = ()
    paths: Annotated[Mapping[str, str], _json, "VLLM_SIM_PATHS"] = field(default_factory=dict[str, str])
    """Container paths and the real folders behind them."""
    version: Annotated[str, _text, "VLLM_SIM_VERSION"] = VERSION
    buckets: Annotated[Mapping[str, Bucket] | None, _buckets, "VLLM_SIM_BUCKETS_FILE"] = None
    """Buckets that the command line names; None if `gs://` is not modeled."""
    memory_volumes: Annotated[Mapping[str, int], _json, "VLLM_SIM_MEMORY_VOLUMES"] = field(
        default_factory=dict[str, int]
    )
    """Real folders of in-memory volumes, with their size in MiB."""
    streamer_limit: Annotated[int, _whole, "RUNAI_STREAMER_MEMORY_LIMIT"] = _STREAMER_LIMIT
    lifeline: Annotated[str, _text, "VLLM_SIM_LIFELINE"] = ""
    faults: Annotated[str, _text, "VLLM_SIM_FAULTS"] = ""
    cache_root: Annotated[str, _text, "VLLM_XLA_CACHE_PATH", "VLLM_CACHE_ROOT"] = ""
    hub_home: Annotated[str, _text, "HF_HOME"] = ""
    api_key: Annotated[str, _text, "VLLM_API_KEY"] = ""
    python_path: Annotated[tuple[str, ...], _folders, "VLLM_SIM_PYTHONPATH"] = ()
    """Real folders behind the container's PYTHONPATH."""
    follows_redirects: Annotated[bool, _switch, "VLLM_MEDIA_URL_ALLOW_REDIRECTS"] = True
    most_choices: Annotated[int, _whole, "VLLM_MAX_N_SEQUENCES"] = 16_384
    is_developer: Annotated[bool, _switch, "VLLM_SERVER_DEV_MODE"] = False
    loads_adapters: Annotated[bool, _switch, "VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = False
    padding_gap: Annotated[int, _whole, "VLLM_TPU_BUCKET_PADDING_GAP"] = 0
    """Tokens between batch sizes of a TPU above this size; 0 doubles them."""
    cuda_driver: Annotated[int | None, _whole, "VLLM_SIM_CUDA_DRIVER"] = None
    """Branch of the GPU's driver; None simulates none."""
    device_problem: Annotated[str, _text, "VLLM_SIM_DEVICE_PROBLEM"] = ""
    """Error message of the real server if the container cannot use its TPU. Empty if it can."""
    uses_cuda_compatibility: Annotated[bool, _switch, "VLLM_ENABLE_CUDA_COMPATIBILITY"] = False
    """True if vLLM loads the image's own CUDA compatibility libraries."""
    hub: Annotated[str, _text, "VLLM_SIM_HUB"] = ""
    """Address of the local cloud's hub. Empty for a server without a local cloud."""
    hub_token: Annotated[str, _text, "HF_TOKEN"] = ""

    @property
    def release(self) -> tuple[int, ...]:
        """Return the three numbers of vLLM's version, (0,) if it has none."""
        found = _RELEASE.match(self.version)
        return tuple(int(part or 0) for part in found.groups()) if found else (0,)

    def volume_path(self, container_path: str) -> Path | None:
        """Return the real folder behind a path on a volume. None if it is in the container's own layer, which is deleted with it."""
        return self._real_path(container_path, self.paths.keys() - {"/"})

    def folder(self, container_path: str) -> Path | None:
        """Return the real folder or file behind a container's path; the path itself for a server without a container."""
        is_bare = not self.paths and not self.mounts
        return self._real_path(container_path, self.paths) or (Path(container_path) if is_bare else None)

    def _real_path(self, container_path: str, prefixes: Iterable[str]) -> Path | None:
        for prefix in sorted(prefixes, key=len, reverse=True):
            if container_path == prefix or container_path.startswith(prefix.rstrip("/") + "/"):
                return Path(self.paths[prefix]) / container_path[len(prefix) :].lstrip("/")
        return None


def read(environment: Mapping[str, str]) -> RuntimeEnvironment:
    """Read the simulator's variables; an empty one counts as not set. Raises VariableError."""
    given: dict[str, Any] = {}
    for name, hint in get_type_hints(RuntimeEnvironment, include_extras=True).items():
        reader, *variables = hint.__metadata__
        found = next((one for one in variables if environment.get(one)), None)
        if found is not None:
            given[name] = reader(found, environment[found])
    return RuntimeEnvironment(**given)
