"""Make untrusted text safe to display (OSC 52 sets the clipboard; CVE-2021-42574 displays other words)."""

import os
import re
from functools import cache

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, bidirectional overrides and isolates, halves of surrogate pairs. Persian, Hindi and emoji need the others."""
_CI_COMMAND = re.compile(r"(?m)^([^\w\n#]*?):(?=:|\Z)|#(?=#\[|#?\Z)")
"""Start of a command to GitHub's runner: `::` first in a line, `##[` anywhere. A text may end within one, and the next continue it."""
_HIDING = "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]"
"""Characters that Python treats as printable but that display nothing: fillers, and variation selectors except the emoji one."""


def for_terminal(text: str) -> str:
    """Return a text that cannot control a terminal or, in a workflow, GitHub's runner: escapes in Python's notation, as in JSON's."""
    shown = _STEERING.sub(lambda found: _escape(found[0]), text)
    if "GITHUB_ACTIONS" in os.environ:
        shown = _CI_COMMAND.sub(lambda found: found[0][:-1] + _escape(found[0][-1]), shown)
    return shown


def for_model(text: str) -> str:
    """Return a text that hides nothing from a human reader. Every invisible character also becomes an escape."""
    shown = text.replace("\n", "").replace("\t", "")
    # True for nearly every text. Checking each character takes ten times as long.
    if shown.isprintable() and not _hiding().search(shown):
        return text
    plain = {char for char in text if char in "\n\t" or (char.isprintable() and not _hiding().match(char))}
    return "".join(char if char in plain else _escape(char) for char in text)


@cache
def _hiding() -> re.Pattern[str]:
    return re.compile(_HIDING)  # 1 ms, and only text for a model needs it


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\U{code:08x}" if code >> 16 else f"\\u{code:04x}"
