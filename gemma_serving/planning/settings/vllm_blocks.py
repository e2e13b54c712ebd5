"""Blocks of `vllm` for features of requests: media, thinking, tools, adapters and speculative decoding.

Each block is converted into the planner's options as soon as the settings are read, so nothing below has a second form of them. The options'
own keys stay as aliases. A block and a key must not contradict each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from gemma_serving.contracts.fields import camel_case
from gemma_serving.planning.settings.annotations import InFile, matching
from gemma_serving.planning.settings.fields import Block
from gemma_serving.planning.settings.text import Commit, ModelId, Positive
from gemma_serving.planning.settings.vllm_args import (
    BLOCK_KEYS,
    DEFAULT_LORA_RANK,
    OPTIONS,
    ImageTokens,
    LoraRank,
    Modality,
    VllmOptions,
)
from gemma_serving.planning.settings.words import Field

_PARSER: Final = "gemma4"
PROPOSED_TOKENS: Final = 3
_Items = Annotated[int, Field(ge=0, le=999)]
_AdapterName = Annotated[str, matching(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$", "an adapter's name", "sql")]
_Folder = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_AdapterPlace = Annotated[
    str,
    matching(
        rf"^({_Folder}/{_Folder}|gs://[a-z0-9][a-z0-9._-]+(/{_Folder})+|(/{_Folder})+)$",
        "a Hugging Face id, gs://BUCKET/FOLDER or a folder of the image",
        "my-org/gemma-4-sql-lora",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalSettings(Block):
    """Images, video and audio in a request.

    If one of `images`, `videos` and `audios` is set, the others are 0 by default.
    """

    images: _Items | None = None
    """Maximum images per request. Default without any limit in this block: 4."""
    videos: _Items | None = None
    """Maximum videos per request, 32 frames each."""
    audios: _Items | None = None
    """Maximum audio items per request.

    Only E2B, E4B and 12B accept audio. They need a GPU and an image with `vllm[audio]`.
    """
    image_tokens: ImageTokens | None = None
    """Tokens of one image, unless a request chooses another size: 70, 140, 280, 560 or 1120. Default: 280."""
    max_image_tokens: ImageTokens | None = None
    """Largest image that a request may choose. Default: `imageTokens`."""

    def options(self) -> Mapping[str, object]:
        """Return the planner's options."""
        limits = {"image": self.images, "video": self.videos, "audio": self.audios}
        has_limit = any(limit is not None for limit in limits.values())
        return {
            "limit_mm_per_prompt": {kind: limit or 0 for kind, limit in limits.items()} if has_limit else None,
            "image_tokens": self.image_tokens,
            "max_image_tokens": self.max_image_tokens,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingSettings(Block):
    """Reasoning before the response."""

    parser: str | None = None
    """Parser that separates reasoning from the response. Default: gemma4."""
    template: str | None = None
    """Chat template used instead of the checkpoint's: a file of the image, or `./NAME.jinja` of the project (`weights: bucket`)."""
    default: bool | None = None
    """True if the model thinks unless a request turns it off (`chat_template_kwargs`). Default: false."""

    def options(self) -> Mapping[str, object]:
        """Return the planner's options."""
        return {
            "reasoning_parser": self.parser,
            "chat_template": self.template,
            "thinks_by_default": self.default,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings(Block):
    """Tool calls."""

    enabled: bool = True
    """Allow the model to decide when to call a tool."""
    parser: str | None = None
    """Parser that turns the model's tool-call tokens into OpenAI tool calls. Default: gemma4."""

    def options(self) -> Mapping[str, object]:
        """Return the planner's options."""
        parser = self.parser or (_PARSER if self.enabled else None)
        return {"enable_auto_tool_choice": self.enabled, "tool_call_parser": parser}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings(Block):
    """LoRA adapters."""

    adapters: Mapping[_AdapterName, _AdapterPlace]
    """Adapters by the name that clients send as `model`.

    Each is a Hugging Face id, gs://BUCKET/FOLDER, or a folder of the image. With weights bucket, `gemma stage_model` copies them to the
    stack's bucket.
    """
    rank: LoraRank = DEFAULT_LORA_RANK
    """Largest rank of an adapter. It sets the reserved memory."""
    at_once: Positive | None = None
    """Adapters that one step can use. Each reserves memory. Default: all `adapters`."""

    def options(self) -> Mapping[str, object]:
        """Return the planner's options."""
        return {
            "lora_adapters": dict(self.adapters),
            "max_lora_rank": self.rank,
            "max_loras": self.at_once or max(len(self.adapters), 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeSettings(Block):
    """Speculative decoding."""

    method: Literal["n-gram", "draft-model"]
    """Source of the proposed tokens.

    `n-gram`: tokens that followed the same words earlier in the prompt. `draft-model`: a small model.
    """
    tokens: Positive = PROPOSED_TOKENS
    """Proposed tokens per step."""
    drafter: ModelId | None = None
    """Hugging Face id of the draft model, for draft-model."""
    revision: Commit | None = None
    """Commit of the draft model's repository."""

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if self.method == "draft-model" and self.drafter is None:
            yield "method draft-model needs drafter; docs/reference/checkpoints.md lists draft models"
        if self.method == "n-gram" and (self.drafter or self.revision):
            yield "method n-gram uses no model; remove drafter and revision, or set method: draft-model"

    def options(self) -> Mapping[str, object]:
        """Return the planner's options."""
        proposals = {_TOKENS: self.tokens}
        if self.drafter is None:
            return {"speculative_config": {"method": "ngram", **proposals}}
        pinned = {} if self.revision is None else {"revision": self.revision}
        return {"speculative_config": {"model": self.drafter, **pinned, **proposals}}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmInFile(VllmOptions):
    """The options of `vllm` as a file has them, with blocks."""

    multimodal: MultimodalSettings | None = None
    thinking: ThinkingSettings | None = None
    tools: ToolSettings | None = None
    lora: LoraSettings | None = None
    speculative: SpeculativeSettings | None = None


_OPTION_NAMES: Final = tuple(option.name for option in OPTIONS.values())
BLOCKS: Final = tuple(block.name for block in fields(VllmInFile) if block.name not in _OPTION_NAMES)
"""Keys of the blocks of `vllm`."""
IN_BLOCKS: Final[Mapping[str, str]] = {
    camel_case(option.name): option.key for option in OPTIONS.values() if option.is_in_block
}
"""Options that have a key only in a block, with that key."""


def _options(given: VllmInFile) -> VllmOptions:
    """Return the options, with each block converted into the options' own keys. Raises ValueError for a contradiction."""
    values: dict[str, Any] = {name: getattr(given, name) for name in _OPTION_NAMES}
    for option in OPTIONS.values():
        if option.is_in_block and values[option.name] is not None:
            raise ValueError(f"vllm.{camel_case(option.name)} is not a key; set vllm.{option.key}")
    for name in BLOCKS:
        block: Any = getattr(given, name)
        for option, value in block.options().items() if block is not None else ():
            if value is not None and values[option] not in (None, value):
                raise ValueError(f"vllm.{name} and vllm.{camel_case(option)} set different values; keep one of them")
            values[option] = values[option] if value is None else value
    options = VllmOptions(**values)
    for problem in options.problems():
        raise ValueError(problem)
    return options


OptionsOrBlocks: TypeAlias = Annotated[VllmOptions, InFile(VllmInFile, _options)]
"""Options of vLLM, which a file may have in blocks."""


def stated_in_blocks(value: Mapping[str, object]) -> list[str]:
    """Return the options with their own key for which a file's `vllm` uses a block instead."""
    return [
        name
        for name, key in BLOCK_KEYS.items()
        if value.get(key.partition(".")[0]) is not None and value.get(camel_case(name)) is None
    ]


def block_changes(path: str, value: object, in_blocks: Sequence[str]) -> Mapping[str, object] | None:
    """Return the change of an option as a change of the block that the file uses for it; None if it uses the option's own key.

    `path` is the planner's field, such as `vllm.limit_mm_per_prompt`, and `value` its new value; None removes it.
    """
    name = path.removeprefix("vllm.")
    if name not in in_blocks:
        return None
    if name == "limit_mm_per_prompt":
        limits = cast("Mapping[str, int]", value or {})
        kinds: tuple[str, ...] = get_args(Modality)
        is_whole = all(kind in limits for kind in kinds)  # a kind that the block leaves out is 0
        of_block = {f"vllm.multimodal.{kind}s": limits[kind] if is_whole else None for kind in kinds}
        return of_block if is_whole or not limits else {**of_block, f"vllm.{camel_case(name)}": limits}
    if name == "speculative_config":
        return _speculative_changes(cast("Mapping[str, object] | None", value))
    return {f"vllm.{BLOCK_KEYS[name]}": value}


_TOKENS: Final = "num_speculative_tokens"


def _speculative_changes(config: Mapping[str, object] | None) -> Mapping[str, object]:
    if config is None:
        return {"vllm.speculative": None}
    is_n_gram = config.get("method") == "ngram" and set(config) == {"method", _TOKENS}
    if not is_n_gram and set(config) - {"revision"} != {"model", _TOKENS}:  # the block has no other method
        return {"vllm.speculative": None, "vllm.speculativeConfig": config}
    model = config.get("model")
    return {
        "vllm.speculative.method": "n-gram" if model is None else "draft-model",
        "vllm.speculative.tokens": config[_TOKENS],
        "vllm.speculative.drafter": model,
        "vllm.speculative.revision": config.get("revision"),
    }
