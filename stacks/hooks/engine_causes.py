"""Last words of vLLM's engine, on TPUs and GPUs, each with the finding that predicts it and the setting that changes it.

Sources of the lines: the crashed boots of the accuracy corpus (docs/authors/accuracy.md), vLLM and tpu-inference.
"""

import re
from collections.abc import Sequence
from typing import Final

from planning.memory.budget import utilization_leaving
from stacks.hooks.known_causes import FailedStart, KnownCause


def _too_long(found: re.Match[str], start: FailedStart) -> str:
    longest = int(found["longest"].replace(",", ""))
    request = f"one request of {int(found['length']):,} tokens" if found["length"] else "one request"
    text = (
        f"The KV cache is too small for {request}: it needs {found['needed']} GiB, but "
        f"{found['available']} GiB is left (planned: {start.plan.memory.kv_gib:.2f} GiB)."
    )
    if longest < 1:
        return f"{text} Choose a smaller checkpoint or a larger GPU."
    return f"{text} Set gemma-serving:vllm.maxModelLen to {longest} or less, or raise vllm.gpuMemoryUtilization."


def _no_cache_memory(found: re.Match[str], start: FailedStart) -> str:
    return (
        f"No GPU memory is left for the KV cache{found['figure'] or ''} (planned: {start.plan.memory.kv_gib:.2f} GiB). "
        "Raise gemma-serving:vllm.gpuMemoryUtilization, or choose a smaller checkpoint or a larger GPU."
    )


def _gpu_memory(found: re.Match[str], start: FailedStart) -> str:
    memory, size = start.plan.memory, found["size"]
    when = f" when {size} more was requested" if size else ""
    return (
        f"The GPU ran out of memory{when}. The plan has {memory.weights_gib:.1f} GiB of weights and "
        f"{memory.activations_gib:.1f} GiB of activations in {memory.usable_gib:.1f} GiB. Lower "
        "gemma-serving:vllm.gpuMemoryUtilization to leave "
        "more for allocations outside the KV cache, or lower vllm.maxNumBatchedTokens."
    )


def _program_memory(found: re.Match[str], start: FailedStart) -> str:
    """Explain a compiled program that found no room: the budget of weights and KV cache leaves too little outside it."""
    memory = start.plan.memory
    figures = f" It needs {found['needs']}B, and {found['free']}B is free." if found["needs"] else ""
    utilization = utilization_leaving(memory.outside_enough_gib, memory.usable_gib)
    return (
        f"A compiled program did not fit on the chip.{figures} gemma-serving:vllm.gpuMemoryUtilization leaves "
        f"{memory.headroom_gib:.2f} GiB "
        f"outside the budget, and the planner recommends {memory.outside_enough_gib:.2f} GiB for this model. "
        f"Set gemma-serving:vllm.gpuMemoryUtilization to {utilization:g} or less."
    )


def _kernel_memory(found: re.Match[str], start: FailedStart) -> str:
    """Explain a kernel that needs more on-chip memory than the chip has: VMEM of a TPU, shared memory of a GPU."""
    figures = f": {found['needs']} needed, {found['most']} available" if found["needs"] else ""
    place = "VMEM of a chip" if start.settings.target == "tpu" else "shared memory of the GPU"
    return (
        f"A kernel does not fit in the {place}{figures}. That depends on the model, its precision and the image, not "
        "on "
        "vllm.gpuMemoryUtilization. Set gemma-serving:model to an unquantized checkpoint, gemma-serving:image to "
        "another release, or choose "
        "another accelerator."
    )


def _unsupported_scheme(_found: re.Match[str], start: FailedStart) -> str:
    model, original = start.settings.model, start.original
    other = f"Set gemma-serving:model to {original}" if original != model else "Choose a checkpoint in bf16"
    return f"The image cannot load the precision of {model} on this accelerator. {other}, or gemma-serving:image to one that loads it."


def _image_item(found: re.Match[str], _start: FailedStart) -> str:
    return (
        f"One image or video item has up to {int(found['item']):,} tokens and is computed in one step, but a step "
        f"has {int(found['step']):,}. "
        f"Set gemma-serving:vllm.maxNumBatchedTokens to {found['item']} or more, set vllm.disableChunkedMmInput: "
        "false, "
        "or set vllm.limitMmPerPrompt to 0 for what is not served."
    )


def _engine_failed(_found: re.Match[str], start: FailedStart) -> str:
    margin = start.plan.margin
    near = f" The plan is close to a limit ({margin.finding})." if margin is not None else ""
    blocking = [finding.id for finding in start.plan.findings if finding.severity == "block"]
    predicted = f" The plan predicts a failure: {', '.join(blocking)}." if blocking else near
    return (
        f"vLLM's engine did not start, and this line has no reason.{predicted} The reason is above it: run "
        f"`gemma logs {start.stack} --lines 200`."
    )


