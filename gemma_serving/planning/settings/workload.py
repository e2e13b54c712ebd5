"""The clients' workload: `Workload`, its parser, and the defaults.

A workload is a set of similar requests and their load: users that wait for a response before they send the next request
(closed loop), or arrivals per second (open loop). `planning.speed.serving` computes a deployment's results.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, cast

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.settings.fields import Block, SettingField, block_fields
from gemma_serving.planning.settings.reading import problem_with
from gemma_serving.planning.settings.vllm_args import DEFAULT_IMAGE_TOKENS, ImageTokens
from gemma_serving.planning.settings.words import Field

_SHOWN: Final = 40
"""Maximum characters of an invalid value that a message repeats."""
_MOST_TOKENS: Final = 10_000_000
_MOST_USERS: Final = 1_000_000
_MOST_ITEMS: Final = 1_000
_MOST_AUDIO_S: Final = 3_600

_Tokens: TypeAlias = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
_Items: TypeAlias = Annotated[int, Field(ge=0, le=_MOST_ITEMS)]
_Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]

DEFAULT_INPUT_TOKENS: Final = 768
DEFAULT_OUTPUT_TOKENS: Final = 512
"""Default workload: a chat turn with some history. A request then holds 1,024 tokens on average during its response, the length
that the planner's saturated rate has always used, so figures of different deployments stay comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Block):
    """Similar requests and their load.

    With neither `users` nor `rate_per_s`, the workload has as many users as the server runs concurrently.
    """

    input_tokens: _Tokens = DEFAULT_INPUT_TOKENS
    """Text tokens per prompt, including any shared prefix."""
    output_tokens: _Tokens = DEFAULT_OUTPUT_TOKENS
    """Tokens per response, including reasoning."""
    users: Annotated[int, Field(ge=1, le=_MOST_USERS)] | None = None
    """Clients that each wait for a response, then immediately send the next request. Excludes `ratePerS`."""
    rate_per_s: Annotated[float, Field(gt=0, le=_MOST_USERS)] | None = None
    """Requests per second, independent of responses. Excludes `users`."""
    prefix_share: _Share = 0.0
    """Fraction of a prompt's text, from 0 to 1, that other prompts share, such as a system prompt."""
    images: _Items = 0
    """Images per request."""
    image_tokens: ImageTokens | None = None
    """Soft tokens per image (`max_soft_tokens`). Default: the server's, `vllm.multimodal.imageTokens`."""
    videos: _Items = 0
    """Videos per request, 32 frames each."""
    audio_s: Annotated[float, Field(ge=0, le=_MOST_AUDIO_S)] = 0.0
    """Seconds of audio per request."""
    adapters: _Items = 0
    """LoRA adapters that the requests use in turn."""
    accepted_share: _Share | None = None
    """Fraction of speculative decoding's proposed tokens, from 0 to 1, that the model accepts."""

    @property
    def tokens_of_image(self) -> int:
        """Return the soft tokens of an image, for a server without a size of its own if the workload has none."""
        return self.image_tokens or DEFAULT_IMAGE_TOKENS

    @property
    def held_tokens(self) -> float:
        """Return the text tokens that a request holds on average during its response: the prompt and half of the response."""
        return self.input_tokens + self.output_tokens / 2

    def problems(self) -> Iterator[str]:
        """Yield each contradiction between keys of the block, and what to change."""
        if self.users is not None and self.rate_per_s is not None:
            yield (
                f"users is {self.users} and ratePerS is {self.rate_per_s:g}, but they cannot be combined, because users wait for "
                "their responses; remove one of them"
            )


DEFAULT_WORKLOAD: Final = Workload()

_SHORT: Final[Mapping[str, str]] = {
    "input_tokens": "in",
    "output_tokens": "out",
    "rate_per_s": "rate",
    "prefix_share": "prefix",
    "audio_s": "audio",
    "accepted_share": "accepted",
}
_FIELDS: Final[Mapping[str, SettingField]] = {
    _SHORT.get(field.path, field.key): field for field in block_fields(Workload)
}
WORKLOAD_KEYS: Final = tuple(_FIELDS)
"""The keys of `--workload`, in the order of the fields."""


def parse_workload(text: str) -> Workload:
    """Return the workload of a text such as `in=4000,out=500,users=32`. Raises PlanningError with one sentence for any error."""
    found: dict[str, int | float] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        field = _FIELDS.get(key)
        if field is None:
            raise PlanningError(f'--workload key "{key}" is unknown. Allowed: {", ".join(WORKLOAD_KEYS)}.')
        if field.path in found:
            raise PlanningError(f"--workload has {key} twice. Remove one of them.")
        number = _number(value) if equals else None
        problem = f"expected {field.allowed}" if number is None else problem_with(field.annotated, number)
        if number is None or problem:
            raise PlanningError(f'--workload {key} is "{value[:_SHOWN]}"; {problem}.')
        found[field.path] = number
    workload = Workload(**cast("dict[str, int]", found))
    for problem in workload.problems():
        raise PlanningError(f"--workload: {problem}.")
    return workload


def format_workload(workload: Workload) -> str:
    """Return the shortest text that `parse_workload` parses into the same workload."""
    always = {"input_tokens", "output_tokens"}
    values = {key: (getattr(workload, field.path), field) for key, field in _FIELDS.items()}
    given = {key: value for key, (value, field) in values.items() if value != field.default or field.path in always}
    return ",".join(f"{key}={value!r}" for key, value in given.items())


def _number(text: str) -> int | float | None:
    plain = text.replace("_", "")
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            pass
    return None
