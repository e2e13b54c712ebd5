"""`python -m dev.authors.vllm_flags FILE...`: put the `vllm serve` flags of a source archive of vllm into the planner's table.

An archive, vllm-X.Y.Z.tar.gz of the Python package index, is read but never run. The flags follow from the syntax of arg_utils.py, cli_args.py
and the dataclasses in config/. Kinds: switch, toggle (also `--no-`), value, values (one or more words), optional (none or one word).
A flag's line ends with vllm's group of it, as `@ParallelConfig`. The words of a flag that vllm looks up in a registry of its own are its choices.
The table has each line once, with the first release that has it, and the last if newer ones do not. A choice that not all of these have is
`WORD@FIRST-LAST`.
"""

import ast
import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from gemma_serving.contracts.errors import CommandRefusedError
from gemma_serving.planning.model.support import version_key
from gemma_serving.planning.question.server_flags import choices_of, is_of

TABLE: Final = Path(__file__).resolve().parents[2] / "gemma_serving" / "planning" / "data" / "flags.json"
_READ: Final = re.compile(
    r"^[^/]+/(vllm/(?:engine|config|entrypoints)/.*\.py|vllm/.*/(?:__init__|registry)\.py|(?:examples|vllm)/.*\.jinja)$"
)
_REGISTRIES: Final[Mapping[str, str]] = {
    "attention-backend": "AttentionBackendEnum",
    "attention-config.backend": "AttentionBackendEnum",
    "load-format": "LoadFormats",
    "mm-encoder-attn-backend": "AttentionBackendEnum",
    "reasoning-parser": "_REASONING_PARSERS_TO_REGISTER",
    "speculative-config.method": "SpeculativeMethod",
    "structured-outputs-config.backend": "StructuredOutputsBackend",
    "tool-call-parser": "_TOOL_PARSERS_TO_REGISTER",
}
"""Flag without hyphens in front, or key of a flag with a JSON value, and vllm's name of the type, enumeration or dictionary with its words."""
_CHOICES: Final = re.compile(r"(?<=value )[^@<\s]\S*")
_BUILT_IN_TEMPLATES: Final = "vllm/transformers_utils/chat_templates/"
"""Folder where vllm looks for a template by its file name."""


