"""Every change between two schemas of the provider's package, and which of them break a program or its stacks.

A change is breaking if a program that is correct with the old schema does not compile, is refused, loses a value or replaces a resource
with the new one. Each value that is gone or another one is breaking, unless the tables below say that no program can notice it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from authors.release.version import SCHEMA, number
from contracts.errors import ScriptError
from tools.git import git

Json: TypeAlias = Mapping[str, Any]
Leaves: TypeAlias = Mapping[tuple[str, ...], object]
_TEXTS: Final = frozenset(
    {"version", "displayName", "description", "deprecationMessage", "keywords", "homepage", "license", "repository"}
    | {"publisher", "logoUrl", "attribution", "pluginDownloadURL", "meta", "comment"}
)
"""Keys that no program compiles against."""
_SDK_NAMES: Final = frozenset({"packageName", "importBasePath", "namespaces", "rootNamespace", "basePackage"})
"""Settings of an SDK that name what programs import. Its other settings break no program."""
_MARKS: Final = frozenset({"default", "defaultInfo", "const", "plain", "isComponent"})
"""Keys that break a program also when they are added to a property or a resource that exists."""
_REPLACES: Final = frozenset({"replaceOnChanges", "willReplaceOnChanges"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """One change of a value. `before` and `after` are JSON texts, empty where there is nothing."""

    where: str
    """Path in the schema, such as `resources gcp-tpu:index:QueuedResource inputProperties zones type`."""
    is_breaking: bool
    before: str
    after: str

    @property
    def line(self) -> str:
        """Return the change as one line."""
        return f"{'BREAKING' if self.is_breaking else '':<9} {self.where}: {self.before or 'none'} -> {self.after or 'none'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaComparison:
    """The changes between two versions of the package."""

    source: str
    old: str
    new: str
    changes: Sequence[SchemaChange]

    @property
    def is_refused(self) -> bool:
        """Return whether a change is breaking although the new version may not break programs: a new major one may, or a new minor of 0.x."""
        (old_major, old_minor, _), (new_major, new_minor, _) = number(self.old), number(self.new)
        may_break = new_major > old_major or (old_major == new_major == 0 and new_minor > old_minor)
        return not may_break and any(change.is_breaking for change in self.changes)

    @property
    def text(self) -> str:
        """Return the changes, one a line, below a heading."""
        breaking = sum(change.is_breaking for change in self.changes)
        counted = f"{len(self.changes)} changes, {breaking} breaking"
        heading = f"gcp-tpu {self.old} ({self.source}) -> {self.new}: {counted}."
        return "\n".join([heading, *(change.line for change in self.changes)])


def compare(root: Path, source: str) -> SchemaComparison:
    """Compare the schema of a commit, tag or branch with that of the checkout. Raises ScriptError."""
    text = git(root, "show", f"{source}:{SCHEMA}")
    if text is None:
        raise ScriptError(f"{source} is not a commit with {SCHEMA}. Pass a tag such as v0.3.0, a branch or a commit.")
    old, new = json.loads(text), json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    return SchemaComparison(source=source, old=old["version"], new=new["version"], changes=changes(old, new))


def changes(old: Json, new: Json) -> Sequence[SchemaChange]:
    """Return every change, breaking ones first."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    found = [
        SchemaChange(
            where=" ".join(path),
            is_breaking=_breaks(path, before, after),
            before=json.dumps(before[path]) if path in before else "",
            after=json.dumps(after[path]) if path in after else "",
        )
        for path in before.keys() | after.keys()
        if path not in before or path not in after or before[path] != after[path]
    ]
    return sorted(found, key=lambda change: (not change.is_breaking, change.where))


def _breaks(path: tuple[str, ...], before: Leaves, after: Leaves) -> bool:
    """Return whether the change of the value at a path breaks programs."""
    *owner, key = path
    if "language" in path:
        return bool(_SDK_NAMES.intersection(path))
    if key in _TEXTS or path[0] in _TEXTS or not _is_known(path[:2], before):
        return False
    if "requiredInputs" in owner or key in _REPLACES:
        return bool(after.get(path))
    if "required" in owner:
        # A type is used by inputs and by outputs. An output that becomes required breaks no program.
        return path in before or owner[0] != "resources"
    if key == "secret":
        return not after.get(path)
    marked = next((place for place, word in enumerate(path) if word in _MARKS), None)
    return path in before or (marked is not None and _is_known(path[:marked], before))


def _is_known(owner: tuple[str, ...], leaves: Leaves) -> bool:
    return any(path[: len(owner)] == owner for path in leaves)


def _leaves(node: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the path and value of everything except objects. A list of texts or of named objects has its members as paths."""
    if isinstance(node, dict):
        for key, value in cast("dict[str, object]", node).items():
            yield from _leaves(value, (*path, key))
        if not node:
            yield (*path, "{}"), True
    elif isinstance(node, list):
        for value in cast("list[object]", node):
            named = cast("dict[str, object]", value) if isinstance(value, dict) else {"value": value}
            name = str(named.get("value", named.get("type", "")))
            yield from _leaves({key: each for key, each in named.items() if key != "value"} or True, (*path, name))
    else:
        yield path, node
