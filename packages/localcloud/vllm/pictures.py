"""Size and color of an image, read from its bytes: PNG completely, baseline JPEG as far as its first block, GIF as far as its size.

The simulated model answers a question about a color from what it reads here, so a wrong file leads to a wrong answer.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
_GIF: Final = b"GIF8"
_RIFF: Final = b"RIFF"
_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Channels by color type (W3C PNG specification, 11.2.1)."""
_PALETTE: Final = 3
_ROWS_READ: Final = 64
"""Rows of a PNG that count for its color."""
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

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in pixels."""

    width: int
    height: int


def size_of(data: bytes) -> Size | None:
    """Return the size of an image; None if its format is unknown. A WebP image counts as a square."""
    try:
        if data.startswith(_PNG):
            return Size(*struct.unpack(">II", data[16:24]))
        if data.startswith(_JPEG):
            return next((_frame_size(body) for kind, body in _segments(data) if kind in {0xC0, 0xC1, 0xC2}), None)
        if data.startswith(_GIF):
            return Size(*struct.unpack("<HH", data[6:10]))
    except struct.error:
        return None
    return Size(1, 1) if data.startswith(_RIFF) and data[8:12] == b"WEBP" else None


def color_of(data: bytes) -> str | None:
    """Return the name of an image's mean color; None if it cannot be read."""
    try:
        color = _png_color(data) if data.startswith(_PNG) else _jpeg_color(data) if data.startswith(_JPEG) else None
    except (struct.error, zlib.error, ValueError, IndexError, KeyError, StopIteration):
        return None
    if color is None:
        return None
    return min(_NAMED, key=lambda name: sum((a - b) ** 2 for a, b in zip(color, _NAMED[name], strict=True)))


# PNG


def _png_color(data: bytes) -> Rgb | None:
    width, _, depth, kind = struct.unpack(">IIBB", data[16:26])
    chunks = list(_png_chunks(data))
    if depth != 8:  # noqa: PLR2004 - bits per channel
        return None
    pixels = zlib.decompressobj().decompress(
        b"".join(body for name, body in chunks if name == b"IDAT"), _ROWS_READ * (width * _CHANNELS[kind] + 1)
    )
    palette = next((body for name, body in chunks if name == b"PLTE"), b"")
    totals, count = [0, 0, 0], 0
    for row in _png_rows(pixels, width * _CHANNELS[kind], _CHANNELS[kind]):
        for at in range(0, len(row), _CHANNELS[kind]):
            pixel = row[at : at + 3] if kind in {2, 6} else bytes([row[at]]) * 3
            if kind == _PALETTE:
                pixel = palette[3 * row[at] : 3 * row[at] + 3]
            totals = [total + value for total, value in zip(totals, pixel, strict=True)]
            count += 1
    return (totals[0] // count, totals[1] // count, totals[2] // count) if count else None


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_PNG)
    while at + 8 <= len(data):
        length, name = struct.unpack(">I4s", data[at : at + 8])
        yield name, data[at + 8 : at + 8 + length]
        at += length + 12


def _png_rows(pixels: bytes, width: int, step: int) -> Iterator[bytes]:
    """Yield the rows without their filters (W3C PNG specification, 9.2)."""
    above = bytes(width)
    for at in range(0, len(pixels) - width, width + 1):
        row = bytearray(pixels[at + 1 : at + 1 + width])
        for index in range(width) if pixels[at] else ():
            left = row[index - step] if index >= step else 0
            corner = above[index - step] if index >= step else 0
            row[index] = (row[index] + _predicted(pixels[at], left, above[index], corner)) % 256
        above = bytes(row)
        yield above


def _predicted(filter_: int, left: int, above: int, corner: int) -> int:
    match filter_:
        case 1:
            return left
        case 2:
            return above
        case 3:
            return (left + above) // 2
        case _:
            guess = left + above - corner
            return min((left, above, corner), key=lambda value: abs(guess - value))


# JPEG (ITU-T T.81): the mean of the first block of each channel is its first coefficient.


