"""Rows of large files, read one at a time.

A file is scanned once. Memory only stores the position of each row, 16 bytes per row. A row is read again when its request is created.
"""

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from loadtest.errors import SweepError

BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Positions of the rows in a file."""

    path: Path
    starts: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("Q"))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    def add(self, start: int, size: int) -> None:
        """Add one row."""
        self.starts.append(start)
        self.sizes.append(size)


class RowReader:
    """A file open for reading single rows."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._file: IO[bytes] = places.path.open("rb")

    def read(self, number: int) -> bytes:
        """Return the bytes of a row."""
        self._file.seek(self._places.starts[number])
        return self._file.read(self._places.sizes[number])


def spans(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the position and the bytes of each row: of a line of JSONL or CSV, or of an element of a JSON array.

    Raises SweepError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            first = file.read(BLOCK).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
            file.seek(0)
            yield from (_elements(path, file) if first == b"[" else _lines(file))
    except OSError as error:
        raise SweepError(f"Cannot read {path}: {error.strerror}.") from None


def _lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    start = 0
    for line in file:
        row = line.removeprefix(b"\xef\xbb\xbf") if start == 0 else line
        if row.strip():
            yield start + len(line) - len(row), row.rstrip(b"\r\n")
        start += len(line)


def _elements(path: Path, file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of one JSON array, with only a few in memory at any time.

    The bytes are decoded as Latin-1, one character per byte. JSON's own characters are ASCII, so the positions stay right.
    """
    decoder = json.JSONDecoder()
    text, base = file.read(BLOCK).decode("latin-1"), 0
    position, ended = text.index("[") + 1, False
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if position < len(text) and text[position] == "]":
            return
        try:
            _, end = decoder.raw_decode(text, position)
        except ValueError as error:
            if ended:
                raise SweepError(f"{path} is not a JSON array: {error.args[0]} after byte {base + position}.") from None
            more = file.read(BLOCK).decode("latin-1")
            ended = not more
            base, text, position = base + position, text[position:] + more, 0
            continue
        yield base + position, text[position:end].encode("latin-1")
        position = end


def as_object(raw: bytes) -> dict[str, Any]:
    """Return a row as a JSON object. Raises ValueError with the problem."""
    try:
        found: object = json.loads(raw)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - an invalid row of a file
    return found  # pyright: ignore[reportUnknownVariableType] - the keys of a JSON object are text
