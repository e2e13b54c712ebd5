"""Convert properties to request bodies and responses to properties, according to the fields."""

import json
import zlib
from collections.abc import Mapping
from typing import cast

from localcloud.plugins.schema import (
    ABSENT,
    Json,
    Object,
    PropertySpec,
    PropertySpecs,
    ResourceScope,
    UnsetValue,
    ValueKind,
)
from localcloud.plugins.values import Properties, Value, is_list, is_object


def encode_body(
    fields: PropertySpecs, values: Mapping[str, Value], scope: ResourceScope, *, update: bool = False
) -> Object:
    """Return a request body. Updates omit fields that can only be set at creation."""
    body: Object = {}
    for name, each in fields.items():
        if each.local or each.output or (update and each.create_only):
            continue
        encoded = encode_field(each, values.get(name), scope, update=update)
        if encoded is not ABSENT:
            put(body, each.api or name, encoded)
    return body


def encode_field(each: PropertySpec, value: Value, scope: ResourceScope, *, update: bool = False) -> Json | UnsetValue:
    """Encode one value. ABSENT if the real provider omits the field."""
    if value is None:
        return _unset(each, update=update)
    encoded = each.encode(value, scope) if each.encode else _encode(each, value, scope, update=update)
    if _is_empty(each, encoded, value) and not each.send_zero:
        return _unset(each, update=update)
    return [encoded] if each.wrapped else encoded


def _unset(each: PropertySpec, *, update: bool) -> Json | UnsetValue:
    if update and each.unset_update is not ABSENT:
        return each.unset_update
    return each.unset


def _is_empty(each: PropertySpec, encoded: Json, value: Value) -> bool:
    if each.encode:
        return encoded is None or value in (0, False, "")
    return encoded in (None, False, 0, "", [], {})


def _encode(each: PropertySpec, value: Value, scope: ResourceScope, *, update: bool) -> Json:
    if each.kind is ValueKind.BLOCK and is_object(value):
        body = encode_body(each.fields, value, scope, update=update)
        if each.switch:
            body[each.switch] = True
        return body
    if each.item is not None and is_list(value):
        items = set_order(each.item, value) if each.kind is ValueKind.SET else value
        return [_encode(each.item, item, scope, update=update) for item in items]
    return str(value) if each.long else cast("Json", value)


def put(body: Object, path: str, value: Json) -> None:
    """Set a dotted path in a body, creating the objects along it."""
    *parents, last = path.split(".")
    for parent in parents:
        body = cast("Object", body.setdefault(parent, {}))
    body[last] = value


def pick(body: Mapping[str, Json], path: str) -> Json:
    """Return the value of a dotted path in a body, or None if the path does not exist."""
    at: Json = dict(body)
    for step in path.split("."):
        at = at.get(step) if isinstance(at, dict) else None
    return at


def decode_body(fields: PropertySpecs, body: Mapping[str, Json], given: Mapping[str, Value]) -> Properties:
    """Read a response: every field that it can contain, with zeros for missing ones.

    `given` are the inputs or the previous state: fields that are never sent keep their value from there, and sets keep its order.
    """
    state: Properties = {}
    for name, each in fields.items():
        known = given.get(name)
        value = given.get(name, each.kept) if each.local else decode_field(each, pick(body, each.api or name), known)
        if value is not None:
            state[name] = value
    return state


def decode_field(each: PropertySpec, raw: Json, given: Value) -> Value:
    """Decode one value. None if it is missing and has no zero."""
    if each.wrapped and isinstance(raw, list):
        raw = raw[0] if raw else None
    value = None if raw is None else each.decode(raw) if each.decode else _decode(each, raw, given)
    if value is not None:
        return value
    return each.zero if each.absent is ABSENT else each.absent


def _decode(each: PropertySpec, raw: Json, given: Value) -> Value:
    if each.kind is ValueKind.BLOCK:
        return _decode_block(each, raw, given)
    if each.item is not None:
        return _decode_items(each, each.item, [raw] if each.listed else raw, given)
    if each.kind is ValueKind.TEXTS_BY_KEY:
        return cast("Value", dict(raw)) if isinstance(raw, dict) and raw else None
    if each.kind is ValueKind.TEXT and isinstance(raw, int | float):
        return str(raw)
    return int(raw) if each.long and isinstance(raw, str) and raw.isdigit() else cast("Value", raw)


def _decode_block(each: PropertySpec, raw: Json, given: Value) -> Value:
    if not isinstance(raw, dict) or (each.switch and raw.get(each.switch) is not True):
        return None
    return cast("Value", decode_body(each.fields, raw, given if is_object(given) else {}))


def _decode_items(each: PropertySpec, item: PropertySpec, raw: Json, given: Value) -> Value:
    if not isinstance(raw, list) or not raw or raw == [None]:
        return None
    before = given if is_list(given) else []
    padded = [*before, *[None] * len(raw)]
    if each.kind is ValueKind.LIST:
        return [decode_field(item, one, padded[index]) for index, one in enumerate(raw)]
    return set_order(item, [decode_field(item, one, None) for one in raw])


def set_order(item: PropertySpec, values: list[Value]) -> list[Value]:
    """Order a set's members as the real provider sends them: by the decimal text of their serialization's CRC-32."""
    return sorted(values, key=lambda value: str(zlib.crc32(_serialise_member(item, value).encode())))


def _serialise_member(item: PropertySpec, value: Value) -> str:
    if item.kind is ValueKind.BLOCK:
        return _serialise_object(item.fields, value if is_object(value) else {})
    return value if isinstance(value, str) else fingerprint(item, value)


def _serialise_object(fields: PropertySpecs, value: Mapping[str, Value]) -> str:
    names = {each.terraform: name for name, each in fields.items() if not each.output}
    return "".join(f"{snake}:{fingerprint(fields[name], value.get(name))}" for snake, name in sorted(names.items()))


def fingerprint(each: PropertySpec, value: Value) -> str:
    """Return a text that is the same for equal values, whether or not zeros are explicit."""
    if each.kind is ValueKind.BLOCK:
        inner = f"<{_serialise_object(each.fields, value)}>;" if is_object(value) else ""
        return f"({inner});"
    if each.item is not None:
        members = value if is_list(value) else []
        item = each.item
        if item.kind is ValueKind.BLOCK:
            inner = "".join(f"<{_serialise_object(item.fields, member)}>;" for member in members if is_object(member))
        else:
            inner = "".join(fingerprint(item, member) for member in members)
        return f"{{{inner}}};" if each.kind is ValueKind.SET else f"({inner});"
    if each.kind is ValueKind.TEXTS_BY_KEY:
        entries = sorted(value.items()) if is_object(value) else []
        return f"[{''.join(f'{key}:{entry};' for key, entry in entries)}];"
    return f"{_serialise_scalar(each, value)};"


def _serialise_scalar(each: PropertySpec, value: Value) -> str:
    if value is None:
        value = each.zero
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, str):
        return each.same(value) if each.same else value
    return json.dumps(value) if isinstance(value, int | float) else ""
