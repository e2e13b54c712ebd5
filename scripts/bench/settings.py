"""How a sweep measures its points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.bench.measure import Objective
from scripts.bench.roofline import Roofline


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
    poisson: bool = True
    stop_when_saturated: bool = False
    request_limit_s: float = 600.0
    stall_limit_s: float = 60.0
    point_limit_s: float = 1800.0
    usd_per_hour: float | None = None
    extra_body: Mapping[str, object] = field(default_factory=dict[str, object])
    roofline: Roofline | None = None
    stack: str | None = None
