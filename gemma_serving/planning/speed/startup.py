"""Time from the container's start to the first healthy response: image, weights, compilation; and the probes of Cloud Run that wait for it.

Each part is a size or a count from the architecture times a constant of `planning.data.overheads`.
"""

import math
from dataclasses import replace
from typing import Final

from gemma_serving.planning.data.overheads import (
    GPU_COMPILE_BAND,
    IMAGE_DOWNLOAD_GB,
    IMAGE_ON_DISK_GIB,
    LOAD_BAND,
    XLA_COMPILE_BAND,
    constant,
)
from gemma_serving.planning.machine.hardware import (
    CLOUD_RUN_MAX_GPU_PROBE_S,
    CLOUD_RUN_MAX_INITIAL_DELAY_S,
    CLOUD_RUN_MAX_STARTUP_S,
)
from gemma_serving.planning.memory.budget import captured_graphs, token_buckets
from gemma_serving.planning.memory.host_memory import keeps_graphs, parts_bytes
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.model.spec import linear_params, tensors
from gemma_serving.planning.question.extra_arguments import ignores_options
from gemma_serving.planning.question.releases import STARTS_FASTER_ON_TPU, is_known_from
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import StartStage, StartupPlan
from gemma_serving.planning.settings.cloud_run import ProbeSettings
from gemma_serving.planning.settings.google_limits import PROMPT_PROBE
from gemma_serving.planning.speed.bands import WIDER
from gemma_serving.planning.speed.side_by_side import SharedUse, together_s
from gemma_serving.planning.units import from_gib

_BILLION: Final = 1e9
_PROBE_STEP_S: Final = 60
_MIN_PROBE_S: Final = 120

LOAD_RATES: Final = {
    "fuse": "FUSE_BYTES_PER_S",
    "fuse-buffered": "FUSE_BUFFERED_BYTES_PER_S",
    "fuse-cached": "FUSE_CACHED_BYTES_PER_S",
    "streamer": "STREAMER_BYTES_PER_S",
    "hub": "HUB_BYTES_PER_S",
    "disk": "BUCKET_COPY_BYTES_PER_S",
    "memory": "BUCKET_COPY_BYTES_PER_S",
    "image": "IMAGE_BYTES_PER_S",
}
"""Constant of `planning.data.overheads` with the rate of each weights mode and its source."""
_ONCE_PER_READER: Final = ("fuse", "fuse-buffered")
"""Mounts without a cache of files: each reader fetches the bytes."""
_STREAMED_MODES: Final = ("fuse-buffered", "fuse-cached", "streamer")
"""Weights modes that read over the network into the device. The others, except a plain mount, read a copy once more."""
_PLACES: Final = {"hub": "the hub", "image": "the image"}
_KEPT_MODES: Final = ("hub", "disk", "memory")
"""Weights modes that keep the weights on a TPU VM when its server exits."""


LONGEST_PROBE: Final = replace(PROMPT_PROBE, initial_delay_s=CLOUD_RUN_MAX_INITIAL_DELAY_S)
"""Cloud Run's maximum with a GPU, 2,040 s. It detects no server before 240 s."""


