"""Steps of a preview: what identifies them, and the changed properties for display."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from gemma_serving.contracts.fields import as_mapping, as_sequence, json_object
from gemma_serving.contracts.masking import masked
from gemma_serving.contracts.plain_text import for_model
from gemma_serving.contracts.resource_types import SERVER_TYPES
from gemma_serving.engine.exported_state import UNKNOWN, is_secret, type_in
from gemma_serving.engine.previewed import diagnostics, steps_in
from gemma_serving.engine.state import STACK_TYPE

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownChange:
    """One changed property without secrets; of a long text, the first part that differs. A value that is not set is empty."""

    path: str
    before: str
    after: str
    replaces: bool = False
    """True if it forces a replacement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceChange:
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
        return self.type in SERVER_TYPES and self.op in {"delete", "replace"}


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
    old = as_mapping(step.get("oldState"))
    new = as_mapping(step.get("newState"))
    op = str(step.get("op") or "")
    urn = str(step.get("urn") or "")
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
    op = str(step.get("op") or "")
    urn = str(step.get("urn") or "")
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
    """Return the first properties that an engine step changes, and the number of further ones.

    A text that is a JSON object, such as a document in a TPU VM's metadata, is shown by its own keys.
    """
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
    """Return a property before and after. Its outputs count if its inputs are the same: it was changed in the cloud."""
    before = as_mapping(step.get("oldState"))
    after = as_mapping(step.get("newState"))
    old = _value(path, as_mapping(before.get("inputs")))
    new = _value(path, as_mapping(after.get("inputs")))
    old_output = _value(path, as_mapping(before.get("outputs")))
    new_output = _value(path, as_mapping(after.get("outputs")))
    if old != new or old_output is _NO_VALUE:
        return old, new
    return old_output, new if old_output != new or new_output is _NO_VALUE else new_output


def _in_order(path: str) -> list[tuple[int, str]]:
    """Return a sort key that puts the tenth argument after the ninth."""
    return [(int(index or 0), quoted or plain) for quoted, index, plain in _KEY.findall(path)]


def _differing(path: str, old: object, new: object) -> Iterator[tuple[str, object, object]]:
    """Yield the path, old and new value of each difference: items of a list, keys of an object, or the whole value."""
    if isinstance(old, list) and isinstance(new, list):
        old_items = cast("list[object]", old)
        new_items = cast("list[object]", new)
        removed = [item for item in old_items if item not in new_items]
        added = [item for item in new_items if item not in old_items]
        yield (path, _item(removed), _item(added)) if removed or added else (path, old, new)
        return
    old_document = _document(cast("object", old))
    new_document = _document(new)
    if not old_document or not new_document:
        yield path, old, new
        return
    differs = False
    for key in dict.fromkeys((*old_document, *new_document)):
        old_value = old_document.get(key, _NO_VALUE)
        new_value = new_document.get(key, _NO_VALUE)
        if old_value != new_value:
            differs = True
            yield from _differing(f"{path}.{key}", old_value, new_value)
    if not differs:
        yield path, old, new


def _item(found: Sequence[object]) -> object:
    """Return the list items that differ; a single one as itself."""
    return found[0] if len(found) == 1 else list(found) or _NO_VALUE


def _document(value: object) -> Mapping[str, object]:
    """Return a JSON object, also one written as text; empty for others and secrets."""
    text = value if isinstance(value, str) else ""
    found = json_object(text) or as_mapping(value)
    return {} if is_secret(found) else found


def _shown(path: str, old: object, new: object, secrets: Sequence[str], *, replaces: bool) -> ShownChange:
    """Return a change for a message: without secrets, and cut to the part that differs."""
    key = path.rpartition(".")[2]
    old_text = _line_without_secrets(key, old, secrets)
    new_text = _line_without_secrets(key, new, secrets)
    pairs = zip(old_text, new_text, strict=False)
    first = next((at for at, (old_one, new_one) in enumerate(pairs) if old_one != new_one), None)
    if first is None:
        first = min(len(old_text), len(new_text))
    start = max(0, first - _BEFORE_CHARACTERS)
    before = _cut(old_text, start)
    after = _cut(new_text, start)
    if before and before == after:  # a secret, or truncated text
        after = f"{after} (another value)"
    return ShownChange(path=path[:_PATH_CHARACTERS], before=before, after=after, replaces=replaces)


def _line_without_secrets(key: str, value: object, secrets: Sequence[str]) -> str:
    """Return a value on one line, masked as a whole, so that no part of a secret remains if the line is cut later."""
    text = _text(value)
    if text == _SECRET:
        return text
    label = f"{key}: "  # the key can identify its value as a secret
    return " ".join(for_model(masked(f"{label}{text}", secrets).removeprefix(label)).split())


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
