"""A stack's settings file, edited without loss of comments, order, or the spelling of other lines."""

import difflib
import io
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from gemma_serving.contracts.fields import as_mapping
from gemma_serving.contracts.labels import PRODUCT

Block: TypeAlias = MutableMapping[str, Any]
"""A mapping in the file. ruamel.yaml's type has no parameters."""
_UNWRAPPED = 10_000


class SettingsFile:
    """The text of `Pulumi.<stack>.yaml`, with keys as the settings spell them (`cloudRun.memory`)."""

    def __init__(self, text: str) -> None:
        """Parse the text, which must be YAML. Raises YAMLError."""
        self._text = text.rstrip("\n") + "\n"
        self._document = _parsed(text)

    def apply(self, changes: Mapping[str, object]) -> None:
        """Set keys to new values. None removes a key. Raises KeyError for a file without a `config` block."""
        config = cast("Block", self._document["config"])
        for key, value in changes.items():
            first, *rest = key.split(".")
            _set(config, (f"{PRODUCT}:{first}", *rest), value)

    def merge(self, before: str, after: str) -> None:
        """Apply the changes of values between two versions of the file, except to keys that this file has changed, too. Raises YAMLError."""
        _merge(self._document, _plain(self._text), _plain(before), _plain(after))

    def text(self) -> str:
        """Return the file's text. Only changed lines are rewritten, because the writer has its own style for blanks and quotes.

        Comments stay: the parser attaches them to the key before them, and drops them with it.
        """
        kept = self._text.splitlines(keepends=True)
        before = _dumped(_parsed(self._text)).splitlines(keepends=True)
        after = _dumped(self._document).splitlines(keepends=True)
        if before == after:
            return self._text
        if len(before) != len(kept):
            return "".join(after)
        lines: list[str] = []
        matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
        for operation, start, end, new_start, new_end in matcher.get_opcodes():
            if operation == "equal":
                lines += kept[start:end]
                continue
            lines += after[new_start:new_end]
            lines += [line for line in kept[start:end] if line.lstrip().startswith("#")]
        return "".join(lines)


def _writer() -> YAML:
    writer = YAML()
    writer.preserve_quotes = True
    writer.width = _UNWRAPPED
    return writer


def _parsed(text: str) -> Block:
    return cast("Block", cast("Any", _writer()).load(text))


def _plain(text: str) -> Mapping[str, object]:
    return cast("Mapping[str, object]", cast("Any", YAML(typ="safe", pure=True)).load(text) or {})


def _dumped(document: Block) -> str:
    stream = io.StringIO()
    cast("Any", _writer()).dump(document, stream)
    return stream.getvalue()


def _merge(block: Block, now: object, before: object, after: object) -> None:
    """Set in `block`, whose values are `now`, each value that differs between `before` and `after`."""
    theirs, old, new = as_mapping(now), as_mapping(before), as_mapping(after)
    for key in {**old, **new}:
        if new.get(key) == old.get(key):
            continue
        if isinstance(block.get(key), MutableMapping) and isinstance(new.get(key), Mapping):
            _merge(cast("Block", block[key]), theirs.get(key), old.get(key), new[key])
        elif theirs.get(key) == old.get(key):
            _set(block, (key,), new.get(key))


def _set(block: Block, path: Sequence[str], value: object) -> None:
    key, *rest = path
    if rest:
        if not isinstance(block.get(key), MutableMapping):
            block[key] = CommentedMap()
        _set(cast("Block", block[key]), rest, value)
    elif value is None:
        block.pop(key, None)
    else:
        block[key] = value