def startup_plan(resolved: Resolved) -> StartupPlan:
    """Return the start of a resolved deployment, in seconds."""
    image_s, process_s = constant(_image_name(resolved)), _process_s(resolved)
    pull_s = _docker_s(resolved) + image_s + _connects_s(resolved) + process_s
    load_s = _fetched_s(resolved) + _read_s(resolved)
    compile_s = compile_s_of(resolved, is_cached=False)
    low_s, high_s = _compile_band(resolved)
    wider = WIDER if ignores_options(resolved) else 1.0
    low_s, high_s = low_s / wider, high_s * wider
    load_low_s, load_high_s = load_s * LOAD_BAND[0] / wider, load_s * LOAD_BAND[1] * wider
    stages, beside_s, beside_low_s = _stages(resolved), _beside_s(resolved), _beside_s(resolved, LOAD_BAND[0])
    total_s = stages[-1].ends_s
    # Replicas start at the same time. Whether they then slow each other down is unknown: at worst one reads and compiles after the other.
    load_high_s += (resolved.dp - 1) * _reload_s(resolved)
    high_s *= resolved.dp
    cached_s = None
    if keeps_graphs(resolved):  # one reader downloads their archive at network speed
        graphs_s = from_gib(constant("GRAPH_CACHE_GIB")) / _network_rate(resolved, constant("BUCKET_COPY_BYTES_PER_S"))
        cached_s = pull_s + load_s + (graphs_s + compile_s_of(resolved, is_cached=True))
    cache, is_machine = resolved.capacity.compile_cache, resolved.platform == "tpu-vm"
    if is_machine and cache == "bucket":
        cached_s = pull_s + load_s - beside_s + compile_s_of(resolved, is_cached=True)
    restart_s = (
        process_s
        + _restart_load_s(resolved, load_s)
        + compile_s_of(resolved, is_cached=resolved.is_tpu and cache != "off")
    )
    # At a reboot, image, weights and programs are on the disk, but weights in shared memory are fetched again.
    again_s = load_s - _reload_s(resolved) if resolved.weights_mode == "memory" else 0.0
    # A slow disk may leave nothing side by side.
    longest_s = max((total_s + beside_s) * constant("PROBE_MARGIN"), pull_s + load_s + high_s)
    budget_s = max(math.ceil(longest_s / _PROBE_STEP_S) * _PROBE_STEP_S, _MIN_PROBE_S)
    limit_s = CLOUD_RUN_MAX_STARTUP_S if resolved.platform == "cloud-run" else None
    # A start within the platform's limit gets its full margin, up to that limit.
    if limit_s is not None and total_s <= limit_s:
        budget_s = min(budget_s, CLOUD_RUN_MAX_GPU_PROBE_S if total_s <= CLOUD_RUN_MAX_GPU_PROBE_S else limit_s)
    probe = _probe(resolved, total_s)
    return StartupPlan(
        stages=stages,
        beside_s=beside_s,
        pull_s=pull_s,
        connects_s=_connects_s(resolved),
        load_s=load_s,
        load_low_s=load_low_s,
        load_high_s=load_high_s,
        cached_total_s=cached_s,
        compile_s=compile_s,
        compile_low_s=low_s,
        compile_high_s=high_s,
        total_s=total_s,
        total_low_s=pull_s + load_low_s + low_s - beside_low_s,
        total_high_s=pull_s + load_high_s + high_s,
        probe_budget_s=budget_s,
        probe_limit_s=limit_s,
        probe=probe,
        ready_s=total_s if probe is None or probe.period_s < 1 else seen_after_s(probe, total_s),
        restart_s=restart_s,
        recompile_s=process_s + _restart_load_s(resolved, load_s) + compile_s if is_machine else None,
        reboot_s=constant("VM_BOOT_S") + restart_s + again_s if is_machine else None,
        node_replacement_s=constant("VM_BOOT_S") + (cached_s or total_s) if is_machine else None,
    )


def _probe(resolved: Resolved, start_s: float) -> ProbeSettings | None:
    """Return the deployment's own probe, otherwise the prompt one if the start and its margin fit in it, otherwise the longest.

    A probe only as long as the estimate fails starts that are slower than expected.
    """
    if resolved.platform != "cloud-run":
        return None
    is_prompt = start_s * constant("PROBE_MARGIN") <= PROMPT_PROBE.budget_s
    return resolved.question.cloud_run.startup_probe or (PROMPT_PROBE if is_prompt else LONGEST_PROBE)


def seen_after_s(probe: ProbeSettings, start_s: float) -> float:
    """Return when a probe detects a server that is ready after `start_s`: at its first attempt from then on."""
    waited_s = max(0.0, start_s - probe.initial_delay_s)
    return probe.initial_delay_s + math.ceil(waited_s / probe.period_s) * probe.period_s


