"""Typed vLLM server options and the command line and environment that they mean.

Only flags that the planner understands are typed; everything else goes through `VllmOptions.extra_args`, verbatim.
`None` means "not given": the flag is left out and vLLM's own default holds.

Sources: vLLM's engine arguments (docs.vllm.ai, `vllm serve --help`), the vLLM recipe for Gemma 4, and the vLLM TPU
(tpu-inference) environment variables.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT: Final = 8000
XLA_CACHE_PATH: Final = "/dev/shm/vllm_cache"  # noqa: S108 - shared memory inside the container, on purpose
TPU_BUCKET_PADDING_GAP: Final = 512


def _flag(flag: str, help_text: str) -> dict[str, str]:
    return {"flag": flag, "help": help_text}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of one vLLM server. Memory in GiB, lengths in tokens, fractions between 0 and 1."""

    tensor_parallel_size: int | None = field(
        default=None,
        metadata=_flag(
            "--tensor-parallel-size",
            "Devices that share one copy of the model; on a TPU exactly the chips of the slice.",
        ),
    )
    dtype: str | None = field(
        default=None,
        metadata=_flag(
            "--dtype",
            "Precision of weights that are not quantized and of activations; bfloat16 is what Gemma 4 was trained in.",
        ),
    )
    quantization: str | None = field(
        default=None,
        metadata=_flag(
            "--quantization",
            "Quantize a bf16 checkpoint while loading (fp8). Leave out for checkpoints that are quantized already: they say so themselves.",
        ),
    )
    kv_cache_dtype: str | None = field(
        default=None,
        metadata=_flag(
            "--kv-cache-dtype",
            "Precision of the KV cache; fp8 halves it on GPUs with FP8 units and saves nothing for Gemma 4 on v6e TPUs.",
        ),
    )
    gpu_memory_utilization: float | None = field(
        default=None,
        metadata=_flag(
            "--gpu-memory-utilization", "Share of the device's memory for weights, activations and KV cache together."
        ),
    )
    max_model_len: int | None = field(
        default=None,
        metadata=_flag(
            "--max-model-len",
            "Longest request, prompt and answer together, in tokens; one such request must fit into the KV cache.",
        ),
    )
    max_num_seqs: int | None = field(
        default=None,
        metadata=_flag("--max-num-seqs", "Most requests that one step computes together; more wait in the queue."),
    )
    max_num_batched_tokens: int | None = field(
        default=None,
        metadata=_flag(
            "--max-num-batched-tokens",
            "Most tokens that one step computes; must hold the longest image or audio item in one piece.",
        ),
    )
    block_size: int | None = field(
        default=None,
        metadata=_flag("--block-size", "Tokens in one block of the KV cache."),
    )
    enforce_eager: bool | None = field(
        default=None,
        metadata=_flag(
            "--enforce-eager",
            "No torch.compile and no CUDA graphs: starts sooner, needs less memory, decodes more slowly.",
        ),
    )
    cpu_offload_gib: float | None = field(
        default=None,
        metadata=_flag(
            "--cpu-offload-gb", "GiB of weights kept in host memory and read over PCIe for every token: a last resort."
        ),
    )
    enable_prefix_caching: bool | None = field(
        default=None,
        metadata=_flag(
            "--enable-prefix-caching", "Reuse the KV cache of equal prompt beginnings; turn it off for benchmarks."
        ),
    )
    async_scheduling: bool | None = field(
        default=None,
        metadata=_flag("--async-scheduling", "Schedule the next step while the present one computes."),
    )
    disable_chunked_mm_input: bool | None = field(
        default=None,
        metadata=_flag(
            "--disable-chunked-mm-input", "Never split an image or audio item over two steps; needed on TPU."
        ),
    )
    limit_mm_per_prompt: Mapping[str, int] | None = field(
        default=None,
        metadata=_flag(
            "--limit-mm-per-prompt",
            "Most items of each kind in one request; all 0 serves text only and reserves nothing for the encoders.",
        ),
    )
    enable_auto_tool_choice: bool | None = field(
        default=None,
        metadata=_flag(
            "--enable-auto-tool-choice", "Let the model decide when to call a tool; needs a tool-call parser."
        ),
    )
    tool_call_parser: str | None = field(
        default=None,
        metadata=_flag(
            "--tool-call-parser",
            "Turns the model's own tool-call tokens into OpenAI tool calls; gemma4 for this family.",
        ),
    )
    reasoning_parser: str | None = field(
        default=None,
        metadata=_flag("--reasoning-parser", "Separates the thinking channel from the answer; gemma4 for this family."),
    )
    chat_template: str | None = field(
        default=None,
        metadata=_flag("--chat-template", "Chat template file inside the image that replaces the checkpoint's own."),
    )
    load_format: str | None = field(
        default=None,
        metadata=_flag(
            "--load-format", "How weights are read; runai_streamer reads gs:// directly, many streams at a time."
        ),
    )
    safetensors_load_strategy: str | None = field(
        default=None,
        metadata=_flag(
            "--safetensors-load-strategy",
            "lazy maps files, eager reads them whole, prefetch warms the page cache first: right for network mounts.",
        ),
    )
    speculative_config: Mapping[str, str | int | float | bool] | None = field(
        default=None,
        metadata=_flag(
            "--speculative-config",
            "Speculative decoding, for example n-gram: several tokens a step where the guess is right.",
        ),
    )
    trust_remote_code: bool | None = field(
        default=None,
        metadata=_flag(
            "--trust-remote-code", "Run Python code from the checkpoint's repository; Gemma 4 does not need it."
        ),
    )
    served_model_name: str | None = field(
        default=None,
        metadata=_flag(
            "--served-model-name", "The name that clients send as `model`, whatever the path of the weights."
        ),
    )
    seed: int | None = field(
        default=None,
        metadata=_flag("--seed", "Random seed for sampling."),
    )
    extra_args: tuple[str, ...] = field(
        default=(),
        metadata=_flag("", "Further vLLM arguments, passed on as they are, after all others."),
    )

    def merged_over(self, base: VllmOptions) -> VllmOptions:
        """These options where they are given, `base` where they are not; `extra_args` of both, base's first."""
        changes = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name != "extra_args" and getattr(self, f.name) is not None
        }
        return replace(base, **changes, extra_args=(*base.extra_args, *self.extra_args))


