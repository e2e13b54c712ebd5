"""Functions of JAX, tpu-inference and torchax that the judge replaces, because without a TPU no array can be on a device.

`gemma plan --compile --explain` prints the table. `server/patching.py` replaces only what a row names, so no replacement can go unlisted.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """One replaced function."""

    name: str
    """Module and name."""
    by: str
    """What the judge does instead."""
    could_hide: str
    """What the judge does not see because of it."""


_LOADING = "files that lack a tensor, have another shape, or are read too slowly"
_LAYOUT = "memory that the conversion of weights needs for a moment"

REPLACED: Final = (
    Replaced(
        name="jax.devices",
        by="the devices of libtpu's description of the slice",
        could_hide="a machine with fewer chips, or in another order",
    ),
    Replaced(
        name="jax.local_devices",
        by="the same devices",
        could_hide="a slice of several machines",
    ),
    Replaced(
        name="jax.device_put",
        by="the shape and the sharding of the array, without its data",
        could_hide="the time of a transfer",
    ),
    Replaced(
        name="jax.jit",
        by="a wrapper: called with shapes, it compiles for the slice and returns shapes; with arrays, JAX's own",
        could_hide="errors while a program runs, and wrong answers",
    ),
    Replaced(
        name="jax.ShapeDtypeStruct.block_until_ready",
        by="nothing to wait for",
        could_hide="nothing",
    ),
    Replaced(
        name="jax.ShapeDtypeStruct.nbytes",
        by="the product of the shape and the size of a number",
        could_hide="nothing",
    ),
    Replaced(
        name="jax.ShapeDtypeStruct.device",
        by="its sharding",
        could_hide="nothing",
    ),
    Replaced(
        name="jax.ShapeDtypeStruct.__getitem__",
        by="the shape of the part",
        could_hide="nothing",
    ),
    Replaced(
        name="vllm.engine.arg_utils.AsyncEngineArgs",
        by="vLLM's own, with load_format dummy and without a tokenizer",
        could_hide="a loader or a tokenizer that fails",
    ),
    Replaced(
        name="vllm.config.reasoning.ReasoningConfig.initialize_token_ids",
        by="nothing, because there is no tokenizer",
        could_hide="a tokenizer without the tokens of the reasoning parser",
    ),
    Replaced(
        name="tpu_inference.platforms.tpu_platform.TpuPlatform.get_device_name",
        by="the generation of the slice, as tpu_info names it on a machine with chips",
        could_hide="another name on the machine",
    ),
    Replaced(
        name="tpu_inference.utils.hbm_usage_bytes",
        by="the usable memory that the plan knows, and the bytes of the weights as used",
        could_hide="memory in use by anything but the weights before the KV cache is sized",
    ),
    Replaced(
        name="tpu_inference.models.jax.utils.weight_utils.JaxDummyModelLoader.load_weights",
        by="each parameter's shape, type and sharding, then upstream's own conversion",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.layers.jax.quantization.unquantized.process_unquantized_moe_weights",
        by="its result on shapes (jax.eval_shape)",
        could_hide=_LAYOUT,
    ),
    Replaced(
        name="tpu_inference.layers.jax.quantization.unquantized.jnp",
        by="concatenate and stack on shapes",
        could_hide=_LAYOUT,
    ),
    Replaced(
        name="tpu_inference.layers.common.process_weights.linear_weights.jax",
        by="jax.Array that counts shapes too",
        could_hide="nothing",
    ),
    Replaced(
        name="tpu_inference.layers.jax.quantization.wna16.unpack_wna16_linear_weight",
        by="its result on shapes (jax.eval_shape)",
        could_hide="host memory that unpacking needs",
    ),
    Replaced(
        name="tpu_inference.layers.jax.quantization.wna16.reorder_concatenated_tensor_for_sharding",
        by="its result on shapes (jax.eval_shape)",
        could_hide=_LAYOUT,
    ),
    Replaced(
        name="tpu_inference.spec_decode.jax.eagle3.jnp",
        by="any and array_equal on shapes: a draft model's embeddings are neither zeros nor equal to the served model's",
        could_hide="embeddings that a draft model of another family shares",
    ),
    Replaced(
        name="tpu_inference.models.common.model_loader.nnx",
        by="nnx.jit around the loaded model does nothing",
        could_hide="nothing: upstream uses it to call the model faster",
    ),
    Replaced(
        name="tpu_inference.runner.kv_cache._get_kv_cache_allocator",
        by="the shape of the cache",
        could_hide="fragmented memory",
    ),
    Replaced(
        name="tpu_inference.runner.compilation_manager.jnp",
        by="NumPy's ones, zeros and array for the inputs of programs",
        could_hide="nothing",
    ),
    Replaced(
        name="tpu_inference.runner.compilation_manager.CompilationManager._create_dummy_tensor",
        by="the shape of the input",
        could_hide="nothing",
    ),
    Replaced(
        name="tpu_inference.runner.compilation_manager.CompilationManager._run_compilation",
        by="a compilation of the chosen programs, one after another, with its memory recorded",
        could_hide="several compilations at once, as a machine does, need more host memory",
    ),
    Replaced(
        name="tpu_inference.runner.compilation_manager.CompilationManager._flush_compilations",
        by="nothing, because no program can run",
        could_hide="errors while a program runs",
    ),
    Replaced(
        name="torchax.interop._torch_view.__code__",
        by="the same function, which takes shapes too",
        could_hide="nothing",
    ),
    Replaced(
        name="tpu_inference.layers.vllm.quantization.unquantized.create_dummy_weights_on_tpu",
        by="the shape, type and sharding of a weight",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.layers.vllm.process_weights.cleanup_sharding.create_dummy_weights_on_tpu",
        by="the shape, type and sharding of a weight",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.models.common.pathways_dummy_loader.create_dummy_weights_on_tpu",
        by="the shape, type and sharding of a weight",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.layers.vllm.quantization.unquantized.vllm_envs",
        by="upstream's own loader without weights (VLLM_TPU_USING_PATHWAYS)",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.models.common.model_loader.apply_qwix_quantization",
        by="the same function, whose program is compiled where it is called",
        could_hide="a program that the surrounding one changes",
    ),
    Replaced(
        name="tpu_inference.layers.vllm.process_weights.cleanup_sharding.vllm_envs",
        by="upstream's own loader without weights (VLLM_TPU_USING_PATHWAYS)",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.models.common.pathways_dummy_loader.vllm_envs",
        by="upstream's own loader without weights (VLLM_TPU_USING_PATHWAYS)",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.models.vllm.vllm_model_wrapper.vllm_envs",
        by="upstream's own loader without weights (VLLM_TPU_USING_PATHWAYS)",
        could_hide=_LOADING,
    ),
    Replaced(
        name="tpu_inference.layers.vllm.process_weights.cleanup_sharding._convert_to_torchax_and_shard",
        by="the shape, type and sharding of a weight",
        could_hide=_LAYOUT,
    ),
    Replaced(
        name="tpu_inference.layers.vllm.quantization.unquantized.jnp",
        by="transpose on shapes",
        could_hide=_LAYOUT,
    ),
    Replaced(
        name="tpu_inference.models.vllm.vllm_model_wrapper._to_row_major",
        by="the array as it is",
        could_hide="a layout that pads",
    ),
)
"""Every replaced function, in the order in which a start meets them."""