def _stages(resolved: Resolved) -> tuple[StartStage, ...]:
    """Return the stages of a start that compiles. The server starts when its image and the weights that are fetched ahead are there."""
    docker_s, image_s, fetched_s = _docker_s(resolved), constant(_image_name(resolved)), _fetched_s(resolved)
    image, weights = ("image", _image_name(resolved)), _weights_stage(resolved)
    process = ("server process", _process_s(resolved), ", ".join(_process_names(resolved)))
    stages = _in_turn(0.0, ("docker", docker_s, "DOCKER_INSTALL_S"))
    if _is_fetched_ahead(resolved):
        both_s, shared = _together(resolved)
        for (name, source), alone_s in ((image, image_s), (weights, fetched_s)):
            takes_s = both_s if shared else alone_s
            stages.append(StartStage(name=name, begins_s=docker_s, takes_s=takes_s, source=source, shared=shared))
        ready_s, turns = docker_s + both_s, [process]
    else:
        name, source = weights
        connects = ("first connections", _connects_s(resolved), "CLOUD_RUN_VPC_CONNECT_S")
        ready_s, turns = docker_s, [("image", image_s, image[1]), connects, process, (name, fetched_s, source)]
    turns += [
        ("weights to the device", _read_s(resolved), _read_name(resolved)),
        ("compile and warm-up", compile_s_of(resolved, is_cached=False), _compile_name(resolved)),
    ]
    return (*stages, *_in_turn(ready_s, *turns))


def _in_turn(begins_s: float, *turns: tuple[str, float, str]) -> list[StartStage]:
    """Return stages one after the other, of name, seconds and source, without those of 0 s."""
    stages: list[StartStage] = []
    for name, takes_s, source in turns:
        if takes_s:
            stages.append(StartStage(name=name, begins_s=begins_s, takes_s=takes_s, source=source))
            begins_s += takes_s
    return stages


def _together(resolved: Resolved, share: float = 1.0) -> tuple[float, str]:
    """Return the seconds of pulling the image and fetching the weights side by side, and what limits both. `share`: of the weights' time."""
    image = SharedUse(constant(_image_name(resolved)), IMAGE_DOWNLOAD_GB * _BILLION, from_gib(IMAGE_ON_DISK_GIB[1]))
    size = _fetched_bytes(resolved)
    on_disk = 0 if resolved.weights_mode == "memory" else size
    return together_s([image, SharedUse(_fetched_s(resolved) * share, size, on_disk)])


def _beside_s(resolved: Resolved, share: float = 1.0) -> float:
    """Return the seconds that are saved because the weights are fetched while the image is pulled. `share`: of the weights' time."""
    if not _is_fetched_ahead(resolved):
        return 0.0
    return constant(_image_name(resolved)) + _fetched_s(resolved) * share - _together(resolved, share)[0]


def _is_fetched_ahead(resolved: Resolved) -> bool:
    """Return whether the agent of a TPU VM fetches the weights while it pulls the image (vm_agent.serving)."""
    return resolved.platform == "tpu-vm" and resolved.weights_mode in _KEPT_MODES


def _weights_stage(resolved: Resolved) -> tuple[str, str]:
    """Return the name of the stage of `_fetched_s`, and the constant that limits it."""
    mode = resolved.weights_mode
    limit = LOAD_RATES[mode]
    if mode == "streamer" and resolved.is_tpu:
        limit = min(limit, _read_name(resolved), key=constant)
    elif mode not in ("fuse", "image") and _network_rate(resolved, constant(limit)) < constant(limit):
        limit = "CLOUD_RUN_NETWORK_BYTES_PER_S"
    return f"weights from {_PLACES.get(mode, 'the bucket')}", limit


def _compile_name(resolved: Resolved) -> str:
    if resolved.is_tpu:
        return "XLA_PROGRAM_S"
    return "GPU_EAGER_WARM_UP_S" if resolved.eager else "GPU_COMPILE_S_PER_LAYER"


def _docker_s(resolved: Resolved) -> float:
    installs = resolved.platform != "cloud-run" and resolved.is_tpu and resolved.question.tpu.api == "compute-engine"
    return constant("DOCKER_INSTALL_S") if installs else 0.0


def _connects_s(resolved: Resolved) -> float:
    """Return the seconds until the connections of an instance with Direct VPC work. The mount of its weights needs them."""
    return constant("CLOUD_RUN_VPC_CONNECT_S") if resolved.service.direct_vpc else 0.0


def _image_name(resolved: Resolved) -> str:
    return "CLOUD_RUN_CONTAINER_START_S" if resolved.platform == "cloud-run" else "VM_IMAGE_PULL_S"


def _process_s(resolved: Resolved) -> float:
    """Return the seconds of a server's start without loading and compiling."""
    return sum(constant(name) for name in _process_names(resolved))


