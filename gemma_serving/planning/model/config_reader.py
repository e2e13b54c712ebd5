"""Reader of a parsed config.json that names the key in every error."""

from collections.abc import Mapping
from typing import Final, cast

from gemma_serving.planning.errors import PlanningError
from gemma_serving.planning.numbers import LARGEST

_MOST_CHARACTERS: Final = 60


def shown(value: object) -> str:
    """Return a value of a config for an error, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


class ConfigReader:
    """A block of a config; `where` names it in errors."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def whole(self, *keys: str, default: int | None = None) -> int:
        """Return the first of these keys that has a value, a whole number from 0. Raises PlanningError."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
                return value
            if value is not None:
                raise PlanningError(f'{self.where}: "{key}" is {shown(value)}; it must be a whole number, 0 or more.')
        if default is None:
            raise PlanningError(f'{self.where}: "{keys[0]}" is missing; it must be a whole number.')
        return default

    def positive(self, *keys: str, default: int | None = None) -> int:
        """Return the first of these keys that has a value, a whole number from 1. Raises PlanningError."""
        value = self.whole(*keys, default=default)
        if value < 1:
            raise PlanningError(f'{self.where}: "{keys[0]}" is {value}; it must be 1 or more.')
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return a boolean key; the default if it is missing or of another type."""
        value = self.values.get(key)
        return value if isinstance(value, bool) else default

    def text(self, key: str) -> str:
        """Return a text key; empty if it is missing or of another type."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def texts(self, *keys: str) -> tuple[str, ...]:
        """Return the texts of the first of these keys that has a list with items; a single text counts as a list."""
        for key in keys:
            value = self.values.get(key)
            if isinstance(value, list) and value:
                return tuple(str(item) for item in cast("list[object]", value))
            if isinstance(value, str) and value:
                return (value,)
        return ()

    def block(self, key: str) -> "ConfigReader | None":
        """Return a nested block; None if it is missing or of another type."""
        value = self.values.get(key)
        return (
            ConfigReader(cast("Mapping[str, object]", value), f"{self.where}, {key}")
            if isinstance(value, dict)
            else None
        )
