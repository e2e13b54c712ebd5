"""Build a value that matches a JSON schema, for structured output and tool calls of the simulated model."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from localcloud.json_values import as_list, as_object
from localcloud.vllm.answers import stated

_MAX_DEPTH: Final = 12
_FORMATS: Final = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
}
_PATTERN_CANDIDATES: Final = (
    *("0", "a", "A", "abc", "ABC", "123", "A1"),
    *("2026-01-31", "12:00", "12345", "a@b.co", "AB-123", "+4900000"),
)


class SchemaError(Exception):
    """The simulator cannot build a value for the schema. The message states why and where."""


def fitting_value(schema: Any, hint: str = "") -> Any:  # noqa: ANN401 - a schema and its values are any JSON
    """Return a value that matches the schema. Unconstrained strings are a word of `hint`. Raises SchemaError."""
    return _Builder(schema, hint).build(schema, "$", 0)


class _Builder:
    """Walks one schema; `root` is where references point."""

    def __init__(self, root: Any, hint: str) -> None:  # noqa: ANN401 - a schema
        self._root, self._hint = root, hint
        names = re.findall(r"\b[A-Z][\w-]+", hint)
        # The first word of a sentence is always capitalized, so a later capitalized word is more likely a name.
        self._word = names[-1] if names else "example"

    def build(self, schema: Any, where: str, depth: int) -> Any:  # noqa: ANN401 - any JSON
        if depth > _MAX_DEPTH:
            raise SchemaError(f"the schema at {where} nests deeper than {_MAX_DEPTH} levels")
        if schema is True or schema == {}:
            return self._word
        if not isinstance(schema, dict):
            raise SchemaError(f"the schema at {where} is not an object")
        found = self._resolved(as_object(cast("object", schema)), where, depth)
        for key in ("const", "default"):
            if key in found:
                return found[key]
        if found.get("enum"):
            return found["enum"][0]
        either = found.get("anyOf") or found.get("oneOf")
        return self.build(either[0], where, depth + 1) if either else self._typed(found, where, depth)

    def _resolved(self, schema: Mapping[str, Any], where: str, depth: int) -> Mapping[str, Any]:
        """Return a schema with its references and every `allOf` merged into it."""
        if depth > _MAX_DEPTH:
            raise SchemaError(f"the schema at {where} nests deeper than {_MAX_DEPTH} levels")
        others = [self._target(schema["$ref"], where)] if "$ref" in schema else []
        merged: dict[str, Any] = {}
        for other in (*others, *schema.get("allOf", ())):
            merged = _merged(merged, self._resolved(other, where, depth + 1))
        return _merged(merged, {key: value for key, value in schema.items() if key not in {"$ref", "allOf"}})

    def _target(self, reference: str, where: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise SchemaError(f"the reference {reference!r} at {where} is not inside the schema")
        found = self._root
        for key in filter(None, reference.lstrip("#/").split("/")):
            try:
                found = found[key.replace("~1", "/").replace("~0", "~")]
            except (KeyError, TypeError) as error:
                raise SchemaError(f"the reference {reference!r} at {where} points nowhere") from error
        return found

    def _typed(self, schema: Mapping[str, Any], where: str, depth: int) -> Any:  # noqa: ANN401 - any JSON
        kind: Any = schema.get("type")
        if isinstance(kind, list):
            kind = next((name for name in as_list(schema.get("type")) if name != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
        match kind:
            case "object":
                return self._object(schema, where, depth)
            case "array":
                least = min(max(int(schema.get("minItems", 1)), 0), int(schema.get("maxItems", _MAX_DEPTH)))
                items = schema.get("items", {"type": "string"})
                return [self.build(items, f"{where}[{index}]", depth + 1) for index in range(least)]
            case "string":
                return self._string(schema, where)
            case "integer" | "number":
                return _number(schema, where, whole=kind == "integer")
            case "boolean" | "null":
                return True if kind == "boolean" else None
            case _:
                raise SchemaError(f"the type {kind!r} at {where} does not exist in JSON schema")

    def _object(self, schema: Mapping[str, Any], where: str, depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        # Omit optional properties below some depth, so a recursive schema ends.
        names = [name for name in properties if name in required or depth < _MAX_DEPTH // 3]
        names += [name for name in required if name not in properties]
        return {name: self._field(name, properties.get(name, True), f"{where}.{name}", depth + 1) for name in names}

    def _field(self, name: str, schema: Any, where: str, depth: int) -> Any:  # noqa: ANN401 - any JSON
        known = stated(name, self._hint)
        wanted = as_object(schema).get("type")
        if known is None or wanted not in {"string", "integer"}:
            return self.build(schema, where, depth)
        return int(known) if wanted == "integer" else str(known)

    def _string(self, schema: Mapping[str, Any], where: str) -> str:
        pattern = schema.get("pattern")
        least = int(schema.get("minLength", 0))
        most = schema.get("maxLength")
        if pattern is None:
            return _FORMATS.get(schema.get("format", ""), self._word).ljust(least, "x")[:most]
        for candidate in (self._word, *_PATTERN_CANDIDATES):
            if re.search(pattern, candidate) and candidate == candidate.ljust(least)[:most]:
                return candidate
        raise SchemaError(f"the simulated server has no string for the pattern {pattern!r} at {where}")


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {**one, **other}
    if "properties" in both:
        both["properties"] = {**one.get("properties", {}), **other.get("properties", {})}
        both["required"] = [*one.get("required", ()), *other.get("required", ())]
    return both


def _number(schema: Mapping[str, Any], where: str, *, whole: bool) -> float | int:
    """Return 1, or a number at or between the bounds."""
    step = schema.get("multipleOf", 1 if whole else 0)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    near = [bound + change for bound in (low, high) if bound is not None for change in (0, step, -step, 0.5, -0.5)]
    middle = [(low + high) / 2] if low is not None and high is not None else []
    for value in (1, *near, *middle):
        number = -(-value // step) * step if step else value
        if (
            schema.get("minimum", number) <= number <= schema.get("maximum", number)
            and ("exclusiveMinimum" not in schema or number > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or number < schema["exclusiveMaximum"])
        ):
            return int(number) if whole else float(number)
    raise SchemaError(f"the simulated server has no number within the bounds at {where}")
