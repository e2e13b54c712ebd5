"""Number parsing for every option, settings file, price file and config.json: finite, not a boolean, not absurdly large."""

import json
import math
from typing import Final, NoReturn, TypeGuard

LARGEST: Final = 1e15
"""Largest accepted number. Every quantity here is smaller, and sums and products of two stay finite."""


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number: not a boolean, not nan, not infinite, and at most LARGEST in magnitude."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def as_number(value: object) -> float | None:
    """Return a value as a float if it is a number (`is_number`), else None."""
    return float(value) if is_number(value) else None


def read_json(text: str) -> object:
    """Return the value of a JSON text. Raises ValueError, including for NaN, Infinity, 1e400, excessively long digits, and deep nesting."""

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not a number")

    def read_float(word: str) -> float:
        value = float(word)
        return value if math.isfinite(value) else refuse(word)

    try:
        return json.loads(text, parse_constant=refuse, parse_float=read_float)
    except RecursionError:
        raise ValueError("too many lists or objects inside each other") from None
