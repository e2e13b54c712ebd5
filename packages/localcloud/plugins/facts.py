"""Property specifications of the gcp resource types, from the real provider's schema, discovery documents and an overlay.

`data/schema.json` describes properties: type, whether a change replaces the resource, defaults, secrets. Google's discovery documents describe
which fields are sent and their names. The overlay adds facts that only recordings of the real provider show.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Final, TypeAlias, TypedDict, cast

from localcloud.json_values import packaged, strings
from localcloud.plugins.schema import (
    ABSENT,
    Decode,
    Encode,
    Json,
    Object,
    PropertySpec,
    PropertySpecs,
    UnsetValue,
    ValueKind,
)
from localcloud.plugins.values import Value


class Recorded(TypedDict, total=False):
    """Facts about one property from recordings: keywords of PropertySpec, except those in the schema."""

    api: str
    local: bool
    autoname: bool
    create_only: bool
    send_zero: bool
    unset: Json | UnsetValue
    unset_update: Json | UnsetValue
    absent: Value | UnsetValue
    encode: Encode
    decode: Decode
    same: Callable[[str], str]
    switch: str


Overlay: TypeAlias = Mapping[str, Recorded]
"""Facts from recordings, by property path in Pulumi's names, such as `template.containers.ports`."""

_SCALARS: Final[Mapping[str, ValueKind]] = {
    "String": ValueKind.TEXT,
    "Bool": ValueKind.FLAG,
    "Int": ValueKind.WHOLE,
    "Float": ValueKind.NUMBER,
    "Map": ValueKind.TEXTS_BY_KEY,
}
# Properties that the real provider itself keeps for every resource if the program does not set them.
_KEPT: Final[Mapping[str, Value]] = {"deletion_policy": "DELETE"}
_RENAMED: Final[Mapping[str, str]] = {"terraform_labels": "pulumiLabels"}


def settings_without_effect() -> frozenset[str]:
    """Return the provider's settings that are accepted and have no effect here."""
    return frozenset(strings(packaged("localcloud.plugins", "schema.json"), "settings_without_effect"))


@cache
def types() -> Mapping[str, Object]:
    """Return the facts of every type in the schema, by token such as `gcp:storage/bucket:Bucket`."""
    return packaged("localcloud.plugins", "schema.json")["types"]


@cache
def _messages(document: str) -> Mapping[str, Object]:
    """Return the message types of a discovery document, such as `run.v2`."""
    path = files("googleapiclient") / "discovery_cache" / "documents" / f"{document}.json"
    return cast("dict[str, Object]", json.loads(path.read_text(encoding="utf-8"))["schemas"])


def specifications(type_name: str, message: str, overlay: Overlay) -> PropertySpecs:
    """Return the specifications of a type's properties.

    `message` names the discovery document and the message of a request body, such as `run.v2#GoogleCloudRunV2Service`. It is empty for types
    whose requests are written by hand. Raises KeyError if the overlay names a property that the schema does not have.
    """
    document, _, name = message.partition("#")
    node = _messages(document)[name] if message else None
    left = dict(overlay)
    made = _specifications(_children(types()[type_name]), document, node, left, "")
    if left:
        raise KeyError(f"{type_name} has no property {min(left)}")
    return made


def described(facts: Object) -> PropertySpecs:
    """Return the specifications of a type that no discovery document describes."""
    return _specifications(_children(facts), "", None, {}, "")


def _specifications(
    facts: Mapping[str, Object], document: str, node: Object | None, overlay: dict[str, Recorded], at: str
) -> PropertySpecs:
    made: dict[str, PropertySpec] = {}
    for terraform, each in facts.items():
        name = pulumi_name(terraform, each)
        recorded = overlay.pop(f"{at}{name}", {})
        spec = replace(_from_schema(terraform, each), local=node is None)
        # The provider chooses a name if the program sets none.
        spec = replace(spec, autoname=not at and terraform == "name" and spec.required)
        found: Object | None = None
        if node is not None:
            api = recorded.get("api") or _api_name(_properties(document, node), _camel(terraform), name)
            found = _at(document, node, api)
            spec = _with_request(spec, api, found, is_sent="api" in recorded, is_top=not at)
        spec = replace(spec, **recorded)
        spec = replace(spec, required=spec.required and not spec.autoname)
        if "fields" in each or not spec.is_collection:
            inner = _specifications(_children(each), document, found, overlay, f"{at}{name}.")
            spec = replace(spec, item=replace(spec.item, fields=inner)) if spec.item else replace(spec, fields=inner)
        made[name] = spec
    return made


