"""Fit an answer into a model's context: shorten its largest parts and list what was omitted."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

MOST_CHARACTERS: Final = 10_000
"""Limit of an answer, as compact JSON. Clients write larger ones to a file, or cut them."""
_SHORTEST_TEXT: Final = 200
_SMALL: Final = 400
_NAMED: Final = 8
"""Number of shortened parts that are listed."""


def compact(value: object) -> str:
    """Return JSON without insignificant spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fitted(answer: Mapping[str, object], most: int = MOST_CHARACTERS) -> Mapping[str, object]:
    """Return the answer with the largest lists and texts halved until it has at most `most` characters.

    A list keeps its start; a text marked as data keeps its end, as for a log. `left_out` lists the shortened parts.
    """
    if len(compact(answer)) <= most:
        return answer
    copy = cast("dict[str, object]", json.loads(compact(answer)))
    before: dict[str, int] = {}
    while len(compact({**copy, "left_out": _words(copy, before)})) > most:
        parts = [part for part in _parts(copy, "") if part.can_shrink]
        if not parts:
            break
        largest = max(parts, key=lambda part: (not part.is_last_resort, part.size))
        before.setdefault(largest.path, len(largest.value))
        largest.halve()
    return {**copy, "left_out": _words(copy, before)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A list, an object or a text within an answer."""

    parent: Any
    key: str | int
    path: str

    @property
    def value(self) -> Any:  # noqa: ANN401 - a part of JSON
        return self.parent[self.key]

    @property
    def size(self) -> int:
        """Characters."""
        return len(compact(self.value))

    @property
    def is_last_resort(self) -> bool:
        """True if everything else should be shortened first: objects and small parts."""
        return isinstance(self.value, dict) or self.size < _SMALL

    @property
    def can_shrink(self) -> bool:
        value = self.value
        return len(value) > _SHORTEST_TEXT if isinstance(value, str) else len(value) > 1

    def halve(self) -> None:
        value, half = self.value, len(self.value) // 2
        if isinstance(value, str):
            is_data = "note" in self.parent
            self.parent[self.key] = f"…{value[-half:]}" if is_data else f"{value[:half]}…"
            if is_data:
                self.parent["cut"] = True
        elif isinstance(value, list):
            self.parent[self.key] = cast("list[object]", value)[:half]
        else:
            self.parent[self.key] = dict(list(cast("dict[str, object]", value).items())[:half])


def _parts(value: object, path: str) -> Iterator[_Part]:
    """Yield the parts that can be shortened, at every depth."""
    items: Mapping[Any, object] = {}
    if isinstance(value, dict):
        items = cast("dict[str, object]", value)
    elif isinstance(value, list):
        items = dict(enumerate(cast("list[object]", value)))
    for key, item in items.items():
        below = f"{path}.{key}" if path else str(key)
        if isinstance(item, str | list | dict):
            yield _Part(parent=value, key=key, path=below)
        yield from _parts(cast("object", item), below)


def _words(answer: Mapping[str, object], before: Mapping[str, int]) -> str:
    words = [f"{path}: {found} of {length}" for path, length in before.items() if (found := _length(answer, path))]
    rest = len(words) - _NAMED
    return "; ".join([*words[:_NAMED], *([f"and {rest} more"] if rest > 0 else [])])


def _length(answer: object, path: str) -> int:
    """Return the current length of the part at a path; 0 if it was removed with a larger one."""
    value = answer
    for key in path.split("."):
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(key, "")
        elif isinstance(value, list):
            items = cast("list[object]", value)
            value = items[int(key)] if int(key) < len(items) else ""
        else:
            return 0
    return len(cast("str | list[object]", value))
