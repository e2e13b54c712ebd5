"""Pulumi's package schema of a stand-in: its types as specifications, for programs in YAML and for `pulumi package get-schema`.

It has the types, functions and settings that the stand-in serves, without descriptions, enumerations and defaults. Nested types are named
after their path, not as in the real schema. Source of the form: pulumi/pulumi 3.256.0, pkg/codegen/schema/pulumi.json.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from localcloud.plugins.lifecycle import OperationContext
from localcloud.plugins.schema import Json, Object, PropertySpec, PropertySpecs, ValueKind
from localcloud.plugins.values import Properties

_SCALARS: Final[Mapping[ValueKind, str]] = {
    ValueKind.TEXT: "string",
    ValueKind.FLAG: "boolean",
    ValueKind.WHOLE: "integer",
    ValueKind.NUMBER: "number",
}
_OF_THE_ENGINE: Final = frozenset({"version", "pluginDownloadURL"})
"""Settings of each provider that no schema may name."""
_ANY: Final[Object] = {"$ref": "pulumi.json#/Any"}


class FunctionSpec(NamedTuple):
    """A data source: its answer, its arguments and its results."""

    answer: Callable[[OperationContext, Properties], Awaitable[Properties]]
    arguments: PropertySpecs
    results: PropertySpecs


def package_schema(
    name: str,
    version: str,
    settings: Iterable[str],
    resources: Mapping[str, PropertySpecs],
    functions: Mapping[str, FunctionSpec],
) -> Object:
    """Return the schema of a package: settings of its provider, resource types by token, and functions by token."""
    types: Object = {}
    return {
        "name": name,
        "version": version,
        "meta": {"moduleFormat": "(.*)(?:/[^/]*)"},
        "provider": {"inputProperties": dict.fromkeys(sorted({*settings} - _OF_THE_ENGINE), _ANY)},
        "resources": {token: _resource(token, fields, types) for token, fields in resources.items()},
        "functions": {token: _function(token, each, types) for token, each in functions.items()},
        "types": types,
    }


def _resource(token: str, fields: PropertySpecs, types: Object) -> Object:
    inputs = {name: each for name, each in fields.items() if not each.output}
    known = [name for name, each in fields.items() if each.required or each.computed or each.output or each.autoname]
    prefix = _nested_prefix(token)
    return {
        "inputProperties": _properties(inputs, prefix, types),
        "requiredInputs": _required(inputs),
        "properties": _properties(fields, prefix, types),
        "required": list[Json](known),
    }


def _function(token: str, function: FunctionSpec, types: Object) -> Object:
    prefix = _nested_prefix(token)
    return {
        "inputs": {"properties": _properties(function.arguments, prefix, types)},
        "outputs": {
            "properties": _properties(function.results, prefix, types),
            "required": list[Json](function.results),
        },
    }


def _nested_prefix(token: str) -> str:
    """Return the start of the tokens of a type's nested types: `gcp:run/Service` for `gcp:run/service:Service`."""
    module, _, name = token.rpartition(":")
    return f"{module.partition('/')[0]}/{name}"


def _properties(fields: PropertySpecs, prefix: str, types: Object) -> Object:
    return {
        name: {
            **_type(each, f"{prefix}{name[:1].upper()}{name[1:]}", types),
            **({"secret": True} if each.secret else {}),
        }
        for name, each in fields.items()
    }


def _required(fields: PropertySpecs) -> list[Json]:
    return [name for name, each in fields.items() if each.required]


def _type(each: PropertySpec, path: str, types: Object) -> Object:
    """Return the type of a property. The type of a block is added to `types` as `path` and its last word."""
    if each.kind is ValueKind.BLOCK:
        token = f"{path}:{path.rpartition('/')[2]}"
        types[token] = {
            "type": "object",
            "properties": _properties(each.fields, path, types),
            "required": _required(each.fields),
        }
        return {"$ref": f"#/types/{token}"}
    if each.item is not None:
        return {"type": "array", "items": _type(each.item, path, types)}
    if each.kind is ValueKind.TEXTS_BY_KEY:
        return {"type": "object", "additionalProperties": {"type": "string"}}
    return {"type": _SCALARS[each.kind]}
