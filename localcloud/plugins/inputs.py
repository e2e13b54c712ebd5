"""Inputs that follow from a state: for imports, and for refreshes that found something changed."""

from collections.abc import Mapping

from localcloud.plugins.checking import DEFAULTS_KEY
from localcloud.plugins.schema import PropertySpec, PropertySpecs, ValueKind
from localcloud.plugins.values import UNKNOWN, Path, Properties, Value, is_list, is_object


def from_state(fields: PropertySpecs, state: Mapping[str, Value]) -> Properties:
    """The inputs that lead to a state: everything that a program could have written and that says something."""
    inputs: Properties = {}
    for name, each in fields.items():
        value = None if each.output else _worth_writing(each, state.get(name))
        if value is not None:
            inputs[name] = value
    return inputs


def _worth_writing(each: PropertySpec, value: Value) -> Value:
    if value is None or value == each.zero or (each.is_collection and value in ([], {})):
        return None
    if each.kind is ValueKind.BLOCK and is_object(value):
        return dict(from_state(each.fields, value))
    if each.item is not None and each.item.kind is ValueKind.BLOCK and is_list(value):
        item = each.item
        return [dict(from_state(item.fields, member)) if is_object(member) else member for member in value]
    return value


def refreshed(
    fields: PropertySpecs, inputs: Properties, state: Mapping[str, Value], drifted: frozenset[str]
) -> Properties:
    """The last inputs, with the properties that drifted taken from the state."""
    fresh: Properties = {}
    for name, each in fields.items():
        if each.output:
            continue
        value = _worth_writing(each, state.get(name)) if name in drifted else inputs.get(name)
        if value is not None:
            fresh[name] = value
    if DEFAULTS_KEY in inputs:
        fresh[DEFAULTS_KEY] = inputs[DEFAULTS_KEY]
    return fresh


def with_kept_defaults(fields: PropertySpecs, state: Mapping[str, Value]) -> Properties:
    """An imported state, with the defaults of what only the provider keeps: the cloud knows nothing of them."""
    defaults = {name: each.default for name, each in fields.items() if each.local and each.default is not None}
    return {**defaults, **state}


def foretold(fields: PropertySpecs, inputs: Mapping[str, Value]) -> Properties:
    """The state as a preview of a creation knows it: the inputs, and unknowns for what the service will say."""
    state: Properties = {}
    for name, each in fields.items():
        value = inputs.get(name)
        if value is not None:
            state[name] = _foretold_inside(each, value)
        elif each.output or each.computed:
            state[name] = UNKNOWN
    return state


def _foretold_inside(each: PropertySpec, value: Value) -> Value:
    if each.kind is ValueKind.BLOCK and is_object(value):
        return dict(foretold(each.fields, value))
    if each.item is not None and each.item.kind is ValueKind.BLOCK and is_list(value):
        item = each.item
        return [dict(foretold(item.fields, member)) if is_object(member) else member for member in value]
    return value


def secret_paths(fields: PropertySpecs, at: Path = ()) -> frozenset[Path]:
    """The places that are secret whatever the program says."""
    found: set[Path] = set()
    for name, each in fields.items():
        if each.secret:
            found.add((*at, name))
        if each.kind is ValueKind.BLOCK:
            found |= secret_paths(each.fields, (*at, name))
    return frozenset(found)
