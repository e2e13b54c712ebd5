"""The header of a safetensors file says how long the file is (huggingface/safetensors, README, "Format")."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

LENGTH_BYTES: Final = 8
"""The first bytes: the length of the header, lowest byte first."""
LONGEST_HEADER_BYTES: Final = 100_000_000
"""Longest header that the format's own reader takes."""
_METADATA: Final = "__metadata__"


class NotSafetensorsError(ValueError):
    """The bytes are not a whole safetensors file. The message is a clause."""


@dataclass(frozen=True, slots=True)
class TensorTable:
    """What a header says."""

    names: Sequence[str]
    tensor_bytes: int


def read_table(size_bytes: int, read: Callable[[int, int], bytes]) -> TensorTable:
    """Return the header of a file of this size. `read` returns the bytes from the first number up to the second.

    Raises NotSafetensorsError, also if the file does not end where its last tensor ends, and what `read` raises.
    """
    if size_bytes < LENGTH_BYTES:
        raise NotSafetensorsError(f"has {size_bytes} bytes, which is no safetensors file")
    length = int.from_bytes(read(0, LENGTH_BYTES), "little")
    begin = LENGTH_BYTES + length
    if not 0 < length <= LONGEST_HEADER_BYTES or begin > size_bytes:
        raise NotSafetensorsError(f"has {size_bytes} bytes, and no safetensors header fits into them")
    try:
        header = cast("object", json.loads(read(LENGTH_BYTES, begin)))
        tensors = _tensors(header)
        end = begin + max(tensors.values(), default=0)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise NotSafetensorsError("has a header that is not one of safetensors") from None
    if end != size_bytes:
        raise NotSafetensorsError(f"has {size_bytes} bytes, and its header says {end}")
    return TensorTable(names=list(tensors), tensor_bytes=end - begin)


def _tensors(header: object) -> Mapping[str, int]:
    """Return the name of each tensor and where it ends. Raises ValueError, TypeError, KeyError and AttributeError."""
    entries = cast("Mapping[str, Mapping[str, Sequence[int]]]", header)
    return {name: int(entry["data_offsets"][1]) for name, entry in entries.items() if name != _METADATA}