class _VllmSource:
    """Classes and type aliases of the archive; of two with one name, the first."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.trees = {name: ast.parse(text) for name, text in modules.items() if name.endswith(".py")}
        self.groups: dict[str, str] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.sizes = {"max_model_len"}  # fields that vllm reads as numbers with a suffix
        self._owners: dict[str, str] = {}
        self._fields: dict[str, tuple[set[str], str]] = {}
        for node in [node for tree in self.trees.values() for node in tree.body]:
            if isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, node)
            elif isinstance(node, ast.Assign):
                self.aliases.setdefault(ast.unparse(node.targets[0]), node.value)
            elif isinstance(node, ast.AnnAssign) and node.value:
                self.aliases.setdefault(ast.unparse(node.target), node.value)
        for node in [node for tree in self.trees.values() for node in ast.walk(tree)]:
            names = _texts(node.elts) if isinstance(node, ast.Set | ast.List | ast.Tuple) else []
            self.sizes.update(names if "max_num_batched_tokens" in names else ())

    def assign(self, name: str, value: ast.expr) -> None:
        """Note a variable: the result of `get_kwargs`, a field of it, or a separate parser, to which no number type applies."""
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "get_kwargs":
            self._owners[name] = ast.unparse(value.args[0])
        elif isinstance(value, ast.Call) and ast.unparse(value.func).endswith(".add_argument_group"):
            self.groups[name] = "".join(_texts([item.value for item in value.keywords if item.arg == "title"]))
        elif found := self.field(value) if isinstance(value, ast.Subscript) else None:
            self._fields[name] = found
        elif (variable := name.removesuffix("['type']")) in self._fields:
            self._fields[variable] = (self._fields[variable][0], "")

    def field(self, node: ast.expr | None) -> tuple[set[str], str] | None:
        """Return types and name of the field behind `kwargs["field"]`, behind a variable of it, or behind a dictionary that repeats it."""
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(field))):
                annotation = self.fields(self._owners.get(name, "")).get(field)
                return ({*self.types(annotation)}, field) if annotation else None
            case ast.Dict(keys=[None, *_], values=[value, *_]):
                return self.field(value)
            case _:
                return self._fields.get(ast.unparse(node)) if node else None

    def fields(self, owner: str) -> dict[str, ast.expr]:
        """Return the annotations of a dataclass by field, including its bases."""
        node, found = self.classes.get(owner), dict[str, ast.expr]()
        for base in node.bases if node else ():
            found |= self.fields(ast.unparse(base))
        for item in node.body if node else ():
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = item.annotation
        return found

    def types(self, node: ast.expr, depth: int = 10) -> Iterator[str]:
        """Yield the names of the types that an annotation allows, and each literal value as `=VALUE`. `depth`: of aliases."""
        name = ast.unparse(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self.types(ast.parse(node.value, mode="eval").body, depth)
        elif isinstance(node, ast.BinOp):
            yield from (*self.types(node.left, depth), *self.types(node.right, depth))
        elif isinstance(node, ast.Subscript):
            yield from self._generic(ast.unparse(node.value).rpartition(".")[2], node.slice, depth)
        elif name in self.aliases and depth:
            yield from self.types(self.aliases[name], depth - 1)
        else:
            yield name.rpartition(".")[2]

    def _generic(self, name: str, inner: ast.expr, depth: int) -> Iterator[str]:
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if name not in {"Annotated", "Literal", "Optional", "SkipValidation", "Union"}:
            yield name
            return
        for part in parts[:1] if name == "Annotated" else parts:
            is_value = name == "Literal" and isinstance(part, ast.Constant)
            yield from [f"={ast.literal_eval(part)}"] if is_value else self.types(part, depth)

    def words(self, name: str) -> list[str]:
        """Return the members of a type, an enumeration or a dictionary of vllm."""
        node, members = self.aliases.get(name), self.classes.get(name)
        if members is not None:
            return sorted(ast.unparse(item.targets[0]) for item in members.body if isinstance(item, ast.Assign))
        if isinstance(node, ast.Dict):
            return sorted(_texts([key for key in node.keys if key is not None]))
        return sorted(word[1:] for word in self.types(node) if word.startswith("=")) if node is not None else []

    def kind(self, types: set[str]) -> tuple[str, Sequence[str]]:
        """Return vllm's argument kind for a field's types, and its values (`_compute_kwargs` of arg_utils.py)."""
        literals = sorted(name[1:] for name in types if name.startswith("="))
        if "bool" in types:
            return "optional" if types == {"bool", "str", "None"} else "toggle", ()
        if literals:
            return "value", [] if "str" in types else [*literals, *({"None"} & types)]
        return "values" if types & {"list", "tuple", "set", "Sequence"} else "value", ()

    def number(self, types: set[str], field: str) -> str:
        """Return the number type of a field (`_compute_kwargs` of arg_utils.py). int comes before float there."""
        plain = types - {"None"}
        if not field or not plain or plain - {"int", "float"}:
            return ""
        number = "size" if field in self.sizes else "int" if "int" in plain else "float"
        return f"{number}?" if "None" in types else number


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _line(names: Sequence[str], kind: str, choices: Sequence[str], number: str, group: str) -> str:
    """Return a flag as a line: spellings, kind, closed values or the type of a number, with `?` if vllm also accepts `None`, and its group."""
    values = "|".join(choices) or (f"<{number}>" if number and kind == "value" else "")
    return " ".join(filter(None, (*names, kind, values, f"@{group}" if group else "")))


def flags_of(modules: Mapping[str, str]) -> list[str]:
    """Return the lines of the flags that the sources of vllm declare, by name. Raises CommandRefusedError."""
    source = _VllmSource(modules)
    trees = [tree for name, tree in sorted(source.trees.items()) if name.endswith(("/arg_utils.py", "/cli_args.py"))]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    by_name = {line.split()[0]: line for line in (*_declared(source, nodes), *_frontend(source, nodes))}
    if not by_name:
        raise CommandRefusedError("The archive declares no flags. Pass a source archive of vllm.")
    templates = sorted(name.removeprefix(_BUILT_IN_TEMPLATES) for name in modules if name.endswith(".jinja"))
    registered = {name: source.words(registry) for name, registry in _REGISTRIES.items()} | {"chat-template": templates}
    for name, words in registered.items():
        flag, dot, _ = f"--{name}".partition(".")
        if words and flag in by_name:
            spellings = [f"--{name}"] if dot else by_name[flag].split(" value")[0].split()
            more = ["AUTO"] if flag.startswith("--attention") else []  # None, and no member (AttentionConfig)
            by_name[f"--{name}"] = _line(spellings, "value", [*words, *more], "", by_name[flag].partition("@")[2])
    return [by_name[name] for name in sorted(by_name)]


def _declared(source: _VllmSource, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield a line for each `add_argument`, with the properties that `get_kwargs` derives from a dataclass's field."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            source.assign(ast.unparse(node.targets[0]), node.value)
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
            names = sorted(_texts(node.args), key=lambda name: not name.startswith("--"))
            if names[:1] and names[0].startswith("-"):
                group = source.groups.get(ast.unparse(node.func).removesuffix(".add_argument"), "")
                yield _flag(source, names, {item.arg: item.value for item in node.keywords}, group)


def _flag(source: _VllmSource, names: Sequence[str], given: Mapping[str | None, ast.expr], group: str) -> str:
    field = source.field(given.get(None))
    kind, choices = source.kind(field[0]) if field else ("value", ())
    text = {name: ast.unparse(value) for name, value in given.items() if name}
    action = text.get("action", "")
    if action.endswith("BooleanOptionalAction"):
        kind = "toggle"
    elif action.startswith("'store_"):
        kind = "switch"
    if "nargs" in text:
        kind = "optional" if text["nargs"] == "'?'" else "values"
    if isinstance(values := given.get("choices"), ast.List):
        choices = _texts(values.elts)
    plain = text.get("type", "") if text.get("type") in {"int", "float"} else ""
    return _line(names, kind, choices, source.number(*field) if field else plain, group)


def _frontend(source: _VllmSource, nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield a line for each field of the server's dataclass. Some lose their list form if they are customized."""
    deleted = " ".join(ast.unparse(node) for node in nodes if isinstance(node, ast.Delete))
    for name, annotation in source.fields("FrontendArgs").items():
        types = {*source.types(annotation)}
        kind, choices = source.kind(types)
        kind = "value" if f"['{name}'][" in deleted else kind
        yield _line([f"--{name.replace('_', '-')}"], kind, choices, source.number(types, name), "Frontend")