def _process_names(resolved: Resolved) -> tuple[str, ...]:
    if not resolved.is_tpu:
        return ("GPU_PROCESS_START_S",)
    old = "" if is_known_from(resolved, STARTS_FASTER_ON_TPU) else "OLD_"
    warm_up = (f"TPU_{old}MULTIMODAL_WARM_UP_S",) if resolved.has_processor else ()
    return (f"TPU_{old}PROCESS_START_S", *warm_up)


def _fetched_bytes(resolved: Resolved) -> float:
    return weights_of(resolved).checkpoint + parts_bytes(resolved)


def _fetched_s(resolved: Resolved) -> float:
    """Return the seconds to bring the weights to the machine, or for modes that stream into the device."""
    size, mode = _fetched_bytes(resolved), resolved.weights_mode
    rate = constant(LOAD_RATES[mode])
    if not resolved.is_tpu and mode in (*_ONCE_PER_READER, "streamer"):
        # The process of each GPU reads all weights. Assumed: together they are no faster than one.
        size *= resolved.tp
    if mode in _ONCE_PER_READER and resolved.vllm.safetensors_load_strategy == "prefetch":
        size *= constant("FUSE_PREFETCH_READS")
    if mode == "streamer" and resolved.is_tpu:
        # The server converts each tensor as it does those of a file, while it reads the next ones (tpu-inference, LoadableWithIterator).
        return max(size / rate, _reload_s(resolved))
    if mode == "fuse":
        return size / rate
    # `image`: the layers are streamed or already on the machine's disk, then read like local files.
    return size / (rate if mode == "image" else _network_rate(resolved, rate))


def _read_s(resolved: Resolved) -> float:
    """Return the seconds to read the fetched weights into the device; 0 for modes that stream into it."""
    return 0.0 if resolved.weights_mode in ("fuse", *_STREAMED_MODES) else _reload_s(resolved)


def _restart_load_s(resolved: Resolved, load_s: float) -> float:
    """Return the seconds for the weights of a restarted server: read from the machine if stored there, otherwise fetched again."""
    # A TPU VM stores them outside the container: the hub's cache on the boot disk (vm_agent.base.HUB_CACHE), copies from the bucket on disk
    # or in shared memory. A restarted Cloud Run instance starts with an empty file system, and a mount is read over the network.
    mode, platform = resolved.weights_mode, resolved.platform
    kept = mode == "image" or (platform == "tpu-vm" and mode in _KEPT_MODES) or (platform == "gce" and mode == "disk")
    return _reload_s(resolved) if kept else load_s


def _network_rate(resolved: Resolved, bytes_per_s: float) -> float:
    """Return the network read rate of the instance: lower on Cloud Run without Direct VPC."""
    if resolved.platform == "cloud-run" and not resolved.service.direct_vpc:
        return min(bytes_per_s, constant("CLOUD_RUN_NETWORK_BYTES_PER_S"))
    return bytes_per_s


def _reload_s(resolved: Resolved) -> float:
    """Return the seconds to read weights that are already on the machine."""
    return weights_of(resolved).checkpoint / constant(_read_name(resolved)) + _unpack_s(resolved)


def _read_name(resolved: Resolved) -> str:
    if not resolved.is_tpu:
        return "PAGE_CACHE_TO_GPU_BYTES_PER_S"
    is_new = is_known_from(resolved, STARTS_FASTER_ON_TPU)
    return "DISK_TO_DEVICE_BYTES_PER_S" if is_new else "OLD_DISK_TO_DEVICE_BYTES_PER_S"


def _unpack_s(resolved: Resolved) -> float:
    """Return the seconds that the host of a TPU takes to unpack 4-bit weights; 0 for all others."""
    if not resolved.unpacks_int4:
        return 0.0
    experts = sum(tensor.params for tensor in tensors(resolved.spec) if tensor.role == "experts")
    linear_s = linear_params(resolved.spec) / constant("TPU_W4A16_LINEAR_PARAMS_PER_S")
    layers_s = resolved.spec.layers * constant("TPU_W4A16_LAYER_S")
    return layers_s + linear_s + experts / constant("TPU_W4A16_EXPERT_PARAMS_PER_S")


