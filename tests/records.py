"""Frozen records of both kinds, structs of msgspec and dataclasses, with some fields changed."""

import dataclasses
from typing import Any, TypeVar

from msgspec import Struct, structs

T = TypeVar("T")


def replace(record: T, **changes: Any) -> T:
    """Return the record with other values in some fields."""
    made: Any = structs.replace if isinstance(record, Struct) else dataclasses.replace
    return made(record, **changes)
