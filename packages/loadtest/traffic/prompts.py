"""Prompts of exact length that are in no cache.

A prompt consists of short common words, each of which is one token in the known tokenizers. `calibrate` queries the server's tokenizer,
drops words of several tokens, and determines the tokens added by the chat template. A random head makes every prompt unique from the first
cache block on; the rest is a random part of the point's word list.
"""

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

_POOL_TEXT: Final = (
    "the and for are but not you all any can had her was one our out day get has him his how man new now old see two way who boy did"
    " its let put say she too use air act add age ago aid aim art ask bad bag bar bed big bit box bus buy car cup cut dry due eat egg"
    " end eye far few fit fly fun gas hot ice job key law leg lie lot low map may mix net off oil own pay per pop raw red rest run sea"
    " set sit six sky son sun tax tea ten tie tip top toy try war web win yes yet arm bay bee bet cap cat cow dad dog ear fan fat fee"
    " fix fox gap god gun guy hat hit ill jet kid lab led lip log lose mad met mom mud nor nut odd pan pen pet pie pig pin pit pot ray"
    " rid rod row sad saw sex shy sin ski spy sum tap tax tea via wet why win won zoo"
)
POOL: Final = tuple(dict.fromkeys(_POOL_TEXT.split()))
HEAD_WORDS: Final = 16
"""Random words at the start of a prompt; vLLM's smallest cache block is 16 tokens."""
BODY_WORDS: Final = 8192
"""Words from which prompts are cut. A longer prompt wraps around."""
FEWEST_WORDS: Final = 32
ROUNDS: Final = 4
_MULTIPLIER: Final = 2_654_435_761
"""A prime (Knuth's). Multiplying by it shuffles indexes without collisions."""

CountTokens = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Parameters of a point's prompts."""

    words: tuple[str, ...]
    count: int
    """Words per prompt."""
    seed: int


class PromptMaker:
    """Source of the prompts of one point. The same seed and index yield the same prompt in any process."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        rng = random.Random(f"{recipe.seed}/body")  # noqa: S311 - filler text and load patterns, no secret
        self._body = rng.choices(recipe.words, k=BODY_WORDS)

    def prompt(self, index: int) -> str:
        """Return the prompt of request `index`."""
        return " ".join(self.words(index, self._recipe.count))

    def words(self, index: int, count: int) -> list[str]:
        """Return `count` words for an index. No two indexes share their start."""
        recipe = self._recipe
        if count < HEAD_WORDS // 2:
            return self._digits(index, count)
        rng = random.Random(f"{recipe.seed}/{index}")  # noqa: S311 - filler text and load patterns, no secret
        found = rng.choices(recipe.words, k=min(count, HEAD_WORDS))
        start = rng.randrange(BODY_WORDS)
        while len(found) < count:
            found += self._body[start : start + count - len(found)]
            start = 0
        return found

    def _digits(self, index: int, count: int) -> list[str]:
        """Return words for the number at a shuffled position, because few words cannot be drawn without collisions."""
        recipe = self._recipe
        base = len(recipe.words)
        number = (index * _MULTIPLIER + recipe.seed) % int(base**count)
        words: list[str] = []
        for _ in range(count):
            number, digit = divmod(number, base)
            words.append(recipe.words[digit])
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Token counting method of the server."""

    source: Literal["tokenize", "usage"]
    """`tokenize` for the tokenizer endpoint, `usage` for the usage of requests of one output token."""
    words: tuple[str, ...]
    overhead_tokens: int
    """Tokens that the chat template adds."""
    tokens_per_word: float
    """1.0 if every word is one token; lengths are then exact."""

    def words_for(self, input_tokens: int) -> int:
        """Return the number of words in a prompt of `input_tokens` tokens, at least one."""
        return max(1, round((input_tokens - self.overhead_tokens) / self.tokens_per_word))


async def calibrate(count: CountTokens, source: Literal["tokenize", "usage"]) -> Calibration:
    """Find the words of one token each, and the template's tokens, with at most about ten requests."""
    pool = POOL
    one = await count(pool[0])
    two = await count(f"{pool[0]} {pool[1]}")
    overhead = max(0, one - 1 if two == one + 1 else 2 * one - two)
    kept = await _single_tokens(count, pool, overhead, ROUNDS)
    if len(kept) >= FEWEST_WORDS:
        return Calibration(source=source, words=tuple(kept), overhead_tokens=overhead, tokens_per_word=1.0)
    whole = await count(" ".join(pool))
    ratio = max(0.05, (whole - overhead) / len(pool))
    return Calibration(source=source, words=pool, overhead_tokens=overhead, tokens_per_word=ratio)


async def _single_tokens(count: CountTokens, words: Sequence[str], overhead: int, rounds: int) -> list[str]:
    """Return words of one token each. A list that does not fit is halved up to `rounds` times, then dropped."""
    if not words:
        return []
    if await count(" ".join(words)) - overhead == len(words):
        return list(words)
    if rounds == 0 or len(words) == 1:
        return []
    half = len(words) // 2
    first = await _single_tokens(count, words[:half], overhead, rounds - 1)
    return first + await _single_tokens(count, words[half:], overhead, rounds - 1)


async def fit_recipe(
    calibration: Calibration, count: CountTokens, *, input_tokens: int, seed: int
) -> tuple[Recipe, int]:
    """Return the recipe for prompts of `input_tokens`, and the length that the server counts for a sample.

    The length differs from the requested one if the template alone is longer, or the tokenizer does not split by words.
    """
    recipe = Recipe(words=calibration.words, count=calibration.words_for(input_tokens), seed=seed)
    counted = await count(PromptMaker(recipe).prompt(0))
    if counted != input_tokens and recipe.count + input_tokens - counted >= 1 and calibration.tokens_per_word == 1.0:
        adjusted = Recipe(words=recipe.words, count=recipe.count + input_tokens - counted, seed=seed)
        again = await count(PromptMaker(adjusted).prompt(0))
        if abs(again - input_tokens) < abs(counted - input_tokens):
            return adjusted, again
    return recipe, counted