ENGINE_CAUSES: Final[Sequence[KnownCause]] = (
    KnownCause(
        r"(?:max seq len \((?P<length>\d+)\), )?\(?(?P<needed>[\d.]+) GiB KV cache is needed,"
        r"(?: which is larger than the available KV cache memory)? \(?(?P<available>[\d.]+) GiB\)?.*"
        r"the estimated maximum model length is (?P<longest>[\d,]+)",
        _too_long,
        "FIT04",
    ),
    KnownCause(r"No available memory for the cache blocks(?P<figure> \([^)]*\))?", _no_cache_memory, "FIT04"),
    KnownCause(
        r"max_tokens_per_mm_item \((?P<item>\d+)\) is larger than max_num_batched_tokens \((?P<step>\d+)\)",
        _image_item,
        "LEN02",
    ),
    KnownCause(
        r"(?:CompileTimeScopedVmemOom|VMEM: (?=[\d.]+M)|out of resource: shared memory, Required: )"
        r"(?:(?P<needs>[\d.]+M?)(?: scoped against |, Hardware limit: )(?P<most>[\d.]+M?))?",
        _kernel_memory,
    ),
    KnownCause(
        r"Attempting to reserve (?P<needs>[\d.]+[KMG]) at the bottom of memory\..* There are (?P<free>[\d.]+[KMG]) free",
        _program_memory,
        "FIT05",
        "tpu",
    ),
    KnownCause(
        r"RuntimeProgramAllocationFailure(?:: wants (?P<needs>[\d.]+ ?[KMG])\w*, (?P<free>[\d.]+ ?[KMG])\w* free)?",
        _program_memory,
        "FIT05",
        "tpu",
    ),
    KnownCause(
        r"program needs (?P<needs>[\d.]+[KMG]), (?P<free>[\d.]+[KMG]) free",
        _program_memory,
        "FIT05",
        "tpu",
    ),
    KnownCause(
        r"(?i)Ran out of memory (?:on HBM|in memory space hbm)|RuntimeBufferAllocationFailure|Error allocating device buffer",
        "A chip ran out of memory (HBM). The plan has {start.plan.memory.weights_gib:.1f} GiB of weights, "
        "{start.plan.memory.activations_gib:.1f} GiB of compiled programs and {start.plan.memory.kv_gib:.1f} GiB of "
        "KV cache in "
        "{start.plan.memory.usable_gib:.1f} GiB. Lower gemma-serving:vllm.gpuMemoryUtilization or "
        "vllm.maxNumBatchedTokens, or choose a larger slice.",
        "FIT01",
        "tpu",
    ),
    KnownCause(
        r"(?:CUDA|HIP) out of memory(?:\. Tried to allocate (?P<size>[\d.]+ \w+))?", _gpu_memory, "FIT01", "cloud-run"
    ),
    KnownCause(
        r"OutOfMemoryError(?:: [\d.]+ GiB in use, (?P<size>[\d.]+ GiB) asked for)?", _gpu_memory, "FIT01", "cloud-run"
    ),
    KnownCause(
        r"compressed-tensors (?:compatible )?scheme .*not (?:yet )?(?:supported|implemented|found)|No compressed-tensors compatible scheme was found",
        _unsupported_scheme,
        "FIT06",
    ),
    KnownCause(
        r"There is\sno module or parameter named|\.weight is missing for layers",
        "The tensors of {start.settings.model} are not those that this release of vLLM expects ({start.version}). "
        "Set gemma-serving:image to a newer release, or gemma-serving:model to Google's checkpoint of the same size.",
        "FIT06",
    ),
    KnownCause(
        r"IndivisibleError: .* partitioned (?P<chips>\d+) times, but the dimension size is (?P<size>\d+)",
        "A tensor of {start.settings.model} cannot be split over {found[chips]} chips: one of its dimensions is "
        "{found[size]}, which "
        "{found[chips]} does not divide. Set gemma-serving:tpu.acceleratorType to a slice whose chips divide it, or "
        "gemma-serving:image to one "
        "that pads this checkpoint.",
        "FIT06",
        "tpu",
    ),
    KnownCause(
        r"incompatible devices for jitted computation",
        "The image left weights of {start.settings.model} on the host, and a program expects them on the chips. That "
        "is a fault of the image with "
        "this checkpoint. Set gemma-serving:image to another release, or gemma-serving:model to {start.original}.",
        "FIT06",
        "tpu",
    ),
    KnownCause(
        r"AmbiguousGlobalPerLayerAttributeError: (?P<field>\w+)",
        "The image is too old for this model: it cannot read `{found[field]}` of its configuration, which differs "
        "between layers "
        "({start.version}). Set gemma-serving:image to a release that the stacks use (0.28.0 or later).",
    ),
    KnownCause(
        r"page size of the layer is not divisible by the maximum page size",
        "vLLM cannot give the layers of this model blocks of one size with this KV cache. Gemma 4 has heads of two "
        "sizes, and a scale for each "
        "token and head breaks their ratio (vllm-project/vllm#40388). Set gemma-serving:vllm.kvCacheDtype to auto or "
        "fp8, or remove "
        "vllm.speculativeConfig if the draft model has other heads.",
    ),
    KnownCause(
        r"TPU is already in use by process with pid (?P<process>\d+)",
        "Process {found[process]} on the machine already uses the chips, so a second server cannot start. Run "
        "`gemma logs {start.stack}` to see whether the first one serves, and end the process on the machine otherwise.",
        target="tpu",
    ),
    KnownCause(
        r"Quota (?:limit )?'(?P<quota>\w+)' (?:has been )?exceeded",
        "Google refused the resource, because quota {found[quota]} is used up. Quotas count what is still being "
        "deleted. To read the quota "
        "and the command that requests more, run `gemma doctor {start.stack}`.",
        "SCL02",
    ),
)
"""In order: an earlier cause explains later ones."""

ENGINE_FAILED: Final = KnownCause(
    r"Engine core initialization failed|EngineCore failed to start",
    _engine_failed,
)
"""The engine's last line, which names no cause."""
