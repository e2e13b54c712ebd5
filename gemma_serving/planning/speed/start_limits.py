"""The physical limit of each stage of a start, and the best public figure for it (data/start_limits.json)."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from gemma_serving.planning.data.overheads import IMAGE_DOWNLOAD_GB
from gemma_serving.planning.data.tables import Table, data_file
from gemma_serving.planning.memory.host_memory import parts_bytes
from gemma_serving.planning.memory.weights import weights_of
from gemma_serving.planning.question.resolved import Resolved
from gemma_serving.planning.question.types import StartStage, StartupPlan, rounded

NEEDS_REASON: Final = 3.0
"""A stage that takes more than this multiple of its best public figure has a reason."""
WHOLE: Final = "all"
"""Name of the row of the whole start."""
_BYTES_PER_GB: Final = 1e9


class StageFigure(Struct, frozen=True, forbid_unknown_fields=True):
    """The best public figure for a stage, in seconds or as a rate, and the path of its bytes."""

    path: Literal["network", "host link", ""] = ""
    limit: str = "none in bytes is known"
    """Text for a stage without a path, or whose path's rate is unknown."""
    best: int | float | None = None
    unit: Literal["s", "bytes/s"] = "s"
    source: str = "no public figure is known"
    reasons: Mapping[str, str] = {}
    """Why the plan takes longer, by the constant that limits the stage."""


PATHS: Final[Mapping[str, tuple[float, str]]] = Table(lambda: data_file("start_limits.json")["paths"])
"""By family and path: 10^9 bytes per second for each chip or GPU, and the source."""
FIGURES: Final[Mapping[str, StageFigure]] = Table(
    lambda: convert(data_file("start_limits.json")["stages"], dict[str, StageFigure])
)
"""By stage, with a platform before its name if the figure differs there."""


class StageLimit(StartStage, frozen=True, kw_only=True):
    """A stage next to its limit and its best public figure."""

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


def figure_of(stage: str, platform: str) -> StageFigure | None:
    """Return the row of a stage; None without one."""
    return FIGURES.get(f"{platform} {stage}", FIGURES.get(stage))


def stage_limits(resolved: Resolved, startup: StartupPlan) -> tuple[StageLimit, ...]:
    """Return the stages of a start, the longest first, then the whole start. A stage without a row has neither a limit nor a figure."""
    found = sorted((_limited(resolved, stage) for stage in startup.stages), key=lambda one: -one.takes_s)
    whole = _limited(resolved, StartStage(name=WHOLE, begins_s=0.0, takes_s=startup.total_s, source=""))
    return (*found, replace(whole, limit_s=sum(one.limit_s or 0.0 for one in found) or None))


def _limited(resolved: Resolved, stage: StartStage) -> StageLimit:
    device, row = resolved.accelerator, figure_of(stage.name, resolved.platform) or StageFigure()
    gb_per_s, limit_source = PATHS.get(f"{device.family} {row.path}", (0.0, row.limit))
    if row.path == "host link" and device.host_link_gb_per_s:
        gb_per_s, limit_source = device.host_link_gb_per_s, device.source
    size = weights_of(resolved).checkpoint + parts_bytes(resolved)
    size = IMAGE_DOWNLOAD_GB * _BYTES_PER_GB if stage.name == "image" else size
    best_s = row.best and (size / row.best if row.unit == "bytes/s" else row.best)
    # The host of a TPU unpacks 4-bit weights while it reads them.
    unpacks = ("TPU_W4A16_LAYER_S",) if row.path == "host link" and resolved.unpacks_int4 else ()
    is_long = best_s is not None and stage.takes_s > NEEDS_REASON * best_s
    reasons = [row.reasons[name] for name in (*unpacks, *stage.source.split(", ")) if name in row.reasons]
    return StageLimit(
        **asdict(stage),
        limit_s=size / (gb_per_s * _BYTES_PER_GB * device.devices) if gb_per_s else None,
        limit_source=limit_source,
        best_s=best_s,
        best_source=row.source,
        reason=reasons[0] if is_long and reasons else "",
    )
