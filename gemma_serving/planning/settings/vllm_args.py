"""vLLM's server options: one annotated field each. Settings, `--set`, the settings page and its JSON schema are generated from them.

To add an option, add a field to `VllmOptions`. Options without a field go through `extra_args` unchanged.
None means "not set": the flag is omitted and vLLM's default applies.

Sources: vLLM's engine arguments (docs.vllm.ai, `vllm serve --help`), the vLLM recipe for Gemma 4, and the environment variables
of vLLM on TPU (tpu-inference).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, cast, get_origin

from gemma_serving.contracts.fields import to_json
from gemma_serving.planning.data.exposure import EXPOSURE_ENVIRONMENT, NO_DOMAIN, exposure_arguments
from gemma_serving.planning.settings.annotations import LARGEST, Key, ListOf, OneOf, Unusable, matching
from gemma_serving.planning.settings.fields import Block, SettingField, own_fields
from gemma_serving.planning.settings.text import FromZero, NumberFromZero
from gemma_serving.planning.settings.words import AfterValidator, Field

DEFAULT_PORT: Final = 8000
XLA_CACHE_PATH: Final = "/dev/shm/vllm_cache"  # noqa: S108 - inside the container
"""Folder of the container where vLLM stores compiled programs. The agent mounts a folder of the machine's disk there (vm_agent.compile_cache)."""
TPU_BUCKET_PADDING_GAP: Final = 512
_CLOUD_RUN_L4: Final = "nvidia-l4"
REVISION: Final = "--revision"
TOKENIZER: Final = "--tokenizer"
TOKENIZER_REVISION: Final = "--tokenizer-revision"
_FP8_E4M3: Final = "float8_e4m3fn"
_QWIX_FP8: Final = {"qwix": {"rules": [{"module_path": ".*", "weight_qtype": _FP8_E4M3, "act_qtype": _FP8_E4M3}]}}
"""Rules of Google's manifests for Gemma 4 31B (AI-Hypercomputer/tpu-recipes c8cfe2f, inference/ironwood/vLLM/Gemma4; accelerated-platforms d788c53)."""
SHUTDOWN_FLAG: Final = "--shutdown-timeout"
"""Seconds for running requests after a signal to end (vLLM). Without it, vLLM aborts them."""
SAFETENSORS: Final = "safetensors"
"""Value of `load_format` with which vLLM opens only safetensors. `auto` also opens pickled files (.bin, .pt) without safetensors."""
STREAMER: Final = "runai_streamer"
"""Value of `load_format` with which vLLM reads weights directly from a bucket."""


class Unit(NamedTuple):
    """The unit of a value whose name does not state it."""

    name: str


class Flag(NamedTuple):
    """The flag of `vllm serve`: the field's name with hyphens, or `name`. With `has_no_form`, `--no-...` turns the option off."""

    name: str = ""
    has_no_form: bool = False


class InJson(NamedTuple):
    """The paths of a JSON object at which the flag takes the value, or what it stands for in `words`."""

    paths: tuple[tuple[str, ...], ...]
    words: Mapping[str, object] = {}


class Pairs(NamedTuple):
    """The flag takes a NAME=VALUE word for each entry, after the switch that enables it."""

    switch: str


_KV_IN_4_BITS: Final = {
    "int4_per_token_head": "vLLM crashes with it and Gemma 4, whose layers have two widths of heads (vllm-project/vllm#48721).",
    "turboquant_k8v4": "vLLM rejects it for Gemma 4, whose attention kernel has no such cache (vllm-project/vllm#40094).",
    "nvfp4": "vLLM has it only on GPUs of compute capability 10, and no report of Gemma 4 with it there was found (vllm-project/vllm#46329).",
    "fp4": "vLLM has no type of this name; its own is nvfp4, without a report of Gemma 4 on a GPU that has it (vllm-project/vllm#46329).",
    "int4": "vLLM has no type of this name; its own is int4_per_token_head, with which it crashes for Gemma 4 (vllm-project/vllm#48721).",
}
SCALED_KV_SUFFIX: Final = "_per_token_head"
"""End of the names of KV cache types with a scale for each token and head, which only GPUs have (from vLLM 0.20.0, config/cache.py)."""
Modality: TypeAlias = Literal["image", "audio", "video"]
"""Kinds of prompt items other than text."""

