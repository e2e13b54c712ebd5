"""The devices of a slice that does not exist: libtpu's description of it, to which arrays are put as shapes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec

from dev.judges.tpu_compiler.server.patching import replace
from dev.judges.tpu_compiler.server.shapes import Shape


def describe_slice(topology: str, chips_per_host: list[int]) -> list[Any]:
    """Return the devices of a slice, such as "v6e:2x2", and let JAX return them as its own."""
    found = topologies.get_topology_desc(
        platform="tpu", topology_name=topology, chips_per_host_bounds=tuple(chips_per_host)
    )
    devices = list(found.devices)
    all_devices, local_devices, put = jax.devices, jax.local_devices, jax.device_put
    own = frozenset(devices)

    def devices_of(backend: str | None = None) -> list[Any]:
        return all_devices(backend) if backend else list(devices)

    def local_devices_of(*arguments: Any, backend: str | None = None, **options: Any) -> list[Any]:
        return local_devices(*arguments, backend=backend, **options) if backend else list(devices)

    def device_put(value: Any, device: Any = None, **options: Any) -> Any:
        if isinstance(device, PartitionSpec):
            device = NamedSharding(jax.sharding.get_mesh(), device)
        if not _is_on(device, own):
            return put(value, device, **options)

        def put_leaf(leaf: Any) -> Any:
            # Inside a program that is traced, an array has no data either.
            is_traced = isinstance(leaf, jax.core.Tracer)
            return put(leaf, device) if is_traced else Shape(np.shape(leaf), _type_of(leaf), sharding=device)

        return jax.tree.map(put_leaf, value)

    replace(jax, "devices", devices_of)
    replace(jax, "local_devices", local_devices_of)
    replace(jax, "device_put", device_put)
    return devices


def _is_on(device: Any, devices: frozenset[Any]) -> bool:
    sharding = device.sharding if isinstance(device, Format) else device
    return bool(getattr(sharding, "device_set", frozenset()) & devices)


def _type_of(value: Any) -> Any:
    return value.dtype if hasattr(value, "dtype") else jnp.asarray(value).dtype
