"""Features of a server beyond text: media, thinking, tools, adapters, speculative decoding."""

from dataclasses import dataclass
from typing import Annotated, Literal

from gemma_serving.contracts.fields import Doc

Speculation = Literal["none", "n-gram", "draft-model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFeatures:
    """Features of a deployed server, from its settings."""

    images: Annotated[int, Doc("Images per request; 0 without.")] = 0
    videos: Annotated[int, Doc("Videos per request; 0 without.")] = 0
    audios: Annotated[int, Doc("Audio items per request; 0 without.")] = 0
    image_tokens: Annotated[int, Doc("Tokens of one image, unless a request chooses another size.")] = 280
    thinking: Annotated[bool, Doc("Whether reasoning is returned in a separate field.")] = False
    thinks_by_default: Annotated[bool, Doc("True if the model thinks unless a request turns it off.")] = False
    tools: Annotated[bool, Doc("Whether the model may call tools.")] = False
    adapters: Annotated[tuple[str, ...], Doc("Names of the LoRA adapters, to send as `model`.")] = ()
    speculation: Annotated[Speculation, Doc("`none`, `n-gram` or `draft-model`.")] = "none"
    draft_tokens: Annotated[int, Doc("Proposed tokens per step; 0 without speculative decoding.")] = 0
