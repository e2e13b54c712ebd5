"""The physical limit of each stage of a start, and the best public figure for it (data/start_limits.json)."""

from collections.abc import Mapping
from functools import cache
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from gemma_serving.planning.data.overheads import IMAGE_DOWNLOAD_GB
from gemma_serving.planning.data.tables import typed_file
from gemma_serving.planning.memory.host_memory import parts_bytes
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import StartStage, StartupPlan, rounded

_BYTES_PER_GB: Final = 1e9
NEEDS_REASON: Final = 3.0
"""A stage that takes more than this multiple of its best public figure has a reason."""
WHOLE: Final = "all"
"""Name of the row of the whole start."""


class PathRate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest rate of one path into the devices of a family."""

    family: str
    path: Literal["network", "host link"]
    gb_per_s: float
    """Per chip or GPU, 10^9 bytes per second."""
    what: str
    source: str


class StageFigure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stage moves, and the best public figure for it."""

    stage: str
    platforms: tuple[str, ...]
    moves: Literal["image", "weights", ""] = ""
    path: Literal["network", "host link", ""] = ""
    """Path of the bytes; "" if no limit in bytes is known."""
    without_limit: str = "none in bytes is known"
    best: float | None = None
    """None: no public figure is known."""
    unit: Literal["s", "bytes/s"] = "s"
    what: str = ""
    source: str = ""
    """With its date."""
    reasons: Mapping[str, str] = {}
    """Why the plan takes longer, by the constant that limits the stage."""


_NO_FIGURES: Final = StageFigure(stage="", platforms=())


class StartFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of start_limits.json."""

    paths: tuple[PathRate, ...]
    stages: tuple[StageFigure, ...]


@cache
def start_figures() -> StartFigures:
    """Return the rows of start_limits.json."""
    return typed_file("start_limits.json", StartFigures)


class StageLimit(Struct, frozen=True, kw_only=True):
    """A stage next to its limit and its best public figure."""

    stage: str
    begins_s: float
    takes_s: float
    limit_s: float | None
    """Bytes over the rate of their path; None if no limit in bytes is known."""
    limit_source: str
    best_s: float | None
    best_source: str
    reason: str
    """Why it takes more than `NEEDS_REASON` times its best figure; empty if it does not, or if no reason is known."""

    def to_json(self) -> dict[str, object]:
        """Return the stage in JSON types."""
        return {**asdict(self), **rounded(self, begins_s=1, takes_s=1, limit_s=1, best_s=1)}


def stage_figures(platform: str) -> Mapping[str, StageFigure]:
    """Return the rows of a platform, by stage."""
    return {row.stage: row for row in start_figures().stages if platform in row.platforms}


def stage_limits(resolved: Resolved, startup: StartupPlan) -> tuple[StageLimit, ...]:
    """Return the stages of a start, the longest first, then the whole start. A stage without a row has neither a limit nor a figure."""
    rows = stage_figures(resolved.platform)
    found = [_limited(resolved, stage, rows.get(stage.name, _NO_FIGURES)) for stage in startup.stages]
    found.sort(key=lambda one: -one.takes_s)
    whole = StartStage(name=WHOLE, begins_s=0.0, takes_s=startup.total_s, source="")
    least_s = sum(one.limit_s or 0.0 for one in found)
    return (*found, replace(_limited(resolved, whole, rows[WHOLE]), limit_s=least_s or None))


def _limited(resolved: Resolved, stage: StartStage, row: StageFigure) -> StageLimit:
    weights = weights_of(resolved).checkpoint + parts_bytes(resolved)
    size = IMAGE_DOWNLOAD_GB * _BYTES_PER_GB if row.moves == "image" else weights
    rate, limit_source = _rate(resolved, row)
    best_s = row.best and (size / row.best if row.unit == "bytes/s" else row.best)
    names = stage.source.split(", ")
    if row.path == "host link" and resolved.unpacks_int4:
        names.insert(0, "TPU_W4A16_LAYER_S")
    is_long = best_s is not None and stage.takes_s > NEEDS_REASON * best_s
    return StageLimit(
        stage=stage.name,
        begins_s=stage.begins_s,
        takes_s=stage.takes_s,
        limit_s=size / rate if rate else None,
        limit_source=limit_source,
        best_s=best_s,
        best_source=f"{row.what} ({row.source})" if best_s is not None else "",
        reason=next((row.reasons[name] for name in names if is_long and name in row.reasons), ""),
    )


def _rate(resolved: Resolved, row: StageFigure) -> tuple[float, str]:
    """Return the bytes per second of a stage's path into all devices, and the words for it; 0 if it is unknown."""
    device = resolved.accelerator
    if row.path == "host link" and device.host_link_gb_per_s:
        rate = device.host_link_gb_per_s * device.devices * _BYTES_PER_GB
        return rate, f"{device.host_link_gb_per_s:g} GB/s of PCIe ({device.source})"
    for one in start_figures().paths:
        if (one.family, one.path) == (device.family, row.path):
            return one.gb_per_s * device.chips * _BYTES_PER_GB, f"{one.what} ({one.source})"
    return 0.0, row.without_limit
