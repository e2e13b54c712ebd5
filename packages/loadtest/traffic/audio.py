"""Distinct sounds of a given length, as WAV files: noise, whose beginning differs, so that no server can answer from a cache."""

import io
import random
import wave
from functools import lru_cache
from typing import Final

RATE_HZ: Final = 16_000
"""Samples per second of speech models."""
_SAMPLE_BYTES: Final = 2
_HEAD_BYTES: Final = 64


@lru_cache(maxsize=2)
def _noise(length: int) -> bytes:
    return random.Random(length).randbytes(length)  # noqa: S311 - filler sound, no secret


def wav(seconds: float, seed: str) -> bytes:
    """Return a WAV file (16-bit PCM, one channel) whose first samples follow from `seed`."""
    length = max(_HEAD_BYTES, _SAMPLE_BYTES * round(seconds * RATE_HZ))
    head = random.Random(seed).randbytes(_HEAD_BYTES)  # noqa: S311 - filler sound, no secret
    return wav_file(head + _noise(length)[_HEAD_BYTES:])


def wav_file(samples: bytes) -> bytes:
    """Return a WAV file of samples: little-endian, 16 bits, one channel, RATE_HZ."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(_SAMPLE_BYTES)
        sound.setframerate(RATE_HZ)
        sound.writeframes(samples)
    return file.getvalue()
