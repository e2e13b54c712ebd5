"""Differences between recorded answers and those of the local cloud, by method."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from localcloud.json_values import JsonObject, as_list, as_object
from localcloud.recording.varying import is_assigned, is_free, plain, varies

_IDENTITIES: Final = ("name", "role", "key", "id", "port", "zone", "selector")
"""Fields by which the items of a list are recognised; without one, items are compared in their order."""
_LONGEST_SHOWN: Final = 160
ABSENT: Final = "(absent)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. `what`: status, answer, state or order; `where`: the field or the resource."""

    method: str
    what: str
    where: str
    recorded: str
    here: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what makes it the same difference in another exchange."""
        where = _pattern(self.where) if self.what == "answer" else self.what
        return self.method, self.what, where, f"{self.recorded}->{self.here}" if self.what != "answer" else ""


@dataclass(slots=True)
class Report:
    """All differences, each once, with the number of exchanges that show it, and what could not be compared."""

    found: dict[tuple[str, str, str, str], Difference] = field(
        default_factory=dict[tuple[str, str, str, str], Difference]
    )
    counts: dict[tuple[str, str, str, str], int] = field(default_factory=dict[tuple[str, str, str, str], int])
    compared: dict[str, int] = field(default_factory=dict[str, int])
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, difference: Difference) -> None:
        """Add a difference, or count it if it is known."""
        self.found.setdefault(difference.key, difference)
        self.counts[difference.key] = self.counts.get(difference.key, 0) + 1

    def leave_out(self, reason: str) -> None:
        """Count an exchange that is not compared."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1

    def count(self, method: str) -> None:
        """Count an exchange that is compared."""
        self.compared[method] = self.compared.get(method, 0) + 1

    def as_json(self) -> JsonObject:
        """Return the report as one object."""
        return {
            "same": not self.found,
            "exchanges": sum(self.compared.values()),
            "methods": dict(sorted(self.compared.items())),
            "differences": [
                {
                    "method": each.method,
                    "what": each.what,
                    "where": each.where,
                    "recorded": each.recorded,
                    "here": each.here,
                    "exchanges": self.counts[key],
                }
                for key, each in sorted(self.found.items())
            ],
            "left_out": dict(sorted(self.left_out.items())),
        }


def shown(value: object) -> str:
    """Return a JSON value as a short text."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingComparison:
    """Compares two answers of one method. `translate` turns recorded values into replayed ones; `learn` gets each pair that the servers chose."""

    method: str
    translate: Callable[[str], str]
    learn: Callable[[str, str], None]
    is_request: bool = False
    """True: nothing varies, because the client chose everything."""

    def answers(self, recorded: object, here: object, without: frozenset[str] = frozenset()) -> Iterator[Difference]:
        """Yield the differences of two bodies, without some fields of the top level."""
        left = _reduced(recorded, without)
        right = _reduced(here, without)
        if recorded is None and here not in (None, {}):
            yield self._difference("(body)", ABSENT, shown(here))
        elif here is None and recorded not in (None, {}):
            yield self._difference("(body)", shown(recorded), ABSENT)
        else:
            yield from self._values("", left, right)

    def _values(self, at: str, recorded: object, here: object) -> Iterator[Difference]:
        if isinstance(recorded, str) and isinstance(here, str):
            yield from self._texts(at, recorded, here)
        elif _are_both(list, recorded, here):
            yield from self._lists(at, as_list(recorded), as_list(here))
        elif _are_both(dict, recorded, here):
            yield from self._objects(at, as_object(recorded), as_object(here))
        else:
            yield from self._others(at, recorded, here)

    def _others(self, at: str, recorded: object, here: object) -> Iterator[Difference]:
        """Yield the difference of two numbers or truths, or of two values of different types."""
        if type(recorded) is not type(here) or (
            recorded != here and not self._varies(_pattern(at), str(recorded), str(here))
        ):
            yield self._difference(at, shown(recorded), shown(here))

    def _objects(self, at: str, recorded: JsonObject, here: JsonObject) -> Iterator[Difference]:
        for key in sorted({*recorded, *here}):
            below = f"{at}.{key}" if at else key
            if not self.is_request and is_free(self.method, _pattern(below)):
                continue
            if key not in recorded:
                yield self._difference(below, ABSENT, shown(here[key]))
            elif key not in here:
                yield self._difference(below, shown(recorded[key]), ABSENT)
            else:
                yield from self._values(below, recorded[key], here[key])

    def _lists(self, at: str, recorded: list[object], here: list[object]) -> Iterator[Difference]:
        identity = next(
            (name for name in _IDENTITIES if _tells_apart(name, recorded) and _tells_apart(name, here)), None
        )
        if not self.is_request and all(isinstance(item, str) for item in [*recorded, *here]):
            # Servers return sets of texts in any order; what a client sends, such as arguments, has one.
            recorded = sorted(recorded, key=lambda item: self.translate(cast("str", item)))
            here = sorted(here, key=str)
        if identity is None or not recorded or not here:
            yield from self._in_order(at, recorded, here)
            return
        others = {self._identity(item, identity, translate=False): item for item in here}
        for item in recorded:
            name = self._identity(item, identity, translate=True)
            if name in others:
                yield from self._values(f"{at}[{name}]", item, others.pop(name))
            else:
                yield self._difference(f"{at}[{name}]", shown(item), ABSENT)
        for name, item in others.items():
            yield self._difference(f"{at}[{name}]", ABSENT, shown(item))

    def _in_order(self, at: str, recorded: list[object], here: list[object]) -> Iterator[Difference]:
        for number, (left, right) in enumerate(zip(recorded, here, strict=False)):
            yield from self._values(f"{at}[{number}]", left, right)
        for number in range(len(here), len(recorded)):
            yield self._difference(f"{at}[{number}]", shown(recorded[number]), ABSENT)
        for number in range(len(recorded), len(here)):
            yield self._difference(f"{at}[{number}]", ABSENT, shown(here[number]))

    def _texts(self, at: str, recorded: str, here: str) -> Iterator[Difference]:
        field = _pattern(at)
        if self._varies(field, recorded, here):
            if is_assigned(self.method, field, recorded):
                self.learn(recorded, here)
            return
        if plain(self.translate(recorded)) != plain(here):
            yield self._difference(at, shown(recorded), shown(here))

    def _varies(self, field: str, recorded: str, here: str) -> bool:
        return not self.is_request and varies(self.method, field, recorded, here)

    def _identity(self, item: object, name: str, *, translate: bool) -> str:
        text = str(cast("JsonObject", item)[name])
        return self.translate(text) if translate else text

    def _difference(self, where: str, recorded: str, here: str) -> Difference:
        return Difference(method=self.method, what="answer", where=where, recorded=recorded, here=here)


def _are_both(kind: type, recorded: object, here: object) -> bool:
    return isinstance(recorded, kind) and isinstance(here, kind)


def _pattern(field: str) -> str:
    """Return the path of a field without what tells apart the items of lists: `a[x].b` becomes `a[].b`."""
    return re.sub(r"\[[^\]]*\]", "[]", field)


def _tells_apart(name: str, items: Sequence[object]) -> bool:
    """Tell if each item has a value of its own under a name."""
    values = [as_object(item).get(name) for item in items]
    return all(isinstance(value, (str, int)) for value in values) and len(set(values)) == len(items)


def _reduced(value: object, without: frozenset[str]) -> object:
    if not isinstance(value, dict):
        empty: JsonObject = {}
        return value if value is not None else empty
    return {key: item for key, item in cast("JsonObject", value).items() if key not in without}
