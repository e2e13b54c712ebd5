"""Generate docs/bench-results.schema.json from the load tester's typed records. Run by `python -m authors.docs`."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, NotRequired, TypeAlias, is_typeddict

from loadtest.result_types import STATISTICS, PointFigures, ResultLine, SteadyRecord, SweepOutput

Schema: TypeAlias = dict[str, Any]
_PLAIN: Final[Mapping[object, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    types.NoneType: {"type": "null"},
    Any: {},
}
_MILLISECONDS: Final[Schema] = {"type": ["number", "null"], "description": "Milliseconds; null without enough values."}


def schema_text() -> str:
    """Return docs/bench-results.schema.json."""
    return json.dumps(results_schema(), indent=2) + "\n"


def results_schema() -> Schema:
    """Return the schema of a line of results.jsonl and of the output of `--json`. New fields may be added in any release."""
    found: dict[str, Schema] = {"Milliseconds": _MILLISECONDS}
    roots = [_of(kind, found) for kind in (ResultLine, SweepOutput)]
    for name in (kind.__name__ for kind in (PointFigures, ResultLine, SteadyRecord)):
        found[name]["properties"] |= {key: {"$ref": "#/definitions/Milliseconds"} for key in STATISTICS}
        found[name]["required"] = sorted({*found[name]["required"], *STATISTICS})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Results of scripts.bench: a line of results.jsonl, or the output of --json",
        "anyOf": roots,
        "definitions": dict(sorted(found.items())),
    }


def _of(kind: Any, found: dict[str, Schema]) -> Schema:  # noqa: ANN401 - a type of any form
    """Return the schema of a type. Records are added to `found`."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is None:
        return _record(kind, found)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    return _generic(origin, arguments, found)


def _generic(origin: Any, arguments: Sequence[Any], found: dict[str, Schema]) -> Schema:  # noqa: ANN401 - the same
    """Return the schema of a type with arguments: the last one of a mapping is its values' type."""
    if origin is NotRequired:
        return _of(arguments[0], found)
    if origin is typing.Annotated:
        return {**_of(arguments[0], found), "description": str(arguments[1])}
    if origin in {types.UnionType, typing.Union}:
        return {"anyOf": [_of(part, found) for part in arguments]}
    if origin in {list, tuple}:
        return {"type": "array", "items": _of(arguments[0], found)}
    return {"type": "object", "additionalProperties": _of(arguments[-1], found)}


def _record(kind: type[object], found: dict[str, Schema]) -> Schema:
    """Return the reference to a record. Raises TypeError for any other class."""
    if not is_typeddict(kind) and not dataclasses.is_dataclass(kind):
        raise TypeError(f"{kind} has no JSON schema. Use a typed dictionary or a dataclass.")
    name = kind.__name__
    if name not in found:
        found[name] = {}  # a record may contain itself
        hints = typing.get_type_hints(kind, include_extras=True)
        optional = {key for key, hint in hints.items() if typing.get_origin(hint) is NotRequired}
        found[name] = {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {key: _of(hint, found) for key, hint in hints.items()},
            "required": sorted(hints.keys() - optional),
        }
    return {"$ref": f"#/definitions/{name}"}