_Count: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST)] | None
_Tokens: TypeAlias = Annotated[int, Field(ge=1, le=LARGEST), Unit("tokens")] | None
_Fraction: TypeAlias = Annotated[float, Field(gt=0, le=1)] | None
_Switch: TypeAlias = Annotated[bool, Flag(has_no_form=True)] | None
_HostName: TypeAlias = Annotated[
    str,
    matching(
        r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        "a lower-case host name without a scheme, port or wildcard,",
        "images.example.com",
    ),
]
"""vLLM compares the lower-case host of a URL with each whole name (multimodal/media/connector.py)."""
ENABLE_LORA: Final = "--enable-lora"
IMAGE_TOKENS: Final = (70, 140, 280, 560, 1_120)
"""Allowed soft tokens per image: Gemma 4's `max_soft_tokens` (transformers' Gemma4ImageProcessor). Default: 280."""
ImageTokens: TypeAlias = Annotated[int, AfterValidator(OneOf(IMAGE_TOKENS))]
DEFAULT_IMAGE_TOKENS: Final = 280
LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of `--max-lora-rank` (vLLM 0.28.0 to 0.31.0, config/lora.py)."""
LoraRank: TypeAlias = Annotated[int, AfterValidator(OneOf(LORA_RANKS))]
DEFAULT_LORA_RANK: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions(Block):
    """Options of the vLLM server that the planner models. Every other option goes into `extraArgs`."""

    tensor_parallel_size: _Count = None
    """Devices that share one copy of the model. Default: all devices, divided by `dataParallelSize`.

    On a TPU, `tensorParallelSize` times `dataParallelSize` must equal the chips of the slice.
    """
    data_parallel_size: _Count = None
    """Copies of the model behind one port.

    vLLM sends each request to the least loaded copy. `maxNumSeqs`, `maxNumBatchedTokens` and the KV cache apply to each copy.
    """
    dtype: Literal["auto", "bfloat16", "float16"] | None = None
    """Precision of activations and of weights that are not quantized. Gemma 4 was trained in bfloat16."""
    quantization: Literal["fp8"] | None = None
    """Quantize a bf16 checkpoint while it loads. Omit it if the checkpoint is already quantized."""
    tpu_quantization: Annotated[
        Literal["qwix-fp8"] | None,
        Flag("--additional-config"),
        InJson((("quantization",),), {"qwix-fp8": _QWIX_FP8}),
    ] = None
    """Convert the linear layers of a bf16 checkpoint to FP8 while vLLM on TPU loads it, by the rules of Google's manifests for 31B.

    It halves the weights on each chip. Their bf16 form must fit, too, until they are converted.
    """
    kv_cache_dtype: Annotated[
        Literal[
            "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"
        ]
        | None,
        Unusable(_KV_IN_4_BITS),
    ] = None
    """Precision of the KV cache.

    `fp8` halves the cache on GPUs with FP8 units. `int8_per_token_head` runs on any GPU and saves a quarter to a third for Gemma 4. On
    v6e TPUs `fp8` saves nothing for E2B. On four v6e chips it holds 1.7 times the tokens for 12B and 26B-A4B (FIT07).
    """
    gpu_memory_utilization: _Fraction = None
    """Fraction of the device's memory for weights, activations and KV cache together."""
    max_model_len: _Tokens = None
    """Longest request, prompt and response together. One such request must fit in the KV cache."""
    max_num_seqs: _Count = None
    """Maximum requests per step. Further requests wait in the queue."""
    max_num_batched_tokens: _Tokens = None
    """Maximum tokens per step. The longest image or audio item must fit in one step."""
    block_size: Annotated[Annotated[int, Field(ge=16, multiple_of=16, le=LARGEST)] | None, Unit("tokens")] = None
    """Size of one block of the KV cache, a multiple of 16.

    On a TPU the default depends on the longest request.
    """
    enforce_eager: _Switch = None
    """Disable torch.compile and CUDA graphs: faster start, less memory, slower decoding."""
    cpu_offload_gib: Annotated[NumberFromZero | None, Flag("--cpu-offload-gb")] = None
    """GiB of weights kept in host memory, as a last resort.

    vLLM reads these weights over PCIe for every token.
    """
    enable_prefix_caching: _Switch = None
    """Reuse the KV cache of prompts with a common prefix. Disable it for benchmarks."""
    async_scheduling: _Switch = None
    """Schedule the next step while the current one computes."""
    disable_chunked_mm_input: _Switch = None
    """Never split an image or audio item over two steps. TPUs need this."""
    limit_mm_per_prompt: Annotated[Mapping[Modality, FromZero] | None, Unit("items")] = None
    """Maximum items of each kind per request.

    If all are 0, encoders reserve no memory and only text is served.
    """
    image_tokens: Annotated[
        ImageTokens | None,
        Key("multimodal.imageTokens"),
        Flag("--mm-processor-kwargs"),
        InJson((("max_soft_tokens",),)),
    ] = None
    max_image_tokens: Annotated[
        ImageTokens | None,
        Key("multimodal.maxImageTokens"),
        Flag("--hf-overrides"),
        InJson((("vision_config", "default_output_length"), ("vision_soft_tokens_per_image",))),
    ] = None
    enable_auto_tool_choice: _Switch = None
    """Allow the model to decide when to call a tool. Requires `toolCallParser`."""
    tool_call_parser: str | None = None
    """Parser that turns the model's tool-call tokens into OpenAI tool calls: gemma4 for Gemma 4."""
    reasoning_parser: str | None = None
    """Parser that separates reasoning from the response: gemma4 for Gemma 4."""
    chat_template: str | None = None
    """Chat template used instead of the checkpoint's: a file of the image, or `./NAME.jinja` of the project (`weights: bucket`)."""
    thinks_by_default: Annotated[
        bool | None,
        Key("thinking.default"),
        Flag("--default-chat-template-kwargs"),
        InJson((("enable_thinking",),)),
    ] = None
    load_format: str | None = None
    """How vLLM reads weights.

    `safetensors` opens no pickled files. `auto` opens pickled files if the checkpoint has no safetensors. `runai_streamer` reads gs://
    directly with many concurrent streams.
    """
    safetensors_load_strategy: Literal["lazy", "eager", "prefetch"] | None = None
    """How vLLM reads safetensors files.

    `lazy` maps files, `eager` reads them whole, and `prefetch` fills the page cache first, which is best on network mounts.
    """
    speculative_config: Mapping[str, str | int | float | bool] | None = None
    """Speculative decoding, for example n-gram.

    One step generates several tokens if the model accepts the proposals.
    """
    lora_adapters: Annotated[
        Mapping[str, str] | None,
        Key("lora.adapters"),
        Flag("--lora-modules"),
        Pairs(ENABLE_LORA),
    ] = None
    max_lora_rank: Annotated[LoraRank | None, Key("lora.rank")] = None
    max_loras: Annotated[_Count, Key("lora.atOnce")] = None
    trust_remote_code: bool | None = None
    """Run Python code from the checkpoint's repository. Gemma 4 does not need it."""
    served_model_name: str | None = None
    """Name that clients send as `model`. Default: the model's id."""
    allowed_media_domains: Annotated[ListOf[_HostName] | None, Flag("--allowed-media-domains")] = None
    """Host names from which the server may fetch images, audio and video by URL. Default: none.

    `data:` URLs always work. The server fetches from its own network and follows no redirects.
    """
    extra_args: ListOf[str] = ()
    """Additional arguments of `vllm serve`, after all others.

    They must be flags of the image's vLLM without a key here.
    """

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys, and what to change."""
        usual, largest = self.image_tokens, self.max_image_tokens
        if usual is not None and largest is not None and largest < usual:
            below = f"multimodal.maxImageTokens {largest} is below multimodal.imageTokens {usual}"
            yield f"{below}, so it has no effect; raise the first or lower the second"

    @property
    def own_template(self) -> str | None:
        """Chat template that is a file of the project, as ./FILE; None without one. The server reads a staged copy."""
        return self.chat_template if (self.chat_template or "").startswith("./") else None

    def merged_over(self, base: "VllmOptions") -> "VllmOptions":
        """Return these options if set, otherwise those of `base`; `extra_args` of both, base's first."""
        values: dict[str, Any] = {name: getattr(base if getattr(self, name) is None else self, name) for name in _NAMES}
        values["extra_args"] = (*base.extra_args, *self.extra_args)
        return VllmOptions(**values)


