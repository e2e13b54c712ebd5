"""Student's t intervals, and a sequential comparison that stops when it knows.

The comparison of two servers runs in rounds. Each round measures A, B, B, A (every second one B, A, A, B), so that a drift of the machine
or of the network cancels within the round; its value is the difference of the logarithms, B against A. After each round from the third on
there is a look: a repeated confidence interval (C. Jennison, B. W. Turnbull, "Interim analyses: the repeated confidence interval
approach", Journal of the Royal Statistical Society B 51, 1989, 305-361) from Student's t over the rounds so far. The error is divided
evenly over all looks and all figures (Bonferroni). That costs some rounds and makes no assumption about the looks' dependence:
with normally distributed differences, the probability that any figure ever gets a wrong "worse" or "better" while nothing has
changed is at most 1 - confidence, and so is the probability that any "same" is wrong.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Final

FIRST_LOOK: Final = 3
"""Rounds before the first look. Two rounds give intervals that exclude nothing."""
MANY: Final = 400
"""Degrees of freedom from which on Student's t is the normal distribution."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the rounds so far say about one figure. Ratios are B over A."""

    ratio: float
    low: float
    high: float
    verdict: str
    """worse, better, same (within the threshold), or unclear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialTest:
    """How to judge. `figures` is the number of figures over all points."""

    threshold: float
    confidence: float
    most_rounds: int
    figures: int

    @property
    def error(self) -> float:
        """Share of the error that one figure has at one look."""
        looks = max(1, self.most_rounds - FIRST_LOOK + 1)
        return (1 - self.confidence) / (looks * max(1, self.figures))

    def look(self, differences: Sequence[float], *, higher_is_better: bool) -> Look:
        """Return the verdict on one figure after these rounds.

        It is certain if the interval excludes no change and the estimate is beyond the threshold, or if the interval lies
        within the threshold; else it is unclear.
        """
        if len(differences) < FIRST_LOOK:
            ratio = math.exp(statistics.fmean(differences)) if differences else math.nan
            return Look(ratio=ratio, low=0.0, high=math.inf, verdict="unclear")
        mean = statistics.fmean(differences)
        freedom = len(differences) - 1
        half = student_t(self.error, freedom) * statistics.stdev(differences) / math.sqrt(len(differences))
        return Look(
            ratio=math.exp(mean),
            low=math.exp(mean - half) if mean - half > -MANY else 0.0,
            high=math.exp(mean + half) if mean + half < MANY else math.inf,
            verdict=self._verdict(mean if higher_is_better else -mean, half),
        )

    def _verdict(self, gain: float, half: float) -> str:
        worst, best = math.log(1 - self.threshold), math.log(1 + self.threshold)
        if gain + half < 0 and gain < worst:
            return "worse"
        if gain - half > 0 and gain > best:
            return "better"
        return "same" if gain - half >= worst and gain + half <= best else "unclear"
