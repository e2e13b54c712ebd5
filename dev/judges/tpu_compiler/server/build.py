"""Builds vLLM's TPU server for a slice that does not exist, in the order of a real start: configuration, worker, weights, KV cache, programs."""

import dataclasses
import os
import resource
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tpu_inference.utils as tpu_utils
from jax.sharding import NamedSharding, PartitionSpec
from tpu_inference.platforms.tpu_platform import TpuPlatform
from tpu_inference.runner import compilation_manager
from tpu_inference.runner.compilation_manager import CompilationManager
from tpu_inference.worker.tpu_worker import TPUWorker
from vllm.config import set_current_vllm_config
from vllm.config.reasoning import ReasoningConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.cli.serve import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

from dev.judges.tpu_compiler.server import drafters, loading, quantized, torch_path
from dev.judges.tpu_compiler.server.events import Events
from dev.judges.tpu_compiler.server.memory import DeviceMemory, bytes_on_a_device
from dev.judges.tpu_compiler.server.patching import ModuleView, replace
from dev.judges.tpu_compiler.server.programs import Programs, choice_of
from dev.judges.tpu_compiler.server.refusals import RefusingParser
from dev.judges.tpu_compiler.server.shapes import Shape, device_bytes, give_shapes_the_members_of_arrays, is_shape

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_configs
except ImportError:  # before vLLM 0.32
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

_GIB, _MIB = 2**30, 2**20
_WHOLE_SHOWN = 8
_PACKAGES = ("vllm-tpu", "tpu-inference", "jax", "libtpu", "flax", "transformers")


def build(request: Mapping[str, Any], events: Events, programs: Programs, devices: list[Any]) -> None:
    """Build the server and send what was built. Errors of vLLM's code are raised as they are."""
    give_shapes_the_members_of_arrays()
    for room in (loading, quantized, drafters, torch_path):
        room.load_shapes()
    quantized.record_rules(programs)
    generation = request["accelerator_type"].partition("-")[0]
    replace(TpuPlatform, "get_device_name", classmethod(lambda _cls, _device_id=0: f"TPU {generation}"))
    replace(ReasoningConfig, "initialize_token_ids", lambda _self, _model_config: None)
    memory = DeviceMemory(request["usable_gib"])
    events.stage("config")
    config = engine_config(request)
    with set_current_vllm_config(config):
        events.stage("runner")
        worker = TPUWorker(config, 0, 0, _rendezvous(), is_driver_worker=True, devices=devices)
        worker.init_device()
        runner = worker.model_runner
        events.stage("weights")
        worker.load_model()
        memory.used_bytes = bytes_on_a_device((runner.state_leaves, drafters.leaves_of(runner)))
        events.stage("kv-cache")
        cache = _cache_config(config, worker)
        with _environment(SKIP_JAX_PRECOMPILE="1"):
            worker.initialize_from_config(cache)
        events.send("built", **_built(config, runner, memory, cache))
        events.stage("programs")
        _compile(request["programs"], events, programs, worker)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    events.send(
        "done",
        seconds=events.elapsed_s,
        cpu_s=round(usage.ru_utime + usage.ru_stime, 1),
        peak_memory_gib=round(usage.ru_maxrss / 2**20, 2),
    )


def engine_config(request: Mapping[str, Any]) -> Any:
    """Return vLLM's configuration, made by its own parser from the words after `vllm serve`."""
    _model, *words = request["arguments"]
    parser = make_arg_parser(RefusingParser(prog="vllm serve"))
    parsed = parser.parse_args([f"--model={request['model_dir']}", *words])
    validate_parsed_serve_args(parsed)
    engine = dataclasses.replace(AsyncEngineArgs.from_cli_args(parsed), load_format="dummy", skip_tokenizer_init=True)
    return engine.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)


def _rendezvous() -> str:
    folder = tempfile.mkdtemp(prefix="tpu-compiler-")
    return f"file://{folder}/rendezvous"


def _cache_config(config: Any, worker: Any) -> Any:
    """Return vLLM's sizes of the KV cache for the memory that the weights leave."""
    specs = worker.get_kv_cache_spec()
    available = worker.determine_available_memory()
    layout = resolve_kv_cache_layout(config, [worker.get_supported_kv_cache_layouts()], list(specs.values()))
    worker.set_kv_cache_layout(layout.name)
    return get_kv_cache_configs(config, [specs], [available])[0]


