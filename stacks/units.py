"""Quantities with units, as written in settings: durations and memory."""

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from planning.units import DURATION_PATTERN, parse_duration_s

_MEMORY_UNITS_MIB = {"Gi": 1024, "Mi": 1}
_MEMORY_PATTERN = r"^([0-9]+)(Gi|Mi)$"


def parse_memory_mib(value: object) -> int:
    """Return the MiB of a size such as "32Gi" or "512Mi". Raises ValueError."""
    found = re.fullmatch(_MEMORY_PATTERN, value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a memory size needs its binary unit, for example "32Gi" or "512Mi"')
    return int(found.group(1)) * _MEMORY_UNITS_MIB[found.group(2)]


def format_memory(mib: int) -> str:
    """Return a memory size in MiB as Kubernetes-style APIs take it, such as "32Gi"."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


DurationS = Annotated[
    int,
    BeforeValidator(parse_duration_s),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["90s", "4h"]}),
]
"""Seconds, written with a unit in the settings."""

MemoryMib = Annotated[
    int,
    BeforeValidator(parse_memory_mib),
    WithJsonSchema({"type": "string", "pattern": _MEMORY_PATTERN, "examples": ["512Mi", "32Gi"]}),
]
"""MiB, written with a unit in the settings."""
