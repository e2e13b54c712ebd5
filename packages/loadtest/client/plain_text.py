"""Server text made safe to print on a terminal.

An escape sequence can move the cursor, clear the screen or set the clipboard (OSC 52), and a bidirectional override changes the
displayed text (CVE-2021-42574).
"""

import re

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than line feed and tab, bidirectional overrides and isolates, and lone surrogates.

Joiners, direction marks and unusual blanks are not included, because Persian, Hindi, French and emoji need them.
"""


def for_terminal(text: str) -> str:
    """Return a text that cannot control a terminal. Dangerous characters become escapes in Python notation."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