@contextmanager
def _environment(**values: str) -> Generator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _built(config: Any, runner: Any, memory: DeviceMemory, cache: Any) -> dict[str, Any]:
    architectures = config.model_config.hf_config.architectures
    return {
        "architecture": architectures[0] if architectures else "",
        "path": "torch" if type(runner.model).__module__.startswith("tpu_inference.models.vllm") else "jax",
        "weights_gib": memory.used_bytes / _GIB,
        "kv_gib": bytes_on_a_device(runner.kv_caches) / _GIB,
        "kv_blocks": cache.num_blocks,
        "block_size": config.cache_config.block_size,
        "kv_dtype": str(runner.kv_caches[0].dtype) if runner.kv_caches else "",
        "sequences": config.scheduler_config.max_num_seqs,
        "mesh": {str(axis): size for axis, size in runner.mesh.shape.items() if size > 1},
        "token_paddings": list(runner.num_tokens_paddings),
        "request_paddings": list(runner.num_reqs_paddings),
        "replicated": _replicated(runner),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "platform_version": runner.mesh.devices.flat[0].client.platform_version,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _replicated(runner: Any) -> list[dict[str, Any]]:
    """Return the largest parameters that are whole on each of several devices, layers of one name added."""
    sizes: Counter[str] = Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(runner.state):
        if is_shape(leaf) and runner.mesh.size > 1 and device_bytes(leaf) == leaf.nbytes:
            keys = (str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
            sizes[".".join(key for key in keys if not key.isdigit() and key != "value")] += leaf.nbytes
    return [{"name": name, "mib": size / _MIB} for name, size in sizes.most_common(_WHOLE_SHOWN)]


def _compile(which: str, events: Events, programs: Programs, worker: Any) -> None:
    runner = worker.model_runner
    logits = runner.num_logits_paddings
    choice = choice_of(
        which, list(runner.num_tokens_paddings), runner.num_reqs_paddings[-1], logits[-1] if logits else None
    )
    if choice is None:
        return
    tasks, held_bytes = _listed_tasks(runner)
    chosen = [task for task in tasks if choice.has(task[0], task[1])]
    events.send("programs", total=len(chosen) + programs.count, all=len(tasks), held_gib=held_bytes / _GIB)
    programs.is_recording = True
    for name, sizes, call in chosen:
        programs.task = {"name": name, "tokens": sizes.get("num_tokens"), "sequences": sizes.get("num_reqs")}
        with jax.set_mesh(runner.mesh):
            call()


def _listed_tasks(runner: Any) -> tuple[list[tuple[str, dict[str, Any], Any]], int]:
    """Return vLLM's programs: name, sizes, and a call that compiles it. And the most bytes of inputs that a device holds at once.

    Upstream keeps the inputs of all programs of a kind until it has run each of them once.
    """
    tasks: list[tuple[str, dict[str, Any], Any]] = []
    waiting: list[Any] = []
    held: list[int] = [0]
    served = {id(leaf) for leaf in jax.tree.leaves((runner.state_leaves, runner.kv_caches, drafters.leaves_of(runner)))}

    def create(_self: Any, shape: Any, dtype: Any, sharding: Any = None) -> Any:
        where = sharding or NamedSharding(runner.mesh, PartitionSpec(None))
        return Shape(tuple(shape), tpu_utils.to_jax_dtype(dtype), sharding=where)

    def run(
        _self: Any, name: str, fn: Any, *args: Any, call_kwargs: Any = None, warmup_handler: Any = None, **sizes: Any
    ) -> None:
        options = call_kwargs or {}
        is_step = warmup_handler is not None
        call = (lambda: warmup_handler(fn, args, options)) if is_step else (lambda: fn(*args, **options))
        plain = {key: value for key, value in sizes.items() if isinstance(value, int | str)}
        tasks.append((_plain_name(name), plain, call))
        if not sizes.get("compile_only"):
            waiting.extend(leaf for leaf in jax.tree.leaves((args, options)) if id(leaf) not in served)

    def flush(_self: Any) -> None:
        held.append(bytes_on_a_device(waiting))
        waiting.clear()

    # Under the mesh of devices that do not exist, no array can be made.
    view = ModuleView(jnp, ones=np.ones, zeros=np.zeros, array=np.array)
    replace(compilation_manager, "jnp", view)
    replace(CompilationManager, "_create_dummy_tensor", create)
    replace(CompilationManager, "_run_compilation", run)
    replace(CompilationManager, "_flush_compilations", flush)
    runner.capture_model()
    return tasks, max(held)


def _plain_name(name: str) -> str:
    """Return a task's name without the worker's number."""
    words = name.replace("[", "").replace("]", "").split()
    return " ".join(word for word in words if not word.startswith("worker")).strip("_")
