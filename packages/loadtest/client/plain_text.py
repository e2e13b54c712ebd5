"""Server text made safe to print on a terminal.

An escape sequence can move the cursor, clear the screen or set the clipboard (OSC 52), and a bidirectional override changes the
displayed text (CVE-2021-42574).
"""

import os
import re
import sys
from typing import TextIO

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than line feed and tab, bidirectional overrides and isolates, and lone surrogates.

Joiners, direction marks and unusual blanks are not included, because Persian, Hindi, French and emoji need them.
"""
_CI_COMMAND = re.compile(r"(?m)^([^\w\n#]*?):(?=:|\Z)|#(?=#\[|#?\Z)")
"""Start of a command to GitHub's runner: `::` first in a line, `##[` anywhere. A text may end within one, and the next continue it."""


def for_terminal(text: str) -> str:
    """Return a text that cannot control a terminal or, in a workflow, GitHub's runner: escapes in Python notation, as in JSON's."""
    shown = _STEERING.sub(_escaped, text)
    return _CI_COMMAND.sub(_escaped, shown) if "GITHUB_ACTIONS" in os.environ else shown


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print a text and a line feed on stdout or a stream, as `for_terminal`."""
    print(for_terminal(f"{text}\n"), end="", file=stream or sys.stdout, flush=True)


def _escaped(found: re.Match[str]) -> str:
    return f"{found[0][:-1]}\\u{ord(found[0][-1]):04x}"
