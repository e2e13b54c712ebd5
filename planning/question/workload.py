"""The clients' workload: `Workload`, its parser, and the defaults.

A workload is a set of similar requests and their load: users that wait for a response before they send the next request
(closed loop), or arrivals per second (open loop). `planning.speed.serving` computes a deployment's results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, Union, cast, get_args, get_origin

from contracts.fields import Doc, camel_case
from planning.errors import PlanningError
from planning.question.vllm_args import DEFAULT_IMAGE_TOKENS, IMAGE_TOKENS, Limit

_SHOWN: Final = 40
"""Maximum characters of an invalid value that a message repeats."""
_MOST_TOKENS: Final = 10_000_000
_MOST_USERS: Final = 1_000_000
_MOST_ITEMS: Final = 1_000
_MOST_AUDIO_S: Final = 3_600

_Tokens: TypeAlias = Annotated[int, Limit(at_least=1, at_most=_MOST_TOKENS)]
_Items: TypeAlias = Annotated[int, Limit(at_least=0, at_most=_MOST_ITEMS)]
_Share: TypeAlias = Annotated[float, Limit(at_least=0, at_most=1)]

DEFAULT_INPUT_TOKENS: Final = 768
DEFAULT_OUTPUT_TOKENS: Final = 512
"""Default workload: a chat turn with some history. A request then holds 1,024 tokens on average during its response, the length
that the planner's saturated rate has always used, so figures of different deployments stay comparable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Similar requests and their load.

    With neither `users` nor `rate_per_s`, the workload has as many users as the server runs concurrently.
    """

    input_tokens: Annotated[_Tokens, Doc("Text tokens per prompt, including any shared prefix.")] = DEFAULT_INPUT_TOKENS
    output_tokens: Annotated[_Tokens, Doc("Tokens per response, including reasoning.")] = DEFAULT_OUTPUT_TOKENS
    users: Annotated[
        Annotated[int, Limit(at_least=1, at_most=_MOST_USERS)] | None,
        Doc("Clients that each wait for a response, then immediately send the next request. Excludes `ratePerS`."),
    ] = None
    rate_per_s: Annotated[
        Annotated[float, Limit(above=0, at_most=_MOST_USERS)] | None,
        Doc("Requests per second, independent of responses. Excludes `users`."),
    ] = None
    prefix_share: Annotated[
        _Share,
        Doc(
            "Fraction of a prompt's text, from 0 to 1, that is a prefix shared with other prompts, such as a system prompt."
        ),
    ] = 0.0
    images: Annotated[_Items, Doc("Images per request.")] = 0
    image_tokens: Annotated[int, Doc("Soft tokens per image (`max_soft_tokens`): 70, 140, 280, 560 or 1120.")] = (
        DEFAULT_IMAGE_TOKENS
    )
    videos: Annotated[_Items, Doc("Videos per request, 32 frames each.")] = 0
    audio_s: Annotated[
        Annotated[float, Limit(at_least=0, at_most=_MOST_AUDIO_S)], Doc("Seconds of audio per request.")
    ] = 0.0
    adapters: Annotated[_Items, Doc("LoRA adapters that the requests use in turn.")] = 0
    adapter_rank: Annotated[Annotated[int, Limit(at_least=1, at_most=512)], Doc("Rank of each LoRA adapter.")] = 16
    accepted_share: Annotated[
        _Share | None, Doc("Fraction of speculative decoding's proposed tokens, from 0 to 1, that the model accepts.")
    ] = None

    @property
    def held_tokens(self) -> float:
        """Return the text tokens that a request holds on average during its response: the prompt and half of the response."""
        return self.input_tokens + self.output_tokens / 2


DEFAULT_WORKLOAD: Final = Workload()

_SHORT: Final[Mapping[str, str]] = {
    "input_tokens": "in",
    "output_tokens": "out",
    "rate_per_s": "rate",
    "prefix_share": "prefix",
    "audio_s": "audio",
    "accepted_share": "accepted",
}


class _Figure(NamedTuple):
    """One field of a workload, with its command-line key."""

    name: str
    is_whole: bool
    limit: Limit | None

    @property
    def allowed(self) -> str:
        """Return the allowed values as text."""
        if self.name == "image_tokens":
            return f"one of {', '.join(map(str, IMAGE_TOKENS))}"
        limit = self.limit or Limit()
        least = f"above {limit.above:,g}" if limit.above is not None else f"{limit.at_least or 0:,g} or more"
        return f"{'a whole number' if self.is_whole else 'a number'}, {least} and at most {limit.at_most or 0:,.0f}"

    def can_be(self, value: object) -> bool:
        """Return whether the field can have this value: a number, whole if required, within its limits.

        All limits have an upper end, so nan and infinity are outside.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.is_whole and not isinstance(value, int):
            return False
        return value in IMAGE_TOKENS if self.limit is None else self.limit.allows(value)


