"""The simulator's own tokenizer: deterministic, reversible, without a vocabulary file. It is not Gemma's.

Text is split, left to right, into: a space and three lowercase letters; three lowercase letters; two ASCII characters; one byte.
A three-letter word with its space is exactly one token, and every text round-trips.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

_PIECE: Final = re.compile(rb" [a-z]{3}|[a-z]{3}|[\x00-\x7f]{2}|[\x00-\xff]", re.DOTALL)

BOS: Final = 2
START_OF_TURN: Final = 105
END_OF_TURN: Final = 106

MEDIA: Final = {"audio": 752, "video": 2496}
"""Tokens of a sound and a video: the most that Gemma 4's processor makes of one. An image has the size that the server or the request sets."""

_BYTES_AT: Final = 256
_WORD_AT: Final = 512
_SPACED_AT: Final = _WORD_AT + 26**3
_PAIR_AT: Final = _SPACED_AT + 26**3
VOCABULARY: Final = _PAIR_AT + 128 * 128
LONGEST: Final = 4
"""Bytes of the longest token: a space and three letters."""
_PIECE_WORD: Final = 3
_PIECE_PAIR: Final = 2


def _word_id(word: bytes) -> int:
    return ((word[0] - 97) * 26 + word[1] - 97) * 26 + word[2] - 97


def _id(piece: bytes) -> int:
    if len(piece) == LONGEST:
        return _SPACED_AT + _word_id(piece[1:])
    if len(piece) == _PIECE_WORD:
        return _WORD_AT + _word_id(piece)
    if len(piece) == _PIECE_PAIR:
        return _PAIR_AT + piece[0] * 128 + piece[1]
    return _BYTES_AT + piece[0]


def _letters(number: int) -> bytes:
    return bytes((97 + number // 676, 97 + number // 26 % 26, 97 + number % 26))


def _piece(token: int) -> bytes:
    if token >= _PAIR_AT:
        return bytes(((token - _PAIR_AT) // 128, (token - _PAIR_AT) % 128))
    if token >= _SPACED_AT:
        return b" " + _letters(token - _SPACED_AT)
    if token >= _WORD_AT:
        return _letters(token - _WORD_AT)
    return bytes((token - _BYTES_AT,)) if token >= _BYTES_AT else b""


def pieces(text: str) -> list[bytes]:
    """Split text into the bytes of its tokens."""
    return _PIECE.findall(text.encode())


def count(text: str) -> int:
    """Count the tokens of text, without special tokens."""
    return len(_PIECE.findall(text.encode()))


def encode(text: str) -> list[int]:
    """Return the ids of text, without special tokens."""
    cache: dict[bytes, int] = {}
    out: list[int] = []
    for piece in _PIECE.findall(text.encode()):
        token = cache.get(piece)
        if token is None:
            token = cache[piece] = _id(piece)
        out.append(token)
    return out


def decode(tokens: Iterable[int]) -> str:
    """Return the text of ids. Special tokens are omitted, and broken UTF-8 is replaced. Raises ValueError for ids outside the vocabulary."""
    out: list[bytes] = []
    for token in tokens:
        if not 0 <= token < VOCABULARY:
            raise ValueError(f"Token id {token} is out of vocabulary")
        out.append(_piece(token))
    return b"".join(out).decode(errors="replace")


def encode_chat(turns: Sequence[tuple[str, str, int]], *, add_generation_prompt: bool = True) -> list[int]:
    """Return the ids of a chat: BOS, then for each turn (role, text, further tokens such as an image's) its markers, role and text."""
    out = [BOS]
    for role, text, extra in turns:
        out.append(START_OF_TURN)
        out.extend(encode(role + "\n"))
        out.extend(encode(text))
        out.extend([END_OF_TURN] * extra)
        out.append(END_OF_TURN)
    if add_generation_prompt:
        out.append(START_OF_TURN)
        out.extend(encode("model\n"))
    return out
