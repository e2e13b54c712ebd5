"""Charts as data, rendered by `svg`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

NOTHING: Final = "\N{EN DASH}"
"""Text of a missing value."""

Result = Mapping[str, Any]
"""One line of results.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartMark:
    """A point of a line."""

    x: float
    y: float
    label: str
    """Tooltip."""
    valid: bool = True
    spread: tuple[float, float] | None = None
    """Bounds of the value, rendered as an error bar; None without."""
    tag: str = ""
    """Text next to the mark, such as its load. Omitted if it would overlap another text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line of a chart."""

    name: str
    marks: tuple[ChartMark, ...]
    look: Literal["marked", "plain"] = "marked"
    """Style: a line with marks, or only a line. Each mark has its tooltip in both."""
    is_dashed: bool = False
    """True for a value that was not measured or is not valid. Such a line does not determine the scale."""
    like: str = ""
    """Name of the line whose color it has; empty for its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """A user's limit, rendered across the chart."""

    axis: Literal["x", "y"]
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """A chart of lines."""

    key: str
    """Name of the chart, its kind of load and its shape, unique in a report."""
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_scale: Literal["levels", "log", "linear"] = "levels"
    """`levels`: logarithmic from the lowest to the highest mark, with ticks at marks. For loads."""
    log_y: bool = False
    limits: tuple[LimitLine, ...] = ()
    about: str = ""
    """Explanation of the chart, in one or two sentences."""
    terms: tuple[str, ...] = ()
    """Keys of `terms.toml` that the chart uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGroup:
    """Charts under one heading. A page shows a folded group on demand."""

    title: str
    charts: tuple[LineChart, ...]
    folded: bool = False
