"""Request makers, used in the processes that send. The same description and index yield the same request in any process."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.traffic.prompts import BODY_WORDS, Calibration, PromptMaker, Recipe
from loadtest.traffic.spec import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """Parts of a request body that differ between requests."""

    content: str
    """Text of the user's message."""
    output_tokens: int
    """Tokens to generate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSource:
    """Prompts of words: of one length or of a distribution, with or without a shared prefix. Sent to the processes of the load generator."""

    recipe: Recipe
    calibration: Calibration
    correction: int
    """Words that a sample of the point needed beyond the calibration."""
    input_tokens: int
    output_tokens: int
    most_tokens: int | None
    """Maximum tokens of prompt and response together: max-model-len."""
    traffic: Traffic

    def words_for(self, tokens: int) -> int:
        """Return the number of words in a prompt of `tokens` tokens, at least one."""
        return max(1, self.calibration.words_for(tokens) + self.correction)

    def lengths_of(self, index: int) -> tuple[int, int]:
        """Return the tokens of a request's prompt and response. Those of a distribution are clamped to max-model-len."""
        if not (self.traffic.input_lengths or self.traffic.output_lengths):
            return self.input_tokens, self.output_tokens
        rng = random.Random(f"{self.recipe.seed}/lengths/{index}")  # noqa: S311 - filler text and load patterns, no secret
        given = self.traffic.input_lengths.draw(rng) if self.traffic.input_lengths else self.input_tokens
        output = self.traffic.output_lengths.draw(rng) if self.traffic.output_lengths else self.output_tokens
        if self.most_tokens is None:
            return given, output
        output = min(output, max(1, self.most_tokens - self.calibration.overhead_tokens - 1))
        return min(given, self.most_tokens - output), output


class RequestMaker:
    """Requests of a source by index."""

    def __init__(self, source: SyntheticSource) -> None:
        self._source = source
        self._words = PromptMaker(source.recipe)
        self._prefix: list[str] = []

    def asked(self, index: int) -> PlannedRequest:
        """Return the request of an index."""
        return self._one(index, with_prefix=True)

    def session(self, number: int) -> Sequence[PlannedRequest]:
        """Return the turns of a session: the user's messages in order."""
        turns = self._source.traffic.turns
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
        return PlannedRequest(content=" ".join([*self._prefix[:shared], *separate]), output_tokens=output)

    def _shared(self, count: int) -> int:
        """Return the words of the shared prefix. A prompt keeps at least one unique word."""
        source, traffic = self._source, self._source.traffic
        if traffic.prefix_tokens is not None:
            return min(round(traffic.prefix_tokens / source.calibration.tokens_per_word), count - 1)
        return min(round((traffic.prefix_share or 0.0) * count), count - 1)
