"""Steps of a preview: what identifies them, and the changed properties for display."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pydantic import BaseModel

from contracts.fields import as_mapping, as_sequence, json_object
from contracts.masking import masked
from contracts.plain_text import for_model
from contracts.resource_types import CAPACITY_TYPE, SERVICE_TYPE
from engine.deployment import UNKNOWN, is_secret, type_in
from engine.previewed import diagnostics, steps_in
from engine.state import STACK_TYPE

CAPACITY_TYPES: Final = (CAPACITY_TYPE, SERVICE_TYPE)
_QUIET: Final = frozenset({"same", "refresh"})
"""Operations without changes. A refresh reports its findings as separate steps."""
_SHOWN: Final = frozenset({"create", "update", "delete", "replace", "read"})
_SHOWN_CHARACTERS: Final = 80
_BEFORE_CHARACTERS: Final = 24
"""Characters shown before the first difference of two long values."""
_MOST_CHANGES: Final = 20
"""Maximum changes shown per step. All are compared."""
_KEY: Final = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|([^.\[\]]+)')
"""One part of a property's path, as the engine writes it: `template.containers[0].env["A.B"]`."""
_PATH_CHARACTERS: Final = 200
_NO_VALUE: Final = object()
_SECRET: Final = "[secret]"  # noqa: S105 - as the engine shows one


class ShownChange(BaseModel, frozen=True, extra="forbid"):
    """One changed property without secrets; of a long text, the first part that differs. A value that is not set is empty."""

    path: str
    before: str
    after: str
    replaces: bool = False
    """True if it forces a replacement."""


