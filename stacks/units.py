"""Quantities as people write them in settings: durations and memory, each with its unit."""

import re
from typing import Annotated

from pydantic import BeforeValidator

_DURATION_UNITS_S = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:\d+[dhms])+")
_DURATION_PART = re.compile(r"(\d+)([dhms])")
_MEMORY_UNITS_MIB = {"Gi": 1024, "Mi": 1}
_MEMORY = re.compile(r"(\d+)(Gi|Mi)")


def parse_duration_s(value: object) -> int:
    """Return seconds for a duration such as "4h", "90m", "1h30m" or "14400s"; raises ValueError for anything else, a bare number included."""
    if not isinstance(value, str) or not _DURATION.fullmatch(value):
        raise ValueError('a duration needs its unit; write for example "90s", "30m", "4h" or "1h30m"')
    return sum(int(amount) * _DURATION_UNITS_S[unit] for amount, unit in _DURATION_PART.findall(value))


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
    """Return MiB for a memory size such as "32Gi" or "512Mi"; raises ValueError for anything else, a bare number and decimal units included."""
    found = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('a memory size needs its binary unit; write for example "32Gi" or "512Mi"')
    return int(found.group(1)) * _MEMORY_UNITS_MIB[found.group(2)]


def format_memory(mib: int) -> str:
    """Return the text that Kubernetes-style APIs take for a memory size in MiB."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


DurationS = Annotated[int, BeforeValidator(parse_duration_s)]
"""Seconds, written with a unit in the settings."""

MemoryMib = Annotated[int, BeforeValidator(parse_memory_mib)]
"""MiB, written with a unit in the settings."""
