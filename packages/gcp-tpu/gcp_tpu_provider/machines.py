"""TPU generations and machine types, read from machines.json, which the project's `make docs` writes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast


@dataclass(frozen=True, slots=True)
class OutsideGeneration:
    """A generation that the Cloud TPU API does not offer."""

    title: str
    source: str


@cache
def _facts() -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", json.loads(Path(__file__).with_name("machines.json").read_text(encoding="utf-8")))


MACHINE_TYPES: Final[Mapping[str, str]] = _facts()["machine_types"]
"""Accelerator type -> machine type. Compute Engine lists v5e machine types but refuses to create them."""
GENERATIONS: Final[tuple[str, ...]] = tuple(_facts()["generations"])
"""Names of the generations that the Cloud TPU API offers."""


def outside_generation(accelerator_type: str) -> OutsideGeneration | None:
    """Return the generation that an accelerator type means, if the Cloud TPU API does not offer it."""
    spelled = "".join(letter for letter in accelerator_type.lower() if letter.isalnum())
    for title, facts in _facts()["outside"].items():
        if spelled.startswith(tuple(facts["spellings"])):
            return OutsideGeneration(title, facts["source"])
    return None
