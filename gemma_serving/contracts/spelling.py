"""The words that were probably meant."""

from collections.abc import Iterable, Sequence

_CLOSE = 0.75


class UnknownWordError(ValueError):
    """A word is not in a closed set. The message names the set."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = tuple(known)
        super().__init__(" or ".join((", ".join(self.known[:-1]), self.known[-1])) if self.known[1:] else self.known[0])


def meant(word: str, known: Iterable[str]) -> Sequence[str]:
    """Return the closest known words, at most two. Case and the dashes of an option do not count."""
    from difflib import SequenceMatcher  # noqa: PLC0415 - only a misspelling needs it

    given = word.lower().lstrip("-")
    plain = {one: one.lower().lstrip("-") for one in known}
    scores = {one: SequenceMatcher(None, given, text).ratio() for one, text in plain.items() if text[:1] == given[:1]}
    best = max(scores.values(), default=0.0)
    return sorted(one for one, score in scores.items() if score == best >= _CLOSE)[:2]


def odd_character(word: str) -> str:
    """Return the sentence about the first character that is not ASCII; empty without any."""
    from unicodedata import name  # noqa: PLC0415 - only a misspelling needs it

    odd = next((one for one in word if not one.isascii()), "")
    return f"U+{ord(odd):04X} ({name(odd, 'unnamed')}). Replace it with an ASCII character." if odd else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question that suggests a word, with a space in front; empty if none is close."""
    return _question(meant(word, known))


def did_you_mean_path(word: str, paths: Iterable[str]) -> str:
    """Return the question that suggests, for a key without its block, the paths that end in it, such as `tpu.zones` for `zones`."""
    known = list(paths)
    near = meant(word.rpartition(".")[2], {path.rpartition(".")[2] for path in known})
    found = [path for path in known if path.rpartition(".")[2] in near]
    return _question(found)


def _question(found: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(found)}?" if found else ""
