"""Quantized weights without their data: tpu-inference's conversion of a compressed-tensors checkpoint, and the rules of qwix, on shapes."""

import jax
from tpu_inference.layers.common.process_weights import linear_weights
from tpu_inference.models.common import model_loader

from dev.judges.tpu_compiler.server.patching import ModuleView, replace
from dev.judges.tpu_compiler.server.programs import Programs
from dev.judges.tpu_compiler.server.shapes import Shape, on_shapes

try:
    from tpu_inference.layers.jax.quantization import wna16
except ImportError:  # before tpu-inference 0.30: no 4-bit weights, which upstream's configuration refuses itself
    wna16 = None


def load_shapes() -> None:
    """Let tpu-inference convert and shard 4-bit linear layers as shapes."""
    # The sharding of the scales depends on whether they are an array: without this, they silently get another one.
    replace(linear_weights, "jax", ModuleView(jax, Array=(jax.Array, Shape)))
    if wna16 is None:
        return
    for name in ("unpack_wna16_linear_weight", "reorder_concatenated_tensor_for_sharding"):
        replace(wna16, name, on_shapes(getattr(wna16, name)))


def record_rules(programs: Programs) -> None:
    """Compile the program that quantizes the loaded weights by qwix's rules: only the compiler knows how its results are shared, and what it needs."""
    quantize = programs.recorded(model_loader.apply_qwix_quantization, "quantization")
    replace(model_loader, "apply_qwix_quantization", quantize)
