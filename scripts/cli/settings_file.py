"""A stack's settings file that can be edited without losing comments, order, or the spelling of other lines."""

import difflib
import io
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from contracts.labels import PRODUCT
from scripts.cli.settings import NO_PROJECT
from stacks.loading import from_values, take_secrets
from stacks.settings import Settings

Block: TypeAlias = MutableMapping[str, Any]
"""A mapping in the file. ruamel.yaml's type has no parameters."""
_UNWRAPPED = 10_000
"""Line width of the writer, wide enough to keep every line."""


class SettingsFile:
    """The text of `Pulumi.<stack>.yaml`, with keys as the settings spell them (`cloudRun.memory`)."""

    def __init__(self, path: Path) -> None:
        """Read the file, which must be YAML with a `config` block."""
        self._name = path.name
        self._text = path.read_text(encoding="utf-8")
        self._document = parsed(self._text)
        self._config = cast("Block", self._document["config"])

    def settings(self) -> Settings:
        """Return the current settings. Raises SettingsError."""
        values: dict[str, object] = {
            key.partition(":")[2]: value for key, value in self._config.items() if key.startswith(f"{PRODUCT}:")
        }
        secrets = take_secrets(values)
        return from_values(values, project=NO_PROJECT, secrets=list(secrets), origin=self._name)

    def apply(self, changes: Mapping[str, object]) -> None:
        """Set keys to new values. None removes a key, and its block if that is then empty."""
        for key, value in changes.items():
            first, *rest = key.split(".")
            path = (f"{PRODUCT}:{first}", *rest)
            if value is None:
                _remove(self._config, path)
            else:
                _set(self._config, path, value)

    def text(self) -> str:
        """Return the file's text. Only changed lines are rewritten, because the writer has its own style for blanks and quotes."""
        kept = self._text.splitlines(keepends=True)
        before = dumped(parsed(self._text)).splitlines(keepends=True)
        after = dumped(self._document).splitlines(keepends=True)
        if len(before) != len(kept):
            return "".join(after)
        lines: list[str] = []
        for operation, start, end, new_start, new_end in difflib.SequenceMatcher(
            a=before, b=after, autojunk=False
        ).get_opcodes():
            lines += kept[start:end] if operation == "equal" else after[new_start:new_end]
        return "".join(lines)


def _writer() -> YAML:
    writer = YAML()
    writer.preserve_quotes = True
    writer.width = _UNWRAPPED
    return writer


def parsed(text: str) -> Block:
    """Return the document of a settings file, with its comments and spelling."""
    return cast("Block", cast("Any", _writer()).load(text))


def dumped(document: Block) -> str:
    """Return a document as text."""
    stream = io.StringIO()
    cast("Any", _writer()).dump(document, stream)
    return stream.getvalue()


def _set(block: Block, path: tuple[str, ...], value: object) -> None:
    key, *rest = path
    if rest:
        if not isinstance(block.get(key), MutableMapping):
            block[key] = CommentedMap()
        _set(cast("Block", block[key]), tuple(rest), value)
        return
    orphans = tuple(_comments_after(block, key)) if isinstance(block.get(key), MutableMapping) else ()
    block[key] = _in_style(value, block.get(key))
    _comment_next(block, key, orphans)


def _in_style(value: object, before: object) -> object:
    """Return a list on one line if the previous one was."""
    if not isinstance(value, list | tuple) or not isinstance(before, CommentedSeq):
        return cast("object", value)
    items: Any = CommentedSeq(cast("Sequence[object]", value))
    if cast("Any", before).fa.flow_style():
        items.fa.set_flow_style()
    return items


def _remove(block: Block, path: tuple[str, ...]) -> None:
    key, *rest = path
    if key not in block:
        return
    if rest:
        inner = cast("Block", block[key])
        _remove(inner, tuple(rest))
        if inner:
            return
    orphans = tuple(_comments_after(block, key))
    _comment_next(block, key, orphans)
    del block[key]


def _comments_after(block: Block, key: str) -> Iterator[str]:
    """Yield the comment lines that the parser attaches to a key although they precede the next one."""
    column = cast("int", cast("Any", block).lc.key(key)[1])
    holder: Any = block
    name: Any = key
    while True:
        token = holder.ca.items.get(name, (None, None, None))[2]
        value = holder[name]
        if not isinstance(value, MutableMapping) or not value:
            break
        holder = cast("Block", value)
        name = list(holder)[-1]
    if token is None:
        return
    _, _, below = str(token.value).partition("\n")
    for line in below.splitlines():
        text = line.lstrip()
        if text.startswith("#") and len(line) - len(text) <= column:
            yield text.lstrip("#").strip()


def _comment_next(block: Block, key: str, comments: tuple[str, ...]) -> None:
    """Add comments before the key that follows."""
    keys = list(block)
    position = keys.index(key) + 1
    if comments and position < len(keys):
        column = cast("Any", block).lc.key(keys[position])[1]
        cast("Any", block).yaml_set_comment_before_after_key(keys[position], before="\n".join(comments), indent=column)
