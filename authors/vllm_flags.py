"""`python -m authors.vllm_flags FILE...`: write a table of `vllm serve` flags from a vllm archive, a wheel or a source archive.

The archive is read but never run or installed. The flags follow from the syntax of `engine/arg_utils.py`, of the server's `cli_args.py`
and of the dataclasses in `config/`. Get the archive with `pip download --no-deps --no-binary :all: vllm==VERSION` or from the package index.
"""

import argparse
import ast
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "planning" / "data" / "flags"
_READ: Final = re.compile(r"(?:^|/)(vllm/(?:engine|config|entrypoints)/.*\.py)$")
_VERSION: Final = re.compile(r"vllm-(\d+\.\d+\.\d+)[.+-]")
_COLLECTIONS: Final = frozenset({"list", "tuple", "set", "Sequence"})
_TRANSPARENT: Final = frozenset({"Annotated", "SkipValidation"})
_UNIONS: Final = frozenset({"Union", "Optional"})


class FlagsError(ValueError):
    """The archive cannot be read. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class DeclaredFlag:
    """One flag of the server."""

    names: tuple[str, ...]
    """All spellings, the long one first."""
    kind: str
    """switch, toggle (with a `--no-` form), value, values (one or more words) or optional (none or one word)."""
    choices: tuple[str, ...] = ()
    number: str = ""
    """int, float or size (a whole number with k, M and so on), with a `?` if vllm also accepts `None`. Empty if it need not be a number."""

    def line(self) -> str:
        """Return the flag as a line of the table."""
        number = f"<{self.number}>" if self.number else ""
        return " ".join((*self.names, self.kind, "|".join(self.choices) or number)).rstrip()


@dataclass(frozen=True, slots=True)
class _Type:
    """Values allowed by an annotation."""

    names: frozenset[str]
    literals: tuple[str, ...] = ()
    field: str = ""
    """Field of a dataclass that declares it."""


class _Source:
    """Classes and type aliases of the archive."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.trees = {name: ast.parse(text) for name, text in modules.items()}
        self.sizes = frozenset(self._sizes())
        self.classes: dict[str, ast.ClassDef] = {}
        self._aliases: dict[str, ast.expr] = {}
        for tree in self.trees.values():
            for node in tree.body:
                match node:
                    case ast.ClassDef():
                        self.classes.setdefault(node.name, node)
                    case (
                        ast.Assign(targets=[ast.Name(id=name)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    ):
                        self._aliases.setdefault(name, value)
                    case _:
                        pass

    def _sizes(self) -> Iterator[str]:
        """Yield the fields that vllm reads as numbers with a suffix: sets of names with max_num_batched_tokens, and max_model_len."""
        yield "max_model_len"
        for tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Set | ast.List | ast.Tuple):
                    names = [item.value for item in node.elts if isinstance(item, ast.Constant)]
                    if "max_num_batched_tokens" in names:
                        yield from (name for name in names if isinstance(name, str))

    def function(self, module: str, name: str, owner: str = "") -> ast.FunctionDef:
        """Return a function, or a method of the class `owner`. Raises FlagsError."""
        body = self.classes[owner].body if owner in self.classes else self.tree(module).body
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        raise FlagsError(
            f"Cannot create the table because {module} has no function {owner}{'.' if owner else ''}{name}."
        )

    def tree(self, end: str) -> ast.Module:
        """Return the first module whose path ends with `end`. Raises FlagsError."""
        for name, tree in sorted(self.trees.items()):
            if name.endswith(end):
                return tree
        raise FlagsError(f"The archive has no {end}. Pass a wheel or a source archive of vllm.")

    def fields(self, owner: str) -> dict[str, ast.expr]:
        """Return the annotations of a dataclass by field, including its bases."""
        node = self.classes.get(owner)
        if node is None:
            return {}
        found: dict[str, ast.expr] = {}
        for base in node.bases:
            if isinstance(base, ast.Name):
                found |= self.fields(base.id)
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = item.annotation
        return found

    def type_of(self, node: ast.expr, depth: int = 0) -> _Type:
        """Return the values allowed by an annotation."""
        found = _Type(frozenset({"other"}))
        match node:
            case ast.Constant(value=None):
                found = _Type(frozenset({"None"}))
            case ast.Constant(value=str(text)):
                found = self.type_of(ast.parse(text, mode="eval").body, depth)
            case ast.BinOp(op=ast.BitOr()):
                found = _joined(self.type_of(node.left, depth), self.type_of(node.right, depth))
            case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name)):
                found = self._generic(name, node.slice, depth)
            case ast.Name(id=name) if name in self._aliases and depth < 10:  # noqa: PLR2004 - aliases of aliases
                found = self.type_of(self._aliases[name], depth + 1)
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found = _Type(frozenset({name}))
            case _:
                pass
        return found

    def _generic(self, name: str, inner: ast.expr, depth: int) -> _Type:
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if name == "Literal":
            return _Type(frozenset({"Literal"}), tuple(self._literals(parts)))
        if name in _TRANSPARENT:
            return self.type_of(parts[0], depth)
        if name in _UNIONS:
            return _joined(*(self.type_of(part, depth) for part in parts))
        return _Type(frozenset({name}))

    def _literals(self, parts: Sequence[ast.expr]) -> Iterator[str]:
        for part in parts:
            match part:
                case ast.Constant(value=value):
                    yield str(value)
                case ast.Name():
                    yield from self.type_of(part).literals
                case _:
                    pass