def read(archive: Path) -> tuple[str, Mapping[str, str]]:
    """Return the version and the sources that declare flags. Raises CommandRefusedError."""
    version = re.fullmatch(r"vllm-(\d+\.\d+\.\d+)\.tar\.gz", archive.name)
    if version is None:
        raise CommandRefusedError(f"{archive.name} is not a source archive of vllm. Pass vllm-X.Y.Z.tar.gz.")
    try:
        with tarfile.open(archive) as packed:
            names = {found[1]: member for member in packed if (found := _READ.search(member.name))}
            files = {name: packed.extractfile(member) for name, member in names.items()}
            return version[1], {name: file.read().decode() for name, file in files.items() if file}
    except (OSError, tarfile.TarError) as error:
        raise CommandRefusedError(f"Cannot read {archive}: {str(error).splitlines()[0]}.") from None


def with_releases(table: Mapping[str, Any], lines: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    """Return the table with the lines of some releases, new or replaced."""
    names = sorted({*table["releases"].split(), *lines}, key=lambda name: version_key(name) or ())
    found: dict[str, dict[str, list[str]]] = {}
    for name in names:
        for line in lines[name] if name in lines else _lines_of(table["flags"], name):
            choices = _CHOICES.search(line)
            found.setdefault(_CHOICES.sub("{}", line), {})[name] = choices[0].split("|") if choices else []
    flags: dict[str, str] = {}
    for form, words in sorted(found.items()):
        has = [name in words for name in names]
        by_word = {word: [word in words.get(name, ()) for name in names] for word in sorted({*chain(*words.values())})}
        choices = "|".join(one if of == has else f"{one}@{_bounds(of, names)}" for one, of in by_word.items())
        flags[form.format(choices)] = _bounds(has, names)
    return {**table, "releases": " ".join(names), "flags": flags}


def _lines_of(flags: Mapping[str, str], release: str) -> Iterator[str]:
    for line, bounds in flags.items():
        if is_of(bounds, release):
            yield _CHOICES.sub(lambda found: "|".join(choices_of(found[0], release)), line)


def _bounds(has: Sequence[bool], names: Sequence[str]) -> str:
    """Return the first of the releases that have something, with the last if newer ones do not. Raises CommandRefusedError for a gap."""
    first, last = has.index(True), len(has) - has[::-1].index(True)
    if not all(has[first:last]):
        raise CommandRefusedError(
            f"{names[first]} and {names[last - 1]} have a flag or a choice that a release between them lacks."
        )
    return names[first] + (f"-{names[last - 1]}" if last < len(names) else "")


def main(arguments: Sequence[str], out: Path = TABLE) -> int:
    """Return 0 if the table was written, 2 if an archive is rejected."""
    found: dict[str, list[str]] = {}
    try:
        for name in arguments:
            version, modules = read(Path(name))
            found[version] = flags_of(modules)
        table = with_releases(json.loads(out.read_text(encoding="utf-8")), found)
    except CommandRefusedError as error:
        print(f"vllm_flags: {error}", file=sys.stderr)
        return 2
    out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