_NAMES: Final = tuple(option.name for option in fields(VllmOptions))


class VllmOption(NamedTuple):
    """One field of `VllmOptions`, read from its annotations."""

    name: str
    """Python name, such as max_model_len."""
    key: str
    """Key in the settings and of `--set`, such as maxModelLen or lora.rank."""
    field: SettingField
    """Its type and limits."""
    kind: object
    """int, float, bool, str, tuple or Mapping."""
    flag: str
    """Flag of `vllm serve`; empty for `extra_args`."""
    has_no_form: bool
    """True if `--no-...` turns the option off."""
    shape: InJson | Pairs | None
    """Form of the flag's value, if it is not the value itself."""

    @property
    def is_in_block(self) -> bool:
        """True if its key is inside a block of the settings."""
        return "." in self.key

    @property
    def may_be_an_argument(self) -> bool:
        """True if its flag may be in `extraArgs` while the key is not set, because it has other values than the key's."""
        return self.is_in_block or isinstance(self.shape, InJson)

    def spell(self, value: object) -> tuple[str, ...]:
        """Return the words of `vllm serve` for a value; empty if the value needs none."""
        if value is None or not self.flag:
            return ()
        if isinstance(self.shape, Pairs):
            pairs = [f"{name}={place}" for name, place in sorted(cast("Mapping[str, str]", value).items())]
            return (self.shape.switch, *((self.flag, *pairs) if pairs else ()))
        if self.shape is not None:
            value = _nested(self.shape.paths, self.shape.words.get(str(value), value))
        return self._spelled(value)

    def _spelled(self, value: object) -> tuple[str, ...]:
        if isinstance(value, bool):
            off = (f"--no-{self.flag.removeprefix('--')}",) if self.has_no_form else ()
            return (self.flag,) if value else off
        if isinstance(value, tuple):
            words = cast("tuple[str, ...]", value)
            return (f"{self.flag}={words[0]}",) if len(words) == 1 else (self.flag, *words) if words else ()
        if isinstance(value, float):
            return (f"{self.flag}={value:g}",)
        if isinstance(value, int | str):
            return (f"{self.flag}={value}",)
        return (f"{self.flag}={json.dumps(value, sort_keys=True, separators=(',', ':'))}",)