def _joined(*types: _Type) -> _Type:
    return _Type(
        frozenset[str]().union(*(one.names for one in types)), tuple(text for one in types for text in one.literals)
    )


def flags_of(modules: Mapping[str, str]) -> list[DeclaredFlag]:
    """Return the flags that the sources of vllm declare, by name. Raises FlagsError."""
    source = _Source(modules)
    engine, server = "engine/arg_utils.py", "/cli_args.py"
    found = [
        *_declared(source, source.function(engine, "add_cli_args", "EngineArgs")),
        *_declared(source, source.function(engine, "add_cli_args", "AsyncEngineArgs")),
        *_declared(source, source.function(server, "make_arg_parser")),
        *_frontend(source, source.tree(server)),
    ]
    by_name = {flag.names[0]: flag for flag in found}
    return [by_name[name] for name in sorted(by_name)]


def _declared(source: _Source, function: ast.FunctionDef) -> Iterator[DeclaredFlag]:
    """Yield the flags declared by `add_argument`, with the properties that `get_kwargs` derives from a dataclass's field."""
    kinds: dict[str, _Type | str] = {}
    changed = frozenset(_with_another_parser(function))
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=owner)]),
            ):
                kinds[name] = owner
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                found = _field_type(source, kinds, value)
                kinds[name] = replace(found, field="") if found and name in changed else found or "other"
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                names = [
                    item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)
                ]
                if names and names[0].startswith("-"):
                    yield _flag(source, kinds, names, node.keywords)
            case _:
                pass


