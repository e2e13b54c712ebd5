"""Parts of Google's JSON responses, which omit empty values."""

from collections.abc import Mapping, Sequence
from typing import Any


def object_of(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key, or an empty object."""
    return raw.get(key) or {}


def objects_of(raw: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return the list of objects under a key, or an empty list."""
    return raw.get(key) or ()


def text_of(raw: Mapping[str, Any], key: str) -> str:
    """Return the text under a key, or an empty string."""
    return str(raw.get(key) or "")