def _figures() -> Mapping[str, _Figure]:
    found: dict[str, _Figure] = {}
    for field in fields(Workload):
        annotation = cast("Any", field.type)
        value = annotation.__origin__
        if get_origin(value) in {Union, UnionType}:
            value = get_args(value)[0]  # the other is None
        markers = (*getattr(value, "__metadata__", ()), *annotation.__metadata__)
        found[_SHORT.get(field.name, camel_case(field.name))] = _Figure(
            name=field.name,
            is_whole=getattr(value, "__origin__", value) is int,
            limit=next((marker for marker in markers if isinstance(marker, Limit)), None),
        )
    return found


_FIGURES: Final = _figures()
WORKLOAD_KEYS: Final = tuple(_FIGURES)
"""The keys of `--workload`, in the order of the fields."""


def parse_workload(text: str) -> Workload:
    """Return the workload of a text such as `in=4000,out=500,users=32`. Raises PlanningError with one sentence for any error."""
    found: dict[str, int | float] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        figure = _FIGURES.get(key)
        if figure is None:
            raise PlanningError(f'--workload key "{key}" is unknown. Allowed: {", ".join(WORKLOAD_KEYS)}.')
        if figure.name in found:
            raise PlanningError(f"--workload has {key} twice. Remove one of them.")
        number = _number(value) if equals else None
        if number is None or not figure.can_be(number):
            raise PlanningError(f'--workload {key} is "{value[:_SHOWN]}"; it must be {figure.allowed}.')
        found[figure.name] = number
    workload = Workload(**cast("dict[str, int]", found))
    check_workload(workload)
    return workload


def check_workload(workload: Workload) -> None:
    """Raise PlanningError with the name, the value and the allowed values for the first invalid field."""
    for figure in _FIGURES.values():
        value: object = getattr(workload, figure.name)
        if value is not None and not figure.can_be(value):
            raise PlanningError(f"`workload.{figure.name}` is {value}; it must be {figure.allowed}.")
    if workload.users is not None and workload.rate_per_s is not None:
        raise PlanningError(
            f"`workload.users` is {workload.users} and `workload.rate_per_s` is {workload.rate_per_s:g}, but they cannot be combined, "
            "because users wait for their responses. Remove one of them."
        )


def format_workload(workload: Workload) -> str:
    """Return the shortest text that `parse_workload` parses into the same workload."""
    given = {
        key: getattr(workload, figure.name)
        for key, figure in _FIGURES.items()
        if getattr(workload, figure.name) != getattr(DEFAULT_WORKLOAD, figure.name)
        or figure.name in {"input_tokens", "output_tokens"}
    }
    return ",".join(f"{key}={value!r}" for key, value in given.items())


def _number(text: str) -> int | float | None:
    plain = text.replace("_", "")
    try:
        return int(plain)
    except ValueError:
        pass
    try:
        return float(plain)
    except ValueError:
        return None
