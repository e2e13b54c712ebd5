"""Age of a chat template: which of Google's fixes of Gemma 4's template it has."""

from collections.abc import Mapping
from typing import Final, Literal

TEMPLATE: Final = "chat_template.jinja"
"""File of a checkpoint with its chat template."""
TemplateAge = Literal["2026-07", "2026-04", "older", "unknown"]
"""Newest fixes that a template has; `older` lacks one of April too. `unknown` means neither that it has a fix nor that it lacks it."""
_JULY: Final = "Google's fix of 9 July 2026 (repeated tool calls, ends of turns, null arguments)"
AGE_WORDS: Final[Mapping[TemplateAge, str]] = {
    "2026-07": "has Google's fixes of April and 9 July 2026",
    "2026-04": f"has Google's fixes of April 2026, but lacks {_JULY}",
    "older": f"lacks one of Google's fixes of April 2026 (tool results, names of parameters), and {_JULY}",
    "unknown": "has an unknown age: it was not read, or does not write what Google's does",
}
