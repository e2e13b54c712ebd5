"""Measurement settings of a sweep, and a caller's knowledge of the server: its forecast, hardware and limits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Protocol

from loadtest.measure import Objective
from loadtest.traffic.points import Point
from loadtest.traffic.spec import Traffic

WARM_UP_REQUESTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastBand:
    """A value with its uncertainty."""

    low: float
    typical: float
    high: float

    def rounded(self, digits: int) -> dict[str, float]:
        """Return the band in JSON types."""
        return {name: round(value, digits) for name, value in asdict(self).items()}


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
    """Prior knowledge about a server."""

    def figures(self, traffic: Traffic, point: Point) -> Mapping[str, ForecastBand]:
        """Return the expected metrics of a point by their names in a result, such as `output_throughput`. Empty without a forecast."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """Hardware and software of the server, from a caller that deployed it. None: unknown."""

    accelerator: str | None = None
    zone: str | None = None
    """Zone, or the region of a service without one."""
    image: str | None = None
    """Container image, by digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """Measurement settings. `Sweep` defines the points to measure."""

    url: str
    model: str | None
    out: Path
    chat: bool = True
    resume: bool = False
    objective: Objective | None = None
    warm_up: int | None = None
    """Uncounted requests before each point. None: the concurrency, at most 16."""
    workers: int | None = None
    max_in_flight: int = 4096
    max_failed: float = 0.01
    """Failure rate above which a point is invalid and the run fails."""
    poisson: bool = True
    stop_when_saturated: bool = False
    request_timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    point_timeout_s: float = 1800.0
    usd_per_hour: float | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    roofline: Roofline | None = None
    stack: str | None = None
    """Name of the deployment behind the address, whose address may change; None if the address identifies the server."""
    forecast: Forecast | None = None
    """Forecast of the metrics of each point, or None without prior knowledge of the server."""
    hosting: Hosting = Hosting()
    kv_cache_tokens: int | None = None
    """Tokens in the server's KV cache by the forecast, used if the server does not report them."""


def warm_up_requests(settings: SweepSettings, point: Point) -> int:
    """Return the number of uncounted requests before a point."""
    if settings.warm_up is not None:
        return settings.warm_up
    return min(point.concurrency or WARM_UP_REQUESTS, WARM_UP_REQUESTS)
