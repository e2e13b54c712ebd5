"""Text that a server wrote, made safe to read on a terminal.

An escape sequence in it moves the cursor, clears the screen or sets the clipboard (OSC 52), and a bidirectional override shows other
words than were written (CVE-2021-42574).
"""

import re

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than line feed and tab, bidirectional overrides and isolates, halves of surrogate pairs.

Joiners, marks of direction and unusual blanks stay: Persian, Hindi, French and emoji need them.
"""


def for_terminal(text: str) -> str:
    """Return a text that cannot steer a terminal: characters that could are escapes, as Python writes them."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
