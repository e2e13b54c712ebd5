"""JSON values whose shape is unknown to the type checker. A missing part reads as empty."""

from collections.abc import Mapping
from typing import cast


def as_mapping(value: object) -> Mapping[str, object]:
    """Return a JSON object, or an empty one for any other value."""
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[object]:
    """Return `value` if it is a JSON array, or else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []
