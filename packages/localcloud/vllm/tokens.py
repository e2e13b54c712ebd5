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

_WORDS_AT: Final = 2**16
"""From here on, an id without the marker of a text is outside the vocabulary; below, it is a special token."""
_MARKER: Final = b"\x01"


def pieces(text: str) -> list[bytes]:
    """Split text into the bytes of its tokens."""
    return _PIECE.findall(text.encode())


def encode(text: str) -> list[int]:
    """Return the ids of text, without special tokens: the number that a marker and the token's bytes are."""
    return [int.from_bytes(_MARKER + piece) for piece in pieces(text)]


def is_known(token: int) -> bool:
    """Return whether an id is in the vocabulary."""
    return 0 <= token < _WORDS_AT or _bytes(token).startswith(_MARKER)


def decode(tokens: Iterable[int]) -> str:
    """Return the text of known ids. Special tokens are omitted, and broken UTF-8 is replaced."""
    return b"".join(data[1:] for data in map(_bytes, tokens) if data.startswith(_MARKER)).decode(errors="replace")


def _bytes(token: int) -> bytes:
    return token.to_bytes(8).lstrip(b"\0") if 0 <= token < 2**64 else b""


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
