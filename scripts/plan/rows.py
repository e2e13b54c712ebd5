"""Planned deployments as a table, one row each, with notes below: what `--solve`, `--compare` and several stacks print."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gemma_serving.planning.data.images import image_words
from gemma_serving.planning.question.types import Plan
from gemma_serving.planning.units import CLOSE, ROUGH, figure, number_of

_TEXTS: Final = ("stack", "model", "on", "as", "verdict", "bound by", "settings")
"""Headings of the columns without numbers."""
_WHOLE: Final = ("on", "settings")
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A planned deployment."""

    cells: Mapping[str, str]
    """Texts by heading."""
    name: str = ""
    """Its name in the notes."""
    marks: Sequence[str] = ()
    """Criteria by which it is the best."""
    image: str | None = None
    """Image that it needs, if this project builds it."""
    style: str = ""


def show_rows(
    rows: Sequence[Row],
    *,
    title: str = "",
    headings: Sequence[str],
    least: Sequence[str],
    notes: Sequence[str],
    most: int | None = None,
) -> None:
    """Print the first `most` rows, the best of all by name, the images of this project, the notes, and how to show all rows.

    A narrow terminal loses the columns of `least`, in this order.
    """
    from gemma_serving.scripts.cli.tables import FittedTable, console, paragraph  # noqa: PLC0415 - only for the table

    out = console(sys.stdout)
    numbers = [heading for heading in headings if heading not in _TEXTS]
    shown = FittedTable(title, headings, whole=_WHOLE, numbers=numbers, least=least)
    for row in rows[:most]:
        shown.add_row(*(row.cells.get(heading, "") for heading in headings), style=row.style)
    out.print(shown)
    for note in (*_best(rows), *_images(rows[:most]), *notes):
        paragraph(out, note)
    more = len(rows[most:]) if most else 0
    if more:
        paragraph(out, f"{number_of(more, 'more row')}: --rows {len(rows)}")


def _best(rows: Sequence[Row]) -> Iterator[str]:
    return (f"{', '.join(row.marks)}: {row.name}, ${row.cells['$/h']}/h" for row in rows if row.marks)


def _images(rows: Sequence[Row]) -> Iterator[str]:
    for image in dict.fromkeys(row.image for row in rows if row.image):
        names = ", ".join(row.name for row in rows if row.image == image)
        yield f"With the image {image_words(image)} of this project (--image {image}): {names}."


def plan_cells(one: Plan) -> Mapping[str, str]:
    """Return the cells of a plan by heading: "unknown" for a figure that is not known."""
    start, speed, cost = one.known_startup, one.known_throughput, one.cost
    per_million = cost.usd_per_million_tokens_saturated if cost.is_known else None
    verdict = "may fail" if one.fits and one.margin else one.verdict
    return {
        "model": one.model.rpartition("/")[2],
        "on": one.accelerator,
        "as": one.quantization,
        "verdict": ", ".join([verdict, *(finding.id for finding in one.stopping)]),
        "concurrent": figure(one.memory.max_concurrency * one.replicas, CLOSE),
        "start": _UNKNOWN if start is None else start.ready_words.removeprefix("about ").partition(" (")[0],
        "tok/s": _UNKNOWN if speed is None else figure(speed.decode_tok_per_s, ROUGH),
        "tok/s, full": _UNKNOWN if speed is None else figure(speed.saturated_tok_per_s, ROUGH),
        "$/h": f"{cost.usd_per_hour:.2f}" if cost.is_known else _UNKNOWN,
        "$/M tokens": _UNKNOWN if per_million is None else figure(per_million, ROUGH),
    }
