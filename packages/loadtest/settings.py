"""How a sweep measures its points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest.forecast import NO_FORECAST, Forecast
from loadtest.measure import Objective
from loadtest.roofline import Roofline
from loadtest.slo_search import DEFAULT_SHARE
from loadtest.traffic.points import Point

WARM_UP_REQUESTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """How to measure; `Sweep` says what to measure."""

    url: str
    model: str | None
    out: Path
    chat: bool = True
    resume: bool = False
    objective: Objective | None = None
    warm_up: int | None = None
    """Requests before each point that are not counted. None: the concurrency, at most 16."""
    workers: int | None = None
    max_in_flight: int = 4096
    max_failed: float = 0.01
    """Share of failed requests above which a point is invalid and the run fails."""
    respect_retry_after: bool = False
    poisson: bool = True
    stop_when_saturated: bool = False
    request_timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    point_timeout_s: float = 1800.0
    usd_per_hour: float | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    roofline: Roofline | None = None
    stack: str | None = None
    """Name of the deployment behind the address, which may have another address the next time; None if the address names the server."""
    find: bool = False
    """Whether to search for the highest load that keeps `objective`."""
    slo_share: float = DEFAULT_SHARE
    """Share of the requests that have to keep `objective` in a search."""
    forecast: Forecast | None = None
    """What is expected of a search; None if nothing is known of the server."""
    no_forecast: str = NO_FORECAST
    """Why there is no `forecast`."""
    tokenizer: str | None = None
    """Name of the model at Hugging Face; None if the server serves the model by that name."""


def warm_up_requests(settings: SweepSettings, point: Point) -> int:
    """Return the requests before a point that are not counted."""
    if settings.warm_up is not None:
        return settings.warm_up
    return min(point.concurrency or WARM_UP_REQUESTS, WARM_UP_REQUESTS)
