"""Request makers, used in the processes that send. The same description and index yield the same request in any process."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from loadtest.client.media import media_part
from loadtest.traffic.media_files import ImageSize, png, wav
from loadtest.traffic.prompts import BODY_WORDS, Calibration, PromptMaker, Recipe
from loadtest.traffic.spec import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """Parts of a request body that differ between requests."""

    content: Any
    """Content of the user's message: text, or parts with images."""
    output_tokens: int | None
    """Tokens to generate, or None for the point's number."""
    messages: Sequence[Mapping[str, Any]] | None = None
    """Messages to send instead of one user message."""


class Maker(Protocol):
    """Source of requests by index."""

    def asked(self, index: int) -> PlannedRequest:
        """Return the request of an index."""
        ...

    def session(self, number: int, turns: int) -> Sequence[PlannedRequest]:
        """Return the turns of a session: the user's messages in order."""
        ...


class PromptSource(Protocol):
    """Description of a point's requests. Sent to the processes of the load generator."""

    def maker(self) -> Maker:
        """Return the request maker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSource:
    """Prompts of words: lengths of a distribution, a shared prefix, images."""

    recipe: Recipe
    calibration: Calibration
    correction: int
    """Words that a sample of the point needed beyond the calibration."""
    input_tokens: int
    output_tokens: int
    most_tokens: int | None
    """Maximum tokens of text and response together: max-model-len without the images."""
    traffic: Traffic

    def maker(self) -> Maker:
        """Return the request maker."""
        return _SyntheticMaker(self)

    def words_for(self, tokens: int) -> int:
        """Return the number of words in a prompt of `tokens` tokens, at least one."""
        return max(1, self.calibration.words_for(tokens) + self.correction)

    def lengths_of(self, index: int) -> tuple[int, int]:
        """Return the tokens of a request's prompt and response, clamped to max-model-len."""
        rng = random.Random(f"{self.recipe.seed}/lengths/{index}")  # noqa: S311 - filler text and load patterns, no secret
        given = self.traffic.input_lengths.draw(rng) if self.traffic.input_lengths else self.input_tokens
        output = self.traffic.output_lengths.draw(rng) if self.traffic.output_lengths else self.output_tokens
        if self.most_tokens is None:
            return given, output
        output = min(output, max(1, self.most_tokens - self.calibration.overhead_tokens - 1))
        return min(given, self.most_tokens - output), output


class _SyntheticMaker:
    def __init__(self, source: SyntheticSource) -> None:
        self._source = source
        self._words = PromptMaker(source.recipe)
        self._prefix: list[str] = []

    def asked(self, index: int) -> PlannedRequest:
        return self._one(index, with_prefix=True)

    def session(self, number: int, turns: int) -> Sequence[PlannedRequest]:
        return [self._one(number * turns + turn, with_prefix=turn == 0) for turn in range(turns)]

    def _one(self, index: int, *, with_prefix: bool) -> PlannedRequest:
        source = self._source
        given, output = source.lengths_of(index)
        count = source.words_for(given)
        shared = self._shared(count) if with_prefix else 0
        if shared > len(self._prefix):
            rng = random.Random(f"{source.recipe.seed}/prefix")  # noqa: S311 - filler text and load patterns, no secret
            self._prefix = rng.choices(source.recipe.words, k=max(shared, BODY_WORDS))
        separate = self._words.words(index, count - shared) if count > shared else []
        text = " ".join([*self._prefix[:shared], *separate])
        return PlannedRequest(content=self._with_media(index, text), output_tokens=output)

    def _shared(self, count: int) -> int:
        """Return the words of the shared prefix. A prompt keeps at least one unique word."""
        source, traffic = self._source, self._source.traffic
        if traffic.prefix_tokens is not None:
            return min(round(traffic.prefix_tokens / source.calibration.tokens_per_word), count - 1)
        return min(round((traffic.prefix_share or 0.0) * count), count - 1)

    def _with_media(self, index: int, text: str) -> object:
        traffic, seed = self._source.traffic, f"{self._source.recipe.seed}/{index}"
        parts = [*image_parts(traffic.images, traffic.image_size, seed), *audio_parts(traffic.audio_s, seed)]
        return [*parts, {"type": "text", "text": text}] if parts else text


def image_parts(count: int, size: ImageSize, seed: str) -> list[dict[str, object]]:
    """Return the content parts of a request's images."""
    return [media_part(png(size, f"{seed}/{number}"), "image") for number in range(count)]


def audio_parts(seconds: float, seed: str) -> list[dict[str, object]]:
    """Return the content part of a request's sound; none for 0 seconds."""
    return [media_part(wav(seconds, seed), "audio")] if seconds else []
