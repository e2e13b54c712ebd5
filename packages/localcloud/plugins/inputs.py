"""Inputs derived from a state, for imports and for refreshes that found changes."""

from collections.abc import Mapping

from localcloud.plugins.checking import DEFAULTS_KEY
from localcloud.plugins.schema import PropertySpec, PropertySpecs, ValueKind
from localcloud.plugins.values import UNKNOWN, Path, Properties, Value, is_list, is_object


def from_state(fields: PropertySpecs, state: Mapping[str, Value]) -> Properties:
    """Return the inputs that produce a state: everything that a program can set, without zeros."""
    inputs: Properties = {}
    for name, each in fields.items():
        value = None if each.output else _worth_writing(each, state.get(name))
        if value is not None:
            inputs[name] = value
    return inputs


def _worth_writing(each: PropertySpec, value: Value) -> Value:
    if value is None or value == each.zero or (each.is_collection and value in ([], {})):
        return None
    return each.inside(value, from_state)


def refreshed(
    fields: PropertySpecs, inputs: Properties, state: Mapping[str, Value], drifted: frozenset[str]
) -> Properties:
    """Return the last inputs, with drifted properties taken from the state."""
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
    """Return an imported state with the defaults of properties that exist only in the provider."""
    defaults = {name: each.kept for name, each in fields.items() if each.local and each.kept is not None}
    return {**defaults, **state}


def with_chosen(fields: PropertySpecs, inputs: Mapping[str, Value], state: Mapping[str, Value]) -> Properties:
    """Return the inputs plus the service's values for missing ones, including inside objects and lists, but not inside sets."""
    filled: Properties = {}
    for name, value in inputs.items():
        each = fields.get(name)
        filled[name] = value if each is None else _with_chosen_inside(each, value, state.get(name))
    for name, each in fields.items():
        if each.computed and name not in filled and name in state:
            filled[name] = state[name]
    return filled


def _with_chosen_inside(each: PropertySpec, value: Value, known: Value) -> Value:
    if each.kind is ValueKind.BLOCK and is_object(value) and is_object(known):
        return dict(with_chosen(each.fields, value, known))
    if each.kind is ValueKind.LIST and each.item is not None and is_list(value) and is_list(known):
        padded = [*known, *[None] * len(value)]
        return [_with_chosen_inside(each.item, member, padded[index]) for index, member in enumerate(value)]
    return value


def predicted(fields: PropertySpecs, inputs: Mapping[str, Value]) -> Properties:
    """Return the state in a preview of a creation: the inputs, with unknowns for values that the service will choose."""
    state: Properties = {}
    for name, each in fields.items():
        value = inputs.get(name)
        if value is not None:
            state[name] = each.inside(value, predicted)
        elif each.output or each.computed:
            state[name] = UNKNOWN if each.kept is None else each.kept
    return state


def secret_paths(fields: PropertySpecs, at: Path = ()) -> frozenset[Path]:
    """Return the paths that are always secret."""
    found: set[Path] = set()
    for name, each in fields.items():
        if each.secret:
            found.add((*at, name))
        if each.kind is ValueKind.BLOCK:
            found |= secret_paths(each.fields, (*at, name))
    return frozenset(found)
