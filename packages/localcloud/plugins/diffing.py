"""Diff: which properties change between the state and the program, and whether a change replaces the resource.

The comparison is the real provider's: the state (Google's last response) against the program's inputs. If the program does not set a value,
a value that the service chose is not a difference, and neither is one that another client set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from localcloud.plugins.coding import fingerprint
from localcloud.plugins.schema import PropertySpec, PropertySpecs, ValueKind
from localcloud.plugins.values import Path, UnknownValue, Value, is_list, is_object, render_path


class DiffKind(Enum):
    """Kind of change of a property."""

    ADD = "add"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """One line of a detailed diff."""

    change: DiffKind
    replaces: bool = False

    @property
    def kind(self) -> str:
        """Return the engine's name of the kind, such as `update-replace`."""
        return f"{self.change.value}-replace" if self.replaces else self.change.value


Details: TypeAlias = dict[Path, Detail]
_Object: TypeAlias = Mapping[str, Value]
META: Path = ("__meta",)
"""The path under which the real provider reports a replacement that no single property causes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All changes of a resource. `delete_first`: the old one must be deleted before the new one is created because both have the same name."""

    details: Mapping[Path, Detail] = field(default_factory=dict[Path, Detail])
    delete_first: bool = False

    @property
    def replaces(self) -> bool:
        """Return whether the resource must be replaced."""
        return any(detail.replaces for detail in self.details.values())

    @property
    def changed(self) -> frozenset[str]:
        """Return the names of the top-level properties that change."""
        return frozenset(str(path[0]) for path in self.details)

    def rendered(self) -> dict[str, str]:
        """Return property paths and kinds in the engine's format."""
        return {render_path(path): detail.kind for path, detail in self.details.items()}


def compare(fields: PropertySpecs, state: Mapping[str, Value], news: Mapping[str, Value]) -> Details:
    """Compare a state with the current inputs."""
    comparison = _ValueComparison()
    comparison.objects(fields, state, news, (), replaces=False)
    return comparison.details


@dataclass(slots=True)
class _ValueComparison:
    """Compares values and collects the changes. `replaces`: a change of the value replaces the resource."""

    details: Details = field(default_factory=dict[Path, Detail])

    def objects(self, fields: PropertySpecs, old: _Object, new: _Object, at: Path, *, replaces: bool) -> None:
        for name, each in fields.items():
            if not each.output:
                self.values(each, old.get(name), new.get(name), (*at, name), replaces=replaces or each.force_new)

    def values(self, each: PropertySpec, old: Value, new: Value, path: Path, *, replaces: bool) -> None:
        if isinstance(new, UnknownValue):
            change = DiffKind.ADD if old is None else DiffKind.UPDATE
            self.details[path] = Detail(change=change, replaces=replaces)
        elif _is_nothing(each, new):
            if not each.computed and not _is_nothing(each, old) and not _is_zero(each, old):
                self.details[path] = Detail(change=DiffKind.DELETE, replaces=replaces or _forces(each, old))
        elif old is None or old == []:
            if not _is_zero(each, new):
                self.details[path] = Detail(change=DiffKind.ADD, replaces=replaces or _forces(each, new))
        else:
            self._given(each, old, new, path, replaces=replaces)

    def _given(self, each: PropertySpec, old: Value, new: Value, path: Path, *, replaces: bool) -> None:
        if each.collapsed and is_object(old) and is_object(new):
            if fingerprint(each, old) != fingerprint(each, new):
                self._members(each, old, new, path, replaces=replaces)
        elif each.kind is ValueKind.BLOCK and is_object(old) and is_object(new):
            self.objects(each.fields, old, new, path, replaces=replaces)
        elif each.kind is ValueKind.TEXTS_BY_KEY and is_object(old) and is_object(new):
            self.details.update(compare_maps(old, new, path, replaces=replaces))
        elif each.item is not None and is_list(old) and is_list(new):
            self._lists(each, each.item, old, new, path, replaces=replaces)
        elif not _equal(each, old, new):
            self.details[path] = Detail(change=DiffKind.UPDATE, replaces=replaces)

    def _members(self, each: PropertySpec, old: _Object, new: _Object, path: Path, *, replaces: bool) -> None:
        """Compare the members of a set of one: all values of the old one are removed, including zeros except empty texts, and the new one's are added."""
        for name, spec in each.fields.items():
            if spec.is_collection or spec.kind is ValueKind.BLOCK:
                self.values(spec, old.get(name), new.get(name), (*path, name), replaces=replaces)
                continue
            before = spec.zero if old.get(name) is None else old[name]
            goes = before != ""
            comes = spec.computed or new.get(name) not in (None, spec.zero)
            if goes or comes:
                change = DiffKind.UPDATE if goes and comes else DiffKind.ADD if comes else DiffKind.DELETE
                self.details[*path, name] = Detail(change=change, replaces=replaces)

    def _lists(
        self, each: PropertySpec, item: PropertySpec, old: list[Value], new: list[Value], path: Path, *, replaces: bool
    ) -> None:
        if each.kind is ValueKind.SET:
            old_members = {fingerprint(item, member) for member in old}
            new_members = {fingerprint(item, member) for member in new}
            removed = {index for index, member in enumerate(old) if fingerprint(item, member) not in new_members}
            added = {index for index, member in enumerate(new) if fingerprint(item, member) not in old_members}
        else:
            removed, added = set(range(len(old))), set(range(len(new)))
        for index in sorted(removed | added):
            if index in removed and index in added:
                self.values(item, old[index], new[index], (*path, index), replaces=replaces)
            else:
                change, member = (DiffKind.DELETE, old[index]) if index in removed else (DiffKind.ADD, new[index])
                self.details[*path, index] = Detail(change=change, replaces=replaces or _forces(item, member))


def _forces(each: PropertySpec, value: Value) -> bool:
    """Return whether any part of an added or removed value cannot change in place."""
    if each.item is not None and is_list(value):
        return any(_forces(each.item, member) for member in value)
    inside = value if each.kind is ValueKind.BLOCK and is_object(value) else {}
    return any(spec.force_new or _forces(spec, inside[name]) for name, spec in each.fields.items() if name in inside)


def compare_maps(old: Mapping[str, Value], new: Mapping[str, Value], path: Path, *, replaces: bool = False) -> Details:
    """Compare two maps of texts key by key."""
    details: Details = {}
    for key in sorted({*old, *new}):
        if key not in old:
            details[*path, key] = Detail(change=DiffKind.ADD, replaces=replaces)
        elif key not in new:
            details[*path, key] = Detail(change=DiffKind.DELETE, replaces=replaces)
        elif old[key] != new[key]:
            details[*path, key] = Detail(change=DiffKind.UPDATE, replaces=replaces)
    return details


def _is_nothing(each: PropertySpec, value: Value) -> bool:
    return value is None or (each.is_collection and value in ([], {}))


def _is_zero(each: PropertySpec, value: Value) -> bool:
    """Return whether a value is equivalent to none: a zero, or an object of zeros such as `{enabled: false}`."""
    if each.kind is ValueKind.BLOCK and is_object(value) and value:
        known = {name: member for name, member in value.items() if name in each.fields}
        return all(
            _is_nothing(each.fields[name], member) or _is_zero(each.fields[name], member)
            for name, member in known.items()
        )
    return each.zero is not None and value == each.zero


def _equal(each: PropertySpec, old: Value, new: Value) -> bool:
    if each.same is not None and isinstance(old, str) and isinstance(new, str):
        return each.same(old) == each.same(new)
    return old == new