class ResourceChange(BaseModel, frozen=True):
    """A resource that will change. `op` is create, update, replace, delete or read."""

    op: str
    type: str
    name: str
    properties: tuple[str, ...] = ()
    """Top-level properties that differ."""
    forced_by: tuple[str, ...] = ()
    """Properties that force a replacement."""
    changes: tuple[ShownChange, ...] = ()
    changes_left_out: int = 0

    @property
    def is_disruptive(self) -> bool:
        """True if it replaces or deletes the serving resource."""
        return self.type in CAPACITY_TYPES and self.op in {"delete", "replace"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A step with a change."""

    op: str
    type: str
    name: str
    digest: str
    """Hash of operation, changed properties, id, and inputs before and after."""


def steps_of(preview: Mapping[str, object]) -> tuple[PlannedStep, ...]:
    """Return the steps of a preview with a change, sorted: the engine's order varies."""
    found = [_step(step) for step in steps_in(preview) if step.get("op") not in _QUIET]
    return tuple(sorted(found, key=lambda step: (step.type, step.name, step.op, step.digest)))


def _step(step: Mapping[str, object]) -> PlannedStep:
    old, new = (as_mapping(step.get(key)) for key in ("oldState", "newState"))
    op, urn = (str(step.get(key) or "") for key in ("op", "urn"))
    reasons = [sorted(map(str, as_sequence(step.get(key)))) for key in ("diffReasons", "replaceReasons")]
    facts = [op, urn, reasons, old.get("id"), old.get("inputs"), new.get("inputs")]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return PlannedStep(op=op, type=type_in(urn), name=urn.rpartition("::")[2], digest=digest)


def changes_of(
    preview: Mapping[str, object], secrets: Sequence[str] = ()
) -> tuple[tuple[ResourceChange, ...], int, tuple[str, ...]]:
    """Return a preview's changes, the number of unchanged resources, and the warnings."""
    changes = [_change(step, secrets) for step in steps_in(preview) if step.get("op") in _SHOWN]
    warnings = tuple(text.removeprefix("warning:").strip() for text in diagnostics(preview, "warning"))
    unchanged = as_mapping(preview.get("changeSummary")).get("same")
    shown = tuple(change for change in changes if change.type != STACK_TYPE)
    return shown, unchanged if isinstance(unchanged, int) else 0, warnings


def _change(step: Mapping[str, object], secrets: Sequence[str]) -> ResourceChange:
    op, urn = (str(step.get(key) or "") for key in ("op", "urn"))
    differs = op != "create" and bool(step.get("newState"))
    changes, rest = shown_changes(step, secrets) if differs else ((), 0)
    return ResourceChange(
        op=op,
        type=type_in(urn),
        name=urn.rpartition("::")[2],
        properties=tuple(map(str, as_sequence(step.get("diffReasons")))),
        forced_by=tuple(map(str, as_sequence(step.get("replaceReasons")))),
        changes=tuple(changes),
        changes_left_out=rest,
    )


def shown_changes(step: Mapping[str, object], secrets: Sequence[str]) -> tuple[Sequence[ShownChange], int]:
    """Return the first properties that a step changes, and the number of further ones."""
    detailed = as_mapping(step.get("detailedDiff"))
    forced = set(map(str, as_sequence(step.get("replaceReasons"))))
    found: list[ShownChange] = []
    for path in sorted(map(str, detailed or as_sequence(step.get("diffReasons"))), key=_in_order):
        replaces = path in forced or str(as_mapping(detailed.get(path)).get("kind") or "").endswith("-replace")
        pairs = _differing(path, *_values(path, step))
        found += [_shown(where, was, is_now, secrets, replaces=replaces) for where, was, is_now in pairs]
    found.sort(key=lambda change: not change.replaces)
    return found[:_MOST_CHANGES], max(0, len(found) - _MOST_CHANGES)


def _values(path: str, step: Mapping[str, object]) -> tuple[object, object]:
    """Return a property before and after. Changed in the cloud, its inputs are the same."""
    states = [as_mapping(step.get(key)) for key in ("oldState", "newState")]
    old, new = (_value(path, as_mapping(state.get("inputs"))) for state in states)
    found, planned = (_value(path, as_mapping(state.get("outputs"))) for state in states)
    if old != new or found is _NO_VALUE:
        return old, new
    return found, new if found != new or planned is _NO_VALUE else planned


def _in_order(path: str) -> list[tuple[int, str]]:
    """Return a sort key that puts the tenth argument after the ninth."""
    return [(int(index or 0), quoted or plain) for quoted, index, plain in _KEY.findall(path)]


def _differing(path: str, old: object, new: object) -> Iterator[tuple[str, object, object]]:
    if isinstance(old, list) and isinstance(new, list):
        was, are = cast("list[object]", old), cast("list[object]", new)
        gone, come = [item for item in was if item not in are], [item for item in are if item not in was]
        yield (path, _item(gone), _item(come)) if gone or come else (path, old, new)
        return
    one, two = _document(cast("object", old)), _document(new)
    found: list[tuple[str, object, object]] = []
    for key in dict.fromkeys((*one, *two)) if one and two else ():
        was, is_now = one.get(key, _NO_VALUE), two.get(key, _NO_VALUE)
        if was != is_now:
            found += _differing(f"{path}.{key}", was, is_now)
    yield from found or [(path, old, new)]


def _item(found: Sequence[object]) -> object:
    return found[0] if len(found) == 1 else list(found) or _NO_VALUE


def _document(value: object) -> Mapping[str, object]:
    """Return a JSON object, also one written as text; empty for others and secrets."""
    text = value if isinstance(value, str) else ""
    found = json_object(text) or as_mapping(value)
    return {} if is_secret(found) else found


def _shown(path: str, old: object, new: object, secrets: Sequence[str], *, replaces: bool) -> ShownChange:
    # Masked before truncation, so no part of a secret remains; with its key, which can identify it as a secret.
    label = f"{path.rpartition('.')[2]}: "
    texts = [_text(value) for value in (old, new)]
    before, after = (
        text if text == _SECRET else for_model(masked(f"{label}{text}", secrets).removeprefix(label)) for text in texts
    )
    before, after = (" ".join(text.split()) for text in (before, after))
    differs = (at for at, (one, two) in enumerate(zip(before, after, strict=False)) if one != two)
    start = max(0, next(differs, min(len(before), len(after))) - _BEFORE_CHARACTERS)
    before, after = _cut(before, start), _cut(after, start)
    if before and before == after:  # a secret, or truncated text
        after = f"{after} (another value)"
    return ShownChange(path=path[:_PATH_CHARACTERS], before=before, after=after, replaces=replaces)


def _value(path: str, inputs: Mapping[str, object]) -> object:
    value: object = inputs
    for quoted, index, plain in _KEY.findall(path):
        if index:
            items = as_sequence(value)
            value = items[int(index)] if int(index) < len(items) else _NO_VALUE
        else:
            value = as_mapping(value).get(quoted or plain, _NO_VALUE)
    return value


def _text(value: object) -> str:
    if value is _NO_VALUE or value is None:
        return ""
    if is_secret(value):
        return _SECRET
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text.replace(UNKNOWN, "(known after up)")


def _cut(text: str, start: int) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    shown = text[start : start + _SHOWN_CHARACTERS]
    return f"{'…' if start else ''}{shown}{'…' if start + _SHOWN_CHARACTERS < len(text) else ''}"
