"""Student's t distribution, for intervals from few repeats."""

import math
from functools import cache
from statistics import NormalDist
from typing import Final

MANY: Final = 400
"""Degrees of freedom from which Student's t is treated as the normal distribution."""


def central_share(t: float, freedom: int) -> float:
    """Return the probability that |T| is at most `t` for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2 == 1
    term = total = 0.0 if freedom == 1 else (cosine if odd else 1.0)
    for number in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * ((number - 1) / number)
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


@cache
def student_t(error: float, freedom: int) -> float:
    """Return the bound that |T| exceeds with the probability `error`."""
    if freedom > MANY:
        return NormalDist().inv_cdf(1 - error / 2)
    low, high = 0.0, 1.0
    while 1 - central_share(high, freedom) > error:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - central_share(middle, freedom) > error else (low, middle)
    return high
