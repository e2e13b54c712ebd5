"""Functions that the judge replaces, with what each could hide. Standard library only: both sides import it."""

from typing import Final, NamedTuple


class Replaced(NamedTuple):
    """One function of the wheels, or a group of them."""

    name: str
    by: str
    could_hide: str


REPLACED: Final = (
    Replaced(
        "jax.devices, jax.local_devices",
        "the devices of the topology",
        "a slice with another order of devices, or with fewer",
    ),
    Replaced(
        "jax.device_put to these devices",
        "a shape with its sharding",
        "memory of a transfer, and layouts that the runtime chooses",
    ),
    Replaced(
        "jax.jit on shapes",
        "lower, compile, record, return shapes",
        "a program that fails only when it runs",
    ),
    Replaced("TpuPlatform.get_device_name", "the name of the topology's chip", "a driver that reports another name"),
    Replaced(
        "JaxDummyModelLoader.load_weights",
        "shapes, then upstream's own processing",
        "memory while weights load, and files that do not match the model",
    ),
    Replaced(
        "process_unquantized_moe_weights and jnp.concatenate of experts",
        "jax.eval_shape",
        "memory while experts are rearranged",
    ),
    Replaced("nnx.jit in model_loader.py", "the function itself", "memory of the program that creates the model"),
    Replaced("_get_kv_cache_allocator", "shapes", "a cache that the device cannot allocate in one piece"),
    Replaced(
        "utils.hbm_usage_bytes",
        "bytes of the weights, and the usable memory",
        "memory that the runtime or another process holds",
    ),
    Replaced(
        "CompilationManager._create_dummy_tensor, _run_compilation, _flush_compilations",
        "shapes; selection and call; nothing",
        "programs that were not selected",
    ),
    Replaced(
        "PyTorch path: _torch_view, create_dummy_weights_on_tpu, _convert_to_torchax_and_shard, _to_row_major, jnp.transpose",
        "shapes, by upstream's loader of dummy weights",
        "memory while weights load, and layouts of the stored weights",
    ),
)
