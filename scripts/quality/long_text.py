"""Generated text of a given length with facts at several depths. The same on every machine and every Python version."""

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

_FILE: Final = Path(__file__).with_name("data") / "retrieval.toml"
_WORDS_PER_TOKEN: Final = 0.6
"""Words for each token of a window. A word of this text must have at most TOKENS_PER_WORD tokens, so that the text fits."""
_SPARE_WORDS: Final = 250
TOKENS_PER_WORD: Final = 1.6
"""Upper estimate. The question is not counted."""
_CODES: Final = 90_000
_LEAST_CODE: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWords:
    """Words of the generated text, and the facts to plant in it."""

    windows: tuple[int, ...]
    """Context lengths, in tokens. The text for a window fills about four fifths of it."""
    places: tuple[str, ...]
    people: tuple[str, ...]
    actions: tuple[str, ...]
    times: tuple[str, ...]
    weather: tuple[str, ...]
    keepers: tuple[str, ...]
    """What has a code, one for each depth."""
    depths: tuple[float, ...]
    """Positions of the facts, as a share of the text."""


def read_words() -> TextWords:
    """Return the shipped words."""
    found = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return TextWords(**{name: tuple(value) for name, value in found.items()})


def words_of(window: int) -> int:
    """Return the words of the text for a window."""
    return round(window * _WORDS_PER_TOKEN) - _SPARE_WORDS


def tokens_of(window: int) -> int:
    """Return an upper estimate of the text's tokens."""
    return round(words_of(window) * TOKENS_PER_WORD)


def codes_of(window: int, words: TextWords) -> Mapping[str, str]:
    """Return the code of each keeper in the text for a window. All differ."""
    codes: dict[str, str] = {}
    for keeper in words.keepers:
        attempt = 0
        while (code := str(_LEAST_CODE + _number("code", window, keeper, attempt) % _CODES)) in codes.values():
            attempt += 1
        codes[keeper] = code
    return codes


def long_text(window: int, words: TextWords) -> str:
    """Return the text for a window, with one sentence for each code at its depth."""
    sentences, count, wanted = list[str](), 0, words_of(window)
    while count < wanted:
        sentence = _sentence(window, len(sentences), words)
        sentences.append(sentence)
        count += len(sentence.split())
    length = len(sentences)
    facts = zip(words.depths, codes_of(window, words).items(), strict=True)
    for depth, (keeper, code) in sorted(facts, reverse=True):
        sentences.insert(round(depth * length), f"The code of the {keeper} is {code}.")
    return " ".join(sentences)


def _sentence(window: int, index: int, words: TextWords) -> str:
    def pick(what: str, among: Sequence[T]) -> T:
        return among[_number(what, window, index) % len(among)]

    first = f"{pick('time', words.times)}, {pick('person', words.people)} {pick('action', words.actions)}"
    return f"{first} in {pick('place', words.places)}, and {pick('weather', words.weather)}."


def _number(*key: object) -> int:
    """Return a number that follows from the key. `random` does not promise the same sequence in every version of Python."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest())
