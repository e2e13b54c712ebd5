"""Measured starts that stand behind a planned start-up time, by card or TPU generation."""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from gemma_serving.planning.data.tables import Table, typed_file
from gemma_serving.planning.machine.hardware import ACCELERATORS
from gemma_serving.planning.units import number_of

_COUNT: Final = re.compile(r"\d+ x ")


class MeasuredStarts(Struct, frozen=True, forbid_unknown_fields=True):
    """Public boots of a card with a time, from `tests/planning/corpus`; a test counts them again."""

    card: str
    """A TPU generation, a card of the catalog, or the name of a custom one."""
    whole: int = 0
    """Boots timed from the container's start to the first response."""
    parts: int = 0
    """Other boots, of which only the loading of weights or the compilation was timed."""


MEASURED_STARTS: Final[Mapping[str, MeasuredStarts]] = Table(
    lambda: {row.card: row for row in typed_file("measured_starts.json", tuple[MeasuredStarts, ...])}
)
"""By card; one without a row has none."""


def card_of(accelerator: str) -> str:
    """Return the generation or card of an accelerator of any size: v6e of v6e-4, RTX 3090 of 2 x RTX 3090."""
    found = ACCELERATORS.get(accelerator)
    return found.family if found is not None else _COUNT.sub("", accelerator, count=1)


def behind_the_start(accelerator: str) -> str:
    """Return as a clause how many measured starts stand behind the start-up time planned for an accelerator."""
    card = card_of(accelerator)
    found = MEASURED_STARTS.get(card) or MeasuredStarts(card)
    parts = f"loading or compilation of {number_of(found.parts, 'start')}"
    if found.whole:
        more = f", and {parts}" if found.parts else ""
        return f"behind this time: {number_of(found.whole, 'whole start')} measured on {found.card}{more}"
    if found.parts:
        return f"no whole start was measured on {found.card}, only {parts}"
    return f"no start was measured on {found.card}: this time rests on other devices alone"
