"""A stack's settings file, edited without loss of comments, order, or the spelling of other lines."""

import difflib
import io
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from gemma_serving.contracts.labels import PRODUCT

Block: TypeAlias = MutableMapping[str, Any]
"""A mapping in the file. ruamel.yaml's type has no parameters."""
_UNWRAPPED = 10_000


class SettingsFile:
    """The text of `Pulumi.<stack>.yaml`, with keys as the settings spell them (`cloudRun.memory`)."""

    def __init__(self, path: Path) -> None:
        """Read the file, which must be YAML with a `config` block."""
        self._text = path.read_text(encoding="utf-8")
        self._document = parse_settings_file(self._text)
        self._config = cast("Block", self._document["config"])

    def apply(self, changes: Mapping[str, object]) -> None:
        """Set keys to new values. None removes a key, and its block if that is then empty."""
        for key, value in changes.items():
            first, *rest = key.split(".")
            _set(self._config, (f"{PRODUCT}:{first}", *rest), value)

    def text(self) -> str:
        """Return the file's text. Only changed lines are rewritten, because the writer has its own style for blanks and quotes.

        Comments stay: the parser attaches them to the key before them, and drops them with it.
        """
        kept = self._text.splitlines(keepends=True)
        before = dump_settings_file(parse_settings_file(self._text)).splitlines(keepends=True)
        after = dump_settings_file(self._document).splitlines(keepends=True)
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


def parse_settings_file(text: str) -> Block:
    """Return the document of a settings file, with its comments and spelling."""
    return cast("Block", cast("Any", _writer()).load(text))


def dump_settings_file(document: Block) -> str:
    """Return a document as text."""
    stream = io.StringIO()
    cast("Any", _writer()).dump(document, stream)
    return stream.getvalue()


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
