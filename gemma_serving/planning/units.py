"""Units of memory and time, and whole-number helpers."""

import re
from decimal import Decimal
from math import isfinite
from typing import Final

KIB: Final = 1 << 10
GIB: Final = 1 << 30
MIB_PER_GIB: Final = 1_024

HOUR_S: Final = 3_600
DAY_S: Final = 86_400
_DURATION_UNITS_S: Final = {"d": DAY_S, "h": HOUR_S, "m": 60, "s": 1}
DURATION_PATTERN: Final = r"^([0-9]+[dhms])+$"
MONTH_H: Final = 730
"""Hours per month in cloud price lists."""
ROUGH: Final = 2
"""Significant digits of what is planned to a factor: speeds, loads and dollars per token."""
CLOSE: Final = 3
"""Significant digits of what is planned to 2 to 5 %: memory, tokens and blocks of the KV cache, concurrent requests."""
_LEAST_SHOWN: Final = 5e-5


def to_gib(size_bytes: float) -> float:
    """Return bytes as GiB (2^30 bytes)."""
    return size_bytes / GIB


def from_gib(size_gib: float) -> float:
    """Return GiB (2^30 bytes) as bytes."""
    return size_gib * GIB


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient of two positive whole numbers, rounded up."""
    return -(-dividend // divisor)


def align_to(value: int, step: int) -> int:
    """Return `value` rounded up to a multiple of `step`."""
    return ceil_div(value, step) * step


def next_power_of_two(value: int) -> int:
    """Return the smallest power of two that is not below `value` (at least 1)."""
    return 1 << max(value - 1, 0).bit_length()


def parse_duration_s(value: object) -> int:
    """Return the seconds of a duration such as "4h" or "1h30m". Raises ValueError for anything else, including a bare number."""
    if not isinstance(value, str) or not re.fullmatch(DURATION_PATTERN, value):
        raise ValueError('a duration needs a unit, for example "90s", "30m", "4h" or "1h30m"')
    return sum(int(amount) * _DURATION_UNITS_S[unit] for amount, unit in re.findall(r"([0-9]+)([dhms])", value))


def format_duration(seconds: int) -> str:
    """Return the shortest text that `parse_duration_s` parses into the same number of seconds."""
    parts: list[str] = []
    rest = seconds
    for unit, size_s in _DURATION_UNITS_S.items():
        amount, rest = divmod(rest, size_s)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def number_of(number: int, noun: str) -> str:
    """Return a number with its noun."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def figure(value: float, digits: int) -> str:
    """Return a planned number for people, with its known digits: 1,900, 68.1, 0.064. A number below _LEAST_SHOWN is 0."""
    if not isfinite(value) or abs(value) < _LEAST_SHOWN:
        return f"{value:.0f}"
    return f"{Decimal(f'{value:.{digits - 1}e}'):,f}"


def duration(seconds: float) -> str:
    """Return seconds in readable units: 45 s, 12 min 48 s, 7 d."""
    whole = round(seconds)
    if whole < 2 * 60:
        return f"{whole} s"
    if whole < 2 * HOUR_S:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if whole < 2 * DAY_S:
        hours, rest = divmod(whole, HOUR_S)
        return f"{hours} h {rest // 60} min" if rest >= 60 else f"{hours} h"  # noqa: PLR2004 - a minute
    return f"{whole / DAY_S:g} d" if whole % DAY_S == 0 else f"{whole / DAY_S:.1f} d"


def about(seconds: float, low_s: float, high_s: float) -> str:
    """Return a planned time as sure as it is, in two digits at most: about 71 min (48 to 120)."""
    unit, size_s = ("s", 1) if seconds < 2 * 60 else ("min", 60)
    typical, low, high = (f"{float(f'{round(one / size_s):.1e}'):.0f}" for one in (seconds, low_s, high_s))
    return f"about {typical} {unit} ({low} to {high})"


def age(seconds: float) -> str:
    """Return an age in the largest unit with a value of at least two: 95 s, 12 min, 3 d. An age below 0 is 0 s."""
    for unit, size_s in (("d", DAY_S), ("h", HOUR_S), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
