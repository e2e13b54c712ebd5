"""Reading JSON documents whose shape has been checked before: absent parts read as empty ones."""

from typing import cast

from localcloud.errors import JsonObject


def part(document: JsonObject, key: str) -> JsonObject:
    """The object under a key; an empty one where there is none."""
    return cast("JsonObject", document.get(key) or {})


def parts(document: JsonObject, key: str) -> list[JsonObject]:
    """The list of objects under a key; an empty one where there is none."""
    return cast("list[JsonObject]", document.get(key) or [])


def strings(document: JsonObject, key: str) -> list[str]:
    """The list of texts under a key; an empty one where there is none."""
    return cast("list[str]", document.get(key) or [])
