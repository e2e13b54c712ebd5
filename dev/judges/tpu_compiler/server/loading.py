"""Loads a model without its weights: tpu-inference's loader with each parameter's shape in place of random numbers."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from tpu_inference.layers.common.process_weights.moe_weights import FusedMoEWeights
from tpu_inference.layers.jax.quantization import unquantized
from tpu_inference.models.common import model_loader
from tpu_inference.models.jax.utils.weight_utils import JaxDummyModelLoader

from dev.judges.tpu_compiler.server.events import words_of
from dev.judges.tpu_compiler.server.patching import ModuleView, replace
from dev.judges.tpu_compiler.server.refusals import UpstreamRefusalError
from dev.judges.tpu_compiler.server.shapes import Shape, is_shape, on_shapes


def load_shapes() -> None:
    """Let tpu-inference load shapes."""
    replace(JaxDummyModelLoader, "load_weights", _load_weights)
    view = ModuleView(jnp, concatenate=on_shapes(jnp.concatenate), stack=on_shapes(jnp.stack))
    replace(unquantized, "jnp", view)
    process = unquantized.process_unquantized_moe_weights
    replace(unquantized, "process_unquantized_moe_weights", functools.partial(_process_experts, process))
    without_jit = ModuleView(model_loader.nnx, jit=lambda **_options: lambda function: function)
    replace(model_loader, "nnx", without_jit)


def _load_weights(self: Any, model: Any, model_config: Any) -> None:
    del model_config
    mesh = jax.sharding.get_mesh()
    for name, parameter in model.named_parameters():
        value = parameter.get_value()
        shape, is_expert = value.shape, hasattr(parameter, "_weights_to_load")
        if is_expert:
            # As upstream: the files have the experts' matrices transposed, and the conversion below expects that.
            parameter._weights_to_load[:] = [0] * len(parameter._weights_to_load)
            shape = (shape[0], shape[2], shape[1])
        sharding = NamedSharding(mesh, PartitionSpec(*_axes_of(parameter)))
        _check_that_it_divides(name, shape, sharding)
        parameter.set_value(Shape(shape, value.dtype, sharding=sharding))
        parameter.set_metadata("_is_loaded", True)
    self._process_weights_after_loading(model)


def _check_that_it_divides(name: str, shape: Any, sharding: NamedSharding) -> None:
    """Refuse a weight that the devices cannot share evenly, as JAX does when upstream puts it on them."""
    try:
        sharding.shard_shape(tuple(shape))
    except ValueError as error:
        raise UpstreamRefusalError(f"Failed to load weight '{name}': {words_of(error)}") from error


def _axes_of(parameter: Any) -> tuple[Any, ...]:
    """Return the mesh axes of a parameter's dimensions; empty if it is whole on each device."""
    sharding = parameter.get_metadata().get("out_sharding", ())
    if isinstance(sharding, NamedSharding):
        return tuple(sharding.spec)
    return tuple(sharding) if isinstance(sharding, tuple | PartitionSpec) else ()


def _process_experts(process: Any, **arguments: Any) -> Any:
    """Return the processed weights of experts as shapes."""
    arrays = {name: Shape(value.shape, value.dtype) for name, value in arguments.items() if is_shape(value)}
    others = {name: value for name, value in arguments.items() if not is_shape(value)}
    names = [one.name for one in dataclasses.fields(FusedMoEWeights)]
    plain = process.__wrapped__

    def processed(values: Any) -> list[Any]:
        result = plain(**others, **values)
        return [getattr(result, name) for name in names]

    return FusedMoEWeights(**dict(zip(names, jax.eval_shape(processed, arrays), strict=True)))
