"""Validation of parameters and bodies against the discovery documents, with Google's error messages.

The result is normalized: camelCase names, integers as numbers, int64 as strings, no output-only fields.
`null` is accepted for every known field. It is kept for PATCH of Compute Engine and Cloud Storage, which removes the field, and dropped otherwise.
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from localcloud.json_values import JsonObject, part
from localcloud.rest import stated_rules
from localcloud.rest.discovery import DiscoveryDocument, Method, Parameter
from localcloud.rest.errors import CloudError, ErrorStyle

_INT_RANGE = {
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}
_TRUE, _FALSE = {"true", "True", "1"}, {"false", "False", "0"}
_DURATION = re.compile(r"-?\d+(\.\d{1,9})?s")
_LAUNCH_STAGE = {
    0: "LAUNCH_STAGE_UNSPECIFIED",
    1: "EARLY_ACCESS",
    2: "ALPHA",
    3: "BETA",
    4: "GA",
    5: "DEPRECATED",
    6: "UNIMPLEMENTED",
    7: "PRELAUNCH",
}
"""google.api.LaunchStage: the only enum here whose numbers do not follow the document's order (google/api/launch_stage.proto)."""

_UNDOCUMENTED = {
    "compute": {
        "RouterNat": frozenset({"initialNatIps"}),
        "NetworkRoutingConfig": frozenset({"deleteBgpAlwaysCompareMed"}),
    }
}
"""API -> schema -> fields that the real pulumi-gcp provider sends and Google accepts, but the published documents lack. Here they have no effect."""
_UNDOCUMENTED_QUERY = {"compute": {"returnPartialSuccess"}}
"""API -> list query parameters that gcloud sends and Google accepts, but the published documents have lacked since 2026. Here they have no effect."""


def camel(name: str) -> str:
    """Convert `secret_id` to `secretId`; dots are kept."""
    return re.sub(r"_([a-z0-9])", lambda found: found.group(1).upper(), name)


def snake(name: str) -> str:
    """Convert `secretId` to `secret_id`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found.group(1).lower(), name[:1].lower() + name[1:])


def query_parameters(document: DiscoveryDocument, method: Method, query: Mapping[str, list[str]]) -> dict[str, Any]:
    """Check a query string and return name -> value (a list for repeated ones), without global parameters such as `alt`."""
    taken: dict[str, Any] = {}
    for given, values in query.items():
        name = given if given in method.parameters or not document.forgiving_names else camel(given)
        parameter = method.parameters.get(name)
        if parameter is None or parameter.location != "query":
            if given in document.global_parameters or _undocumented(document, method, given):
                continue
            raise _unknown_query(given)
        taken[name] = (
            [_scalar(parameter, value) for value in values] if parameter.repeated else _scalar(parameter, values[-1])
        )
    for parameter in method.parameters.values():
        if parameter.required and parameter.location == "query" and taken.get(parameter.name) in (None, "", []):
            raise CloudError.required(f"Required parameter: {parameter.name}")
    for name, value in taken.items():
        sentence = stated_rules.broken_parameter(method.id, name, value)
        if sentence:
            raise CloudError.field(name, f"Invalid value at '{name}': {sentence} Given: {value!r}.")
    return taken


def _undocumented(document: DiscoveryDocument, method: Method, name: str) -> bool:
    return "maxResults" in method.parameters and name in _UNDOCUMENTED_QUERY.get(document.api, ())


def path_parameters(document: DiscoveryDocument, method: Method, values: Mapping[str, str]) -> None:
    """Check path parameters against their patterns (routing has checked most of them) and against the wildcard `-`."""
    for name, value in values.items():
        pattern = method.parameters[name].pattern
        if method.parameters[name].refuses_wildcard and value.endswith("/locations/-"):
            raise CloudError.field(
                name,
                f"Invalid '{name}': '{value}'. Location must be a valid Google Cloud region, and cannot be the \"-\" wildcard.",
            )
        if pattern is not None and re.fullmatch(pattern.strip("^$"), value) is None:
            if document.style is ErrorStyle.COMPUTE:
                raise CloudError.invalid(
                    f"Invalid value for field '{name}': '{value}'. Must be a match of regex '{pattern}'"
                )
            raise CloudError.invalid(
                f"Invalid resource field value in the request: '{name}' is '{value}', which does not match '{pattern}'."
            )


def _unknown_query(name: str) -> CloudError:
    message = (
        f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter. '
        f"Field '{name}' could not be found in request message."
    )
    return CloudError.invalid(message, violations=[("", message)])


def _scalar(parameter: Parameter, value: str) -> Any:  # noqa: ANN401 - a parameter is a string, a number or a truth value
    if parameter.enum and value not in parameter.enum and value:
        raise _bad_query(parameter, "ENUM", value)
    if parameter.type == "boolean":
        if value not in _TRUE | _FALSE:
            raise _bad_query(parameter, "BOOL", value)
        return value in _TRUE
    if parameter.type == "integer" or parameter.format in _INT_RANGE:
        return _query_integer(parameter, value)
    if parameter.format == "google-fieldmask":
        return ",".join(camel(part) for part in value.split(","))
    return value


def _bad_query(parameter: Parameter, kind: str, value: str) -> CloudError:
    return CloudError.field(parameter.name, f"Invalid value at '{parameter.name}' (TYPE_{kind}), \"{value}\"")


def _query_integer(parameter: Parameter, value: str) -> int:
    kind = parameter.format or "int32"
    low, high = _INT_RANGE[kind]
    low = low if parameter.minimum is None else parameter.minimum
    high = high if parameter.maximum is None else parameter.maximum
    if re.fullmatch(r"-?\d+", value) is None or not low <= int(value) <= high:
        raise _bad_query(parameter, kind.upper(), value)
    return int(value)


def request_body(document: DiscoveryDocument, method: Method, body: object) -> JsonObject:
    """Check a JSON body against the method's schema and return the normalized body."""
    if method.request is None:
        if body not in (None, {}):
            name = next(iter(cast("JsonObject", body)), "") if isinstance(body, dict) else ""
            message = f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.'
            raise CloudError.invalid(message, violations=[("", message)])
        return {}
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise CloudError.invalid("Invalid JSON payload received. Root element must be a message.")
    keeps_null = document.style is not ErrorStyle.RPC and method.verb == "PATCH"
    checker = _Checker(document=document, keeps_null=keeps_null)
    checked = checker.message(method.request, cast("JsonObject", body), _root_name(document, method.request))
    if checker.problems:
        raise CloudError.invalid("\n".join(text for _, text in checker.problems), violations=checker.problems)
    if document.style is ErrorStyle.COMPUTE:
        _compute_rules(document, method, checked)
    return checked


