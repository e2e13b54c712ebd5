"""Architectures from local files: a config.json, or a folder with one, with the size of the weights if available."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from gemma_serving.contracts.installation import project_root
from gemma_serving.contracts.settings_files import read_regular
from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.model.spec import ModelSpec
from gemma_serving.planning.numbers import read_json

PROJECT: Final = project_root() or Path.cwd()
"""Project folder, the base of relative paths in the settings."""
CONFIG: Final = "config.json"
ADAPTER_CONFIG: Final = "adapter_config.json"
"""File of every LoRA adapter in PEFT's format."""
INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = "model*.safetensors"
_MOST_BYTES: Final = 2**26
"""Maximum size of a JSON file. The index of a large model has 9 MiB."""
_LENGTH_BYTES: Final = 8
"""The first bytes of a safetensors file: the length of its header, little-endian."""
_LONGEST_HEADER_BYTES: Final = 100_000_000
"""Maximum header length of the format's own reader."""


class NotSafetensorsError(ValueError):
    """The bytes are not a complete safetensors file. The message is a clause."""


def read_model(path: Path, *, name: str | None = None) -> ModelSpec:
    """Return the architecture of a config.json, or of a folder with one.

    The size of the weights comes from the index or the safetensors files next to the config; otherwise the planner computes it. Without
    `name`, the model has the name of its folder. Raises PlanningError for a file that cannot be read, is not a JSON object, or describes a
    model that cannot be planned.
    """
    from gemma_serving.planning.model.hf_config import model_from_config  # noqa: PLC0415 - only models outside the catalog need it

    config = path / CONFIG if path.is_dir() else path
    folder = config.parent
    index = folder / INDEX
    found = read_object(index) if index.exists() else _index_of(folder)
    return model_from_config(read_object(config), name=name or folder.resolve().name, index=found)


def read_object(path: Path) -> Mapping[str, object]:
    """Return the JSON object of a file. Raises PlanningError."""
    try:
        value = read_json(read_regular(path, _MOST_BYTES))
    except OSError as error:
        raise PlanningError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise PlanningError(f"{path} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise PlanningError(f"{path} must hold one JSON object.")
    return cast("Mapping[str, object]", value)


def _index_of(folder: Path) -> Mapping[str, object] | None:
    """Return an index of the safetensors files of a folder; None if it has none."""
    files = sorted(path for path in folder.glob(_WEIGHTS) if path.is_file())
    if not files:
        return None
    total, tensors = 0, dict[str, str]()
    for path in files:
        size, names = _tensors_of(path)
        total += size
        tensors |= dict.fromkeys(names, path.name)
    return {"metadata": {"total_size": total}, "weight_map": tensors}


def _tensors_of(path: Path) -> tuple[int, Sequence[str]]:
    """Return the bytes and the names of the tensors of a safetensors file. Raises PlanningError if it is invalid or incomplete."""
    try:
        with path.open("rb") as stream:

            def read(start: int, end: int) -> bytes:
                stream.seek(start)
                return stream.read(end - start)

            return read_tensors(path.stat().st_size, read)
    except OSError as error:
        raise PlanningError(f"{path} is not a safetensors file: {error}.") from None
    except NotSafetensorsError as error:
        raise PlanningError(f"{path} is not a safetensors file: it {error}.") from None


def read_tensors(size_bytes: int, read: Callable[[int, int], bytes]) -> tuple[int, Sequence[str]]:
    """Return the bytes and the names of the tensors of a file of this size (huggingface/safetensors, README, "Format").

    `read` returns the bytes between two positions. Raises its errors, and NotSafetensorsError, even for a file that does not end
    with its last tensor.
    """
    if size_bytes < _LENGTH_BYTES:
        raise NotSafetensorsError(f"has {size_bytes} bytes, too few for a safetensors file")
    length = int.from_bytes(read(0, _LENGTH_BYTES), "little")
    begin = _LENGTH_BYTES + length
    if not 0 < length <= _LONGEST_HEADER_BYTES or begin > size_bytes:
        raise NotSafetensorsError(f"has {size_bytes} bytes, which is smaller than its header")
    try:
        header = cast("Mapping[str, Mapping[str, Sequence[int]]]", json.loads(read(_LENGTH_BYTES, begin)))
        ends = {name: int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"}
        end = begin + max(ends.values(), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise NotSafetensorsError("has an invalid safetensors header") from None
    if end != size_bytes:
        raise NotSafetensorsError(f"has {size_bytes} bytes, but its header states {end}")
    return end - begin, list(ends)