OPTION_HELP: Final[Mapping[str, str]] = {f.name: f.metadata["help"] for f in fields(VllmOptions)}
"""What each option means, by its Python name, in words fit for `--help`."""

OPTION_FLAG: Final[Mapping[str, str]] = {f.name: f.metadata["flag"] for f in fields(VllmOptions) if f.metadata["flag"]}
"""The vLLM flag of each typed option, by its Python name."""

# vLLM spells "off" as a flag of its own (argparse.BooleanOptionalAction); these are the booleans that have one.
_NEGATABLE: Final = frozenset(
    {
        "enable_prefix_caching",
        "async_scheduling",
        "enforce_eager",
        "enable_auto_tool_choice",
        "disable_chunked_mm_input",
    }
)


def _spell(name: str, flag: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        if value:
            return flag
        return f"--no-{flag.removeprefix('--')}" if name in _NEGATABLE else None
    if isinstance(value, float):
        return f"{flag}={value:g}"
    if isinstance(value, int | str):
        return f"{flag}={value}"
    return f"{flag}={json.dumps(value, sort_keys=True, separators=(',', ':'))}"


def vllm_arguments(
    options: VllmOptions, *, model_or_path: str, port: int = DEFAULT_PORT, host: str = "0.0.0.0"
) -> tuple[str, ...]:
    """The arguments after `vllm serve`, in a fixed order, spelled `--flag=value`.

    The model comes first, then host and port, then the typed options in the order of their declaration, then `extra_args`.
    The same options always give the same tuple, so that a change of the tuple is a change of the deployment.
    """
    spelled = (_spell(name, flag, getattr(options, name)) for name, flag in OPTION_FLAG.items())
    return (
        model_or_path,
        f"--host={host}",
        f"--port={port}",
        *(s for s in spelled if s is not None),
        *options.extra_args,
    )


def vllm_environment(
    *, is_tpu: bool, is_moe: bool, needs_cuda_compatibility: bool = False, xla_cache_path: str | None = XLA_CACHE_PATH
) -> dict[str, str]:
    """Environment variables of the server's container, sorted by name.

    Args:
        is_tpu: The server is vLLM on TPU.
        is_moe: The model is a mixture of experts (Gemma 4 26B-A4B): buckets of 512 tokens keep XLA from recompiling between
            the shapes that its speculative kernels see (the fix for 132 s latency spikes in the turbo-stable configuration).
        needs_cuda_compatibility: The driver is older than the image's CUDA (an L4 on Cloud Run under a CUDA 13 image).
        xla_cache_path: Where compiled XLA programs are kept, on local memory or disk; None leaves the cache off.
    """
    environment: dict[str, str] = {}
    if is_tpu and xla_cache_path is not None:
        environment["VLLM_XLA_CACHE_PATH"] = xla_cache_path
    if is_tpu and is_moe:
        environment["VLLM_TPU_BUCKET_PADDING_GAP"] = str(TPU_BUCKET_PADDING_GAP)
    if needs_cuda_compatibility:
        environment["VLLM_ENABLE_CUDA_COMPATIBILITY"] = "1"
    return dict(sorted(environment.items()))
