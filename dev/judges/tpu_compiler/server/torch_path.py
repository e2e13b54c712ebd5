"""Loads a model that tpu-inference takes from vLLM's PyTorch definition (torchax), such as Gemma 4 12B, without its weights."""

import types
from typing import Any

import jax.numpy as jnp
import torchax
import tpu_inference.models.common.pathways_dummy_loader as dummy_loader
import tpu_inference.models.vllm.vllm_model_wrapper as model_wrapper
import tpu_inference.utils as tpu_utils
import vllm.envs as vllm_envs
from torchax import interop
from tpu_inference.layers.vllm.process_weights import cleanup_sharding
from tpu_inference.layers.vllm.quantization import unquantized

from dev.judges.tpu_compiler.server.patching import ModuleView, replace
from dev.judges.tpu_compiler.server.shapes import Shape, is_shape, on_shapes


def load_shapes() -> None:
    """Let tpu-inference's wrapper of a PyTorch model load shapes, by the loader without weights that it has for another runtime."""
    _let_torchax_view_shapes()
    for module in (unquantized, cleanup_sharding, dummy_loader):
        replace(module, "create_dummy_weights_on_tpu", _dummy_weights)
    for module in (unquantized, cleanup_sharding, dummy_loader, model_wrapper):
        replace(module, "vllm_envs", ModuleView(vllm_envs, VLLM_TPU_USING_PATHWAYS=True))
    replace(unquantized, "jnp", ModuleView(jnp, transpose=on_shapes(jnp.transpose)))
    replace(cleanup_sharding, "_convert_to_torchax_and_shard", _sharded)
    replace(model_wrapper, "_to_row_major", lambda array, _key: array)


def _let_torchax_view_shapes() -> None:
    """Let torchax wrap shapes as tensors. Its other functions hold the function itself, so the function's code is what changes."""
    own = interop._torch_view
    before = types.FunctionType(own.__code__, own.__globals__, "_torch_view")

    def view(value: Any) -> Any:
        return torchax.tensor.Tensor(value, torchax.default_env()) if is_shape(value) else before(value)

    own.__globals__["_view_of_shapes"] = view
    replace(own, "__code__", _call_view.__code__)


def _call_view(t: Any) -> Any:
    """Call the function that `_let_torchax_view_shapes` put among torchax's globals."""
    return _view_of_shapes(t)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


def _dummy_weights(sharding: Any, weight_shape: Any, weight_dtype: Any) -> Any:
    return Shape(tuple(weight_shape), weight_dtype, sharding=sharding)


def _sharded(tensor: Any, sharding: Any) -> Any:
    """Return a weight of vLLM's model as a shape on the slice."""
    is_wrapped = isinstance(tensor, torchax.tensor.Tensor)
    number = tensor._elem.dtype if is_wrapped else tpu_utils.to_jax_dtype(tensor.dtype)
    return interop.torch_view(Shape(tuple(tensor.shape), number, sharding=sharding))
