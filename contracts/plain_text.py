"""Text that others wrote, made safe to read: for a terminal, and for a model.

A server, a machine, a log line or a model can write anything. An escape sequence in it moves the cursor, clears the screen or sets the
clipboard (OSC 52), and a bidirectional override shows other words than were written (CVE-2021-42574).
"""

import re

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than line feed and tab, bidirectional overrides and isolates, halves of surrogate pairs.

Joiners, marks of direction and unusual blanks stay: Persian, Hindi, French and emoji need them.
"""
_HIDING = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0e\uffa0\U000e0100-\U000e01ef]")
"""Characters that Python calls printable and that show nothing: fillers, and variation selectors without the one of emoji."""
_SHORT = 0xFFFF
"""Highest character of the short form of an escape."""


def for_terminal(text: str) -> str:
    """Return a text that cannot steer a terminal: characters that could are escapes, as Python writes them."""
    return _STEERING.sub(lambda found: _escape(found[0]), text)


def for_model(text: str) -> str:
    """Return a text in which nothing is hidden from a person who reads along: every character that shows nothing is an escape too."""
    shown = text.replace("\n", "").replace("\t", "")
    # Nearly every text is so. A look at each character takes ten times as long.
    if shown.isprintable() and not _HIDING.search(shown):
        return text
    return "".join(char if _is_plain(char) else _escape(char) for char in text)


def _is_plain(char: str) -> bool:
    return char in "\n\t" or (char.isprintable() and not _HIDING.match(char))


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\u{code:04x}" if code <= _SHORT else f"\\U{code:08x}"
