"""Labels and annotations: the program's, the provider's own, and other clients'.

`labels` are the program's, `pulumiLabels` those and the provider's own, `effectiveLabels` all labels of the resource. Labels of other clients are
left alone, as in the real provider.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from localcloud.plugins.diffing import Details, compare_maps
from localcloud.plugins.lifecycle import PluginSettings
from localcloud.plugins.schema import PropertySpec
from localcloud.plugins.values import Properties, Value, has_unknown, is_object


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The properties of labels or annotations. `managed` is empty if the provider adds none of its own."""

    written: str
    effective: str
    managed: str = ""


LABELS: Final = Family(written="labels", effective="effectiveLabels", managed="pulumiLabels")
ANNOTATIONS: Final = Family(written="annotations", effective="effectiveAnnotations")


def families(fields: Mapping[str, PropertySpec]) -> list[Family]:
    """Return the families that a resource type with these properties has."""
    return [family for family in (LABELS, ANNOTATIONS) if family.effective in fields]


def wanted(family: Family, settings: PluginSettings, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Return the labels that the program and the provider set."""
    written = _map(inputs, family.written)
    return {**settings.default_labels, **written, **_own(settings)} if family.managed else dict(written)


def _own(settings: PluginSettings) -> Mapping[str, Value]:
    return {name: text for name, text in settings.provider_labels.items() if name not in settings.default_labels}


def to_send(
    family: Family, settings: PluginSettings, inputs: Mapping[str, Value], state: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the labels to send: the wanted ones, and other clients' labels in the state."""
    ours = _map(state, family.managed or family.written)
    others = {name: text for name, text in _map(state, family.effective).items() if name not in ours}
    return {**others, **wanted(family, settings, inputs)}


def predict(
    fields: Mapping[str, PropertySpec], settings: PluginSettings, inputs: Properties, state: Mapping[str, Value]
) -> Properties:
    """Return the computed properties of all families in a preview. `state` is empty before a creation."""
    predicted: Properties = {}
    for family in families(fields):
        if not has_unknown(inputs.get(family.written)):
            predicted[family.effective] = to_send(family, settings, inputs, state)
            if family.managed:
                predicted[family.managed] = wanted(family, settings, inputs)
    return predicted


def sort_out(
    family: Family, settings: PluginSettings, state: Properties, given: Mapping[str, Value], *, imported: bool
) -> None:
    """Split the labels of the response (in `state`, under the written name) into the family's properties, in place."""
    found = dict(_map(state, family.written))
    own: Mapping[str, Value] = _own(settings) if family.managed else {}
    written = {name for name in found if name not in own} if imported else set(_map(given, family.written))
    kept = {name: text for name, text in found.items() if name in written}
    if kept:
        state[family.written] = kept
    elif found:
        state.pop(family.written)
    state[family.effective] = found
    if family.managed:
        ours = {*_map(given, family.managed), *wanted(family, settings, given)} if not imported else set[str]()
        state[family.managed] = {name: text for name, text in found.items() if name in ours}


def differences(
    family: Family, settings: PluginSettings, state: Mapping[str, Value], inputs: Mapping[str, Value]
) -> Details:
    """Return the differences in the computed properties of a family."""
    want = wanted(family, settings, inputs)
    ours = _map(state, family.managed or family.written)
    effective = {name: text for name, text in _map(state, family.effective).items() if name in ours or name in want}
    details = compare_maps(effective, want, (family.effective,))
    if family.managed:
        details.update(compare_maps(ours, want, (family.managed,)))
    return details


def _map(values: Mapping[str, Value], name: str) -> Mapping[str, Value]:
    value = values.get(name) if name else None
    return value if is_object(value) else {}
