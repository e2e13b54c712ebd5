"""JSON keys renamed in 0.2.0. Documents have both names and readers accept both. 0.3.0 will drop the former names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from contracts.fields import as_mapping, camel_case

_Rename = Callable[[Mapping[str, object], Mapping[str, str]], dict[str, object]]

DOCTOR: Final[Mapping[str, str]] = {"fix": "mend"}
LOGS: Final[Mapping[str, str]] = {"fix": "mend"}
TEARDOWN: Final[Mapping[str, str]] = {"leaked": "left", "retained": "kept", "warnings": "remarks", "unknown": "untold"}
RECOVER: Final = {"owned": "ours", "not_owned": "foreign", "missing": "absent", "pending": "later", "imported": "taken"}
CAPACITY: Final[Mapping[str, str]] = {"locations": "places", "location": "place"}
NEW: Final[Mapping[str, str]] = {"locations": "places"}
MARGIN: Final[Mapping[str, str]] = {
    "verdict": "says",
    "available_gib": "has_gib",
    "minimum_gib": "needs_gib",
    "recommended_gib": "enough_gib",
}
PLAN_COSTS: Final[Mapping[str, str]] = {"idle_billing_s": "linger_s"}
"""Former key by current key, for each kind of document."""

MARGIN_OUTPUT: Final[Mapping[str, str]] = {camel_case(key): camel_case(former) for key, former in MARGIN.items()}
"""The same for the stack output `plan.margin`."""
PLAN_VERDICTS: Final[Mapping[str, str]] = {"out-of-memory": "oom"}
"""Former value by current value of a plan's key `verdict`."""

DOCTOR_STATES: Final[Mapping[str, str]] = {"unknown": "cannot be told"}
"""Former values of the key `state` of `doctor --json`, now `status`."""
ROLLOUT_OUTCOMES: Final[Mapping[str, str]] = {"rolled back manually": "gone back", "not rolled back": "not gone back"}
"""Former value of `outcome` by its current one, in the report and the record of a rollout."""


def current_value(value: object, former: Mapping[str, str]) -> object:
    """Return a value of this release or the former one by its current name; `former` has the former names by the current ones."""
    return next((new for new, old in former.items() if old == value), value)


def with_former_names(document: Mapping[str, object], former: Mapping[str, str]) -> dict[str, object]:
    """Return the document with each renamed key also under its former name, at every depth."""
    return {name: value for key, found in document.items() for name, value in _both(key, found, former)}


def with_current_names(document: Mapping[str, object], former: Mapping[str, str]) -> dict[str, object]:
    """Return a document of this or the former release with only current keys, at every depth."""
    current = {old: new for new, old in former.items()}
    return {
        current.get(key, key): _nested(value, former, with_current_names)
        for key, value in document.items()
        if current.get(key, key) == key or current[key] not in document
    }


def with_current_plan(outputs: Mapping[str, object]) -> dict[str, object]:
    """Return a stack's outputs of this release or the former one with the current keys and values of `plan`."""
    plan = dict(as_mapping(outputs.get("plan")))
    if not plan:
        return dict(outputs)
    plan["verdict"] = current_value(plan.get("verdict"), PLAN_VERDICTS)
    if margin := as_mapping(plan.get("margin")):
        plan["margin"] = with_current_names(margin, MARGIN_OUTPUT)
    return {**outputs, "plan": plan}


def with_former_plan(outputs: Mapping[str, object]) -> dict[str, object]:
    """Return a stack's outputs with the former keys of `plan.margin` as well."""
    plan = as_mapping(outputs.get("plan"))
    margin = as_mapping(plan.get("margin"))
    if not margin:
        return dict(outputs)
    return {**outputs, "plan": {**plan, "margin": with_former_names(margin, MARGIN_OUTPUT)}}


def _both(key: str, value: object, former: Mapping[str, str]) -> list[tuple[str, object]]:
    shown = _nested(value, former, with_former_names)
    return [(name, shown) for name in (key, former.get(key)) if name is not None]


def _nested(value: object, former: Mapping[str, str], rename: _Rename) -> object:
    if isinstance(value, Mapping):
        return rename(cast("Mapping[str, object]", value), former)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_nested(item, former, rename) for item in cast("Sequence[object]", value)]
    return value
