"""Every change between two schemas of a Pulumi package, and which of them break a program or its stacks.

A change is breaking if a program that is correct with the old schema does not compile, is refused, loses a value or replaces a resource
with the new one. A type can be used by inputs and by outputs, so the rules of both apply to it. pulumi/schema-tools compares removals,
types and required properties in the same way; the rows about defaults, enums, plain values, replacements, secrets and names are added.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

from authors.release.version import number
from contracts.errors import ScriptError
from tools.git import git

Use = Literal["input", "output", "both"]
"""Use of an object in programs: written, read, or both."""
Json: TypeAlias = Mapping[str, Any]
SCHEMAS: Final[Mapping[str, str]] = {"gcp-tpu": "packages/gcp-tpu/schema.json"}
"""Schema of each Pulumi package."""
Side: TypeAlias = tuple[Json, frozenset[str]]
"""Properties of an object by name, and the names of the required ones."""
_SDK_NAMES: Final = (
    "packageName",
    "importBasePath",
    "rootPackageName",
    "namespaces",
    "rootNamespace",
    "basePackage",
    "packages",
)
"""Settings of an SDK that name what programs import."""
_TYPE: Final = ("type", "$ref", "items", "additionalProperties", "oneOf", "discriminator")
_COMPARED: Final = frozenset(
    {
        *_TYPE,
        "plain",
        "default",
        "defaultInfo",
        "const",
        "replaceOnChanges",
        "willReplaceOnChanges",
        "secret",
        "language",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """One change. `before` and `after` are JSON texts, empty where there is nothing."""

    kind: str
    """Such as `input removed`. The part before the last word names what changed."""
    where: str
    """Such as `gcp-tpu:index:QueuedResource zones`."""
    is_breaking: bool
    before: str = ""
    after: str = ""

    @property
    def line(self) -> str:
        """Return the change as one line."""
        values = f": {self.before or 'none'} -> {self.after or 'none'}" if self.before or self.after else ""
        return f"{'BREAKING  ' if self.is_breaking else '          '}{self.kind}  {self.where}{values}"


def parsed(text: str, source: str) -> Json:
    """Return a schema. Raises ScriptError with the source's name if the text is not a package schema."""
    try:
        schema: object = json.loads(text)
    except ValueError as error:
        raise ScriptError(f"{source} is not JSON: {error}. Pass the schema.json of a Pulumi package.") from error
    if not isinstance(schema, dict) or "name" not in schema:
        raise ScriptError(f"{source} has no `name`, so it is not a Pulumi package schema. Pass a schema.json.")
    return cast("Json", schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaComparison:
    """The changes of one package between two of its versions. `old` is empty if the package is new."""

    package: str
    source: str
    old: str
    new: str
    changes: tuple[SchemaChange, ...]

    @property
    def is_refused(self) -> bool:
        """Return whether a change is breaking although the new version may not break programs."""
        return any(change.is_breaking for change in self.changes) and not may_break(self.old, self.new)

    @property
    def text(self) -> str:
        """Return the changes, one a line, below a heading."""
        if not self.old:
            return f"{self.package} {self.new}: new since {self.source}."
        breaking = sum(change.is_breaking for change in self.changes)
        heading = f"{self.package} {self.old} ({self.source}) -> {self.new}: {len(self.changes)} changes, {breaking} breaking."
        return "\n".join([heading, *(change.line for change in self.changes)])


def compare(root: Path, source: str, target: str | None, path: str) -> SchemaComparison:
    """Compare a schema of `source` with that of `target`, or of the checkout. Each is a file, or a commit that has it at `path`.

    A commit that exists without the path had no such package. Raises ScriptError.
    """
    new = read(root, target or str(root / path), path)
    is_new = not Path(source).is_file() and git(root, "show", f"{source}:{path}") is None
    if is_new and git(root, "rev-parse", "--verify", "--quiet", f"{source}^{{commit}}") is None:
        raise ScriptError(
            f"{source} is neither a file nor a commit. Pass a file, a tag such as v0.3.0, a branch or a commit."
        )
    old: Json = {} if is_new else read(root, source, path)
    return SchemaComparison(
        package=str(new["name"]),
        source=source,
        old=str(old.get("version", "")),
        new=str(new.get("version", "")),
        changes=() if is_new else tuple(changes(old, new)),
    )


def read(root: Path, source: str, path: str) -> Json:
    """Return a schema from a file, or from a commit, tag or branch that has it at `path`. Raises ScriptError."""
    if Path(source).is_file():
        return parsed(Path(source).read_text(encoding="utf-8"), source)
    text = git(root, "show", f"{source}:{path}")
    if text is None:
        raise ScriptError(
            f"{source} is neither a file nor a commit with {path}. Pass a file, a tag such as v0.3.0, a branch or a commit."
        )
    return parsed(text, f"{path} of {source}")


def changes(old: Json, new: Json) -> Sequence[SchemaChange]:
    """Return every change, breaking ones first."""
    return sorted(_package(old, new), key=lambda change: (not change.is_breaking, change.where, change.kind))


def may_break(old: str, new: str) -> bool:
    """Return whether a release with version `new` may break programs of `old`: a new major version, or a new minor one of 0.x."""
    (old_major, old_minor, _), (new_major, new_minor, _) = number(old), number(new)
    return new_major > old_major or (old_major == new_major == 0 and new_minor > old_minor)


def _package(old: Json, new: Json) -> Iterator[SchemaChange]:
    yield from _changed("name", "package", old.get("name"), new.get("name"), is_breaking=True)
    yield from _sdk_names(old, new)
    for group, compare in (("resources", _resource), ("functions", _function), ("types", _type)):
        before, after = _part(old, group), _part(new, group)
        yield from _members(group.removesuffix("s"), before, after)
        for token in sorted(before.keys() & after.keys()):
            yield from compare(token, before[token], after[token])
    config = _part(old, "config"), _part(new, "config")
    yield from _object("configuration", "input", *(_side(each, "variables", "required") for each in config))
    yield from _rest("configuration", *config, {"variables", "required"})
    yield from _resource("provider", _part(old, "provider"), _part(new, "provider"))
    yield from _rest("package", old, new, {"name", "language", "resources", "functions", "types", "config", "provider"})


def _sdk_names(old: Json, new: Json) -> Iterator[SchemaChange]:
    """Compare the settings of each language's SDK. A name that programs import breaks them when it changes."""
    before, after = _part(old, "language"), _part(new, "language")
    for language in sorted(before.keys() | after.keys()):
        sides = _part(before, language), _part(after, language)
        for key in _SDK_NAMES:
            yield from _changed(key, f"{language} SDK", *(side.get(key) for side in sides), is_breaking=True)
        yield from _rest(f"{language} SDK", *sides, _SDK_NAMES)


def _resource(token: str, old: Json, new: Json) -> Iterator[SchemaChange]:
    yield from _object(token, "input", *(_side(each, "inputProperties", "requiredInputs") for each in (old, new)))
    yield from _object(token, "output", *(_side(each, "properties", "required") for each in (old, new)))
    methods = _part(old, "methods"), _part(new, "methods")
    yield from _members("method", *methods, token)
    for name in sorted(methods[0].keys() & methods[1].keys()):
        yield from _changed("method", f"{token} {name}", *(each[name] for each in methods), is_breaking=True)
    component = (bool(each.get("isComponent")) for each in (old, new))
    yield from _changed("isComponent", token, *component, is_breaking=True)
    yield from _aliases(token, old, new)
    known = {"inputProperties", "requiredInputs", "properties", "required", "methods", "isComponent", "aliases"}
    yield from _rest(token, old, new, known)


def _aliases(token: str, old: Json, new: Json) -> Iterator[SchemaChange]:
    """Compare former names of a resource. Without the alias, a stack that has that name replaces the resource."""
    before, after = ({_text(alias) for alias in each.get("aliases", ())} for each in (old, new))
    for alias in sorted(before - after):
        yield SchemaChange(kind="alias removed", where=token, is_breaking=True, before=alias)
    for alias in sorted(after - before):
        yield SchemaChange(kind="alias added", where=token, is_breaking=False, after=alias)


def _function(token: str, old: Json, new: Json) -> Iterator[SchemaChange]:
    had, has = (bool(_part(_part(each, "inputs"), "properties")) for each in (old, new))
    if had != has:
        yield SchemaChange(kind="arguments " + ("added" if has else "removed"), where=token, is_breaking=True)
    uses: Sequence[tuple[str, Use]] = (("inputs", "input"), ("outputs", "output"))
    for key, use in uses:
        sides = _part(old, key), _part(new, key)
        yield from _object(token, use, *(_side(side, "properties", "required") for side in sides))
        yield from _rest(f"{token} {key}", *sides, {"properties", "required"})
    for key in ("returnType", "multiArgumentInputs"):
        yield from _changed(key, token, old.get(key), new.get(key), is_breaking=True)
    yield from _rest(token, old, new, {"inputs", "outputs", "returnType", "multiArgumentInputs"})


def _type(token: str, old: Json, new: Json) -> Iterator[SchemaChange]:
    yield from _changed("type", token, old.get("type"), new.get("type"), is_breaking=True)
    yield from _object(token, "both", *(_side(each, "properties", "required") for each in (old, new)))
    before, after = ({_text(item.get("value")): item for item in each.get("enum", ())} for each in (old, new))
    yield from _members("enum value", before, after, token)
    for value in sorted(before.keys() & after.keys()):
        names = (before[value].get("name"), after[value].get("name"))
        yield from _changed("enum name", f"{token} {value}", *names, is_breaking=True)
        yield from _rest(f"{token} {value}", before[value], after[value], {"name", "value"})
    yield from _rest(token, old, new, {"type", "properties", "required", "enum"})


def _object(owner: str, use: Use, old: Side, new: Side) -> Iterator[SchemaChange]:
    """Compare the properties of an object."""
    (before, was_required), (after, is_required) = old, new
    label = {"input": "input", "output": "output", "both": "property"}[use]
    for name in sorted(before.keys() - after.keys()):
        yield SchemaChange(kind=f"{label} removed", where=f"{owner} {name}", is_breaking=True)
    for name in sorted(after.keys() - before.keys()):
        required = name in is_required and use != "output"
        kind = f"required {label} added" if required else f"{label} added"
        yield SchemaChange(kind=kind, where=f"{owner} {name}", is_breaking=required)
    for name in sorted(before.keys() & after.keys()):
        where = f"{owner} {name}"
        if name in is_required - was_required:
            yield SchemaChange(kind=f"{label} became required", where=where, is_breaking=use != "output")
        if name in was_required - is_required:
            yield SchemaChange(kind=f"{label} became optional", where=where, is_breaking=use != "input")
        yield from _property(label, where, before[name], after[name])


def _property(label: str, where: str, old: Json, new: Json) -> Iterator[SchemaChange]:
    types = [_shape(each) for each in (old, new)]
    yield from _changed(f"{label} type", where, *types, is_breaking=True)
    if types[0] == types[1]:
        plain = [_plainness(each) for each in (old, new)]
        yield from _changed(f"{label} plain", where, *plain, is_breaking=True)
    for key in ("default", "defaultInfo", "const", "language"):
        yield from _changed(f"{label} {key}", where, old.get(key), new.get(key), is_breaking=True)
    for key in ("replaceOnChanges", "willReplaceOnChanges"):
        yield from _changed(f"{label} {key}", where, old.get(key), new.get(key), is_breaking=bool(new.get(key)))
    yield from _changed(
        f"{label} secret", where, old.get("secret"), new.get("secret"), is_breaking=not new.get("secret")
    )
    yield from _rest(where, old, new, _COMPARED)


def _shape(spec: object) -> object:
    """Return a type without `plain` and documentation."""
    if isinstance(spec, dict):
        known = cast("dict[str, object]", spec)
        return {key: _shape(known[key]) if key != "discriminator" else known[key] for key in _TYPE if key in known}
    return [_shape(item) for item in cast("list[object]", spec)] if isinstance(spec, list) else spec


def _plainness(spec: object) -> object:
    """Return where a type is plain, which means that no output of another resource is accepted there."""
    if isinstance(spec, list):
        return [_plainness(item) for item in cast("list[object]", spec)]
    if not isinstance(spec, dict):
        return None
    known = cast("dict[str, object]", spec)
    inside = {key: _plainness(known[key]) for key in ("items", "additionalProperties", "oneOf") if key in known}
    return {"plain": bool(known.get("plain", False)), **inside}


def _members(label: str, old: Json, new: Json, owner: str = "") -> Iterator[SchemaChange]:
    for name in sorted(old.keys() - new.keys()):
        yield SchemaChange(kind=f"{label} removed", where=f"{owner} {name}".strip(), is_breaking=True)
    for name in sorted(new.keys() - old.keys()):
        yield SchemaChange(kind=f"{label} added", where=f"{owner} {name}".strip(), is_breaking=False)


def _changed(label: str, where: str, old: object, new: object, *, is_breaking: bool) -> Iterator[SchemaChange]:
    if old != new:
        texts = ["" if each is None else _text(each) for each in (old, new)]
        yield SchemaChange(
            kind=f"{label} changed", where=where, is_breaking=is_breaking, before=texts[0], after=texts[1]
        )


def _rest(where: str, old: Json, new: Json, compared: Iterable[str]) -> Iterator[SchemaChange]:
    """Report differences of all other keys: descriptions, deprecations, keywords, keys that a later Pulumi adds."""
    for key in sorted((old.keys() | new.keys()) - {*compared}):
        if old.get(key) != new.get(key):
            yield SchemaChange(kind=f"{key} changed", where=where, is_breaking=False)


def _part(schema: Json, key: str) -> Json:
    return cast("Json", schema.get(key) or {})


def _side(schema: Json, properties: str, required: str) -> Side:
    return _part(schema, properties), frozenset(cast("Sequence[str]", schema.get(required) or ()))


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