def _root_name(document: DiscoveryDocument, schema: str) -> str:
    """Return Google's name for a body: `queued_resource` for a QueuedResource, an empty text for a ...Request."""
    if document.style is ErrorStyle.COMPUTE:
        return "resource"
    if schema.endswith("Request") or document.style is ErrorStyle.STORAGE:
        return ""
    return snake(re.sub(r"^Google.*V\d+(alpha|beta)?\d*(?=[A-Z])", "", schema))


def _compute_rules(document: DiscoveryDocument, method: Method, body: JsonObject) -> None:
    """Check required fields and patterns. The documents mark fields as required for PATCH too, but Google does not enforce that."""
    schema = document.schemas[method.request or ""]
    for name, described in part(schema, "properties").items():
        value = body.get(name)
        if (
            method.id.endswith(".insert")
            and method.id in part(described, "annotations").get("required", ())
            and value in (None, "")
        ):
            raise CloudError.required(f"Required field 'resource.{name}' not specified")
        pattern = described.get("pattern")
        if pattern is not None and isinstance(value, str) and value and re.fullmatch(pattern, value) is None:
            raise CloudError.field(
                name, f"Invalid value for field 'resource.{name}': '{value}'. Must be a match of regex '{pattern}'"
            )


@dataclass(slots=True, kw_only=True)
class _Checker:
    """Checks a body against its schema and collects all problems."""

    document: DiscoveryDocument
    keeps_null: bool
    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def message(self, schema_name: str, value: JsonObject, path: str) -> JsonObject:
        return self._object(self.document.schemas[schema_name], value, path)

    def _object(self, schema: JsonObject, value: JsonObject, path: str) -> JsonObject:
        properties: JsonObject = part(schema, "properties")
        extra: JsonObject | None = schema.get("additionalProperties")
        taken: JsonObject = {}
        before = len(self.problems)
        for given, item in value.items():
            name = (
                given if given in properties or extra is not None or not self.document.forgiving_names else camel(given)
            )
            described = properties.get(name, extra)
            if described is None and name in _UNDOCUMENTED.get(self.document.api, {}).get(str(schema.get("id")), ()):
                continue
            if described is None:
                where = f" at '{path}'" if path else ""
                self.problems.append(
                    (path, f'Invalid JSON payload received. Unknown name "{given}"{where}: Cannot find field.')
                )
                continue
            if item is None:
                if self.keeps_null:
                    taken[name] = None
                continue
            below = f"{path}.{snake(name)}" if path else snake(name)
            checked = self._value(described, item, below if name in properties else f'{path}["{name}"]')
            if not described.get("readOnly"):
                taken[name] = checked
        if "id" in schema and len(self.problems) == before:
            self._stated(str(schema["id"]), taken, path)
        return taken

    def _stated(self, schema: str, value: JsonObject, path: str) -> None:
        for rule in stated_rules.broken(f"{self.document.api}.{self.document.version}", schema, value):
            below = ".".join(filter(None, (path, snake(rule.field))))
            self._bad(below, f"Invalid value at '{below}': {rule.sentence}")

    def _value(self, schema: JsonObject, value: Any, path: str) -> Any:  # noqa: ANN401, PLR0911 - any JSON value; one return per type
        reference = schema.get("$ref")
        if reference is not None:
            schema = self.document.schemas[reference]
        kind = schema.get("type")
        if kind == "object":
            return self._expect_object(schema, value, path)
        if kind == "array":
            return self._array(schema, value, path)
        if kind == "any":
            return value
        if isinstance(value, (list, dict)):
            what = "list" if isinstance(value, list) else "object"
            self._bad(
                path,
                f"Invalid value at '{path}': the field is not repeated and not a message, so it cannot be a JSON {what}.",
            )
            return cast("object", value)
        if kind == "boolean":
            return self._boolean(value, path)
        if kind in {"integer", "number"}:
            return self._number(schema, value, path)
        return self._string(schema, value, path)

    def _bad(self, path: str, text: str) -> None:
        self.problems.append((path, text))

    def _refused(self, path: str, kind: str, value: object) -> object:
        """Record the problem if a value is not of its kind, and return the value."""
        self._bad(path, f"Invalid value at '{path}' ({kind}), {_quoted(value)}")
        return value

    def _expect_object(self, schema: JsonObject, value: object, path: str) -> object:
        if isinstance(value, dict):
            return self._object(schema, cast("JsonObject", value), path)
        self._bad(path, f"Invalid value at '{path}': a JSON object is expected, not {value!r}.")
        return value

    def _array(self, schema: JsonObject, value: object, path: str) -> object:
        if not isinstance(value, list):
            self._bad(path, f"Invalid value at '{path}': a JSON list is expected, not {value!r}.")
            return value
        items = cast("list[object]", value)
        return [self._value(schema["items"], item, f"{path}[{index}]") for index, item in enumerate(items)]

    def _boolean(self, value: object, path: str) -> object:
        if isinstance(value, bool):
            return value
        return value == "true" if value in ("true", "false") else self._refused(path, "TYPE_BOOL", value)

    def _number(self, schema: JsonObject, value: object, path: str) -> object:
        kind = str(schema.get("format", "int32" if schema["type"] == "integer" else "double"))
        number = _as_number(value, kind)
        return self._refused(path, f"TYPE_{kind.upper()}", value) if number is None else number

    def _string(self, schema: JsonObject, value: object, path: str) -> object:
        kind = str(schema.get("format", ""))
        if kind in _INT_RANGE:
            number = _as_number(value, kind)
            return self._refused(path, f"TYPE_{kind.upper()}", value) if number is None else str(number)
        if schema.get("enum"):
            return self._enum(schema, value, path)
        if not isinstance(value, str):
            return self._refused(path, "TYPE_STRING", value)
        problem = "" if path.endswith("etag") else _format_problem(kind, value)
        if problem:
            self._refused(path, problem, value)
        if kind == "google-fieldmask":
            return ",".join(camel(part) for part in value.split(","))
        return value

    def _enum(self, schema: JsonObject, value: object, path: str) -> object:
        names = cast("list[str]", schema["enum"])
        if isinstance(value, int) and not isinstance(value, bool):
            numbered = _LAUNCH_STAGE if names[0] == _LAUNCH_STAGE[0] else dict(enumerate(names))
            if value in numbered:
                return numbered[value]
        known = isinstance(value, str) and value in names
        return value if known else self._refused(path, "TYPE_ENUM", value)


