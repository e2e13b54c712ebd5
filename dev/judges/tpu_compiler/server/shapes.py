"""Arrays of which only shape, type and sharding exist: `jax.ShapeDtypeStruct` with the members that upstream's code asks of an array."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src.dtypes import itemsize_bits
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec

from dev.judges.tpu_compiler.server.patching import replace

Shape = jax.ShapeDtypeStruct


def give_shapes_the_members_of_arrays() -> None:
    """Let upstream's code ask a shape what it asks an array."""
    replace(Shape, "block_until_ready", lambda self: self)
    replace(Shape, "nbytes", property(lambda self: _bytes(self.shape, self.dtype)))
    replace(Shape, "device", property(lambda self: self.sharding))
    replace(Shape, "__getitem__", lambda self, index: on_shapes(lambda value: value[index])(self))


def is_shape(value: Any) -> bool:
    """Return whether a value has no data."""
    return isinstance(value, Shape)


def has_shapes(*values: Any) -> bool:
    """Return whether any leaf of the values has no data."""
    return any(is_shape(leaf) for leaf in jax.tree.leaves(values))


def on_shapes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes shapes if an argument is one. The result is whole on each device, until something shards it."""

    def apply(*arguments: Any, **options: Any) -> Any:
        leaves, structure = jax.tree.flatten((arguments, options))
        places = [place for place, leaf in enumerate(leaves) if is_shape(leaf)]
        if not places:
            return function(*arguments, **options)

        def call(*values: Any) -> Any:
            # Only the shapes are traced: sizes among the arguments stay numbers.
            for place, value in zip(places, values, strict=True):
                leaves[place] = value
            own, named = jax.tree.unflatten(structure, leaves)
            return function(*own, **named)

        whole = NamedSharding(mesh_of(leaves[places[0]]), PartitionSpec())
        result = jax.eval_shape(call, *(Shape(leaves[place].shape, leaves[place].dtype) for place in places))
        return jax.tree.map(lambda leaf: Shape(leaf.shape, leaf.dtype, sharding=whole), result)

    return apply


def sharding_of(value: Any) -> NamedSharding:
    """Return the sharding of a shape, without its layout."""
    found = value.sharding
    return found.sharding if isinstance(found, Format) else found


def mesh_of(value: Any) -> Any:
    """Return the mesh that a shape is sharded over."""
    return sharding_of(value).mesh


def device_bytes(value: Any) -> int:
    """Return the bytes of a shape on one device."""
    return _bytes(sharding_of(value).shard_shape(value.shape), value.dtype)


def _bytes(shape: Any, number: Any) -> int:
    """Return the bytes of an array. NumPy has a byte for an int4, a device has half of one."""
    is_key = jax.dtypes.issubdtype(number, jax.dtypes.extended)
    return int(np.prod(shape)) * (8 * number.itemsize if is_key else itemsize_bits(number)) // 8
