"""Data files of the planner: JSON in this folder, as frozen rows. Each is read once at its first use, never at import."""

import json
from collections.abc import Callable, Iterator, Mapping, ValuesView
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_FOLDER: Final = Path(__file__).parent


class Table(Mapping[str, T]):
    """Rows of a data file by name, in file order."""

    def __init__(self, rows: Callable[[], Mapping[str, T]]) -> None:
        """Take the function that creates the rows, which the first use calls."""
        self._make = rows

    @cached_property
    def _rows(self) -> Mapping[str, T]:
        return self._make()

    def __getitem__(self, name: str) -> T:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def values(self) -> ValuesView[T]:
        """Return the rows; a plan with alternatives reads them thousands of times."""
        return self._rows.values()


def data_file(name: str) -> Any:  # noqa: ANN401 - JSON is any of its types; a test checks every row against its struct
    """Return the value of a data file, such as "prices.json"."""
    return json.loads((_FOLDER / name).read_text(encoding="utf-8"))


def typed_file(name: str, kind: type[T]) -> T:
    """Return the value of a data file as a type. Raises msgspec.ValidationError for a value of another type or an unknown field."""
    return msgspec.json.decode((_FOLDER / name).read_bytes(), type=kind)
