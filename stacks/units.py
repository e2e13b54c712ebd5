"""Quantities as people write them in settings: durations and memory, each with its unit."""

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_DURATION_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION_PATTERN = r"^([0-9]+[dhms])+$"
_MEMORY_UNITS_MIB = {"Gi": 1024, "Mi": 1}
_MEMORY_PATTERN = r"^([0-9]+)(Gi|Mi)$"


def parse_duration_s(value: object) -> int:
    """Return the seconds of a duration such as "4h" or "1h30m". Raises ValueError for anything else, also a bare number."""
    if not isinstance(value, str) or not re.fullmatch(_DURATION_PATTERN, value):
        raise ValueError('a duration needs its unit; write for example "90s", "30m", "4h" or "1h30m"')
    return sum(int(amount) * _DURATION_UNITS_S[unit] for amount, unit in re.findall(r"([0-9]+)([dhms])", value))


def format_duration(seconds: int) -> str:
    """Return the shortest text that `parse_duration_s` reads back as the same number of seconds."""
    parts: list[str] = []
    rest = seconds
    for unit, size_s in _DURATION_UNITS_S.items():
        amount, rest = divmod(rest, size_s)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"


def parse_memory_mib(value: object) -> int:
    """Return the MiB of a memory size such as "32Gi" or "512Mi". Raises ValueError for anything else, also a bare number or "GB"."""
    found = re.fullmatch(_MEMORY_PATTERN, value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a memory size needs its binary unit; write for example "32Gi" or "512Mi"')
    return int(found.group(1)) * _MEMORY_UNITS_MIB[found.group(2)]


def format_memory(mib: int) -> str:
    """Return a memory size in MiB as Kubernetes-style APIs take it, such as "32Gi"."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


DurationS = Annotated[
    int,
    BeforeValidator(parse_duration_s),
    WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN, "examples": ["4h"]}),
]
"""Seconds, written with a unit in the settings."""

MemoryMib = Annotated[
    int,
    BeforeValidator(parse_memory_mib),
    WithJsonSchema({"type": "string", "pattern": _MEMORY_PATTERN, "examples": ["32Gi"]}),
]
"""MiB, written with a unit in the settings."""
