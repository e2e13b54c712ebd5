"""Reading JSON of unknown shape: an absent or wrong part reads as empty, so that what is optional needs no ladder of checks."""

from typing import Any, cast


def as_object(value: object) -> dict[str, Any]:
    """Return a JSON object as it is and anything else as an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a JSON list as it is and anything else as an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []
