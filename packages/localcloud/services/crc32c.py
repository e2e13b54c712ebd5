"""CRC32C of joined contents, computed from the parts' checksums, as Cloud Storage computes it for a composite object without reading it.

A checksum is a polynomial over one bit; bytes after it multiply it by a power of x. The power for a length is a matrix of 32 columns,
computed by squaring, as zlib's `crc32_combine` does for CRC-32.
"""

import base64
from functools import cache

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, its lowest bit first (RFC 4960, Appendix B)."""
_BITS = 32


def joined(first: int, second: int, second_bytes: int) -> int:
    """Return the checksum of a content followed by `second_bytes` more bytes, from the checksums of both."""
    return _product(_zeros(second_bytes), first) ^ second


def number(text: str) -> int:
    """Return a checksum in Cloud Storage's notation as a number."""
    return int.from_bytes(base64.b64decode(text), "big")


def text(crc: int) -> str:
    """Return a checksum in Cloud Storage's notation."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


@cache
def _zeros(size_bytes: int) -> tuple[int, ...]:
    """Return the matrix that appends zeros to a content."""
    power = (_POLYNOMIAL, *(1 << bit for bit in range(_BITS - 1)))
    found, bits = tuple(1 << bit for bit in range(_BITS)), size_bytes * 8
    while bits:
        if bits & 1:
            found = tuple(_product(power, column) for column in found)
        power = tuple(_product(power, column) for column in power)
        bits >>= 1
    return found


def _product(matrix: tuple[int, ...], vector: int) -> int:
    total = 0
    for bit, column in enumerate(matrix):
        if vector >> bit & 1:
            total ^= column
    return total
