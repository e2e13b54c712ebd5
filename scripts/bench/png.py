"""Draw the charts as PNG files."""

import math
from pathlib import Path
from typing import Any, Final

from scripts.bench.charts import NOTHING, HeatMap, LineChart, Pictures

DPI: Final = 120
SIZE_INCHES: Final = (7.2, 4.4)
COLOURS: Final = ("#1f5fbf", "#b85c00", "#00796b", "#a3278f", "#6b6f00", "#555b66")
SIMULATED: Final = "simulated server"


def write_pngs(drawn: Pictures, folder: Path, *, simulated: bool) -> list[Path]:
    """Write one file per chart into `folder`. Charts of a simulated server say so."""
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for chart in (*drawn.lines, *drawn.maps):
        path = folder / f"{chart.key}.png"
        _save(chart, path, simulated=simulated)
        written.append(path)
    return written


def _save(chart: LineChart | HeatMap, path: Path, *, simulated: bool) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to load

    figure: Any = Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(chart.title + (f" ({SIMULATED})" if simulated else ""))
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if isinstance(chart, LineChart):
        _lines(axes, chart)
    else:
        _map(axes, chart)
    figure.savefig(path, metadata={"Software": None})


def _lines(axes: Any, chart: LineChart) -> None:  # noqa: ANN401 - numpy and matplotlib objects
    import matplotlib as mpl  # noqa: PLC0415 - slow to load

    many = len(chart.series) > len(COLOURS)
    shades: Any = mpl.colormaps["viridis"]
    for index, line in enumerate(chart.series):
        colour = shades(0.9 * index / (len(chart.series) - 1)) if many else COLOURS[index]
        xs, ys = [mark.x for mark in line.marks], [mark.y for mark in line.marks]
        axes.plot(xs, ys, color=colour, label=line.name, linewidth=1.8)
        for mark in line.marks:
            axes.plot([mark.x], [mark.y], marker="o", color=colour, markerfacecolor=colour if mark.valid else "white")
        tags = list(zip(line.tags, xs, ys, strict=False))
        for tag, x, y in tags[-1:] if many else tags:
            axes.annotate(tag, (x, y), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=7)
    levels = sorted({mark.x for line in chart.series for mark in line.marks})
    if chart.log_x and levels[0] > 0:
        axes.set_xscale("log", base=2)
        step = math.ceil(len(levels) / 8)
        axes.set_xticks(levels[::step], [f"{level:g}" for level in levels[::step]])
        axes.minorticks_off()
    if chart.log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart.series) > 1:
        axes.legend(fontsize=8, frameon=False, ncols=2 if many else 1)


def _map(axes: Any, chart: HeatMap) -> None:  # noqa: ANN401 - numpy and matplotlib objects
    grid = [[math.nan] * len(chart.columns) for _ in chart.rows]
    for cell in chart.cells:
        grid[cell.row][cell.column] = math.nan if cell.value is None else cell.value
    highest = max((cell.value for cell in chart.cells if cell.value is not None), default=1.0) or 1.0
    axes.imshow(grid, origin="lower", aspect="auto", cmap="Blues", vmin=0, vmax=highest)
    axes.set_xticks(range(len(chart.columns)), chart.columns, fontsize=8)
    axes.set_yticks(range(len(chart.rows)), chart.rows, fontsize=8)
    for cell in chart.cells:
        text = NOTHING if cell.value is None else f"{cell.value:,.4g}"
        strong = cell.value is not None and cell.value > 0.55 * highest
        axes.text(
            cell.column,
            cell.row,
            text + ("*" if cell.flag else ""),
            ha="center",
            va="center",
            fontsize=6.5,
            color="white" if strong else "black",
        )