def _nested(paths: tuple[tuple[str, ...], ...], value: object) -> Mapping[str, object]:
    """Return an object with the value at each path."""
    found: dict[str, object] = {}
    for first, *rest in paths:
        found[first] = _nested((tuple(rest),), value) if rest else value
    return found


def _option(field: SettingField) -> VllmOption:
    """Return the option that a field's annotations describe."""
    kind = get_origin(field.hint) or field.hint
    stated = field.annotation(Flag)
    flag = stated or Flag()
    return VllmOption(
        name=field.path,
        key=field.key,
        field=field,
        kind=str if kind is Literal else kind,
        flag="" if kind is tuple and stated is None else flag.name or f"--{field.path.replace('_', '-')}",
        has_no_form=flag.has_no_form,
        shape=field.annotation(InJson) or field.annotation(Pairs),
    )


_OPTIONS: Final = tuple(map(_option, own_fields(VllmOptions)))

OPTIONS: Final[Mapping[str, VllmOption]] = {option.key: option for option in _OPTIONS}
"""Every option by its settings key, in the order of the command line."""
MM_PROCESSOR_KWARGS: Final = OPTIONS["multimodal.imageTokens"].flag
CHAT_TEMPLATE_KWARGS: Final = OPTIONS["thinking.default"].flag
ADDITIONAL_CONFIG: Final = OPTIONS["tpuQuantization"].flag
"""Flag with JSON for the platform's plugin: of a TPU, tpu-inference."""
LORA_MODULES: Final = OPTIONS["lora.adapters"].flag
MAX_LORA_RANK: Final = OPTIONS["lora.rank"].flag
MAX_LORAS: Final = OPTIONS["lora.atOnce"].flag
KEY_OF: Final[Mapping[str, str]] = {option.name: option.key for option in _OPTIONS}
"""Settings key of each field of `VllmOptions`."""

