"""Words for the result of a plan."""

from typing import Literal

Verdict = Literal["fits", "out-of-memory", "blocked"]
Severity = Literal["block", "warn", "info"]
