"""Build a value that matches a JSON schema, for structured output and tool calls of the simulated model."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from localcloud.json_values import as_list, as_object

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
    "0",
    "a",
    "A",
    "abc",
    "ABC",
    "123",
    "A1",
    "2026-01-31",
    "12:00",
    "12345",
    "a@b.co",
    "AB-123",
    "+4900000",
)


class SchemaError(Exception):
    """The simulator cannot build a value for the schema. The message states why and where."""


def fitting_value(schema: Any, hint: str = "") -> Any:  # noqa: ANN401 - a schema and its values are any JSON
    """Return a value that matches the schema. Unconstrained strings are a word of `hint`. Raises SchemaError."""
    return _Builder(schema, hint).build(schema, "$", 0)


class _Builder:
    """Walks one schema; `root` is where references point."""

    def __init__(self, root: Any, hint: str) -> None:  # noqa: ANN401 - a schema
        self._root = root
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
        return self._fitting(self._resolved(as_object(cast("object", schema)), where, depth), where, depth)

    def _fitting(self, schema: Mapping[str, Any], where: str, depth: int) -> Any:  # noqa: ANN401 - any JSON
        for key in ("const", "default"):
            if key in schema:
                return schema[key]
        if schema.get("enum"):
            return schema["enum"][0]
        for key in ("anyOf", "oneOf"):
            if schema.get(key):
                return self.build(schema[key][0], where, depth + 1)
        return self._typed(schema, where, depth)

    def _resolved(self, schema: Mapping[str, Any], where: str, depth: int) -> Mapping[str, Any]:
        merged = dict(schema)
        if "$ref" in merged:
            merged = {**self._target(merged.pop("$ref"), where), **merged}
            if depth > _MAX_DEPTH:
                raise SchemaError(f"the schema at {where} refers to itself")
        for part in merged.pop("allOf", ()):
            part_resolved = self._resolved(part, where, depth + 1)
            properties = {**merged.get("properties", {}), **part_resolved.get("properties", {})}
            required = [*merged.get("required", ()), *part_resolved.get("required", ())]
            merged = {**part_resolved, **merged}
            if properties:
                merged |= {"properties": properties, "required": required}
        return merged

    def _target(self, reference: str, where: str) -> Mapping[str, Any]:
        if not reference.startswith("#"):
            raise SchemaError(f"the reference {reference!r} at {where} is not inside the schema")
        found = self._root
        for key in reference.lstrip("#/").split("/") if reference not in ("#", "#/") else ():
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
                least = max(int(schema.get("minItems", 1)), 0)
                least = min(least, int(schema.get("maxItems", least)))
                items = schema.get("items", {"type": "string"})
                return [self.build(items, f"{where}[{index}]", depth + 1) for index in range(least)]
            case "string":
                return self._string(schema, where)
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
            case _:
                raise SchemaError(f"the type {kind!r} at {where} does not exist in JSON schema")

    def _object(self, schema: Mapping[str, Any], where: str, depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", ())
        # Omit optional properties below some depth, so that a recursive schema ends.
        names = [name for name in properties if name in required or depth < _MAX_DEPTH // 3]
        names += [name for name in required if name not in properties]
        return {name: self.build(properties.get(name, True), f"{where}.{name}", depth + 1) for name in names}

    def _string(self, schema: Mapping[str, Any], where: str) -> str:
        pattern = schema.get("pattern")
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        if pattern is not None:
            for candidate in (self._word, *_PATTERN_CANDIDATES):
                if (
                    re.search(pattern, candidate)
                    and len(candidate) >= least
                    and (most is None or len(candidate) <= most)
                ):
                    return candidate
            raise SchemaError(f"the simulated server has no string for the pattern {pattern!r} at {where}")
        text = _FORMATS.get(schema.get("format", ""), self._word)
        text = text.ljust(least, "x")
        return text if most is None else text[:most]


def _number(schema: Mapping[str, Any], *, whole: bool) -> float | int:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    step = schema.get("multipleOf", 1 if whole else None)
    value: float = 1 if low is None else low
    if low is None and high is not None and value > high:
        value = high
    if step:
        value = -(-value // step) * step
    if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        value += step or _between(value, high)
    if "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        value -= step or 1
    return int(value) if whole else float(value)


def _between(low: float, high: float | None) -> float:
    return 1.0 if high is None else (high - low) / 2
