"""What a caller knows about the server: the forecast of points and searches, and the limits of its hardware."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from loadtest.measure import Objective
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic

NO_FORECAST: Final = "no forecast"
LEAST: Final = 0.01
MOST_RATE: Final = 10_000.0
MOST_USERS: Final = 4_096.0
"""Loads that a forecast considers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A value with its uncertainty."""

    low: float
    typical: float
    high: float

    def rounded(self, digits: int) -> dict[str, float]:
        """Return the band in JSON types."""
        return {
            "low": round(self.low, digits),
            "typical": round(self.typical, digits),
            "high": round(self.high, digits),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Upper limits of one model on one accelerator, all devices together."""

    model: str
    accelerator: str
    prompt_tok_per_s: float
    """Prompt tokens per second if all operations of the accelerator computed them."""
    output_tok_per_s: float
    """Output tokens per second if all operations of the accelerator computed them."""
    attention: tuple[tuple[float, int | None], ...]
    """Kinds of attention layers: pairs of a token with an earlier token per second, and the window in tokens, on top of the rates above."""
    steps_per_s: float
    """Readings of the active weights per second, at the full memory bandwidth."""


class Forecast(Protocol):
    """Prior knowledge about a server. `whole`: loads are users, not requests per second."""

    def level(self, traffic: Traffic, point: Point, objective: Objective, *, whole: bool) -> Band | None:
        """Return the highest load that meets the limits, for any level of the point; None without a forecast."""
        ...

    def figures(self, traffic: Traffic, point: Point) -> Mapping[str, Band]:
        """Return the expected metrics of a point by their names in a result, such as `output_throughput`. Empty without a forecast."""
        ...

    def why_none(self, traffic: Traffic) -> str:
        """Return the reason for a missing forecast."""
        ...
