"""Charts as data, rendered by `svg` for the page and as files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

NOTHING: Final = "\N{EN DASH}"
"""Text of a missing value."""

Result = Mapping[str, Any]
"""One line of results.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point of a line."""

    x: float
    y: float
    label: str
    """Tooltip."""
    valid: bool = True
    spread: tuple[float, float] | None = None
    """Lowest and highest value of the repeats, rendered as an error bar; None without repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a chart."""

    name: str
    marks: tuple[Mark, ...]
    look: Literal["marked", "plain", "dots"] = "marked"
    """Style: a line with marks, only a line, or only marks."""
    is_dashed: bool = False
    tags: tuple[str, ...] = ()
    """Text at each mark, such as its load. Empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """A user's limit, rendered across the chart."""

    axis: Literal["x", "y"]
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSpan:
    """A part of the x axis that the steady metrics exclude."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A chart of lines."""

    key: str
    """Name of its file."""
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = True
    ticks_at_marks: bool = True
    """True if a logarithmic x axis goes from the lowest to the highest mark, with a tick at each. For loads."""
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    """Ends of a linear x axis, or None for round values around the marks."""
    limits: tuple[LimitLine, ...] = ()
    cuts: tuple[CutSpan, ...] = ()
    about: str = ""
    """Explanation of the chart, in one or two sentences."""
    terms: tuple[str, ...] = ()
    """Keys of `terms.toml` that the chart uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of a heat map."""

    column: int
    row: int
    value: float | None
    """None without a complete response."""
    label: str
    flag: str = ""
    """`failed` if some requests failed, `invalid` if the metrics are invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """A heat map of concurrency by input length."""

    key: str
    title: str
    x_label: str
    y_label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    cells: tuple[Cell, ...]
    about: str = ""
    terms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """A value with its interval. Bounds may be infinite."""

    name: str
    value: float
    low: float
    high: float
    verdict: str
    """`worse` and `better` have a color."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChart:
    """Values with intervals, one per row, around zero."""

    key: str
    title: str
    x_label: str
    y_label: str
    rows: tuple[IntervalRow, ...]
    threshold: float
    """Distance of the two limits from zero."""
    about: str = ""
    terms: tuple[str, ...] = ()


Chart = LineChart | HeatMap | IntervalChart


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGroup:
    """Charts under one heading. A page shows a folded group on demand."""

    title: str
    charts: tuple[Chart, ...]
    folded: bool = False