def jpeg_images(data: bytes) -> list[bytes]:
    """Return the JPEG images inside a file, such as the frames of a Motion JPEG video."""
    return [_JPEG + part.partition(b"\xff\xd9")[0] for part in data.split(_JPEG)[1:]]


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the kind and the content of each segment, with the compressed data in the last one."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:  # noqa: PLR2004 - a marker
        kind, length = data[at + 1], struct.unpack(">H", data[at + 2 : at + 4])[0]
        if kind == 0xDA:  # noqa: PLR2004 - start of the scan
            yield kind, data[at + 4 :]
            return
        yield kind, data[at + 4 : at + 2 + length]
        at += 2 + length


def _frame_size(body: bytes) -> Size:
    height, width = struct.unpack(">HH", body[1:5])
    return Size(width, height)


def _jpeg_color(data: bytes) -> Rgb:
    tables: dict[int, dict[tuple[int, int], int]] = {}
    scale: dict[int, int] = {}
    frame = b""
    for kind, body in _segments(data):
        match kind:
            case 0xC4:
                _read_huffman(body, tables)
            case 0xDB:
                _read_scale(body, scale)
            case 0xC0:
                frame = body
            case 0xDA:
                return _rgb(*_first_means(body, frame, tables, scale))
            case _:
                pass
    raise ValueError("no scan")


def _read_huffman(body: bytes, tables: dict[int, dict[tuple[int, int], int]]) -> None:
    """Read Huffman tables: the value by the length and the bits of its code."""
    at = 0
    while at < len(body):
        name, counts = body[at], body[at + 1 : at + 17]
        at += 17
        code, table = 0, dict[tuple[int, int], int]()
        for length, count in enumerate(counts, 1):
            for _ in range(count):
                table[length, code] = body[at]
                code, at = code + 1, at + 1
            code <<= 1
        tables[name] = table


def _read_scale(body: bytes, scale: dict[int, int]) -> None:
    """Read the factor of the first coefficient of each quantization table."""
    at = 0
    while at < len(body):
        wide = body[at] >> 4
        scale[body[at] & 15] = struct.unpack(">H", body[at + 1 : at + 3])[0] if wide else body[at + 1]
        at += 1 + (128 if wide else 64)


def _first_means(
    scan: bytes, frame: bytes, tables: dict[int, dict[tuple[int, int], int]], scale: dict[int, int]
) -> list[float]:
    count = scan[0]
    chosen = {scan[1 + 2 * index]: scan[2 + 2 * index] for index in range(count)}
    bits = _Bits(scan[4 + 2 * count :].replace(b"\xff\x00", b"\xff"))
    means: list[float] = []
    for index in range(count):
        name, sampling, factor = frame[6 + 3 * index : 9 + 3 * index]
        blocks = (sampling >> 4) * (sampling & 15)
        firsts = [
            bits.block(tables[chosen[name] >> 4], tables[0x10 | chosen[name] & 15])
            for _ in range(blocks if count > 1 else 1)
        ]
        means.append(firsts[0] * scale[factor] / 8 + 128)
    return means


class _Bits:
    """Reads the compressed data of a scan."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data[:4096]), 8 * len(data[:4096])

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise ValueError("the data ended")
        return self._value >> self._left & (1 << count) - 1

    def symbol(self, table: dict[tuple[int, int], int]) -> int:
        code = 0
        for length in range(1, 17):
            code = code << 1 | self.take(1)
            if (length, code) in table:
                return table[length, code]
        raise ValueError("no such code")

    def block(self, first: dict[tuple[int, int], int], others: dict[tuple[int, int], int]) -> int:
        """Read one block and return its first coefficient, as a difference to the block before it."""
        size = self.symbol(first)
        value = self.take(size)
        place = 1
        while place < 64:  # noqa: PLR2004 - coefficients of a block
            symbol = self.symbol(others)
            if symbol == 0:
                break
            self.take(symbol & 15)
            place += (symbol >> 4) + 1
        return value if size == 0 or value >> (size - 1) else value - (1 << size) + 1


def _rgb(light: float, blue: float = 128.0, red: float = 128.0) -> Rgb:
    """Convert JPEG's channels (ITU-T T.871)."""
    values = (
        light + 1.402 * (red - 128),
        light - 0.344 * (blue - 128) - 0.714 * (red - 128),
        light + 1.772 * (blue - 128),
    )
    clipped = [min(max(round(value), 0), 255) for value in values]
    return clipped[0], clipped[1], clipped[2]
