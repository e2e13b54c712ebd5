"""Charts as data. `svg` is the only renderer: it draws them for the page and as files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

NOTHING: Final = "\N{EN DASH}"
"""Text of a figure that does not exist."""

Result = Mapping[str, Any]
"""One line of results.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One point of a line."""

    x: float
    y: float
    label: str
    """Tooltip."""
    valid: bool = True
    spread: tuple[float, float] | None = None
    """Lowest and highest value of the repeats, drawn as an error bar; None without repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line."""

    name: str
    marks: tuple[Mark, ...]
    look: Literal["marked", "plain", "dots"] = "marked"
    """A line with its marks, a line alone, or marks alone."""
    is_dashed: bool = False
    tags: tuple[str, ...] = ()
    """Text at each mark, such as its load; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """A limit of the user, drawn across the chart."""

    axis: Literal["x", "y"]
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSpan:
    """A part of the x axis that the steady figures leave out."""

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
    """Whether a logarithmic x axis goes from the lowest to the highest mark, with a tick at each: for loads."""
    log_y: bool = False
    x_range: tuple[float, float] | None = None
    """Ends of a linear x axis; None takes round values around the marks."""
    limits: tuple[LimitLine, ...] = ()
    cuts: tuple[CutSpan, ...] = ()
    about: str = ""
    """How to read the chart, in one or two sentences."""
    terms: tuple[str, ...] = ()
    """Keys of `terms.toml` that the chart uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a heat map."""

    column: int
    row: int
    value: float | None
    """None if no answer was complete."""
    label: str
    flag: str = ""
    """`failed` if some requests failed, `invalid` if the figures are invalid."""


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
    """One value with its interval. Bounds may be infinite."""

    name: str
    value: float
    low: float
    high: float
    verdict: str
    """`worse` and `better` have a colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalChart:
    """Values with intervals, one per row, around zero."""

    key: str
    title: str
    x_label: str
    y_label: str
    rows: tuple[IntervalRow, ...]
    threshold: float
    """Distance from zero of the two limits."""
    about: str = ""
    terms: tuple[str, ...] = ()


Chart = LineChart | HeatMap | IntervalChart


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGroup:
    """Charts under one heading. A page shows a folded group on demand."""

    title: str
    charts: tuple[Chart, ...]
    folded: bool = False