def _with_another_parser(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the names of arguments whose `type` is set explicitly, so the number type of the field's annotation does not apply."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value="type"))]):
                yield name
            case _:
                pass


def _field_type(source: _Source, kinds: Mapping[str, _Type | str], node: ast.expr) -> _Type | None:
    """Return the type behind `kwargs["field"]`, behind a name for it, or behind a dictionary that repeats it."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))):
            owner = kinds.get(name)
            annotation = source.fields(owner).get(field) if isinstance(owner, str) else None
            return replace(source.type_of(annotation), field=field) if annotation is not None else None
        case ast.Name(id=name):
            known = kinds.get(name)
            return known if isinstance(known, _Type) else None
        case ast.Dict(keys=[None, *_], values=[value, *_]):
            return _field_type(source, kinds, value)
        case _:
            return None


def _flag(
    source: _Source, kinds: Mapping[str, _Type | str], names: Sequence[str], keywords: Sequence[ast.keyword]
) -> DeclaredFlag:
    given = {item.arg: item.value for item in keywords if item.arg}
    repeated = [item.value for item in keywords if item.arg is None]
    field = _field_type(source, kinds, repeated[0]) if repeated else None
    kind, choices = _kind(source, field) if field is not None else ("value", ())
    match given.get("action"):
        case ast.Constant(value="store_true" | "store_false"):
            kind = "switch"
        case ast.Attribute(attr="BooleanOptionalAction") | ast.Name(id="BooleanOptionalAction"):
            kind = "toggle"
        case _:
            pass
    match given.get("nargs"):
        case ast.Constant(value="?"):
            kind = "optional"
        case ast.Constant():
            kind = "values"
        case _:
            pass
    match given.get("choices"):
        case ast.List(elts=items) if all(isinstance(item, ast.Constant) for item in items):
            choices = tuple(str(item.value) for item in items if isinstance(item, ast.Constant))
        case _:
            pass
    ordered = sorted(names, key=lambda name: not name.startswith("--"))
    number = "" if choices or kind != "value" else _number(source, field) if field else _plain_number(given.get("type"))
    return DeclaredFlag(tuple(ordered), kind, choices, number)


def _plain_number(parser: ast.expr | None) -> str:
    """Return the number type required by `type=int` or `type=float`."""
    return parser.id if isinstance(parser, ast.Name) and parser.id in {"int", "float"} else ""


def _number(source: _Source, allowed: _Type) -> str:
    """Return the number type required by a field's type (`_compute_kwargs` of arg_utils.py). int comes before float there."""
    plain = allowed.names - {"None"}
    if not allowed.field or not plain or plain - {"int", "float"}:
        return ""
    number = "size" if allowed.field in source.sizes else "int" if "int" in plain else "float"
    return f"{number}?" if "None" in allowed.names else number


def _kind(source: _Source, allowed: _Type) -> tuple[str, tuple[str, ...]]:
    """Return vllm's argument kind for a field's type (`_compute_kwargs` of arg_utils.py)."""
    names = allowed.names
    if any(name in source.classes and _is_dataclass(source.classes[name]) for name in names):
        return "value", ()
    if names == frozenset({"bool", "str", "None"}):
        return "optional", ()
    if "bool" in names:
        return "toggle", ()
    if "Literal" in names:
        none = ("None",) if "None" in names else ()
        return "value", () if "str" in names else (*sorted(set(allowed.literals)), *none)
    return ("values" if names & _COLLECTIONS else "value"), ()


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("config" in ast.dump(item) or "dataclass" in ast.dump(item) for item in node.decorator_list)


def _frontend(source: _Source, tree: ast.Module) -> Iterator[DeclaredFlag]:
    """Yield a flag for each field of the server's dataclass. Some lose their list form where they are customized."""
    single = {
        field.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Delete)
        for target in node.targets
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Subscript)
        for field in [target.value.slice]
        if isinstance(field, ast.Constant)
    }
    for name, annotation in source.fields("FrontendArgs").items():
        allowed = replace(source.type_of(annotation), field=name)
        kind, choices = _kind(source, allowed)
        number = _number(source, allowed) if kind == "value" and not choices else ""
        yield DeclaredFlag((f"--{name.replace('_', '-')}",), "value" if name in single else kind, choices, number)


def read(path: Path) -> tuple[str, dict[str, str]]:
    """Return the version and the sources that declare flags. Raises FlagsError."""
    version = _VERSION.match(path.name)
    if version is None:
        raise FlagsError(f"{path.name} is not a release of vllm. Pass vllm-X.Y.Z.tar.gz or a wheel of it.")
    try:
        members = dict(_members(path))
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise FlagsError(f"Cannot read {path}: {str(error).splitlines()[0]}.") from None
    return version[1], members


def _members(path: Path) -> Iterator[tuple[str, str]]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                if (found := _READ.search(name)) is not None:
                    yield found[1], wheel.read(name).decode()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            found = _READ.search(member.name)
            content = archive.extractfile(member) if found is not None else None
            if found is not None and content is not None:
                yield found[1], content.read().decode()


def text_of(version: str, flags: Sequence[DeclaredFlag]) -> str:
    """Return the table as JSON, one flag per line: spellings, kind, and the values if they are closed or numbers."""
    table = {
        "version": version,
        "source": f"vllm {version}, source archive on the Python package index",
        "flags": [flag.line() for flag in flags],
    }
    return json.dumps(table, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if each table was written, 2 if an archive is rejected."""
    parser = argparse.ArgumentParser(prog="python -m authors.vllm_flags", description=__doc__)
    parser.add_argument("archive", nargs="+", type=Path, help="wheel or source archive of vllm")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the tables (default: planning/data/flags)")
    options = parser.parse_args(arguments)
    for path in options.archive:
        try:
            version, modules = read(path)
            flags = flags_of(modules)
        except FlagsError as error:
            print(f"vllm_flags: {error}", file=sys.stderr)
            return 2
        target = options.out / f"{version}.json"
        target.write_text(text_of(version, flags), encoding="utf-8")
        print(f"vllm_flags: {len(flags)} flags of vllm {version} in {target}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
