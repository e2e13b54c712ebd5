"""File length from the header of a safetensors file (huggingface/safetensors, README, "Format")."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

LENGTH_BYTES: Final = 8
"""The first bytes: the length of the header, little-endian."""
LONGEST_HEADER_BYTES: Final = 100_000_000
"""Maximum header length of the format's own reader."""
_METADATA: Final = "__metadata__"


class NotSafetensorsError(ValueError):
    """The bytes are not a complete safetensors file. The message is a clause."""


@dataclass(frozen=True, slots=True)
class TensorTable:
    """Contents of a header."""

    names: Sequence[str]
    tensor_bytes: int


def read_table(size_bytes: int, read: Callable[[int, int], bytes]) -> TensorTable:
    """Return the header of a file of this size. `read` returns the bytes between two positions.

    Raises NotSafetensorsError, including for a file that does not end with its last tensor, and the errors of `read`.
    """
    if size_bytes < LENGTH_BYTES:
        raise NotSafetensorsError(f"has {size_bytes} bytes, too few for a safetensors file")
    length = int.from_bytes(read(0, LENGTH_BYTES), "little")
    begin = LENGTH_BYTES + length
    if not 0 < length <= LONGEST_HEADER_BYTES or begin > size_bytes:
        raise NotSafetensorsError(f"has {size_bytes} bytes, which is smaller than its header")
    try:
        header = cast("object", json.loads(read(LENGTH_BYTES, begin)))
        tensors = _tensors(header)
        end = begin + max(tensors.values(), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise NotSafetensorsError("has an invalid safetensors header") from None
    if end != size_bytes:
        raise NotSafetensorsError(f"has {size_bytes} bytes, but its header states {end}")
    return TensorTable(names=list(tensors), tensor_bytes=end - begin)


def _tensors(header: object) -> Mapping[str, int]:
    """Return where each tensor ends. Raises ValueError, TypeError, KeyError and AttributeError."""
    entries = cast("Mapping[str, Mapping[str, Sequence[int]]]", header)
    return {name: int(entry["data_offsets"][1]) for name, entry in entries.items() if name != _METADATA}
