"""Distinct images of a given size, as PNG files, and distinct sounds of a given length, as WAV files of noise.

The pixels are indexes into a palette. They are compressed once per size, and only the palette differs between images, and the beginning
between sounds. A request therefore costs the load generator microseconds, and servers cannot answer from a cache.
"""

import io
import random
import struct
import wave
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

FORM: Final = "a width and a height in pixels of 16 to 8192, such as 896x896"
LEAST_PX: Final = 16
MOST_PX: Final = 8192
CELLS: Final = 16
"""The image is a grid of 16 x 16 fields, each of one of 256 colors."""
RATE_HZ: Final = 16_000
"""Samples per second of speech models."""
_SAMPLE_BYTES: Final = 2
_HEAD_BYTES: Final = 64
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSize:
    """Width and height in pixels."""

    width: int
    height: int

    @property
    def text(self) -> str:
        """The size in the option's format."""
        return f"{self.width}x{self.height}"


def parse_image_size(text: str) -> ImageSize:
    """Read `896x896`."""
    width, _, height = text.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise ValueError(FORM)
    if not all(LEAST_PX <= int(side) <= MOST_PX for side in (width, height)):
        raise ValueError(FORM)
    return ImageSize(width=int(width), height=int(height))


def png_file(size: ImageSize, color_type: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG file (W3C PNG specification) with 8 bits per sample. `chunks`: kind and data of those between its first and its last."""
    header = struct.pack(">IIBBBBB", size.width, size.height, 8, color_type, 0, 0, 0)
    return _SIGNATURE + b"".join(_chunk(*one) for one in ((b"IHDR", header), *chunks, (b"IEND", b"")))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@lru_cache(maxsize=4)
def _pixels(size: ImageSize) -> bytes:
    """Return the compressed rows of palette indexes. Every row starts with its filter, 0 for none."""
    rows = bytearray()
    for y in range(size.height):
        line = y * CELLS // size.height
        rows += b"\0" + b"".join(
            bytes([line * CELLS + cell]) * ((cell + 1) * size.width // CELLS - cell * size.width // CELLS)
            for cell in range(CELLS)
        )
    return zlib.compress(bytes(rows), 9)


def png(size: ImageSize, seed: str) -> bytes:
    """Return a PNG file of color type 3, an index into a palette for each pixel, whose colors follow from `seed`."""
    palette = random.Random(seed).randbytes(3 * CELLS * CELLS)  # noqa: S311 - filler colors, no secret
    return png_file(size, 3, (b"PLTE", palette), (b"IDAT", _pixels(size)))


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