def compile_s_of(resolved: Resolved, *, is_cached: bool) -> float:
    """Return the seconds for compilation, graph capture and warm-up."""
    if resolved.is_tpu:
        return xla_programs(resolved) * _xla_program_s(resolved, is_cached=is_cached)
    return _gpu_compile_s(resolved, has_fast_cores=_counts_as_fast(resolved), is_cached=is_cached)


def _compile_band(resolved: Resolved) -> tuple[float, float]:
    """Return the low and the high end of a cold start's compile time, in seconds."""
    if resolved.is_tpu:
        low, high = XLA_COMPILE_BAND
        if resolved.unpacks_int4:
            low = constant("XLA_W4A16_COMPILE_LOW")
            high = resolved.accelerator.measured("XLA_W4A16_COMPILE_HIGH")
        compile_s = compile_s_of(resolved, is_cached=False)
        return 0.0 if resolved.skips_compilation else low * compile_s, high * compile_s
    known = resolved.host.has_fast_cores
    low, high = GPU_COMPILE_BAND
    return (
        low * _gpu_compile_s(resolved, has_fast_cores=known is not False, is_cached=False),
        high * _gpu_compile_s(resolved, has_fast_cores=known is True, is_cached=False),
    )


def _counts_as_fast(resolved: Resolved) -> bool:
    """Return whether the host's cores count as fast.

    Unknown hosts of large devices do, except on Cloud Run, because a short estimate ends a start there: devices of 70 GiB or more other than
    the A100 are from 2023 or later (`Accelerator.is_large`), and their CPUs too.
    """
    known = resolved.host.has_fast_cores
    return resolved.platform != "cloud-run" and resolved.accelerator.is_large if known is None else known


def _gpu_compile_s(resolved: Resolved, *, has_fast_cores: bool, is_cached: bool) -> float:
    """Return the seconds of torch.compile, graph capture and warm-up on a GPU's host."""
    if resolved.eager:
        return constant("GPU_EAGER_WARM_UP_S")
    factor = constant("GPU_FAST_CORE_COMPILE_FACTOR") if has_fast_cores else 1.0
    if is_cached:
        factor *= constant("GPU_CACHED_COMPILE_FACTOR")
    compile_s = constant("GPU_COMPILE_BASE_S") + constant("GPU_COMPILE_S_PER_LAYER") * resolved.spec.layers
    captured_s = captured_graphs(resolved) * constant("GPU_GRAPH_CAPTURE_S")
    return factor * compile_s + captured_s + constant("GPU_EAGER_WARM_UP_S")


def xla_programs(resolved: Resolved) -> int:
    """Return how many programs a cold start compiles: one per bucket, and one more with embeddings as input unless only text is served.

    Rules of qwix are a program, too.

    Source: tpu-inference b8692ff, runner/compilation_manager.py (capture_model). A boot log shows 190 s for the first nine of E2B and 165 s
    for the second nine (xbill9/gemma4-dev 4cf2d8b, gce-vllm-v6e1-2b/benchmarks/runs/2026-08-10-gce-flex-v6e1/logs/vllm-boot.log).
    """
    buckets = token_buckets(resolved.max_num_batched_tokens, resolved.padding_gap)
    return buckets * (1 if resolved.serves_only_text else 2) + resolved.scheme.is_of_qwix


def _xla_program_s(resolved: Resolved, *, is_cached: bool) -> float:
    """Return the seconds of one program: compiled, or traced, loaded and run once from a cache."""
    measured = resolved.accelerator.measured
    program_s = measured("XLA_PROGRAM_S")
    program_s *= constant("XLA_CACHED_FACTOR") if is_cached else 1.0
    if resolved.unpacks_int4:
        billions = linear_params(resolved.spec) / resolved.tp / _BILLION
        unpacked_s = measured("XLA_W4A16_PROGRAM_S") + measured("XLA_W4A16_S_PER_BILLION") * billions
        program_s += unpacked_s * (constant("XLA_W4A16_CACHED_FACTOR") if is_cached else 1.0)
    speculation = constant("XLA_SPECULATION_FACTOR") if resolved.speculative_tokens else 1.0
    torch = constant("XLA_TORCH_FACTOR") if resolved.runtime == "tpu-torch" else 1.0
    return program_s * torch * speculation
