"""Words that 0.4.0 dropped, with what to use instead. The release after 0.4.0 drops this table."""

import re
from collections.abc import Mapping
from typing import Final

COMMANDS: Final[Mapping[str, str]] = {}
"""Words after `gemma`."""

SETTINGS: Final[Mapping[str, str]] = {}
"""Keys of a settings file, without the namespace. A key stands for all keys below it."""

FINDINGS: Final[Mapping[str, str]] = {}
"""Ids in `acceptFindings`."""


def answer(table: Mapping[str, str], word: str) -> str:
    """Return what to use instead of a dropped word, or of a key below it; empty for any other word. `[0]` in a key matches `[]`."""
    path = re.sub(r"\[\d+\]", "[]", word)
    return next((text for old, text in table.items() if path == old or path.startswith(f"{old}.")), "")
