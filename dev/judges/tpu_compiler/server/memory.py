"""Memory of a device that does not exist: the weights' bytes are in use, and the KV cache is allocated as shapes."""

from typing import Any

import jax
import tpu_inference.utils as tpu_utils
from tpu_inference.runner import kv_cache

from dev.judges.tpu_compiler.server.patching import replace
from dev.judges.tpu_compiler.server.shapes import Shape, device_bytes, is_shape

_GIB = 2**30


class DeviceMemory:
    """Usable memory of one device, and what the weights use of it."""

    def __init__(self, usable_gib: float) -> None:
        self._usable_bytes = int(usable_gib * _GIB)
        self.used_bytes = 0
        replace(tpu_utils, "hbm_usage_bytes", self._usage)
        replace(kv_cache, "_get_kv_cache_allocator", _allocator)

    def _usage(self, devices: Any) -> list[tuple[int, int]]:
        return [(self.used_bytes, self._usable_bytes) for _device in devices]


def _allocator(cache_shape: Any, cache_dtype: Any, sharding: Any) -> Any:
    return lambda: Shape(tuple(cache_shape), cache_dtype, sharding=sharding)


def bytes_on_a_device(values: Any) -> int:
    """Return the bytes that shapes need on one device. A shape that occurs twice, such as shared embeddings, counts once."""
    found = {id(leaf): leaf for leaf in jax.tree.leaves(values) if is_shape(leaf)}
    return sum(device_bytes(leaf) for leaf in found.values())