def _children(facts: Object) -> Mapping[str, Object]:
    return cast("Mapping[str, Object]", facts.get("fields", {}))


def _from_schema(terraform: str, facts: Object) -> PropertySpec:
    is_output = facts.get("computed") is True and not (facts.get("optional") or facts.get("required"))
    return PropertySpec(
        kind=_kind(facts),
        terraform=terraform,
        required=facts.get("required") is True,
        output=is_output,
        computed=facts.get("computed") is True and not is_output,
        force_new=facts.get("forceNew") is True,
        default=cast("Value", facts.get("default")),
        secret=facts.get("sensitive") is True,
        one_of=_paths(facts, "exactlyOneOf"),
        conflicts=_paths(facts, "conflictsWith"),
        absent=_KEPT.get(terraform, ABSENT),
        collapsed=facts["type"] == "Set" and _is_single(facts),
        item=None
        if _is_single(facts) or facts["type"] not in {"List", "Set"}
        else PropertySpec(kind=_item_kind(facts)),
    )


def _kind(facts: Object) -> ValueKind:
    if facts["type"] in {"List", "Set"}:
        return _item_kind(facts) if _is_single(facts) else ValueKind[str(facts["type"]).upper()]
    return _SCALARS[str(facts["type"])]


def _item_kind(facts: Object) -> ValueKind:
    return _SCALARS[str(facts["elem"])] if "elem" in facts else ValueKind.BLOCK


def _is_single(facts: Object) -> bool:
    return facts.get("maxItems") == 1


def _paths(facts: Object, name: str) -> tuple[str, ...]:
    found = facts.get(name)
    return tuple(str(path) for path in found) if isinstance(found, list) else ()


def _with_request(spec: PropertySpec, api: str, found: Object | None, *, is_sent: bool, is_top: bool) -> PropertySpec:
    if found is None:
        return replace(spec, api=api, local=not is_sent)
    is_array = found.get("type") == "array"
    return replace(
        spec,
        api=api,
        wrapped=is_array and not spec.is_collection,
        listed=not is_array and spec.kind is ValueKind.LIST and spec.output,
        long=spec.kind is ValueKind.WHOLE and found.get("type") == "string",
        # The real provider's updates omit properties that only a new resource can have.
        create_only=is_top and spec.force_new,
    )


def _properties(document: str, node: Object) -> Mapping[str, Object]:
    """Return the properties of the message that a node of a document leads to."""
    while "properties" not in node:
        inner = node.get("items") or node.get("additionalProperties")
        reference = node.get("$ref")
        if reference is not None:
            node = _messages(document)[str(reference)]
        elif isinstance(inner, dict):
            node = inner
        else:
            return {}
    return cast("Mapping[str, Object]", node["properties"])


def _api_name(known: Mapping[str, Object], *candidates: str) -> str:
    """Return the request's name of a property: as in the schema, as in the SDK, or in another case. Otherwise the first candidate."""
    folded = {name.lower(): name for name in known}
    exact = next((name for name in candidates if name in known), None)
    return exact or next((folded[name.lower()] for name in candidates if name.lower() in folded), candidates[0])


def _at(document: str, node: Object, path: str) -> Object | None:
    found: Object | None = node
    for step in path.split("."):
        found = _properties(document, found).get(step) if found is not None else None
    return found


def pulumi_name(terraform: str, facts: Object) -> str:
    """Return the SDK's name of a property: camel case, and a plural for lists of more than one."""
    name = _RENAMED.get(terraform) or _camel(terraform)
    return _plural(name) if facts["type"] in {"List", "Set"} and not _is_single(facts) else name


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word.capitalize() for word in tail)


def _plural(name: str) -> str:
    if name.endswith("s") and not name.endswith(("ss", "us")):
        return name
    if name.endswith("y") and name[-2] not in "aeiou":
        return f"{name[:-1]}ies"
    return f"{name}es" if name.endswith(("s", "x", "ch", "sh")) else f"{name}s"
