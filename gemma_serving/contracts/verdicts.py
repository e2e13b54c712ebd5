"""Words for the result of a plan."""

from typing import Final, Literal, get_args

Verdict = Literal["fits", "out-of-memory", "blocked"]
Severity = Literal["block", "warn", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""Worst first."""
