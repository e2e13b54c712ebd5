"""Functions that the judge replaces, with what each could hide. Standard library only: both sides import it."""

from typing import Final, NamedTuple


class Replaced(NamedTuple):
    """One function of the wheels, or a group of them."""

    name: str
    by: str
    could_hide: str


REPLACED: Final = (
    Replaced("jax.devices, jax.local_devices", "devices of the topology", "another order, or fewer, on a machine"),
    Replaced("jax.device_put to them", "a shape with its sharding", "memory of transfers, layouts of the runtime"),
    Replaced("jax.jit on shapes", "lower, compile, record, return shapes", "a program that fails only when it runs"),
    Replaced("TpuPlatform.get_device_name", "the topology's name", "a driver that reports another name"),
    Replaced("JaxDummyModelLoader.load_weights", "shapes, then its own processing", "memory and files of a real load"),
    Replaced("process_unquantized_moe_weights", "jax.eval_shape", "memory while experts are rearranged"),
    Replaced("jnp.concatenate in unquantized.py", "jax.eval_shape", "memory while experts are rearranged"),
    Replaced("nnx.jit in model_loader.py", "the function itself", "memory of the program that creates the model"),
    Replaced("_get_kv_cache_allocator", "shapes", "an allocation that fails although it fits"),
    Replaced("utils.hbm_usage_bytes", "the weights and the usable memory", "memory that the runtime holds"),
    Replaced("CompilationManager._create_dummy_tensor", "shapes", "nothing that is known"),
    Replaced("CompilationManager._run_compilation", "selection and call", "programs that were not selected"),
    Replaced("CompilationManager._flush_compilations", "nothing", "nothing that is known"),
    Replaced("PyTorch path: torchax _torch_view", "shapes", "a value that a model computes while it loads"),
    Replaced("PyTorch path: create_dummy_weights_on_tpu", "shapes", "memory and files of a real load"),
    Replaced("PyTorch path: _convert_to_torchax_and_shard", "shapes", "memory and files of a real load"),
    Replaced("PyTorch path: _to_row_major, jnp.transpose", "shapes", "layouts of the stored weights"),
)