BLOCK_KEYS: Final[Mapping[str, str]] = {
    "limit_mm_per_prompt": "multimodal",
    "speculative_config": "speculative",
    "enable_auto_tool_choice": "tools.enabled",
    "tool_call_parser": "tools.parser",
    "reasoning_parser": "thinking.parser",
    "chat_template": "thinking.template",
}
"""Block, or key in a block, of each field that also has its own key."""


def given_options(options: VllmOptions) -> dict[str, object]:
    """Return the options that are set, by settings key."""
    values: dict[str, object] = to_json(options)
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def vllm_arguments(
    options: VllmOptions,
    *,
    model_or_path: str,
    port: int = DEFAULT_PORT,
    host: str = "0.0.0.0",
    has_api_key: bool = False,
    revision: str | None = None,
) -> tuple[str, ...]:
    """Return the arguments after `vllm serve`, spelled `--flag=value`. `revision` is a hub commit, for a model from the hub.

    The order is fixed: model, host, port, revision, the options in declaration order, hardening flags, `extra_args`.
    The same options always return the same tuple, so a changed tuple means a changed deployment.
    """
    closed = replace(options, allowed_media_domains=tuple(options.allowed_media_domains or (NO_DOMAIN,)))
    spelled = (option.spell(getattr(closed, option.name)) for option in _OPTIONS)
    return (
        model_or_path,
        f"--host={host}",
        f"--port={port}",
        *(f"{flag}={revision}" for flag in _revision_flags(options) if revision is not None),
        *(word for words in spelled for word in words),
        *exposure_arguments(has_api_key=has_api_key),
        *options.extra_args,
    )


def _revision_flags(options: VllmOptions) -> tuple[str, ...]:
    """Return the flags for the model's commit. A tokenizer from another repository has its own commits."""
    has_tokenizer = any(word.partition("=")[0] == TOKENIZER for word in options.extra_args)
    return (REVISION,) if has_tokenizer else (REVISION, TOKENIZER_REVISION)


def cuda_compatibility(gpu: str, setting: bool | None) -> bool | None:
    """Return whether vLLM loads an image's CUDA compatibility libraries for CUDA 13 on a GPU of Cloud Run; None leaves it to the image.

    Google's page lists driver 535 (CUDA 12.2) for the L4 on Cloud Run, which needs them. A public script reports 580, which rejects them.
    """
    return True if setting is None and gpu == _CLOUD_RUN_L4 else setting


def vllm_environment(
    *, is_tpu: bool, is_moe: bool, cuda_compatibility: bool | None = None, xla_cache_path: str | None = XLA_CACHE_PATH
) -> dict[str, str]:
    """Return the environment variables of the server's container, sorted by name.

    Args:
        is_tpu: The server is vLLM on TPU.
        is_moe: The model is a mixture of experts (Gemma 4 26B-A4B). Buckets of 512 tokens then keep XLA from recompiling for
            each shape of its speculative kernels, which caused latency spikes of 132 s.
        cuda_compatibility: Whether vLLM puts the image's CUDA compatibility libraries before the driver's, which a driver older than the
            image's CUDA needs and a newer one rejects. None leaves it to the image.
        xla_cache_path: Folder for compiled XLA programs in local memory or on a local disk; None disables the cache.
    """
    environment = dict(EXPOSURE_ENVIRONMENT)
    if is_tpu and xla_cache_path is not None:
        environment["VLLM_XLA_CACHE_PATH"] = xla_cache_path
    if is_tpu and is_moe:
        environment["VLLM_TPU_BUCKET_PADDING_GAP"] = str(TPU_BUCKET_PADDING_GAP)
    if cuda_compatibility is not None:
        environment["VLLM_ENABLE_CUDA_COMPATIBILITY"] = "1" if cuda_compatibility else "0"
    return dict(sorted(environment.items()))
