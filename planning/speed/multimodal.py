"""Images, videos and audio in a prompt: tokens for the language model, and work for the encoder.

Sources: transformers' Gemma 4 processors (`max_soft_tokens`, 32 frames of 70 tokens, 25 audio tokens per second) and vLLM's
gemma4_mm.py, which adds a start and an end token to each image, and also a timestamp to each frame.
"""

from typing import Final

from planning.data import overheads
from planning.model.spec import ModelSpec
from planning.question.workload import Workload

_MARKS: Final = 2
"""Tokens around an image: its start and its end."""
_AUDIO_TOKENS_PER_S: Final = overheads.AUDIO_TOKENS / 30
_FRAME_TOKENS: Final = 70
_FLOP_PER_PARAM: Final = 2
_FLOP_PER_PAIR: Final = 4
"""A query and a key: a product and a weighted sum of values, two operations each."""


def media_tokens(workload: Workload) -> int:
    """Return the tokens that images, videos and audio add to a prompt."""
    return (
        workload.images * (workload.image_tokens + _MARKS)
        + workload.videos * overheads.VIDEO_TOKENS
        + round(workload.audio_s * _AUDIO_TOKENS_PER_S)
    )


def prompt_tokens(workload: Workload) -> int:
    """Return the tokens of a whole prompt."""
    return workload.input_tokens + media_tokens(workload)


def encoder_flops(spec: ModelSpec, workload: Workload) -> float:
    """Return the operations of the towers for one prompt; a model without towers projects patches, at negligible cost."""
    frames = overheads.VIDEO_FRAMES * workload.videos
    pictures = workload.images * _picture_flops(spec, workload.image_tokens) + frames * _picture_flops(
        spec, _FRAME_TOKENS
    )
    return pictures + _FLOP_PER_PARAM * spec.audio_params * workload.audio_s * _AUDIO_TOKENS_PER_S


def _picture_flops(spec: ModelSpec, tokens: int) -> float:
    tower = spec.vision
    if tower is None:
        return float(_FLOP_PER_PARAM * spec.other_vision_params * tokens)
    patches = tokens * tower.patches_per_token
    params = tower.layers * (4 * tower.hidden**2 + 3 * tower.hidden * tower.intermediate)
    return patches * (_FLOP_PER_PARAM * params + _FLOP_PER_PAIR * tower.layers * tower.hidden * patches)
