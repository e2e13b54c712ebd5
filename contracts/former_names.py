"""JSON keys renamed in 0.2.0. Documents have both names and readers accept both. 0.3.0 will drop the former names."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

_Rename = Callable[[Mapping[str, object], Mapping[str, str]], dict[str, object]]

DOCTOR: Final[Mapping[str, str]] = {"fix": "mend"}
LOGS: Final[Mapping[str, str]] = {"fix": "mend"}
TEARDOWN: Final[Mapping[str, str]] = {"leaked": "left", "retained": "kept", "warnings": "remarks", "unknown": "untold"}
RECOVER: Final = {"owned": "ours", "not_owned": "foreign", "missing": "absent", "pending": "later", "imported": "taken"}
CAPACITY: Final[Mapping[str, str]] = {"locations": "places", "location": "place"}
NEW: Final[Mapping[str, str]] = {"locations": "places"}
"""Former key by current key, for each kind of document."""

DOCTOR_STATES: Final[Mapping[str, str]] = {"unknown": "cannot be told"}
"""Former values of the key `state` of `doctor --json`, now `status`."""
ROLLOUT_OUTCOMES: Final[Mapping[str, str]] = {"rolled back manually": "gone back", "not rolled back": "not gone back"}
"""Former value of `outcome` by its current one, in the report and the record of a rollout."""


def current_outcome(outcome: object) -> object:
    """Return the current name of a rollout outcome of this release or the former one."""
    return {old: new for new, old in ROLLOUT_OUTCOMES.items()}.get(str(outcome), outcome)


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


def _both(key: str, value: object, former: Mapping[str, str]) -> list[tuple[str, object]]:
    shown = _nested(value, former, with_former_names)
    return [(name, shown) for name in (key, former.get(key)) if name is not None]


def _nested(value: object, former: Mapping[str, str], rename: _Rename) -> object:
    if isinstance(value, Mapping):
        return rename(cast("Mapping[str, object]", value), former)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_nested(item, former, rename) for item in cast("Sequence[object]", value)]
    return value