def _quoted(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _as_number(value: object, kind: str) -> int | float | None:
    """Return the number of a format, given as a number or a text. None if it is not a number or is out of the format's range."""
    pattern = r"-?\d+" if kind in _INT_RANGE else r"-?\d+(\.\d+)?([eE][-+]?\d+)?"
    if isinstance(value, str):
        if re.fullmatch(pattern, value) is None:
            return None
        number = int(value) if re.fullmatch(r"-?\d+", value) else float(value)
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    else:
        number = value
    if kind not in _INT_RANGE:
        return number
    low, high = _INT_RANGE[kind]
    return int(number) if number == int(number) and low <= number <= high else None


def _format_problem(kind: str, value: str) -> str:
    """Return the name of the type whose format the text breaks, or an empty text."""
    if kind == "google-duration" and _DURATION.fullmatch(value) is None:
        return "type.googleapis.com/google.protobuf.Duration: illegal duration format, a duration must end with 's'"
    if kind in {"google-datetime", "date-time"}:
        try:
            datetime.fromisoformat(value)
        except ValueError:
            return "type.googleapis.com/google.protobuf.Timestamp"
    if kind == "byte":
        try:
            base64.b64decode(
                value + "=" * (-len(value) % 4), altchars=b"-_" if set(value) & {"-", "_"} else None, validate=True
            )
        except (binascii.Error, ValueError):
            return "TYPE_BYTES"
    return ""
