"""Size and color of an image, and the frames of a Motion JPEG video.

The simulated model answers a question about a color from what it reads here, so a wrong file leads to a wrong answer.
"""

import io
from dataclasses import dataclass
from typing import Final

_JPEG: Final = b"\xff\xd8\xff"
_END: Final = b"\xff\xd9"
_NAMED: Final = {
    "red": (220, 20, 30),
    "green": (10, 150, 40),
    "blue": (20, 60, 220),
    "yellow": (250, 220, 0),
    "orange": (255, 140, 0),
    "purple": (130, 30, 160),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "gray": (128, 128, 128),
}


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in pixels."""

    width: int
    height: int


def size_of(data: bytes) -> Size | None:
    """Return the size of an image; None if its format is unknown."""
    from PIL import Image  # noqa: PLC0415 - few servers get an image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return Size(*image.size)
    except (OSError, Image.DecompressionBombError):
        return None


def color_of(data: bytes) -> str | None:
    """Return the name of an image's mean color; None if it cannot be read."""
    from PIL import Image  # noqa: PLC0415 - as above

    try:
        with Image.open(io.BytesIO(data)) as image:
            color = image.convert("RGB").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    if not isinstance(color, tuple):
        return None
    return min(_NAMED, key=lambda name: sum((a - b) ** 2 for a, b in zip(color, _NAMED[name], strict=True)))


def jpeg_images(data: bytes) -> list[bytes]:
    """Return the JPEG images inside a file, such as the frames of a Motion JPEG video."""
    return [_JPEG + part.partition(_END)[0] + _END for part in data.split(_JPEG)[1:]]
