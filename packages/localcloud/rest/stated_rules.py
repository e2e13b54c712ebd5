"""Rules that the discovery documents state in sentences, for bodies and parameters. An error repeats Google's sentence.

`data/stated_rules.toml` lists them; rules that need code are functions here.
Rules that depend on other resources, on quota or on the state are in `localcloud.services`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from uuid import UUID

from localcloud.json_values import JsonObject, packaged, part, parts, strings

_PROMETHEUS_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PORT_OR_RANGE = re.compile(r"\d+(-\d+)?")
_PROTOCOL = re.compile(r"tcp|udp|icmp|esp|ah|ipip|sctp|all|\d{1,3}")
"""`all` is documented for gcloud and the console, and the provider sends it."""
_MAX_PORT = 65_535
_MAX_COLUMNS = 48
_SAME_TEXT = {"compute.v1": "compute.beta"}


_CHECKS: dict[str, Callable[[JsonObject], bool]] = {}
"""Functions that the table can name, by name."""


def _check(function: Callable[[JsonObject], bool]) -> Callable[[JsonObject], bool]:
    """Register a function for the table."""
    _CHECKS[function.__name__.removeprefix("_")] = function
    return function


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A sentence of a document, and the check that a normalized object obeys it. `field` is the location of an error; empty: the object itself."""

    field: str
    sentence: str
    obeyed: Callable[[JsonObject], bool]


def broken(document: str, schema: str, value: JsonObject) -> Iterator[StatedRule]:
    """Yield the rules of a schema, such as `Secret` of `secretmanager.v1`, that an object breaks."""
    for rule in rules().get(f"{_SAME_TEXT.get(document, document)} {schema}", ()):
        if not rule.obeyed(value):
            yield rule


@_check
def _conditions_have_version_3(policy: JsonObject) -> bool:
    return policy.get("version") == 3 or not any(binding.get("condition") for binding in parts(policy, "bindings"))  # noqa: PLR2004 - as in the sentence


@_check
def _bindings_have_members(policy: JsonObject) -> bool:
    return all(binding.get("members") for binding in parts(policy, "bindings"))


@_check
def _protocols(firewall: JsonObject) -> bool:
    return all(item.get("IPProtocol") for key in ("allowed", "denied") for item in parts(firewall, key))


@_check
def _known_protocols(firewall: JsonObject) -> bool:
    items = [item for key in ("allowed", "denied") for item in parts(firewall, key)]
    return all(_PROTOCOL.fullmatch(str(item.get("IPProtocol") or "tcp").lower()) for item in items)


@_check
def _ports(firewall: JsonObject) -> bool:
    items = [item for key in ("allowed", "denied") for item in parts(firewall, key)]
    return all(_PORT_OR_RANGE.fullmatch(str(port)) for item in items for port in strings(item, "ports"))


@_check
def _container_port(port: JsonObject) -> bool:
    return 0 < int(port.get("containerPort", 8080)) <= _MAX_PORT


@_check
def _mosaic_columns(layout: JsonObject) -> bool:
    return 1 <= int(layout.get("columns") or 0) <= _MAX_COLUMNS


@_check
def _mosaic_tiles(layout: JsonObject) -> bool:
    columns = int(layout.get("columns") or 0)
    places = [(int(tile.get("xPos") or 0), int(tile.get("width") or 0)) for tile in parts(layout, "tiles")]
    return all(left >= 0 and left + width <= columns for left, width in places)


@_check
def _promql_labels_named(condition: JsonObject) -> bool:
    return all(_PROMETHEUS_LABEL.fullmatch(name) for name in part(condition, "labels"))


def _usable_uuid(text: str) -> bool:
    try:
        return UUID(text).int != 0
    except ValueError:
        return False


@cache
def rules() -> Mapping[str, tuple[StatedRule, ...]]:
    """Return the rules of each document and schema. A rule sees the object after type checks."""
    found: defaultdict[str, list[StatedRule]] = defaultdict(list)
    for row in parts(packaged("localcloud.rest", "stated_rules.toml"), "rule"):
        rule = StatedRule(row["field"], row["sentence"], _test(row))
        for schema in row["of"]:
            found[schema].append(rule)
    return {schema: tuple(of_schema) for schema, of_schema in found.items()}


def _test(row: JsonObject) -> Callable[[JsonObject], bool]:  # noqa: PLR0911 - one return per kind of row
    """Return the check that a table row describes."""
    key = str(row["field"])
    match row:
        case {"check": name}:
            return _CHECKS[name]
        case {"given": _}:
            return lambda value: any(value.get(name) for name in strings(row, "given"))
        case {"present": present}:
            return lambda value: present in value
        case {"among": among}:
            return lambda value: not value.get(key) or value[key] in among
        case {"matches": _}:
            pattern, empty = re.compile(str(row["matches"])), bool(row["empty"])
            return lambda value: pattern.fullmatch(value[key]) is not None if value.get(key) else empty
        case {"within": [low, high]}:
            # A missing number is the default. So is 0, which protocol buffers cannot distinguish from a missing one.
            return lambda value: not value.get(key) or low <= int(value[key]) <= high
        case {"least": least}:
            return lambda value: int(value.get(key) or 0) >= least
        case {"longest": longest}:
            return lambda value: len(str(value.get(key) or "")) <= longest
        case {"bytes": most}:
            return lambda value: len(str(value.get(key) or "").encode()) <= most
        case _:
            raise ValueError(f"The rule of {row['of']} and {key!r} has no check.")


REQUEST_ID = "The request ID must be a valid UUID with the exception that zero UUID is not supported (00000000-0000-0000-0000-000000000000)."


def broken_parameter(method: str, name: str, value: object) -> str:
    """Return the sentence that a method's parameter breaks, or an empty text."""
    if method.startswith("compute.") and name == "requestId" and not _usable_uuid(str(value)):
        return REQUEST_ID
    return ""
